"""HTTP errors with a status, a message and, below /v1, OpenAI's error object."""

from __future__ import annotations

from typing import Any

ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error",
               500: "server_error", 503: "overloaded_error"}  # fmt: skip
"""OpenAI's error types by status; every other one is an invalid_request_error."""
CLIENT_CLOSED = 499
"""Status in the metrics of a request whose client closed the connection (nginx's number); it is never sent."""


class ApiError(Exception):
    """An error response."""

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None, retry_after: int = 0
    ):
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after
        """Value of the Retry-After header in seconds; 0 = no such header."""

    def headers(self) -> dict[str, str]:
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    def body(self, path: str) -> dict[str, Any]:
        """Return OpenAI's error object for paths below /v1, LibreTranslate's `{"error": message}` for all others."""
        message = self.message.encode("utf-8", "replace").decode()  # it may quote half of a surrogate pair
        if not path.startswith("/v1"):
            return {"error": message}
        kind = ERROR_TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


def overload_error(reason: str = "the server is busy", retry_after: int = 1) -> ApiError:
    return ApiError(503, f"{reason}: retry after {retry_after} s", code="overloaded", retry_after=retry_after)


def shutting_down() -> ApiError:
    return overload_error("this server is shutting down", retry_after=5)
