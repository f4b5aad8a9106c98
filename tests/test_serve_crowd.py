"""Many requests at once: the same results as alone, cancelled requests leave nothing behind, overload is rejected at once."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from conftest import needs_compiler

pytest.importorskip("fastapi")
from served import TEXTS, all_models, language_model, model, served
from starlette.testclient import TestClient

from qkv.generate.sequence import Sampler
from qkv.serve.api.service import Service
from qkv.serve.app import create_app
from qkv.serve.http.errors import ApiError
from qkv.serve.http.limits import Limits
from qkv.serve.http.metrics import Metrics
from qkv.serve.scheduling import scheduler
from qkv.serve.scheduling.queue import RequestQueue
from qkv.serve.scheduling.scheduled_text import ScheduledText
from qkv.serve.scheduling.scheduler import Scheduler
from qkv.serve.scheduling.served_model import ServedModel


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(all_models(), limits=Limits(tokens=16, seconds=30.0)) as found:
        yield found


def lm_only(**limits: Any) -> Service:
    return Service([ServedModel("lm", language_model(), batches=1)], Limits(**limits))


def test_a_crowd_gets_what_each_gets_alone(client: TestClient) -> None:
    """Texts of all kinds and lengths at the same time."""

    def ask(i: int) -> Any:
        text = TEXTS[i % 6]
        if i % 3 == 0:
            return client.post(
                "/translate", json={"q": text, "source": "en", "target": "de", "alternatives": i % 4}
            ).json()
        asked = {"model": "lm", "prompt": text, "max_tokens": 3 + i % 13, "temperature": i % 2, "seed": i}
        return client.post("/v1/completions", json=asked).json()["choices"]

    alone = [ask(i) for i in range(24)]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, range(24))) == alone


def test_overload_is_refused_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far more than there is room for: some are answered, the others are told to come again, and afterwards all is well."""
    service = lm_only(waiting=4, rows=2, tokens=30)
    with TestClient(create_app(service), "http://localhost", raise_server_exceptions=False) as client:
        body, refusal = {"prompt": "the dog", "max_tokens": 30}, threading.Event()
        (thread,) = service.models[0].schedulers
        step = thread.batch.step
        thread.batch.step = lambda: (refusal.wait(60), step())[1]  # type: ignore[method-assign]

        def ask(_: int) -> Any:
            reply = client.post("/api/generate", json=body)
            if reply.status_code == 503:  # there is no room left: now the texts may be written
                refusal.set()
            return reply

        with ThreadPoolExecutor(40) as pool:
            replies = list(pool.map(ask, range(40)))
        codes = [reply.status_code for reply in replies]
        assert set(codes) == {200, 503} and codes.count(200) >= 3
        refused = next(reply for reply in replies if reply.status_code == 503)
        assert int(refused.headers["Retry-After"]) >= 1 and "retry after" in refused.json()["error"]
        assert len({reply.json()["text"] for reply in replies if reply.status_code == 200}) == 1
        assert client.post("/api/generate", json=body).status_code == 200
        assert service.models[0].queue.waiting == type(service.models[0].queue.waiting)()


@pytest.mark.parametrize(("path", "stream"), [("/api/generate", False), ("/v1/completions", True)])
def test_what_takes_too_long_is_given_up(path: str, stream: bool) -> None:
    """A text whose second token does not come before the answer: it cannot end earlier, however fast the machine is."""
    service, answered, steps = lm_only(seconds=0.5), threading.Event(), list[None]()
    with TestClient(create_app(service), "http://localhost", raise_server_exceptions=False) as client:
        thread = service.models[0].schedulers[0]
        step = thread.batch.step

        def held() -> Any:
            steps.append(None)
            assert len(steps) == 1 or answered.wait(60)
            return step()

        thread.batch.step = held  # type: ignore[method-assign]
        asked = {"model": "lm", "prompt": "the dog", "max_tokens": 80, "temperature": 0, "stream": stream}
        reply = client.post(path, json=asked)
        answered.set()
        assert reply.status_code == (200 if stream else 503) and "longer than 0.5 s" in reply.text
        assert not stream or reply.text.endswith("data: [DONE]\n\n")
        settled(lambda: not thread.active and not thread.batch.running)


def settled(done: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "still not"
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "more"), [("/api/generate", {}), ("/v1/completions", {"model": "lm", "n": 3})])
def test_a_client_that_goes_away_frees_its_place(stream: bool, path: str, more: dict[str, Any]) -> None:
    """In the middle of an answer, streamed or not, the connection ends: at the next step nobody writes for it."""
    service = lm_only(tokens=90)
    app = create_app(service)
    batch_sizes: list[int] = []
    left = threading.Event()

    async def talk() -> None:
        async with app.app.router.lifespan_context(app.app):
            thread = service.models[0].schedulers[0]
            step = thread.batch.step

            def held() -> Any:
                """Up to the thirtieth token; then it waits until the client has gone."""
                batch_sizes.append(len(thread.batch.running))
                assert len(batch_sizes) < 30 or left.wait(60)
                return step()

            thread.batch.step = held  # type: ignore[method-assign]
            gone, begun = asyncio.Event(), asyncio.Event()
            asked = {"prompt": "the dog", "max_tokens": 90, "temperature": 0, "stream": stream}
            body = json.dumps(asked | more).encode()
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive() -> Any:
                if messages:
                    return messages.pop()
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                if message.get("body"):
                    begun.set()

            scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "root_path": "",
                     "query_string": b"", "http_version": "1.1", "scheme": "http", "server": ("test", 80), "client": ("x", 1),
                     "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
                     "asgi": {"version": "3.0", "spec_version": "2.3"}}  # fmt: skip
            task = asyncio.create_task(app(scope, receive, send))
            while len(batch_sizes) < 30:
                await asyncio.sleep(0.01)
            if stream:
                await begun.wait()
            gone.set()
            await asyncio.wait_for(task, 60)
            left.set()
            while thread.active:
                await asyncio.sleep(0.01)
            assert not thread.batch.running and len(batch_sizes) == 30

    asyncio.run(talk())


def scheduled_text(longest: int = 5) -> ScheduledText:
    """A text of exactly so many tokens."""
    return ScheduledText([1], None, Sampler(longest, ()))


def scheduler_without_thread() -> Scheduler:
    """A scheduler whose thread is not started: the test calls its steps."""
    return Scheduler(0, RequestQueue(Limits(), 1), language_model().network, 0, 1, "lm", Metrics(), nullcontext())


def test_a_client_may_disconnect_at_any_moment_of_a_step() -> None:
    """Also after the scheduler has removed cancelled texts: the others are completed."""

    async def scene() -> None:
        thread, leaves, stays = scheduler_without_thread(), scheduled_text(5), scheduled_text(8)
        thread.step([leaves, stays])
        drop = thread.batch.remove

        def late(texts: Any) -> None:
            drop(texts)
            leaves.cancelled = True

        thread.batch.remove = late  # type: ignore[method-assign]
        for _ in range(10):
            thread.step([])
        assert len((await asyncio.wait_for(stays.wait(), 20)).tokens) == 8
        assert not thread.active and not thread.batch.running

    asyncio.run(scene())


def test_texts_that_cannot_be_read_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        thread, there, new = scheduler_without_thread(), scheduled_text(), [scheduled_text(), scheduled_text()]
        thread.step([there])
        monkeypatch.setattr(scheduler, "make_batch", lambda *_: 1 / 0)
        thread.step(new)
        for one in new:
            with pytest.raises(ApiError, match="internal error"):
                await asyncio.wait_for(one.wait(), 20)
        while thread.batch.running:
            thread.step([])
        assert len((await asyncio.wait_for(there.wait(), 20)).tokens) == 5

    asyncio.run(scene())


def test_the_queue_is_never_longer_than_its_limit(client: TestClient) -> None:
    """Also when it is empty: a request that could never wait is refused for good, not told to come again."""

    async def scene() -> None:
        with pytest.raises(ApiError, match="6 texts to generate at once, but this server takes at most 3") as refused:
            RequestQueue(Limits(waiting=3), schedulers=1).put([scheduled_text() for _ in range(6)])
        assert refused.value.status == 400

    asyncio.run(scene())
    many = {"model": "lm", "prompt": ["the dog"] * 33, "n": 2, "max_tokens": 1}
    reply = client.post("/v1/completions", json=many)
    assert reply.status_code == 400 and "66 texts" in reply.json()["error"]["message"]
    with served([ServedModel("tags", model("bert-base", head="tags"))], limits=Limits(waiting=2)) as few:
        reply = few.post("/api/tag", json={"texts": ["the dog"] * 3})
        assert reply.status_code == 400 and "at most 2" in reply.json()["error"]


def test_a_call_that_took_too_long_does_not_hold_up_the_next() -> None:
    """Its answer is refused, and the thread stops computing it at the next pass of the network."""
    service = Service([ServedModel("tags", model("bert-base", head="tags"))], Limits(seconds=0.5))
    with TestClient(create_app(service), "http://localhost", raise_server_exceptions=False) as client:
        tagger = service.models[0].model
        tag, batch = tagger.tag, tagger.batch([[1, 5, 2]])

        def endless(texts: Any) -> Any:
            while True:
                tagger.network(batch)

        tagger.tag = endless  # type: ignore[method-assign]
        assert client.post("/api/tag", json={"texts": "the dog"}).status_code == 503
        tagger.tag = tag  # type: ignore[method-assign]
        settled(lambda: client.post("/api/tag", json={"texts": "the dog"}).status_code == 200)
        assert 'qkv_failures_total{model="tags"}' not in client.get("/metrics").text


def test_whoever_is_gone_is_forgotten_while_waiting() -> None:
    async def scene() -> None:
        queue = RequestQueue(Limits(waiting=3), schedulers=2)
        texts = [scheduled_text() for _ in range(6)]
        queue.put(texts[:3])
        with pytest.raises(ApiError, match="queue is full"):
            queue.put(texts[3:])
        texts[1].cancelled = True  # in the middle of the queue
        queue.put(texts[3:4])
        texts[0].cancelled = True
        assert queue.take(0, [], 0) == [texts[2]]  # half of what waits: there are two schedulers
        assert queue.take(1, [], 0) == [texts[3]]
        queue.close()
        assert queue.take(0, [], 1) is None
        with pytest.raises(ApiError, match="shutting down"):
            queue.put(texts[:1])

    asyncio.run(scene())


def test_a_failure_in_a_batch_fails_only_the_texts_in_it() -> None:
    service = Service(
        [ServedModel("lm", language_model(), batches=1), ServedModel("tags", model("bert-base", head="tags"))]
    )
    with TestClient(create_app(service), "http://localhost", raise_server_exceptions=False) as client:
        good = client.post("/api/generate", json={"prompt": "the dog"}).json()
        thread = service.models[0].schedulers[0]
        thread.batch.step = lambda: 1 / 0  # type: ignore[method-assign, assignment]
        assert client.post("/api/generate", json={"prompt": "the dog"}).status_code == 500
        assert client.post("/api/generate", json={"prompt": "the dog"}).json() == good
        tagger = service.models[1].model
        tag, tagger.tag = tagger.tag, lambda _: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        assert client.post("/api/tag", json={"texts": "the dog"}).status_code == 500
        tagger.tag = tag  # type: ignore[method-assign]
        assert client.post("/api/tag", json={"texts": "the dog"}).status_code == 200
        assert 'qkv_failures_total{model="lm"} 1.0' in client.get("/metrics").text


@needs_compiler
def test_calls_that_wait_are_answered_together_and_a_bad_one_alone(client: TestClient) -> None:
    tagger = next(one for one in client.service.models if one.name == "tags")  # type: ignore[attr-defined]
    sizes, tag = [], tagger.model.tag

    def slow(texts: list[Any]) -> Any:
        sizes.append(len(texts))
        if len(sizes) == 1:
            settled(lambda: len(tagger.batcher.queue.waiting) == 6)
        return tag(texts)

    tagger.model.tag = slow
    try:
        with ThreadPoolExecutor(9) as pool:
            ask = lambda text: client.post("/api/tag", json={"texts": text})  # noqa: E731
            replies = [pool.submit(ask, "the dog")]
            settled(lambda: sizes)
            replies += [pool.submit(ask, text) for text in TEXTS[:6]]
            assert [reply.result().status_code for reply in replies] == [200] * 7
        assert sizes == [1, 6]
        assert replies[3].result().json()["results"] == [[word._asdict() for word in tag([TEXTS[2]])[0]]]
    finally:
        tagger.model.tag = tag
