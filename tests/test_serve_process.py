"""The server as a process: real clients over real sockets, the command, its beginning and its end."""

from __future__ import annotations

import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
from served import TEXTS, language_model, model, running, served

from qkv.serve import server
from qkv.serve import settings as server_settings
from qkv.serve.api.run_log import RunLog
from qkv.serve.api.service import Service
from qkv.serve.http.limits import Limits
from qkv.serve.http.sockets import listen
from qkv.serve.scheduling import workers
from qkv.serve.scheduling.served_model import ServedModel
from qkv.serve.server import load_models
from qkv.serve.settings import default_workers

JSON = {"Content-Type": "application/json"}


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def test_silent_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says nothing, one that never ends its headers, at once or behind an answered request."""
    monkeypatch.setattr(server, "HEADER_SECONDS", 1.0)
    with running(Service([])) as (url, _):
        for said in (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "):
            with connected(url) as one:
                one.sendall(said)
                assert one.recv(1000) == b""
        with connected(url) as one:
            one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert one.recv(1000).startswith(b"HTTP/1.1 200")
            one.sendall(b"GET /health HTTP")
            while said := one.recv(1000):
                assert b"HTTP/1.1 200" not in said


def test_too_many_requests_at_once_are_told_to_come_again() -> None:
    """In the words of the API and with Retry-After; whether the server lives can still be asked."""
    with running(Service([], Limits(connections=1))) as (url, _), connected(url) as slow:
        slow.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")  # and no body
        host = url.removeprefix("http://")

        def ask(path: str) -> Any:
            api = http.client.HTTPConnection(host, timeout=30)
            api.request("GET", path)
            reply = api.getresponse()
            content = json.loads(reply.read())
            api.close()
            return reply.status, reply.headers["Retry-After"], content

        end = time.monotonic() + 20
        while (found := ask("/v1/models"))[0] != 503 and time.monotonic() < end:
            time.sleep(0.01)  # until the slow one has arrived
        status, again, content = found
        assert status == 503 and int(again) >= 1 and "retry after" in content["error"]["message"]
        assert ask("/health")[0] == 200


def test_files_are_found_by_their_names_only() -> None:
    """The path as it is sent: clients tidy it up before."""
    with running(Service([])) as (url, _):
        for path in (
            "/static/../served.py",
            "/static/../../served.py",
            "/static/%2e%2e/served.py",
            "/static//etc/passwd",
        ):
            with connected(url) as one:
                one.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                assert one.recv(1000).startswith(b"HTTP/1.1 404")


def test_languages_go_to_the_model_as_it_is_named(tmp_path: Path) -> None:
    model("transformer-base", max_length=80).save(tmp_path / "demo" / "best")
    (one,) = load_models([str(tmp_path / "demo" / "best")], ["demo=en-de"], "cpu")
    assert one.name == "demo" and one.pair == ("en", "de") and "translate" in one.abilities


def test_word_vectors_are_refused_in_a_line(run, tmp_path: Path) -> None:
    (tmp_path / "words.vec").write_text("2 3\nthe 1 0 0\ndog 0 1 0\n")
    code, _, problem = run("serve", tmp_path / "words.vec", "--workers", "1", "--port", "0")
    assert code == 2 and "word vectors, not a network" in problem and problem.count("\n") == 1


def test_a_run_is_watched_as_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN, "valid_loss": 1.5}\nbroken\n{"step": 3, "lo')
    with served([], run_log=RunLog(tmp_path)) as client:
        first = client.get("/api/run").json()
        assert [line["step"] for line in first["lines"]] == [1, 2] and first["lines"][1]["loss"] is None
        log.write_text(
            log.read_text() + 'ss": 1.0}\n' + "".join(f'{{"step": {n}, "loss": 1}}\n' for n in range(4, 104))
        )
        more = client.get("/api/run", params={"since": first["last"], "points": 10}).json()
        assert more["last"] == 103 and 10 <= len(more["lines"]) <= 11 and more["lines"][-1]["step"] == 103
        log.write_text('{"step": 1, "loss": 9.0}\n')  # resumed from an earlier update
        assert client.get("/api/run").json()["lines"] == [{"step": 1, "loss": 9.0}]


def test_a_real_openai_client() -> None:
    openai = pytest.importorskip("openai")
    with running(
        Service([ServedModel("lm", language_model()), ServedModel("words", model("bert-base", head="masked"))])
    ) as (
        url,
        _,
    ):
        api = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        assert [one.id for one in api.models.list()] == ["lm", "words"] and api.models.retrieve("lm").id == "lm"
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the dog runs"}]
        how = {"model": "lm", "messages": messages, "max_tokens": 9, "temperature": 0.9, "seed": 3}
        whole = api.chat.completions.create(**how, logprobs=True, top_logprobs=2)
        chunks = list(api.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
        assert (
            "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
        )
        assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].usage == whole.usage
        assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
        assert all(len(token.top_logprobs) == 2 for token in whole.choices[0].logprobs.content)
        written = api.completions.create(model="lm", prompt="the cat", max_tokens=5, temperature=0)
        pieces = api.completions.create(model="lm", prompt="the cat", max_tokens=5, temperature=0, stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == written.choices[0].text
        vector = api.embeddings.create(model="words", input="the dog runs").data[0].embedding  # in base64
        plain = api.embeddings.create(model="words", input=["the dog runs"], encoding_format="float").data[0].embedding
        assert vector == pytest.approx(plain, abs=1e-6) and math.hypot(*plain) == pytest.approx(1, abs=1e-4)
        with pytest.raises(openai.NotFoundError, match="no model 'gpt-5'"):
            api.chat.completions.create(model="gpt-5", messages=messages)
        with pytest.raises(openai.BadRequestError, match="cannot chat"):
            api.chat.completions.create(model="words", messages=messages)
        with pytest.raises(openai.BadRequestError, match="tools is not supported"):
            api.chat.completions.create(**how, tools=[{"type": "function", "function": {"name": "f"}}])


def test_a_real_libretranslate_client() -> None:
    api = pytest.importorskip("libretranslatepy")
    one = ServedModel("en-de", model("transformer-base", max_length=80), "translation", ("en", "de"))
    with running(Service([one])) as (url, _):
        lt = api.LibreTranslateAPI(url)
        assert lt.translate(TEXTS[0], "en", "de") == one.model.translate([TEXTS[0]])[0]
        assert [each["code"] for each in lt.languages()] == ["en", "de"]
        assert lt.detect("the man is in the house")[0]["language"] == "en"


def test_the_command_serves_a_folder_and_ends_gracefully(tmp_path: Path) -> None:
    """`qkv serve FOLDER` over a socket. SIGTERM comes while a request is being read: it is still answered, others are refused,
    and the exit code is 0."""
    language_model().save(tmp_path / "lm")
    command = [sys.executable, "-m", "qkv", "serve", f"own={tmp_path / 'lm'}", "--port", "0", "--workers", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        url = next(line for line in process.stderr if "http://" in line).split()[2].rstrip("/")
        body = json.dumps({"prompt": "the dog", "max_tokens": 80}).encode()
        kind = "Host: localhost\r\nContent-Type: application/json"
        head = f"POST /api/generate HTTP/1.1\r\n{kind}\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
        with connected(url) as first, connected(url) as second:
            first.sendall(head.encode())
            assert first.recv(1000).startswith(b"HTTP/1.1 100")
            first.sendall(body)
            expected = answer_on(first)
            second.sendall(head.encode())
            assert second.recv(1000).startswith(b"HTTP/1.1 100")  # the server waits for the body now
            process.send_signal(signal.SIGTERM)
            until(lambda: refused(url))
            second.sendall(body)
            assert answer_on(second) == expected and len(expected["text"]) > 10
        assert process.wait(30) == 0
    finally:
        process.kill()


def answer_on(connection: socket.socket) -> Any:
    reply = http.client.HTTPResponse(connection)
    reply.begin()
    assert reply.status == 200
    return json.loads(reply.read())


def refused(url: str) -> bool:
    try:
        connected(url).close()
    except ConnectionRefusedError:
        return True
    return False


def until(true: Callable[[], Any]) -> None:
    """Wait for a condition, for at most a minute."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "still not"
        time.sleep(0.02)


def test_workers_share_a_port_and_are_replaced(tmp_path: Path) -> None:
    """Two processes answer alike, their numbers are summed up, who dies gets a successor, and SIGTERM ends all with 0."""
    language_model().save(tmp_path / "lm")
    command = [sys.executable, "-m", "qkv", "serve", str(tmp_path / "lm"), "--port", "0", "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def own() -> list[int]:
        every = map(int, children.read_text().split())
        return [pid for pid in every if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    try:
        url = next(line for line in process.stderr if "http://" in line).split()[2].rstrip("/")

        def ask(path: str, body: dict | None = None) -> Any:
            given = None if body is None else json.dumps(body).encode()
            try:
                with urllib.request.urlopen(urllib.request.Request(url + path, given, JSON), timeout=30) as reply:
                    return reply.read()
            except (OSError, http.client.HTTPException):  # of one that was just killed
                return None

        def answered() -> float:
            lines = (ask("/metrics") or b"").decode().splitlines()
            return sum(
                float(line.split()[-1]) for line in lines if line.startswith('qkv_request_seconds_count{route="/api/g')
            )

        def listening() -> int:
            lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            port = f":{int(url.rpartition(':')[2]):04X}"
            return sum(line[1].endswith(port) and line[3] == "0A" for line in lines)

        until(lambda: listening() == 2)
        body = {"prompt": "the dog", "max_tokens": 5}
        assert len({ask("/api/generate", body) for _ in range(40)}) == 1
        until(lambda: answered() == 40)  # the last one is counted when it has gone
        assert {answered() for _ in range(10)} == {40}  # whichever of them is asked
        first, second = own()

        def replaced() -> bool:
            now = own()  # read once: a process that is being killed disappears between two looks
            return len(now) == 2 and first not in now and listening() == 2

        os.kill(first, signal.SIGKILL)
        until(replaced)
        assert second in own() and ask("/api/generate", body) is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and not any(Path(f"/proc/{pid}").exists() for pid in (first, second))
    finally:
        process.kill()


def test_what_a_worker_cannot_open_is_said_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qkv", "serve", str(tmp_path), "--port", "0", "--workers", "2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and "no model" in ended.stderr and ended.stderr.count("\n") == 1


def test_small_models_get_a_worker_for_each_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "model.safetensors").write_bytes(b"x" * 1000)
    small = 1 if any(Path(one).exists() for one in ("/dev/nvidia0", "/dev/kfd")) else 3
    assert default_workers([str(tmp_path)], "auto") == default_workers([f"me={tmp_path}"], "cpu") == small
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(server_settings, "free_cores", lambda: 5)  # of more: the others are busy with something else
    assert default_workers([str(tmp_path)], "cpu") == (5 if small == 3 else 1)
    monkeypatch.setattr(server_settings, "SMALL", 999)
    assert (
        default_workers([str(tmp_path)], "cpu")
        == default_workers([], "cpu")
        == default_workers([str(tmp_path)], "cuda")
        == 1
    )


def test_wrong_arguments_are_said_in_a_line(run, tmp_path: Path) -> None:
    assert "no model" in run("serve", tmp_path, "--workers", "1")[2]
    language_model().save(tmp_path / "lm")
    for wrong, words in ((("--limit", "tokns=3"), "did you mean 'tokens'"), (("--languages", "lm=en"), "NAME=SOURCE-TARGET"),
                         (("--languages", "x=en-de"), "no model of that name"), (("--api-key", "a b"), "no spaces"),
                         ((f"lm={tmp_path / 'lm'}",), "the same name")):  # fmt: skip
        code, _, problem = run("serve", tmp_path / "lm", *wrong, "--workers", "1", "--port", "0")
        assert code == 2 and words in problem and problem.count("\n") == 1
    with pytest.raises(Exception, match="choose another"):
        taken = listen("127.0.0.1", 0)
        taken.listen()
        listen("127.0.0.1", taken.getsockname()[1])
    with listen("127.0.0.1", 0, shared=True) as first, pytest.raises(Exception, match="choose another"):
        first.listen()
        listen("127.0.0.1", first.getsockname()[1], shared=True)  # another server, which must not share it


@pytest.mark.parametrize("sharing", [False, True])
def test_a_port_is_free_when_its_server_has_ended(sharing: bool) -> None:
    """Though connections that the server closed first linger for a minute."""
    with listen("127.0.0.1", 0, sharing) as one:
        one.listen()
        port = one.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            one.accept()[0].close()
            assert client.recv(1) == b""
    for again in (False, True):
        listen("127.0.0.1", port, again).close()


def test_no_worker_starts_during_the_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM comes while the first worker reports that it is ready: no other is started, and the first gets the signal."""
    supervisor = workers.Supervisor(become_ready, 3)
    running: list[int] = []
    start = supervisor.start
    monkeypatch.setattr(supervisor, "start", lambda one: (start(one), running.append(len(supervisor.running())))[0])
    supervisor.run(lambda lines: os.kill(os.getpid(), signal.SIGTERM))
    assert len(running) == 3 and max(running) == 1 and not supervisor.running()


def become_ready(number: int, reports: Any) -> None:
    workers.mask_end_signals(signal.SIG_UNBLOCK)
    reports.send(workers.Ready(["ready"]))
    time.sleep(60)


def test_every_limit_is_documented() -> None:
    page = (Path(__file__).parent.parent / "docs/serve.md").read_text()
    for name, field in Limits.model_fields.items():
        assert f"| `{name}` | {field.default:,} | {field.description} |" in page


def test_what_is_not_installed_is_said(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("qkv.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, problem = run("serve", tmp_path)
    assert code == 2 and "pip install 'qkv[serve]'" in problem
