"""Service: all models of a server, and how requests find the one they ask for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request

from qkv.errors import QkvError
from qkv.serve.api.run_log import Watch
from qkv.serve.http.auth import Keys
from qkv.serve.http.errors import GONE, Refusal, busy
from qkv.serve.http.middleware import ARRIVED, Front
from qkv.serve.scheduling.limits import Limits
from qkv.serve.scheduling.metrics import Metrics
from qkv.serve.scheduling.served_model import Served

T = TypeVar("T")


@dataclass
class Service:
    """What every route can reach."""

    models: list[Served]
    limits: Limits = field(default_factory=Limits)
    keys: Keys = field(default_factory=Keys)
    metrics: Metrics = field(default_factory=Metrics)
    watch: Watch | None = None
    """A run in training whose curves are shown."""
    origins: Sequence[str] = ()
    """Web pages from elsewhere that may ask (CORS)."""
    hosts: Sequence[str] = ()
    """Names under which the server may be addressed, beside localhost and any IP address; "*" = any."""
    created: int = field(default_factory=lambda: int(time.time()))
    front: Front | None = None

    def __post_init__(self) -> None:
        names = [one.name for one in self.models]
        if len(set(names)) < len(names):
            raise QkvError(f"two models have the same name ({', '.join(names)}): give them as NAME=FOLDER")
        for one in self.models:
            one.limits, one.metrics = self.limits, self.metrics

    def start(self) -> None:
        for one in self.models:
            one.start()

    def close(self) -> None:
        for one in self.models:
            one.close(self.limits.seconds)

    # --- which model

    def named(self, name: str | None, can: str) -> Served:
        """The model of this name; without one, the first that can do it."""
        if name is None:
            return self.able(can)
        found = next((one for one in self.models if one.name == name), None)
        if found is None:
            known = ", ".join(one.name for one in self.models)
            raise Refusal(404, f"there is no model {name[:100]!r} here, but {known}", "model_not_found", "model")
        if can not in found.can:
            raise Refusal(400, f"the model {name!r} cannot {can}; it can {', '.join(found.can) or 'do nothing here'}",
                          "model_not_suited", "model")  # fmt: skip
        return found

    def able(self, can: str) -> Served:
        found = next((one for one in self.models if can in one.can), None)
        if found is None:
            raise Refusal(
                404, f"no model here can {can}: serve one that was trained for it", "model_not_found", "model"
            )
        return found

    def translators(self) -> list[Served]:
        return [one for one in self.models if "translate" in one.can and one.pair is not None]

    def run_model(self) -> str | None:
        """Name of the served model that the watched run has trained; None where none of them comes from it."""
        run = self.watch and self.watch.folder.resolve()
        return next((one.name for one in self.models if run is not None and one.run == run), None)

    # --- answering

    async def asks_for_key(self, request: Request) -> None:
        """A dependency of routes."""
        self.keys.check(request)

    def remaining(self, request: Request) -> float:
        """Seconds until the answer must be there, counted from the arrival of the request."""
        return max(0.0, self.limits.seconds - (time.monotonic() - request.scope[ARRIVED]))

    async def threaded(self, request: Request, work: Callable[..., T], *given: Any) -> T:
        """What `work(*given)` returns, computed outside of the event loop and within the time limit."""
        return await self.attended(request, asyncio.to_thread(work, *given))

    async def attended(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives; it is given up when the client goes away or the time is over."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(departure(request))
        try:
            left = self.remaining(request)
            done, _ = await asyncio.wait({task, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            if done:
                raise Refusal(GONE, "the client has gone")
            raise busy(f"this took longer than {self.limits.seconds:g} s", retry=5)
        finally:
            task.cancel()
            gone.cancel()


async def departure(request: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
