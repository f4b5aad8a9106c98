"""The server process: models are opened, and requests are answered until somebody ends it.

SIGTERM or Ctrl-C: whoever is here gets an answer, nobody else is taken in.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from qkv.errors import QkvError
from qkv.serve.api.run_log import Watch
from qkv.serve.app import application
from qkv.serve.http.middleware import Front
from qkv.serve.scheduling.registry import Service
from qkv.serve.scheduling.served_model import Pair, Served, default_name, load_for_serving
from qkv.serve.scheduling.workers import Settings, name_and_path

HEADERS = 20.0
"""Seconds until the headers of a request must be there, from its first byte or from the opening of the connection."""


class Connection(H11Protocol):
    """Uvicorn's, which would wait for headers for ever: one that stays silent, or sends them a letter at a time, is closed."""

    clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.clock = self.loop.call_later(HEADERS, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        between = self.cycle is None or self.cycle.response_complete  # no request is being read or answered
        if not between:
            self.stop()
        elif self.clock is None:
            self.clock = self.loop.call_later(HEADERS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop()
        super().connection_lost(exc)

    def stop(self) -> None:
        if self.clock is not None:
            self.clock.cancel()
            self.clock = None


class Server(uvicorn.Server):
    """Uvicorn, which says when it answers, and tells the front when the end has begun."""

    def __init__(self, config: uvicorn.Config, front: Front, began: Callable[[], None] | None = None):
        super().__init__(config)
        self.front, self.began = front, began

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # what is here now stays: the collector need not look at all of it again and again while everybody waits
        gc.collect()
        gc.freeze()
        if self.started and self.began is not None:
            self.began()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first time the end begins; a second Ctrl-C does not wait for it. It is no failure: the exit code is 0."""
        self.front.closing = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def server_of(service: Service, began: Callable[[], None] | None = None) -> Server:
    front, limits = application(service), service.limits
    config = uvicorn.Config(
        front, log_level="warning", access_log=False, server_header=False, proxy_headers=False, lifespan="on",
        ws="none", http=Connection, timeout_keep_alive=30, timeout_graceful_shutdown=int(limits.seconds) + 1,
        limit_concurrency=2 * limits.connections + 16,  # the front refuses requests before, in words; this is for what is idle
    )  # fmt: skip
    return Server(config, front, began)


def described(service: Service) -> list[str]:
    """A line for each model: what it is and can do."""
    lines = []
    for one in service.models:
        pair = f", {one.pair[0]} to {one.pair[1]}" if one.pair and "translate" in one.can else ""
        lines.append(f"{one.name}: {one.config.family}{pair}; it can {', '.join(one.can) or 'be looked into'}")
    return lines


def service_of(s: Settings) -> Service:
    """All models opened, nothing computed yet."""
    models = models_of(s.folders, s.languages, s.device)
    return Service(models, s.limits, s.keys, watch=None if s.watch is None else Watch(s.watch), origins=s.origins,
                   hosts=s.hosts)  # fmt: skip


def models_of(given: Sequence[str], languages: Sequence[str] = (), device: str = "auto") -> list[Served]:
    """FOLDER or NAME=FOLDER each, and NAME=en-de for translators that do not say their languages."""
    pairs = dict(pair_of(one) for one in languages)
    found = []
    for one in given:
        name, path = name_and_path(one)
        name = name or default_name(path)
        found.append(load_for_serving(path, name, pairs.pop(name, None), device))
    if pairs:
        raise QkvError(f"--languages {next(iter(pairs))}=...: there is no model of that name")
    return found


def pair_of(setting: str) -> tuple[str, Pair]:
    name, _, codes = setting.rpartition("=")
    source, dash, target = codes.partition("-")
    if not (name and source and dash and target):
        raise QkvError(f"--languages takes NAME=SOURCE-TARGET, for example my-model=en-de, not {setting!r}")
    return name, (source, target)
