"""The service that all routes share: models, limits, keys, metrics, and waiting for results within the time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from qkv.errors import QkvError
from qkv.serve.api.run_log import RunLog
from qkv.serve.http.auth import ApiKeys
from qkv.serve.http.errors import CLIENT_CLOSED, ApiError, overload_error
from qkv.serve.http.limits import Limits, SharedCount
from qkv.serve.http.metrics import Metrics
from qkv.serve.http.middleware import ARRIVED
from qkv.serve.scheduling.batcher import Work
from qkv.serve.scheduling.served_model import Pair, ServedModel

T = TypeVar("T")


@dataclass
class Service:
    """What a server offers, and within which limits. Routes reach it by their RequestContext."""

    models: list[ServedModel]
    """Names are unique."""
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
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise QkvError(f"two models have the same name ({', '.join(names)}): give them as NAME=FOLDER")
        for model in self.models:
            model.limits, model.metrics = self.limits, self.metrics

    def start(self) -> None:
        for model in self.models:
            model.start()

    def close(self) -> None:
        for model in self.models:
            model.close(self.limits.seconds)

    def dead_threads(self) -> list[str]:
        """Return the names of threads that ended although the server runs; their requests are never answered."""
        return [thread.name for model in self.models for thread in model.threads if not thread.is_alive()]

    def find(self, name: str | None, ability: str) -> ServedModel:
        """Return the model of this name, or the first one with this ability if no name is given."""
        if name is None:
            for model in self.models:
                if ability in model.abilities:
                    return model
            problem = f"no model here can {ability}: serve one that was trained for it"
            raise ApiError(404, problem, "model_not_found", "model")
        model = self.get(name)
        if ability not in model.abilities:
            able = ", ".join(model.abilities) or "nothing"
            raise ApiError(400, f"the model {name!r} cannot {ability}; it can {able}", "model_not_suited", "model")
        return model

    def get(self, name: str) -> ServedModel:
        for model in self.models:
            if model.name == name:
                return model
        known = ", ".join(model.name for model in self.models) or "none"
        raise ApiError(404, f"there is no model {name[:100]!r}; available: {known}", "model_not_found", "model")

    def translators(self) -> dict[Pair, ServedModel]:
        """Return the first model for each pair of languages."""
        found: dict[Pair, ServedModel] = {}
        for model in self.models:
            if "translate" in model.abilities and model.pair is not None:
                found.setdefault(model.pair, model)
        return found

    def run_model(self) -> str | None:
        """Return the name of the served model that the shown run has trained, if any."""
        run = self.run_log and self.run_log.folder.resolve()
        return next((model.name for model in self.models if run is not None and model.run == run), None)


@dataclass(frozen=True)
class RequestContext:
    """One request: the service that answers it, and waiting for results within its time limit."""

    request: Request
    service: Service
    limits: Limits
    find: Callable[[str | None, str], ServedModel]

    def remaining(self) -> float:
        """Return the seconds left, counted from the arrival of the request."""
        return max(0.0, self.limits.seconds - (time.monotonic() - self.request.scope[ARRIVED]))

    async def to_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work(*args)` outside of the event loop, within the time limit."""
        return await self.wait_for(asyncio.to_thread(work, *args))

    async def compute(self, served: ServedModel, key: Hashable, work: Work, items: Sequence[Any]) -> list[Any]:
        """Compute items in the batcher of a model, together with others of the same key."""
        return await self.wait_for(served.batcher.submit(key, work, items))

    async def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; cancel it if the client disconnects or the time limit is reached."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(self.wait_for_disconnect())
        try:
            done, _ = await asyncio.wait({task, gone}, timeout=self.remaining(), return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            if done:
                raise ApiError(CLIENT_CLOSED, "the client has disconnected")
            raise overload_error(f"this took longer than {self.limits.seconds:g} s", retry_after=5)
        finally:
            task.cancel()
            gone.cancel()

    async def wait_for_disconnect(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


async def get_context(request: Request) -> RequestContext:
    service = request.app.state.service
    return RequestContext(request, service, service.limits, service.find)


Context = Annotated[RequestContext, Depends(get_context)]
"""A parameter of routes: FastAPI calls `get_context` for each request."""


async def require_key(request: Request) -> None:
    """A dependency of routes: raise an error unless the request has a valid API key."""
    request.app.state.service.keys.check(request)
