"""Tiny models behind a server, for the tests of serve/."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from starlette.testclient import TestClient

from qkv.api import Model
from qkv.models.build import build
from qkv.presets import tiny
from qkv.serve.api.service import Service
from qkv.serve.app import create_app
from qkv.serve.http.auth import ApiKeys
from qkv.serve.http.limits import Limits
from qkv.serve.http.sockets import listen
from qkv.serve.scheduling.served_model import ServedModel
from qkv.serve.server import create_server
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import train_tokenizer

TEXTS = [
    "a man rides a bicycle", "the dog runs", "two women sit on a bench in the park, and a child plays", "A man sleeps.",
    "über den Zaun", "the cat eats; who sees it?",
]  # fmt: skip
TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"


@cache
def tokenizer(kind: str = "bpe") -> Tokenizer:
    return train_tokenizer(TEXTS * 20, kind, 120, special=["<mask>"])


def model(name: str, seed: int = 3, **fields: Any) -> Model:
    """A preset, tiny, with large random weights: its texts differ."""
    torch.manual_seed(seed)
    c = tiny(name)
    words = None if c.image_size is not None and c.family == "encoder" else tokenizer()
    if words is not None:
        ids = {
            "vocab_size": words.size,
            "target_vocab_size": None,
            "pad_id": 0,
            "bos_id": 1,
            "eos_id": 2,
            "start_id": None,
        }
        fields = ids | fields
    c = c.changed(**fields)
    network = build(c)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return Model(c, network, words, "cpu")


def language_model() -> Model:
    lm = model("gpt2", max_length=96)
    assert lm.tokenizer is not None
    lm.tokenizer = Tokenizer(lm.tokenizer.backend, {"chat_template": TEMPLATE})
    return lm


def all_models() -> list[ServedModel]:
    """One for every ability."""
    bert = {"max_length": 64, "labels": ("bad", "fair", "good")}
    return [
        ServedModel("en-de", model("transformer-base", max_length=80), "translation", ("en", "de")),
        ServedModel("de-en", model("transformer-base", 4, max_length=80), "translation", ("de", "en")),
        ServedModel("lm", language_model()),
        ServedModel("short", model("transformer-base", 5, max_length=80), "summary"),
        ServedModel("classes", model("bert-base", head="classes", **bert)),
        ServedModel("tags", model("bert-base", head="tags", **bert)),
        ServedModel("words", model("bert-base", head="masked", max_length=64)),
        ServedModel("spans", model("bert-base", head="span", max_length=64)),
        ServedModel("eye", model("vit-b16", labels=("cat", "dog", "cow"))),
    ]


@contextmanager
def served(models: list[ServedModel], keys: tuple[str, ...] = (), **more: Any) -> Iterator[TestClient]:
    """A client of a server in this process; what goes wrong in the server is an answer, not an exception."""
    limits = more.pop("limits", Limits())
    service = Service(models, limits, ApiKeys(keys), **more)
    with TestClient(create_app(service), "http://localhost", raise_server_exceptions=False) as client:
        client.service = service  # type: ignore[attr-defined]
        yield client


class Running(threading.Thread):
    """A real server on a free port, in a thread."""

    def __init__(self, service: Service):
        super().__init__(daemon=True)
        self.socket = listen("127.0.0.1", 0)
        self.server = create_server(service)
        self.server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]

    def run(self) -> None:
        self.server.run(sockets=[self.socket])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"


class running:
    """`with running(service) as (url, server)`."""

    def __init__(self, service: Service):
        self.thread = Running(service)

    def __enter__(self) -> tuple[str, Running]:
        self.thread.start()
        while not self.thread.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)
        return self.thread.url, self.thread

    def __exit__(self, *_: object) -> None:
        self.thread.server.should_exit = True
        self.thread.join()
