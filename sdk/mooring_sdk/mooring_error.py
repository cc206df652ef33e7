"""The exceptions of the SDK.

Each error code of the platform has its own class in `errors` (generated), below `MooringError`. A code that is newer
than this SDK is a plain `MooringError` with that code. Three classes are not answers of the platform: it could not be
reached, it did not answer in time, or something else answered.

No exception contains a token, a header or a request body.
"""

from typing import Any, ClassVar

import msgspec

from mooring_sdk.decoding import decode


class MooringError(Exception):
    """A request did not succeed; `code` says why, `remedy` what to do about it."""

    code: str = "unknown"
    known_codes: ClassVar[dict[str, type["MooringError"]]] = {}

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        status: int | None = None,
        title: str = "",
        remedy: str = "",
        retryable: bool = False,
        correlation_id: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        if code is not None:
            self.code = code
        self.detail = detail
        self.status = status
        self.title = title or self.code.replace("_", " ").capitalize()
        self.remedy = remedy
        self.retryable = retryable
        self.correlation_id = correlation_id
        self.details: dict[str, Any] = details or {}
        self.retry_after_seconds: float | None = None

    def __str__(self) -> str:
        parts = [f"{self.code}: {self.detail}" if self.detail else self.code]
        if self.remedy:
            parts.append(self.remedy)
        if self.correlation_id:
            parts.append(f"(correlation id {self.correlation_id})")
        return " ".join(parts)


class ConnectionFailed(MooringError):
    """The server could not be reached, or the connection broke before the answer was complete."""

    code = "connection_failed"

    def __init__(self, detail: str, *, was_sent: bool, correlation_id: str | None = None) -> None:
        remedy = "Check the address, and that the server is running."
        super().__init__(detail, remedy=remedy, retryable=True, correlation_id=correlation_id)
        self.was_sent = was_sent
        """Whether the server may have seen the request."""


class DeadlineExceeded(MooringError):
    """The deadline passed before there was an answer. The server may still have done it."""

    code = "deadline_exceeded"

    def __init__(self, detail: str, *, correlation_id: str | None = None) -> None:
        remedy = "Repeat it with the same idempotency key, or allow more time."
        super().__init__(detail, remedy=remedy, retryable=True, correlation_id=correlation_id)


class UnexpectedAnswer(MooringError):
    """The answer is not one of the platform: it came from a proxy, another server or a redirect."""

    code = "unexpected_answer"


class _Problem(msgspec.Struct):
    """The fields of a problem document that are used; all are optional."""

    code: str = ""
    title: str = ""
    detail: str = ""
    remedy: str = ""
    retryable: bool = False
    correlation_id: str | None = None
    details: dict[str, Any] | None = None


RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
EXCERPT_LENGTH = 200


def error_from_answer(status: int, headers: dict[str, str], body: bytes) -> MooringError:
    """The exception for an unsuccessful answer."""
    correlation_id = headers.get("x-correlation-id")
    media_type = headers.get("content-type", "").partition(";")[0].strip()
    if media_type != "application/problem+json":
        error: MooringError = _unexpected(status, headers, correlation_id)
    else:
        try:
            problem = decode(body, _Problem)
        except msgspec.DecodeError:
            error = _unexpected(status, headers, correlation_id)
        else:
            error = _from_problem(status, problem, correlation_id)
    error.retry_after_seconds = _retry_after(headers.get("retry-after"))
    return error


def _from_problem(status: int, problem: _Problem, correlation_id: str | None) -> MooringError:
    kind = MooringError.known_codes.get(problem.code, MooringError)
    return kind(
        problem.detail,
        code=problem.code or "unknown",
        status=status,
        title=problem.title,
        remedy=problem.remedy,
        retryable=problem.retryable or status in RETRYABLE_STATUSES,
        correlation_id=problem.correlation_id or correlation_id,
        details=problem.details,
    )


def _unexpected(status: int, headers: dict[str, str], correlation_id: str | None) -> UnexpectedAnswer:
    media_type = headers.get("content-type", "no content type")[:EXCERPT_LENGTH]
    if 300 <= status < 400:
        detail = f"the server answered with a redirect ({status}), which is not followed"
    else:
        detail = f"the server answered {status} with {media_type}, which is not an answer of Mooring"
    return UnexpectedAnswer(
        detail,
        status=status,
        remedy="Check that this is the address of a Mooring server, and any proxy in between.",
        retryable=status in RETRYABLE_STATUSES,
        correlation_id=correlation_id,
    )


def _retry_after(text: str | None) -> float | None:
    """The seconds of a Retry-After header; the platform does not use the date form."""
    if text is None or not text.strip().isdigit():
        return None
    return float(text.strip())
