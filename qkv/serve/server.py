"""The server process: loads models and answers requests until SIGTERM or Ctrl-C, then finishes those in progress."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import FrameType

import torch
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from qkv.errors import QkvError
from qkv.serve.api.run_log import RunLog
from qkv.serve.api.service import Service
from qkv.serve.app import create_app
from qkv.serve.http.middleware import Middleware
from qkv.serve.http.sockets import bind
from qkv.serve.scheduling.served_model import Pair, ServedModel, default_name, load_for_serving
from qkv.serve.scheduling.workers import Ready, SharedCounts, StartFailed, enter_worker
from qkv.serve.settings import Settings, split_name

HEADER_SECONDS = 20.0
"""Seconds until the headers of a request must be complete, from its first byte or from the opening of the connection."""


class TimedProtocol(H11Protocol):
    """Uvicorn's HTTP protocol with a time limit: it would wait forever for headers that never come."""

    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timer = self.loop.call_later(HEADER_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        idle = self.cycle is None or self.cycle.response_complete  # no request is being read or answered
        if not idle:
            self.stop_timer()
        elif self.timer is None:
            self.timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_timer()
        super().connection_lost(exc)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Server(uvicorn.Server):
    """Uvicorn, with a call when it accepts requests, and a middleware that rejects new ones during shutdown."""

    def __init__(self, config: uvicorn.Config, middleware: Middleware, on_ready: Callable[[], None] | None = None):
        super().__init__(config)
        self.middleware, self.on_ready = middleware, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # models and modules stay: without them a garbage collection does not interrupt requests for long
        gc.collect()
        gc.freeze()
        if self.started and self.on_ready is not None:
            self.on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown; a second Ctrl-C ends at once. It is no failure: the exit code is 0."""
        self.middleware.closing = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def create_server(service: Service, on_ready: Callable[[], None] | None = None) -> Server:
    middleware, limits = create_app(service), service.limits
    config = uvicorn.Config(
        middleware, log_level="warning", access_log=False, server_header=False, proxy_headers=False, lifespan="on",
        ws="none", http=TimedProtocol, timeout_keep_alive=30, timeout_graceful_shutdown=int(limits.seconds) + 1,
        limit_concurrency=2 * limits.connections + 16,  # for idle connections: the middleware rejects requests before
    )  # fmt: skip
    return Server(config, middleware, on_ready)


def serve_worker(settings: Settings, host: str, port: int, count: int, counts: SharedCounts, number: int,
                 reports: Connection) -> None:  # fmt: skip
    """Serve in worker process `number` of `count`; report that it is ready, or why it cannot start."""
    enter_worker()
    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    try:
        service = create_service(settings, counts, number)
        ready = Ready(describe_models(service))
        create_server(service, lambda: reports.send(ready)).run(sockets=[bind(host, port, shared=True)])
    except (QkvError, OSError) as error:
        reports.send(StartFailed(str(error)))


def create_service(settings: Settings, counts: SharedCounts | None = None, worker: int = 0) -> Service:
    """Load all models; their threads are not started yet."""
    models = load_models(settings.folders, settings.languages, settings.device, settings.precision)
    requests = None
    if counts is not None:
        requests = counts.requests_of(worker)
        for number, model in enumerate(models):
            model.counts = counts.waiting_of(number, worker)
    return Service(models, settings.limits, settings.keys, run_log=None if settings.run is None else RunLog(settings.run),
                   origins=settings.origins, hosts=settings.hosts, requests=requests)  # fmt: skip


def load_models(folders: Sequence[str], languages: Sequence[str] = (), device: str = "auto", precision: str | None = None
                ) -> list[ServedModel]:  # fmt: skip
    """Load FOLDER or NAME=FOLDER each, with NAME=en-de for translators whose folder does not name their languages."""
    pairs = dict(parse_languages(setting) for setting in languages)
    models = []
    for given in folders:
        name, path = split_name(given)
        name = name or default_name(path)
        models.append(load_for_serving(path, name, pairs.pop(name, None), device, precision))
    if pairs:
        raise QkvError(f"--languages {next(iter(pairs))}=...: there is no model of that name")
    return models


def parse_languages(setting: str) -> tuple[str, Pair]:
    name, _, codes = setting.rpartition("=")
    source, dash, target = codes.partition("-")
    if not (name and source and dash and target):
        raise QkvError(f"--languages takes NAME=SOURCE-TARGET, for example my-model=en-de, not {setting!r}")
    return name, (source, target)


def describe_models(service: Service) -> list[str]:
    """Return one line per model: its name, family, languages and abilities."""
    lines = []
    for model in service.models:
        pair = f", {model.pair[0]} to {model.pair[1]}" if model.pair and "translate" in model.abilities else ""
        lines.append(f"{model.name}: {model.config.family}{pair}; abilities: {', '.join(model.abilities) or 'none'}")
    return lines
