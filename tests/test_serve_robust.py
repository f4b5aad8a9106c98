"""Serving strangers: whatever comes in, the answer is 2xx, 4xx with a message, or 503; nobody's going away leaves a trace;
whoever asks alone or in a crowd gets the same."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("fastapi")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import TEXTS, all_models, language_model, model, served
from starlette.testclient import TestClient

from qkv.serve.app import application
from qkv.serve.keys import Keys, keys_of
from qkv.serve.lanes import Desk, Ticket
from qkv.serve.limits import Limits
from qkv.serve.refusal import Refusal
from qkv.serve.served import Served
from qkv.serve.service import Service

POSTS = (
    "/translate", "/detect", "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/api/generate", "/api/translate",
    "/api/summarize", "/api/classify", "/api/tag", "/api/fill", "/api/answer", "/api/describe", "/api/embed",
)  # fmt: skip
GOOD: dict[str, dict[str, Any]] = {
    "/translate": {"q": "the dog", "source": "en", "target": "de"},
    "/detect": {"q": "the dog"},
    "/v1/completions": {"model": "lm", "prompt": "the dog", "max_tokens": 2},
    "/v1/chat/completions": {"model": "lm", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/embeddings": {"model": "lm", "input": "the dog"},
    "/api/generate": {"prompt": "the dog", "max_tokens": 2},
    "/api/translate": {"texts": ["the dog"]},
    "/api/summarize": {"texts": "the dog", "max_length": 3},
    "/api/classify": {"model": "classes", "texts": "the dog"},
    "/api/tag": {"texts": "the dog"},
    "/api/fill": {"texts": "the <mask>"},
    "/api/answer": {"question": "who?", "context": "the dog"},
    "/api/embed": {"texts": "the dog"},
    "/api/look/attention": {"model": "lm", "text": "the dog"},
    "/api/look/walk": {"model": "en-de", "text": "the dog", "target": "a man"},
    "/api/look/lens": {"model": "lm", "text": "the dog"},
    "/api/look/ablation": {"model": "lm", "text": "the dog", "heads": [[0, 1]], "max_tokens": 2},
    "/api/look/attribution": {"model": "lm", "text": "the dog", "method": "gradient"},
    "/api/look/positions": {"model": "lm", "length": 4},
    "/api/look/neighbours": {"model": "lm", "word": "dog"},
}
FORMATS = ["application/json", "application/x-www-form-urlencoded", "text/plain", "multipart/form-data", ""]
ODD_TEXTS = [
    "",
    " ",
    "\0",
    "\ud800",
    "\x1b[2J\x07",
    "‮\u200b\ufeff",
    "e\u0301" * 50,
    "</s><pad><mask>",
    "x" * 20_000,
    "../../etc",
]
ODD_NUMBERS = [
    -1,
    0,
    1,
    10**9,
    2**31,
    2**63,
    10**40,
    -(10**400),
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    -float("inf"),
]
odd = st.one_of(
    st.none(), st.booleans(), st.sampled_from(ODD_NUMBERS), st.sampled_from(ODD_TEXTS), st.text(max_size=20), st.integers(),
    st.lists(st.one_of(st.sampled_from(ODD_TEXTS), st.integers(-5, 300), st.text(max_size=5)), max_size=4),
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)),
)  # fmt: skip
LIMITS = Limits(tokens=16, seconds=30.0)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(all_models(), limits=LIMITS) as found:
        yield found


def answered(reply: Any) -> None:
    """Never a 5xx but 503; an error has a message in the shape of its API."""
    assert reply.status_code < 500 or reply.status_code == 503, (reply.status_code, reply.text)
    if reply.status_code >= 400:
        error = reply.json()["error"]
        message = error["message"] if isinstance(error, dict) else error
        assert isinstance(message, str) and message
        assert isinstance(error, dict) == reply.url.path.startswith("/v1")


# --- anything at all


@pytest.mark.parametrize("path", GOOD)
def test_what_is_right_is_answered(client: TestClient, path: str) -> None:
    assert client.post(path, json=GOOD[path]).status_code == 200


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data(), path=st.sampled_from(list(GOOD)))
def test_one_wrong_field_is_never_a_crash(client: TestClient, data: Any, path: str) -> None:
    """A good request, of which some field is replaced by anything, or one is added that is known elsewhere."""
    fields = sorted({name for good in GOOD.values() for name in good} | {"temperature", "top_p", "n", "stop", "seed", "beam",
                    "n_best", "logprobs", "alternatives", "format", "prefix", "top_k", "stream", "echo", "images",
                    "layer", "head", "rows", "kind", "positions", "layers"})  # fmt: skip
    body = GOOD[path] | {data.draw(st.sampled_from(fields)): data.draw(odd)}
    answered(client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"}))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(body=st.binary(max_size=60) | odd.map(lambda x: json.dumps(x).encode()), path=st.sampled_from(POSTS),
       kind=st.sampled_from(FORMATS))  # fmt: skip
def test_bytes_of_any_kind_are_never_a_crash(client: TestClient, body: bytes, path: str, kind: str) -> None:
    answered(client.post(path, content=body, headers={"Content-Type": kind} if kind else {}))


def test_schemathesis_finds_no_server_error(client: TestClient) -> None:
    """Requests that the schema allows, and some that it does not, made by somebody else's generator."""
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    for operation in schema.get_all_operations():
        strategy = operation.ok().as_strategy()

        @settings(
            max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
        )
        @given(case=strategy)
        def check(case: Any) -> None:
            body = case.body if isinstance(case.body, dict | list) else None
            reply = client.request(case.method, case.formatted_path, params=case.query or {}, json=body)
            assert reply.status_code < 500 or reply.status_code == 503, (case.formatted_path, body, reply.text)

        check()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"q": ', 400, "not JSON"),
        (b"[" * 100_000, 400, "levels"),
        (b'{"q": ' + b'{"a":' * 40 + b"1" + b"}" * 41, 400, "levels"),
        (
            b'{"q": "' + b"[" * 5000 + b'", "target": "de", "source": "en"}',
            400,
            "tokens",
        ),  # brackets in a text are text
        (b'{"q": "' + b"a" * 10_000_000 + b'"}', 413, "bytes"),
        (b'{"q": "a", "source": "en", "target": "xx"}', 400, "en to xx is not supported; there is"),
        (b'{"q": "a", "source": "en", "target": "de", "alternatives": 10000}', 400, "at most 8"),
        (b'{"q": "a", "source": "en", "target": "de", "alternatives": -1}', 400, "greater than or equal to 0"),
        (b'{"q": "a", "source": "en", "target": "de", "format": "pdf"}', 400, "format"),
        (b'{"q": "' + b"Ja. " * 600 + b'", "source": "en", "target": "de"}', 400, "at most 512"),
        (b'{"q": "", "source": "en", "target": "de"}', 400, "missing q"),
        (b'{"q": "\\ud800", "source": "en", "target": "de"}', 400, "q"),
        (b'{"q": "\\u0000", "source": "en", "target": "de"}', 200, ""),
    ],
)
def test_bad_translations(client: TestClient, body: bytes, status: int, words: str) -> None:
    reply = client.post("/translate", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == status, reply.text
    assert words in reply.json().get("error", "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temperature": -1}, "temperature"), ({"top_p": 0}, "top_p"), ({"n": 10**6}, "at most 8"), ({"prompt": [10**6]}, "vocabulary"),
        ({"prompt": "word " * 1000}, "reads at most"), ({"prompt": "a" * 10_001}, "at most 10,000"), ({"logprobs": 1000}, "at most 20"),
        ({"stop": ["a"] * 100}, "stop strings"), ({"suffix": "x"}, "suffix is not supported"), ({"model": "../../etc"}, "no model"),
    ],
)  # fmt: skip
def test_bad_completions(client: TestClient, change: dict[str, Any], words: str) -> None:
    reply = client.post("/v1/completions", json=GOOD["/v1/completions"] | change)
    assert 400 <= reply.status_code < 500 and words in reply.json()["error"]["message"]


def test_unknown_places_and_methods(client: TestClient) -> None:
    for method, path in (
        ("GET", "/nowhere"),
        ("DELETE", "/translate"),
        ("GET", "/v1/nowhere"),
        ("POST", "/static/index.html"),
    ):
        reply = client.request(method, path)
        answered(reply)
        assert reply.status_code in (404, 405)
    for name in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd"):
        assert client.get(f"/static/{name}").status_code == 404


def test_numbers_that_json_does_not_have(client: TestClient) -> None:
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        body = f'{{"model": "lm", "prompt": "a", "temperature": {number}}}'
        reply = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code == 400 and "temperature" in reply.json()["error"]["message"]


# --- keys


def test_keys_open_every_door_and_nothing_else_does(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(all_models(), keys=("first-key", "second-key"), limits=LIMITS) as client:
        for path, body in GOOD.items():
            assert client.post(path, json=body).status_code == 401
            assert client.post(path, json=body, headers={"Authorization": "Bearer first-kez"}).status_code == 401
            assert client.post(path, json=body, headers={"Authorization": "Bearer second-key"}).status_code == 200
        good = GOOD["/translate"]
        assert client.post("/translate", data=good | {"api_key": "first-key"}).status_code == 200
        assert client.post("/translate", json=good | {"api_key": "wrong"}).status_code == 403
        for path in ("/metrics", "/v1/models", "/api/models", "/api/run"):
            assert client.get(path).status_code == 401
        for path in ("/", "/health", "/languages", "/frontend/settings", "/docs"):
            assert client.get(path).status_code == 200
    (tmp_path / "keys").write_text("# ours\nfrom-file\n\n")
    monkeypatch.setenv("QKV_API_KEYS", "from-env, other-env")
    found = keys_of(["given"], tmp_path / "keys")
    assert [found.known(key) for key in ("given", "from-file", "from-env", "other-env", "# ours", "")] == [True] * 4 + [
        False
    ] * 2
    assert Keys().known("") is False


def test_other_pages_may_ask_only_when_told() -> None:
    asking = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    with served([]) as client:
        assert "access-control-allow-origin" not in client.options("/translate", headers=asking).headers
    with served([], origins=("https://page.example",)) as client:
        assert (
            client.options("/translate", headers=asking).headers["access-control-allow-origin"]
            == "https://page.example"
        )


# --- many at once


def lm_only(**limits: Any) -> Service:
    return Service([Served("lm", language_model(), workers=1)], Limits(**limits))


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
    with TestClient(application(service), raise_server_exceptions=False) as client:
        body = {"prompt": "the dog", "max_tokens": 30}
        with ThreadPoolExecutor(40) as pool:
            replies = list(pool.map(lambda _: client.post("/api/generate", json=body), range(40)))
        codes = [reply.status_code for reply in replies]
        assert set(codes) == {200, 503} and codes.count(200) >= 3
        refused = next(reply for reply in replies if reply.status_code == 503)
        assert int(refused.headers["Retry-After"]) >= 1 and "come again" in refused.json()["error"]
        assert len({reply.json()["text"] for reply in replies if reply.status_code == 200}) == 1
        assert client.post("/api/generate", json=body).status_code == 200
        assert service.models[0].desk.waiting == type(service.models[0].desk.waiting)()


def test_what_takes_too_long_is_given_up() -> None:
    service = lm_only(seconds=0.2)
    with TestClient(application(service), raise_server_exceptions=False) as client:
        lane = service.models[0].lanes[0]
        step = lane.running.step
        lane.running.step = lambda: (time.sleep(0.05), step())[1]  # type: ignore[method-assign]
        reply = client.post("/api/generate", json={"prompt": "the dog", "max_tokens": 80})
        assert reply.status_code == 503 and "longer than 0.2 s" in reply.json()["error"]
        lines = client.post(
            "/v1/completions", json={"model": "lm", "prompt": "a", "max_tokens": 80, "stream": True}
        ).text
        assert "longer than 0.2 s" in lines and lines.endswith("data: [DONE]\n\n")
        settled(lambda: not lane.tickets and not lane.running.going)


def settled(done: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "still not"
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_place(stream: bool) -> None:
    """In the middle of an answer, streamed or not, the connection ends: at the next step nobody writes for it."""
    service = lm_only(tokens=90)
    app = application(service)
    lane_steps: list[int] = []

    async def talk() -> None:
        async with app.app.router.lifespan_context(app.app):
            lane = service.models[0].lanes[0]
            step = lane.running.step

            def slow() -> Any:
                lane_steps.append(len(lane.running.going))
                time.sleep(0.02)
                return step()

            lane.running.step = slow  # type: ignore[method-assign]
            gone, begun = asyncio.Event(), asyncio.Event()
            body = json.dumps({"prompt": "the dog", "max_tokens": 90, "stream": stream}).encode()
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive() -> Any:
                if messages:
                    return messages.pop()
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                if message.get("body"):
                    begun.set()

            scope = {"type": "http", "method": "POST", "path": "/api/generate", "raw_path": b"/api/generate", "root_path": "",
                     "query_string": b"", "http_version": "1.1", "scheme": "http", "server": ("test", 80), "client": ("x", 1),
                     "headers": [(b"content-type", b"application/json")], "asgi": {"version": "3.0", "spec_version": "2.3"}}  # fmt: skip
            task = asyncio.create_task(app(scope, receive, send))
            while len(lane_steps) < 5:
                await asyncio.sleep(0.01)
            if stream:
                await begun.wait()
            gone.set()
            await asyncio.wait_for(task, 20)
            while lane.tickets:
                await asyncio.sleep(0.01)
            assert not lane.running.going and len(lane_steps) < 60

    asyncio.run(talk())


def test_whoever_is_gone_is_forgotten_while_waiting() -> None:
    async def scene() -> None:
        desk = Desk(Limits(waiting=3), lanes=2)
        from qkv.generate.choose import Sampling
        from qkv.generate.continuous import text_of

        tickets = [Ticket([1], None, text_of(Sampling(), 5, ())) for _ in range(6)]
        desk.put(tickets[:3])
        with pytest.raises(Refusal, match="wait already"):
            desk.put(tickets[3:])
        tickets[0].gone = True
        assert desk.take(0, [], 0) == [tickets[1]]  # half of what waits: there are two lanes
        assert desk.take(1, [], 0) == [tickets[2]]
        desk.close()
        assert desk.take(0, [], 1) is None
        with pytest.raises(Refusal, match="shutting down"):
            desk.put(tickets[:1])

    asyncio.run(scene())


def test_a_failure_in_a_lane_or_a_call_costs_only_those_in_it() -> None:
    service = Service([Served("lm", language_model(), workers=1), Served("tags", model("bert-base", head="tags"))])
    with TestClient(application(service), raise_server_exceptions=False) as client:
        good = client.post("/api/generate", json={"prompt": "the dog"}).json()
        lane = service.models[0].lanes[0]
        lane.running.step = lambda: 1 / 0  # type: ignore[method-assign, assignment]
        assert client.post("/api/generate", json={"prompt": "the dog"}).status_code == 500
        assert client.post("/api/generate", json={"prompt": "the dog"}).json() == good
        tagger = service.models[1].model
        tag, tagger.tag = tagger.tag, lambda _: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        assert client.post("/api/tag", json={"texts": "the dog"}).status_code == 500
        tagger.tag = tag  # type: ignore[method-assign]
        assert client.post("/api/tag", json={"texts": "the dog"}).status_code == 200
        assert 'qkv_failures_total{model="lm"} 1.0' in client.get("/metrics").text


def test_calls_that_wait_are_answered_together_and_a_bad_one_alone(client: TestClient) -> None:
    tagger = next(one for one in client.service.models if one.name == "tags")  # type: ignore[attr-defined]
    sizes, tag, first = [], tagger.model.tag, threading.Event()

    def slow(texts: list[Any]) -> Any:
        sizes.append(len(texts))
        first.set()
        time.sleep(0.3)
        return tag(texts)

    tagger.model.tag = slow
    try:
        with ThreadPoolExecutor(9) as pool:
            ask = lambda text: client.post("/api/tag", json={"texts": text})  # noqa: E731
            replies = [pool.submit(ask, "the dog")]
            assert first.wait(10)
            replies += [pool.submit(ask, text) for text in TEXTS[:6]]
            assert [reply.result().status_code for reply in replies] == [200] * 7
        assert sizes[0] == 1 and max(sizes[1:]) > 1 and sum(sizes) == 7
        assert replies[3].result().json()["results"] == [[word._asdict() for word in tag([TEXTS[2]])[0]]]
    finally:
        tagger.model.tag = tag
