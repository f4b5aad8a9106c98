"""The design of serve/: imports go one way, no tokenization on the event loop, how much code a request crosses."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import needs_compiler

pytest.importorskip("fastapi")
from served import all_models, language_model, model, served
from starlette.testclient import TestClient
from tracing import ROOT, crossed

from qkv.generate.translate import Translator
from qkv.serve.scheduling.served_model import ServedModel
from qkv.text.tokenizer import Tokenizer

ORDER = ("http", "scheduling", "api", "app", "settings", "server")
"""Rooms and files of serve/; each may import those before it."""


def rank(module: str) -> int:
    return ORDER.index(module.split(".")[2])


@pytest.mark.parametrize("path", sorted((ROOT / "serve").rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_within_serve_go_one_way(path: Path) -> None:
    module = ".".join(("qkv", *path.relative_to(ROOT).with_suffix("").parts))
    if module == "qkv.serve.__init__":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [f"{node.module}.{one.name}" for one in node.names] if names == ["qkv.serve"] else []
        for name in (name for name in names if name.startswith("qkv.serve.")):
            assert rank(name) <= rank(module), f"{module} imports {name}"


# --- the event loop


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(all_models()) as found:
        yield found


TEXTS: dict[str, dict[str, Any]] = {
    "/translate": {"q": "the dog", "source": "en", "target": "de"},
    "/api/translate": {"texts": ["the dog", "a man"], "alignments": True},
    "/api/summarize": {"texts": "the dog"},
    "/api/generate": {"model": "lm", "prompt": "the dog", "max_tokens": 2},
    "/api/classify": {"model": "classes", "texts": "the dog"},
    "/v1/completions": {"model": "lm", "prompt": ["the dog", "a man"], "max_tokens": 2, "echo": True, "logprobs": 1},
    "/v1/chat/completions": {"model": "lm", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/embeddings": {"model": "lm", "input": "the dog"},
}


@pytest.mark.parametrize("path", TEXTS)
def test_texts_are_never_tokenized_on_the_event_loop(
    path: str, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short they are: what is fast for one text is slow for many."""
    calls: list[tuple[str, bool]] = []

    def record(owner: Any, name: str) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *args, **more: (calls.append((name, in_loop())), real(*args, **more))[1]
        )

    for name in ("encode", "plain", "chats"):
        record(Tokenizer, name)
    for name in ("read", "decode"):
        record(Translator, name)
    reply = client.post(path, json=TEXTS[path])
    assert reply.status_code == 200, reply.text
    assert calls and not [name for name, on_loop in calls if on_loop]


def in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# --- what a request crosses

REQUESTS: dict[str, dict[str, Any]] = {
    "/translate": {"q": "the dog runs", "source": "en", "target": "de"},
    "/api/generate": {"model": "lm", "prompt": "the dog", "max_tokens": 5, "seed": 1, "alternatives": 0},
}


def send(path: str, times: int) -> None:
    """Start a server and send a request some times."""
    translator = ServedModel("en-de", model("transformer-base", max_length=80), "translation", ("en", "de"))
    with served([translator, ServedModel("lm", language_model())]) as client:
        for _ in range(times):
            assert client.post(path, json=REQUESTS[path]).status_code == 200


CROSSED = {"/translate": (40, 150), "/api/generate": (40, 152)}
CROSSED_IN_SERVE = {"/translate": (12, 55), "/api/generate": (14, 63)}
"""The most files and functions that a request may cross, decoding included (with a small reserve) and in serve/ alone."""


@needs_compiler  # without the kernels, the stack is computed layer by layer
@pytest.mark.parametrize("path", REQUESTS)
def test_a_request_crosses_few_functions(path: str) -> None:
    found = crossed(lambda: send(path, 1), lambda: send(path, 6), 5)
    own = [file for file, _, _ in found.functions if Path(file).is_relative_to(ROOT / "serve")]
    assert any("scheduler.py" in file for file in own), "the tracer does not see the threads of the server"
    files, functions = CROSSED[path]
    assert len(found.files) <= files and len(found.functions) <= functions, str(found)
    files, functions = CROSSED_IN_SERVE[path]
    assert len(set(own)) <= files and len(own) <= functions, str(found)
