"""Refusals: a request that is answered with an error, in the shape that the clients of its API know."""

from __future__ import annotations

from typing import Any

KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error",
         500: "server_error", 503: "overloaded_error"}  # fmt: skip
GONE = 499
"""The client has closed the connection (nginx's number); nobody reads it."""


class Refusal(Exception):
    """Why a request is not answered as asked."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None, retry: int = 0):
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry = retry
        """Value of Retry-After in seconds; 0 = no such header."""

    def headers(self) -> dict[str, str]:
        own = {"Retry-After": str(self.retry)} if self.retry else {}
        return own | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    def content(self, path: str) -> dict[str, Any]:
        """OpenAI's object below /v1, LibreTranslate's text elsewhere."""
        message = self.message.encode("utf-8", "replace").decode()  # it may quote half a character
        if not path.startswith("/v1"):
            return {"error": message}
        kind = KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


def busy(why: str = "the server is busy", retry: int = 1) -> Refusal:
    return Refusal(503, f"{why}: retry after {retry} s", code="overloaded", retry=retry)
