"""What a server must withstand: requests without bounds, other sites' pages, its own errors."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
from PIL import Image
from pydantic import ValidationError
from served import all_models, language_model, served
from starlette.testclient import TestClient

from qkv.commands import serve
from qkv.serve import server
from qkv.serve.api import images, inspection_requests, libretranslate
from qkv.serve.api.service import Service
from qkv.serve.app import create_app
from qkv.serve.http.limits import Limits
from qkv.serve.scheduling import streaming
from qkv.serve.scheduling.served_model import ServedModel
from qkv.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(all_models()) as found:
        yield found


# --- bounds


def unbounded(schema: Any, definitions: dict[str, Any], place: str) -> list[str]:
    """The places of a JSON schema that admit a list, text, number or mapping of any size."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return unbounded(definitions[name], definitions, f"{place}:{name}")
    found, kind = [], schema.get("type")
    if kind == "string" and not {"maxLength", "enum", "const"} & schema.keys():
        found.append(f"{place} has no maxLength")
    if kind in ("integer", "number") and not (
        {"minimum", "exclusiveMinimum"} & schema.keys() and {"maximum", "exclusiveMaximum"} & schema.keys()
    ):
        found.append(f"{place} has no bounds")
    if kind == "array" and "maxItems" not in schema:
        found.append(f"{place} has no maxItems")
    if kind == "object" and schema.get("additionalProperties") and "maxProperties" not in schema:
        found.append(f"{place} has no maxProperties")
    for name, inner in schema.get("properties", {}).items():
        found += unbounded(inner, definitions, f"{place}.{name}")
    for inner in [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]:
        found += unbounded(inner, definitions, place)
    if isinstance(schema.get("items"), dict):
        found += unbounded(schema["items"], definitions, f"{place}[]")
    return found


def test_every_field_of_every_request_is_bounded(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    definitions, found = schema["components"]["schemas"], list[str]()
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                found += unbounded(parameter["schema"], definitions, f"{path} {parameter['name']}")
            for content in operation.get("requestBody", {}).get("content", {}).values():
                found += unbounded(content["schema"], definitions, path)
    assert not found, "\n".join(sorted(set(found)))


def test_entries_of_a_list_are_not_all_checked_when_one_is_wrong() -> None:
    """Each wrong entry of a body of a megabyte would be an error of its own, with a copy of the input."""
    for request, field in (
        (inspection_requests.ContextsRequest, "texts"),
        (inspection_requests.AblationRequest, "heads"),
        (inspection_requests.AblationRequest, "layers"),
    ):
        with pytest.raises(ValidationError) as caught:
            request.model_validate({"word": "a", field: [{}] * 50_000})
        assert caught.value.error_count() < 5


# --- the event loop


def in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def test_what_takes_long_runs_outside_of_the_event_loop(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizing texts that are looked into, decoding pictures, guessing languages: others are answered meanwhile."""
    seen: list[tuple[str, bool]] = []

    def spied(owner: Any, name: str) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *given, **more: (seen.append((name, in_event_loop())), real(*given, **more))[1]
        )

    spied(Tokenizer, "encode")
    spied(Tokenizer, "plain")
    spied(images, "unpack")
    spied(libretranslate, "detect_language")
    asked: dict[str, dict[str, Any]] = {
        "/api/look/contexts": {"model": "lm", "word": "man", "texts": ["a man rides", "A man sleeps."]},
        "/api/look/answers": {"model": "lm", "text": "the dog", "chat": True},
        "/api/look/patch": {"model": "lm", "text": "the dog runs", "other": "the man runs"},
        "/api/look/rollout": {"model": "eye", "image": picture_in_base64()},
        "/api/classify": {"model": "eye", "images": [picture_in_base64()]},
        "/v1/embeddings": {"model": "lm", "input": "the dog"},
        "/detect": {"q": "the dog"},
    }
    for path, body in asked.items():
        reply = client.post(path, json=body)
        assert reply.status_code == 200, (path, reply.text)
    assert {name for name, _ in seen} == {"encode", "plain", "unpack", "detect_language"}
    assert not [name for name, within in seen if within]


def picture_in_base64() -> str:
    data = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


def test_a_malformed_tiff_is_refused(client: TestClient) -> None:
    """One whose number of rows is a fraction: Pillow raises a TypeError."""
    data = io.BytesIO()
    Image.new("RGB", (4, 4)).save(data, "TIFF")
    broken = bytearray(data.getvalue())
    broken[72] = 12
    for good, status in ((data.getvalue(), 200), (bytes(broken), 400), (b"II*\0", 400)):
        body = {"model": "eye", "images": [base64.b64encode(good).decode()]}
        assert client.post("/api/classify", json=body).status_code == status


@pytest.mark.parametrize(
    ("path", "body"),
    [("/api/classify", {"images": ["first", "second"]}), ("/api/look/rollout", {"image": "first"})],
)
def test_decoding_pictures_is_within_the_time_limit(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes while the first picture is still being decoded; the second one is not begun."""
    go_on, begun = threading.Event(), list[str]()

    def slow(given: str, _: Any) -> Any:
        begun.append(given)
        assert go_on.wait(60)

    monkeypatch.setattr(images, "decode_image", slow)
    with served([one for one in all_models() if one.name == "eye"], limits=Limits(seconds=0.2)) as client:
        while not begun:  # a busy machine may reach the limit before
            reply = client.post(path, json=body)
        go_on.set()
        assert reply.status_code == 503 and int(reply.headers["Retry-After"]) >= 1
        assert set(begun) == {"first"}


# --- pages of other sites


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "localhost.:80", "127.0.0.1:8000", "[::1]:8000", "192.168.1.9"]
)
def test_the_machine_itself_is_reached(client: TestClient, host: str) -> None:
    assert client.get("/api/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "",
                                  "evil.example@localhost", "[evil]", "localhost:8000:x"])  # fmt: skip
def test_a_name_that_is_not_allowed_is_refused(client: TestClient, host: str) -> None:
    """DNS rebinding: the browser believes that 127.0.0.1 is a site of its own."""
    for method, path in (("GET", "/"), ("GET", "/api/models"), ("POST", "/v1/completions"), ("OPTIONS", "/translate")):
        reply = client.request(method, path, headers={"Host": host})
        assert reply.status_code == 421 and "--allowed-host" in reply.text


def test_names_are_allowed_by_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Service] = []

    class Nothing:
        def run(self, sockets: list[Any]) -> None:
            sockets[0].close()

    monkeypatch.setattr(server, "create_server", lambda service, began: (made.append(service), Nothing())[1])
    for host, allowed in (("127.0.0.1", ["Box.Example", "proxy.example:8443"]), ("0.0.0.0", []), ("localhost", ["*"])):
        serve.run(host=host, port=0, workers=1, watch=tmp_path, allowed_host=allowed)
    for service, name, status in ((made[0], "box.example:80", 200), (made[0], "proxy.example", 200), (made[0], "evil.example", 421),
                                  (made[1], socket.gethostname(), 200), (made[1], "evil.example", 421),
                                  (made[2], "evil.example", 200)):  # fmt: skip
        with TestClient(create_app(service), "http://localhost") as client:
            assert client.get("/languages", headers={"Host": name}).status_code == status


@pytest.mark.parametrize("host", ["", "backend", "qkv.internal:8000"])
def test_the_health_check_needs_no_name(client: TestClient, host: str) -> None:
    """Load balancers send the name of a group of servers, or none."""
    assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", ""]
)
def test_forms_reach_only_the_routes_of_libretranslate(client: TestClient, kind: str) -> None:
    """Whatever another site's page can send without asking first (CORS)."""
    schema = client.get("/openapi.json").json()
    posts = [
        path for path, methods in schema["paths"].items() if "post" in methods and path not in ("/translate", "/detect")
    ]
    assert len(posts) > 20
    for path in posts:
        reply = client.post(
            path, content=b'{"model": "lm", "text": "the dog"}', headers={"Content-Type": kind} if kind else {}
        )
        assert reply.status_code == 415 and "Content-Type: application/json" in reply.text, path
        assert ("no Content-Type" in reply.text) == (not kind), path
    assert client.post("/detect", data={"q": "the dog"}).status_code == 200


# --- errors of our own


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"model": "lm", "prompt": "the dog", "max_tokens": 9}),
        ("/v1/completions", {"model": "lm", "prompt": "the dog", "max_tokens": 9, "n": 2}),
        ("/v1/chat/completions", {"model": "lm", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
    ],
)
def test_an_error_in_a_stream_is_an_event_logged_and_counted(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> str:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(streaming.Detokenizer, "add", broken)
    with served([ServedModel("lm", language_model())]) as client:
        reply = client.post(path, json=body | {"stream": True, "temperature": 0})  # never the end token alone
        counted = [line for line in client.get("/metrics").text.splitlines() if line.startswith("qkv_failures_total")]
    assert reply.status_code == 200
    events = [
        json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n") if line.startswith("data: {")
    ]
    error = events[-1]["error"]
    assert "internal error (ZeroDivisionError)" in (error["message"] if path.startswith("/v1") else error)
    assert counted == ['qkv_failures_total{model="lm"} 1.0']
    assert any(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records)


def test_a_refusal_is_no_internal_error(client: TestClient) -> None:
    body = {"model": "lm", "text": "the dog " * 12, "method": "integrated", "positions": list(range(20))}
    reply = client.post("/api/look/attribution", json=body)
    assert reply.status_code == 400 and "integrated gradients" in reply.text
    assert 'qkv_failures_total{model="lm"}' not in client.get("/metrics").text
