"""The application: routes, errors in each API's shape, the front before them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

import qkv
from qkv.errors import QkvError
from qkv.serve.api import inspection, libretranslate, native, openai
from qkv.serve.http import static
from qkv.serve.http.errors import Refusal
from qkv.serve.http.middleware import Front
from qkv.serve.scheduling.registry import Service

ABOUT = "Models trained or opened by qkv, behind LibreTranslate's API, OpenAI's, and one of our own."


def application(service: Service) -> Front:
    """An ASGI application that serves the models of `service`; its threads live as long as it does."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close()

    app = FastAPI(
        title="qkv", version=qkv.__version__, description=ABOUT, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    server(app, service)
    for part in (libretranslate, openai, native, inspection):
        app.include_router(part.router(service))
    app.include_router(static.router(app))
    errors(app)
    app.openapi = lambda: schema(app)  # type: ignore[method-assign]
    if service.origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(service.origins), allow_methods=["GET", "POST"],
                           allow_headers=["Authorization", "Content-Type"])  # fmt: skip
    service.front = Front(app, service.limits, service.metrics, service.hosts)
    return service.front


def server(app: FastAPI, service: Service) -> None:
    """How the server itself is."""

    @app.get("/health", tags=["Server"])
    async def health() -> dict[str, str]:
        """Whether it answers."""
        closing = service.front is not None and service.front.closing
        return {"status": "closing" if closing else "ok"}

    @app.get("/metrics", tags=["Server"], dependencies=[Depends(service.asks_for_key)])
    async def metrics() -> Response:
        """Requests, times, queues, batches and tokens, for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


# --- errors


def errors(app: FastAPI) -> None:
    """Every error as a Refusal, and that in the shape of its API."""

    def refuse(request: Request, error: Refusal) -> Response:
        return JSONResponse(error.content(request.url.path), error.status, error.headers())

    async def refused(request: Request, error: Any) -> Response:
        return refuse(request, error)

    async def wrong(request: Request, error: Any) -> Response:
        return refuse(request, Refusal(400, str(error)))

    async def invalid(request: Request, error: Any) -> Response:
        return refuse(request, in_words(error))

    async def other(request: Request, error: Any) -> Response:
        return refuse(request, Refusal(error.status_code, str(error.detail)))

    async def broken(request: Request, error: Exception) -> Response:
        return refuse(request, Refusal(500, "internal error: the server's log has the details"))

    for kind, handler in ((Refusal, refused), (QkvError, wrong), (RequestValidationError, invalid),
                          (HTTPException, other), (Exception, broken)):  # fmt: skip
        app.add_exception_handler(kind, handler)


def in_words(error: RequestValidationError) -> Refusal:
    """What is wrong with a request, at most three things at once."""
    problems, first = list[str](), None
    for problem in error.errors()[:3]:
        place = ".".join(str(part)[:50] for part in problem["loc"][1:])
        first = first or place or None
        what = problem["ctx"].get("error", problem["msg"]) if problem["type"] == "json_invalid" else problem["msg"]
        problems.append(
            "the request is not JSON: " + str(what) if problem["type"] == "json_invalid" else f"{place}: {what}"
        )
    return Refusal(400, "; ".join(problems)[:500], param=first)


def schema(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI schema; errors are 4xx with a message, never FastAPI's 422."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        shape = {"type": "object", "required": ["error"], "properties": {"error": {}}}
        refusal = {"content": {"application/json": {"schema": shape}}}
        for methods in found["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
                operation["responses"]["4XX"] = {"description": "The request is wrong, and why", **refusal}
                operation["responses"]["503"] = {"description": "Too busy: see Retry-After", **refusal}
        for name in ("HTTPValidationError", "ValidationError"):
            found.get("components", {}).get("schemas", {}).pop(name, None)
        app.openapi_schema = found
    return app.openapi_schema
