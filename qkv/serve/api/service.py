"""The service that all routes share: models, limits, keys, metrics, and waiting for results within the time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request

from qkv.serve.api.run_log import RunLog
from qkv.serve.http.auth import ApiKeys
from qkv.serve.http.errors import CLIENT_CLOSED, ApiError, overload_error
from qkv.serve.http.limits import Limits, SharedCount
from qkv.serve.http.metrics import Metrics
from qkv.serve.http.middleware import ARRIVED
from qkv.serve.scheduling.registry import ModelRegistry
from qkv.serve.scheduling.served_model import ServedModel

T = TypeVar("T")


@dataclass
class Service:
    """What a server offers, and within which limits. Routes reach it as `request.app.state.service`."""

    models: list[ServedModel]
    limits: Limits = field(default_factory=Limits)
    keys: ApiKeys = field(default_factory=ApiKeys)
    metrics: Metrics = field(default_factory=Metrics)
    run_log: RunLog | None = None
    """The log of a training run whose curves are shown."""
    origins: Sequence[str] = ()
    """Origins of other sites' web pages that may send requests (CORS)."""
    hosts: Sequence[str] = ()
    """Host names by which clients may address the server, besides localhost and any IP address; "*" = any."""
    requests: SharedCount | None = None
    """Requests in progress in all worker processes; None = this process is the only one."""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.registry = ModelRegistry(self.models, self.limits, self.metrics)
        self.find = self.registry.find

    def run_model(self) -> str | None:
        """Return the name of the served model that the shown run has trained, if any."""
        run = self.run_log and self.run_log.folder.resolve()
        return next((model.name for model in self.models if run is not None and model.run == run), None)

    def remaining(self, request: Request) -> float:
        """Return the seconds left for a request, counted from its arrival."""
        return max(0.0, self.limits.seconds - (time.monotonic() - request.scope[ARRIVED]))

    async def to_thread(self, request: Request, work: Callable[..., T], *args: Any) -> T:
        """Run `work(*args)` outside of the event loop, within the time limit of the request."""
        return await self.wait_for(request, asyncio.to_thread(work, *args))

    async def wait_for(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; cancel it if the client disconnects or the time limit is reached."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect(request))
        try:
            left = self.remaining(request)
            done, _ = await asyncio.wait({task, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            if done:
                raise ApiError(CLIENT_CLOSED, "the client has disconnected")
            raise overload_error(f"this took longer than {self.limits.seconds:g} s", retry_after=5)
        finally:
            task.cancel()
            gone.cancel()


async def wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def require_key(request: Request) -> None:
    """A dependency of routes: raise an error unless the request has a valid API key."""
    request.app.state.service.keys.check(request)
