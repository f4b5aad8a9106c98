"""Middleware before all routes: checks the host, limits the body, converts forms to JSON, adds security headers, counts."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.serve.http.errors import CLIENT_CLOSED, ApiError, overload_error, shutting_down
from qkv.serve.http.forms import form_to_json
from qkv.serve.http.limits import Limits, SharedCount
from qkv.serve.http.metrics import Metrics

POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
          "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")  # fmt: skip
SECURITY_HEADERS = [(b"content-security-policy", POLICY.encode()), (b"x-content-type-options", b"nosniff"),
                    (b"referrer-policy", b"no-referrer"), (b"cross-origin-opener-policy", b"same-origin")]  # fmt: skip
ARRIVED = "qkv.arrived"
"""Key in the scope of a request: its arrival time."""
DRAINED = 32_000_000
"""Bytes of an oversized body that are read and discarded, so that its sender receives the error."""
BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"?|([\[{])|([\]}])', re.S)
"""A string (skipped), an opening bracket or a closing one."""
FORM_ROUTES = ("/translate", "/detect")
"""Routes that also accept forms and query strings, as LibreTranslate's clients send them. All others accept JSON only: a web
page of another site can send a form anywhere, but no JSON."""
JSON_TYPE = re.compile(r"application/([\w.-]+\+)?json")
HOST = re.compile(r"\[(?P<address>[\da-f:.]+)\](:\d+)?|(?P<name>[\w.-]+?)\.?(:\d+)?", re.I)


class Middleware:
    """The outermost ASGI layer."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        metrics: Metrics,
        hosts: Collection[str] = (),
        count: SharedCount | None = None,
    ):
        self.app, self.limits, self.metrics = app, limits, metrics
        self.hosts = {"localhost", *(host_name(host) or host.lower() for host in hosts)}
        """Host names by which clients may address the server."""
        self.closing = False
        """Whether the server is shutting down: requests in progress are answered, new ones rejected."""
        self.in_progress = 0
        self.count = count or SharedCount()
        """Requests in progress in all worker processes."""
        metrics.sample(metrics.open, lambda: self.in_progress)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1000})
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        status, start = CLIENT_CLOSED, time.monotonic()
        scope[ARRIVED] = start

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *SECURITY_HEADERS]
            await send(message)

        self.in_progress += 1
        self.count.set(self.in_progress)
        try:
            await self.forward(scope, receive, send_with_headers)
        finally:
            self.in_progress -= 1
            self.count.set(self.in_progress)
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.record_request(route, status, time.monotonic() - start)
        return None

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an acceptable request on to the application, with its body; answer any other with an error."""
        try:
            bodies = [await self.accept(scope, receive)]
        except ConnectionAbortedError:
            return
        except ApiError as error:
            headers = {**error.headers(), "Connection": "close"}
            await JSONResponse(error.body(scope["path"]), error.status, headers)(scope, receive, send)
            return

        async def receive_again() -> Message:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False} if bodies else await receive()

        await self.app(scope, receive_again, send)

    async def accept(self, scope: Scope, receive: Receive) -> bytes:
        """Check a request and return its body, which is JSON."""
        headers = Headers(scope=scope)
        if scope["path"] != "/health":  # load balancers use any host name or none, and ask a busy server too
            if self.closing:
                raise shutting_down()
            if self.count.total() > self.limits.connections:
                raise overload_error(f"{self.limits.connections:,} requests are already in progress")
            check_host(headers.get("host", ""), self.hosts)
        try:
            async with asyncio.timeout(self.limits.seconds):
                body = await read_body(receive, self.limits.body)
        except TimeoutError:
            raise ApiError(408, f"the request did not arrive within {self.limits.seconds:g} s") from None
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if JSON_TYPE.fullmatch(kind):
            pass
        elif scope["path"] in FORM_ROUTES:
            body = await form_to_json(body, kind, headers, scope)
        elif body:
            given = f"the Content-Type of the body is {kind[:100]!r}" if kind else "the body has no Content-Type"
            raise ApiError(415, f"{given}: send JSON with the header `Content-Type: application/json`")
        check_nesting(body, self.limits.nesting)
        return body


async def read_body(receive: Receive, most: int) -> bytes:
    """Read a request body of at most so many bytes; a larger one is not kept in memory."""
    parts, size, more = list[bytes](), 0, True
    while more and size <= DRAINED:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionAbortedError
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size <= most:
            parts.append(part)
    if size > most:
        raise ApiError(413, f"the request has more than {most:,} bytes: send fewer texts per request")
    return b"".join(parts)


def check_host(given: str, allowed: Collection[str]) -> None:
    """Reject a request that addresses the server by an unknown host name.

    A web page can let the name of its own site resolve to 127.0.0.1 and so become, for the browser, the same site as this
    server (DNS rebinding); but its requests carry that name. An IP address cannot be abused like this.
    """
    name = host_name(given)
    if "*" in allowed or name in allowed or is_address(name):
        return
    option = f"--allowed-host {name[:100] or 'NAME'}"
    raise ApiError(421, f"the host {given[:100]!r} is not allowed: start the server with `{option}`")


def host_name(given: str) -> str:
    """Extract the name or address from "name:port"; return "" if it is neither."""
    match = HOST.fullmatch(given)
    return "" if match is None else (match["address"] or match["name"]).lower()


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_nesting(body: bytes, most: int) -> None:
    """Reject deeply nested JSON before it is parsed, by counting brackets outside of strings."""
    if body.count(b"[") + body.count(b"{") <= most:
        return
    depth = 0
    for bracket in BRACKET.finditer(body):
        depth += (bracket.lastindex == 1) - (bracket.lastindex == 2)
        if depth > most:
            raise ApiError(400, f"the JSON of the request has more than {most} levels: send a flatter structure")
