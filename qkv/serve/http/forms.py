"""Forms as JSON: LibreTranslate's clients send URL-encoded or multipart forms, or fields in the query string."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Scope

from qkv.serve.http.errors import ApiError

FIELDS = 1000
"""Most fields of a form."""
URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


async def form_to_json(body: bytes, kind: str, headers: Headers, scope: Scope) -> bytes:
    """Convert a form to a JSON object and set the request's headers to match; any other body stays as it is.

    JSON without a content type, or labelled as a form as `curl -d` and urllib do, is read as JSON.
    """
    fields = await form_fields(body, kind, headers, scope)
    if fields is not None:
        body = json.dumps(as_object(fields)).encode()
    elif kind not in ("", URLENCODED) or not body:
        return body
    others = [(name, value) for name, value in scope["headers"] if name not in (b"content-type", b"content-length")]
    length = str(len(body)).encode()
    scope["headers"] = [*others, (b"content-type", b"application/json"), (b"content-length", length)]
    return body


async def form_fields(body: bytes, kind: str, headers: Headers, scope: Scope) -> list[tuple[str, str]] | None:
    """Return the fields of the query string and of a form; None if the body is no form."""
    query = scope["query_string"].decode("latin-1") if scope["method"] == "POST" else ""
    try:
        if kind == MULTIPART:
            fields = await multipart_fields(body, headers)
        elif kind in ("", URLENCODED) and not body.lstrip().startswith(b"{") and (kind or not body):
            fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS)
        else:
            return None
        in_query = parse_qsl(query, keep_blank_values=True, max_num_fields=FIELDS)
    except ValueError:
        raise ApiError(400, f"the form is not UTF-8, or has more than {FIELDS:,} fields") from None
    return in_query + fields if fields or query else None


async def multipart_fields(body: bytes, headers: Headers) -> list[tuple[str, str]]:
    """Parse a multipart form (RFC 7578) with python-multipart; uploaded files are left out."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(headers, stream(), max_files=FIELDS, max_fields=FIELDS)
    parser.max_part_size = len(body)  # the size of the body is limited already
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise ApiError(400, f"the multipart form is invalid: {error.message}") from None
    fields = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
    await form.close()
    return fields


def as_object(fields: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Collect fields in a dictionary; a field that occurs several times becomes a list."""
    record: dict[str, Any] = {}
    for name, value in fields:
        record[name] = value if name not in record else [*as_list(record[name]), value]
    return record


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
