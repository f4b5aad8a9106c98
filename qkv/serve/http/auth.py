"""API keys: which clients may send requests. Without any key, all may."""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from fastapi import Request

from qkv.convert.files import read_text
from qkv.errors import QkvError
from qkv.serve.http.errors import ApiError

VARIABLE = "QKV_API_KEYS"
"""Environment variable with keys, separated by spaces or commas."""


class ApiKeys:
    """The accepted keys. Only digests are stored; all are compared, in time that does not depend on where they differ."""

    def __init__(self, keys: Sequence[str] = ()):
        if any(len(key) < 4 or not key.isprintable() or not key.isascii() or " " in key for key in keys):
            raise QkvError("an API key needs at least 4 ASCII letters, digits or signs, and no spaces")
        self.digests = [digest(key) for key in keys]

    def __contains__(self, key: str) -> bool:
        given = digest(key)
        return sum(hmac.compare_digest(given, known) for known in self.digests) > 0

    def check(self, request: Request, field: str | None = None) -> None:
        """Raise an error unless the request has a valid key: `Authorization: Bearer KEY`, or LibreTranslate's `api_key`."""
        if not self.digests:
            return
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        key = bearer.strip() if scheme.lower() == "bearer" else field or request.query_params.get("api_key", "")
        if not key:
            raise ApiError(401, "an API key is required: send `Authorization: Bearer KEY` (or the field api_key)",
                           code="missing_api_key")  # fmt: skip
        if key not in self:
            raise ApiError(403 if field else 401, "the API key is not valid", code="invalid_api_key")


def digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


def load_api_keys(keys: Sequence[str], file: Path | None) -> ApiKeys:
    """Collect keys from the command line, from a file with one key per line, and from the environment."""
    lines = [] if file is None else [line.strip() for line in read_text(file).splitlines()]
    in_file = [line for line in lines if line and not line.startswith("#")]
    return ApiKeys([*keys, *in_file, *os.environ.get(VARIABLE, "").replace(",", " ").split()])
