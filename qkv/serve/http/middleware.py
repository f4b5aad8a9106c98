"""The front of the server, before any route: the host is checked, bodies are read whole and bounded, forms become JSON, answers
get the headers that keep a browser safe, and everything is counted."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from qkv.serve.http.errors import GONE, Refusal, busy
from qkv.serve.scheduling.limits import Limits
from qkv.serve.scheduling.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
          "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")  # fmt: skip
SAFE = [(b"content-security-policy", POLICY.encode()), (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"), (b"cross-origin-opener-policy", b"same-origin")]  # fmt: skip
ARRIVED = "qkv.arrived"
"""In the scope of a request: when it came."""
DRAINED = 32_000_000
"""Bytes of a body that is too large which are still read and thrown away, so that its sender hears why."""
OPENING = re.compile(rb'"(?:[^"\\]|\\.)*"?|([\[{])|([\]}])', re.S)
FIELDS = 1000
"""Fields of a form."""
FORMS = ("/translate", "/detect")
"""Routes that also read forms, and fields in the address, as LibreTranslate's clients send them. The others read JSON only: a
page of another site can send a form anywhere, but no JSON."""
JSON = re.compile(r"application/([\w.-]+\+)?json")
HOST = re.compile(r"\[(?P<address>[\da-f:.]+)\](:\d+)?|(?P<name>[\w.-]+?)\.?(:\d+)?", re.I)
URLENCODED = "application/x-www-form-urlencoded"
BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})', re.I)
NAME = re.compile(rb'^content-disposition:[^\r\n]{0,200}?\bname="([^"\r\n]*)"', re.I | re.M)


class Front:
    """The outermost layer (ASGI)."""

    def __init__(self, app: Any, limits: Limits, metrics: Metrics, hosts: Collection[str] = ()):
        self.app, self.limits, self.metrics = app, limits, metrics
        self.hosts = {"localhost", *(host_name(host) or host.lower() for host in hosts)}
        """Names under which the server may be addressed."""
        self.closing = False
        """The server ends: who is here is served, nobody else."""
        self.open = 0
        """Requests that are being answered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            else:
                await self.app(scope, receive, send)
            return
        status, start = GONE, time.monotonic()
        scope[ARRIVED] = start

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *SAFE]
            await send(message)

        self.open += 1
        self.metrics.open.set(self.open)
        try:
            await self.bounded(scope, receive, told)
        finally:
            self.open -= 1
            self.metrics.open.set(self.open)
            self.metrics.refresh()
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(route, status).inc()
            self.metrics.seconds.labels(route).observe(time.monotonic() - start)

    async def bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self.closing and scope["path"] != "/health":
                raise busy("this server is shutting down", retry=5)
            if self.open > self.limits.connections and scope["path"] != "/health":
                raise busy(f"{self.limits.connections:,} requests are already in progress")
            headers = Headers(scope=scope)
            if scope["path"] != "/health":  # load balancers ask for it by any name, or by none
                check_host(headers.get("host", ""), self.hosts)
            async with asyncio.timeout(self.limits.seconds):
                body = await self.body(headers, receive)
            body = as_json(body, headers, scope)
            not_too_deep(body, self.limits.nesting)
        except TimeoutError:
            refusal = Refusal(408, "the request did not arrive in time")
            await self.refuse(refusal, scope, receive, send)
        except Refusal as refused:
            await self.refuse(refused, scope, receive, send)
        except ConnectionAbortedError:
            return
        else:
            await self.app(scope, given(body, receive), send)

    async def refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        content = refusal.content(scope["path"])
        await JSONResponse(content, refusal.status, {**refusal.headers(), "Connection": "close"})(scope, receive, send)

    async def body(self, headers: Headers, receive: Receive) -> bytes:
        """All of it; one that is too large is not kept."""
        parts, size = list[bytes](), 0
        more = True
        while more and size <= DRAINED:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionAbortedError
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size <= self.limits.body:
                parts.append(part)
        if size > self.limits.body:
            raise Refusal(413, f"the request has more than {self.limits.body:,} bytes: send less at a time")
        return b"".join(parts)


def check_host(given: str, allowed: Collection[str]) -> None:
    """Refuse a request that addresses the server by a name that it does not know.

    A web page can let the name of its own site resolve to 127.0.0.1 and so, for the browser, become the same site as this
    server (DNS rebinding); but its requests carry that name. An address in place of a name cannot be abused like this.
    """
    name = host_name(given)
    if "*" in allowed or name in allowed or is_address(name):
        return
    raise Refusal(
        421, f"the host {given[:100]!r} is not allowed: start the server with `--allowed-host {name[:100] or 'NAME'}`"
    )


def host_name(given: str) -> str:
    """The name or address in "name:port"; empty where it is neither."""
    found = HOST.fullmatch(given)
    return "" if found is None else (found["address"] or found["name"]).lower()


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def given(body: bytes, receive: Receive) -> Receive:
    """A `receive` that first gives the body, then what comes after it: that the client has gone."""
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


def as_json(body: bytes, headers: Headers, scope: Scope) -> bytes:
    """A form as the JSON that says the same. Where forms are read, a body without a type, or JSON that is said to be a form, as
    `curl -d` and urllib do, is taken for JSON."""
    said = headers.get("content-type", "")
    kind = said.partition(";")[0].strip().lower()
    if scope["path"] not in FORMS:
        if body and not JSON.fullmatch(kind):
            found = f"the Content-Type of the body is {kind[:100]!r}" if kind else "the body has no Content-Type"
            raise Refusal(415, f"{found}: send JSON with the header `Content-Type: application/json`")
        return body
    pairs = form_of(body, kind, said, scope)
    if pairs is not None:
        body = json.dumps(fields_of(pairs)).encode()
    elif kind not in ("", URLENCODED) or not body:
        return body
    own = [(name, value) for name, value in scope["headers"] if name not in (b"content-type", b"content-length")]
    length = str(len(body)).encode()
    scope["headers"] = [*own, (b"content-type", b"application/json"), (b"content-length", length)]
    return body


def form_of(body: bytes, kind: str, said: str, scope: Scope) -> list[tuple[str, str]] | None:
    """The names and values of a form of either kind, and of the address. None: it is no form."""
    query = scope["query_string"].decode("latin-1") if scope["method"] == "POST" else ""
    try:
        if kind == "multipart/form-data":
            found = parts_of(body, said)
        elif kind in ("", URLENCODED) and not body.lstrip().startswith(b"{") and (kind or not body):
            found = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS)
        else:
            return None
        return parse_qsl(query, keep_blank_values=True, max_num_fields=FIELDS) + found if found or query else None
    except (UnicodeDecodeError, ValueError):
        raise Refusal(400, "this form cannot be read: it is not UTF-8, or has too many fields") from None


def parts_of(body: bytes, kind: str) -> list[tuple[str, str]]:
    """The fields of a multipart form (RFC 7578), each behind a line with the boundary; files among them are left out."""
    boundary = BOUNDARY.search(kind)
    if boundary is None:
        raise Refusal(400, "this form cannot be read: its type names no boundary")
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary[1].encode("latin-1"), FIELDS)
    found = []
    for part in parts:
        head, _, value = part.partition(b"\r\n\r\n")
        name = NAME.search(head)
        if name is not None and b"filename" not in head:
            found.append((name[1].decode(), value.decode()))
    return found


def fields_of(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """A field that occurs several times is a list."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        fields[name] = value if name not in fields else [*listed(fields[name]), value]
    return fields


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def not_too_deep(body: bytes, most: int) -> None:
    """Count brackets outside of strings before anything unfolds them."""
    if body.count(b"[") + body.count(b"{") <= most:
        return
    depth = 0
    for found in OPENING.finditer(body):
        depth += (found.lastindex == 1) - (found.lastindex == 2)
        if depth > most:
            raise Refusal(400, f"the request's JSON has more than {most} levels: it should be flat")
