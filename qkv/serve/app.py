"""The ASGI application: routes, error responses, OpenAPI schema, and the middleware before them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

import qkv
from qkv.errors import QkvError
from qkv.serve.api import inspection, libretranslate, native, native_tasks, openai
from qkv.serve.api.service import Service, require_key
from qkv.serve.http import static
from qkv.serve.http.errors import ApiError
from qkv.serve.http.middleware import Middleware

ABOUT = "Transformer models behind LibreTranslate's API, OpenAI's API, and a native API."
SHAPE = {"type": "object", "required": ["error"], "properties": {"error": {}}}
CONTENT = {"content": {"application/json": {"schema": SHAPE}}}
RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "Invalid request, with the reason", **CONTENT},
    503: {"description": "Overloaded: see Retry-After", **CONTENT},
}
"""Errors of all routes in the OpenAPI schema: with 4XX among them, FastAPI does not add its own 422."""
status_routes = APIRouter(tags=["Server"])


def create_app(service: Service) -> Middleware:
    """Create the ASGI application of a service; the threads of its models live as long as the application."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close()

    app = FastAPI(title="qkv", version=qkv.__version__, description=ABOUT, docs_url=None, redoc_url=None,
                  lifespan=lifespan, responses=RESPONSES)  # fmt: skip
    for routes in (status_routes, libretranslate.routes, openai.routes, native.routes, native_tasks.routes,
                   inspection.routes, static.router(app)):  # fmt: skip
        app.include_router(routes)
    add_error_handlers(app)
    if service.origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(service.origins), allow_methods=["GET", "POST"],
                           allow_headers=["Authorization", "Content-Type"])  # fmt: skip
    middleware = Middleware(app, service.limits, service.metrics, service.hosts, service.requests)
    app.state.service, app.state.middleware = service, middleware
    return middleware


@status_routes.get("/health")
async def health(request: Request) -> Response:
    """Health check. Status 503 if a thread that computes requests has ended: restart the server."""
    state = request.app.state
    dead = state.service.dead_threads()
    if dead and not state.middleware.closing:
        return JSONResponse({"status": "failed", "dead_threads": dead}, 503)
    return JSONResponse({"status": "closing" if state.middleware.closing else "ok"})


@status_routes.get("/metrics", dependencies=[Depends(require_key)])
async def metrics(request: Request) -> Response:
    """Numbers and durations of requests, queue lengths, batch sizes and tokens, in Prometheus' format."""
    text = request.app.state.service.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


# --- errors


def add_error_handlers(app: FastAPI) -> None:
    """Answer every exception with an error in the format of its API."""

    async def handle(request: Request, error: Exception) -> Response:
        response = api_error(error)
        return JSONResponse(response.body(request.url.path), response.status, response.headers())

    for kind in (ApiError, QkvError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)


def api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QkvError):
        return ApiError(400, str(error))
    if isinstance(error, RequestValidationError):
        return validation_error(error)
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail))
    return ApiError(500, "internal error: the server's log has the details")


def validation_error(error: RequestValidationError) -> ApiError:
    """Describe at most three problems of a request."""
    problems, first = list[str](), None
    for problem in error.errors()[:3]:
        field = ".".join(str(part)[:50] for part in problem["loc"][1:])
        first = first or field or None
        if problem["type"] == "json_invalid":
            problems.append(f"the request is not JSON: {problem['ctx'].get('error', problem['msg'])}")
        else:
            problems.append(f"{field}: {problem['msg']}")
    return ApiError(400, "; ".join(problems)[:500], param=first)
