"""Serving strangers: whatever comes in, the answer is 2xx, 4xx with a message, or 503."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import all_models, served
from starlette.testclient import TestClient

from qkv.serve.http.auth import ApiKeys, load_api_keys
from qkv.serve.http.limits import Limits

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
    "/api/look/answers": {"model": "lm", "text": "the dog"},
    "/api/look/heads": {"model": "lm", "text": "the dog"},
    "/api/look/rollout": {"model": "classes", "text": "the dog"},
    "/api/look/taps": {"model": "lm", "text": "the dog"},
    "/api/look/effects": {"model": "lm", "text": "the dog", "position": 0},
    "/api/look/patch": {"model": "lm", "text": "the dog runs", "other": "the man runs"},
    "/api/look/contexts": {"model": "lm", "word": "man", "texts": ["a man rides", "A man sleeps."]},
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
    1e-40,
    1e-50,
    5e-324,
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
                    "layer", "head", "rows", "kind", "positions", "layers", "min_p", "other_target", "what", "source",
                    "presence_penalty", "repetition_penalty", "no_repeat_ngram"})  # fmt: skip
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
    modes = schemathesis.GenerationMode
    for operation in schema.get_all_operations():
        strategies = [operation.ok().as_strategy(generation_mode=mode) for mode in (modes.POSITIVE, modes.NEGATIVE)]

        @settings(
            max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
        )
        @given(case=st.one_of(strategies))
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
            b'{"q": "a' + b"[" * 5000 + b'", "target": "de", "source": "en"}',
            400,
            "tokens",
        ),  # brackets in a text are text
        (b'{"q": "' + b"a" * 10_000_000 + b'"}', 413, "bytes"),
        (b'{"q": "a", "source": "en", "target": "xx"}', 400, "en to xx is not supported; available"),
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
    found = load_api_keys(["given"], tmp_path / "keys")
    assert [key in found for key in ("given", "from-file", "from-env", "other-env", "# ours", "")] == [True] * 4 + [
        False
    ] * 2
    assert "" not in ApiKeys()


def test_other_pages_may_ask_only_when_told() -> None:
    asking = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    with served([]) as client:
        assert "access-control-allow-origin" not in client.options("/translate", headers=asking).headers
    with served([], origins=("https://page.example",)) as client:
        assert (
            client.options("/translate", headers=asking).headers["access-control-allow-origin"]
            == "https://page.example"
        )
