"""Keys: who may ask. Without any, everybody may."""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from fastapi import Request

from qkv.convert.files import read_text
from qkv.errors import QkvError
from qkv.serve.http.errors import Refusal

VARIABLE = "QKV_API_KEYS"
"""Keys in the environment, with spaces or commas between them."""


class Keys:
    """Only their digests are kept, and every one of them is compared, in time that does not depend on where they differ."""

    def __init__(self, keys: Sequence[str] = ()):
        if any(len(key) < 4 or not key.isprintable() or not key.isascii() or " " in key for key in keys):
            raise QkvError("a key has at least 4 letters, digits or signs, and no spaces")
        self.digests = [digest(key) for key in keys]

    def known(self, key: str) -> bool:
        own = digest(key)
        return sum(hmac.compare_digest(own, other) for other in self.digests) > 0

    def check(self, request: Request, field: str | None = None) -> None:
        """Refuse who has none or a wrong one: `Authorization: Bearer KEY`, or LibreTranslate's `api_key`."""
        if not self.digests:
            return
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        key = bearer.strip() if scheme.lower() == "bearer" else field or request.query_params.get("api_key", "")
        if not key:
            raise Refusal(401, "an API key is required: send `Authorization: Bearer KEY` (or the field api_key)",
                          code="missing_api_key")  # fmt: skip
        if not self.known(key):
            raise Refusal(403 if field else 401, "the API key is not valid", code="invalid_api_key")


def digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


def keys_of(given: Sequence[str], file: Path | None) -> Keys:
    """From the command line, from a file with a key in each line, and from the environment."""
    lines = [] if file is None else [line.strip() for line in read_text(file).splitlines()]
    found = [*given, *(line for line in lines if line and not line.startswith("#"))]
    return Keys([*found, *os.environ.get(VARIABLE, "").replace(",", " ").split()])
