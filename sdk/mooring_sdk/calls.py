"""One call of the API, with its retries.

A call is sent again only when that is safe and may help. Reads, and mutations with an Idempotency-Key, are sent again
after a broken connection or an answer that says it is retryable; all attempts use the same key, so the effect happens
once. A request without a key (signing in) is sent again only if the server cannot have seen it, or refused it with
429. A refused token is replaced once.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from mooring_sdk.decoding import decode
from mooring_sdk.errors import MooringError  # imports every class that `error_from_answer` may raise
from mooring_sdk.flow import Backoff, Flow, Request, Response, authorize, send
from mooring_sdk.mooring_error import ConnectionFailed, DeadlineExceeded, UnexpectedAnswer, error_from_answer
from mooring_sdk.operation import Operation
from mooring_sdk.secret import Secret
from mooring_sdk.session import Session
from mooring_sdk.settings import CallOptions

Model = TypeVar("Model")
JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"
UNCHANGED: Final = CallOptions()


class ValueRefusedHere(ValueError):
    """A value that cannot be sent, because it would change the meaning of the URL."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation with its values."""

    operation: Operation
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = field(default=msgspec.UNSET, repr=False)
    options: CallOptions = UNCHANGED

    @property
    def is_repeatable(self) -> bool:
        """Whether sending it several times has one effect."""
        return self.operation.method == "GET" or self.operation.takes_key


def perform(session: Session, call: Call) -> Flow[Response]:
    """Send a call until it succeeds or another attempt cannot help."""
    draft = PreparedCall(session, call)
    deadline = session.settings.timing.monotonic() + draft.deadline_seconds
    token = None
    if not call.operation.is_public:
        token = session.current() or (yield from authorize())
    try:
        return (yield from _attempts(session, draft, token, deadline))
    except MooringError as error:
        if error.status != 401 or call.operation.is_public or not session.can_renew:
            raise
    token = yield from authorize(stale=token)
    return (yield from _attempts(session, draft, token, deadline))


def _attempts(session: Session, draft: "PreparedCall", token: Secret | None, deadline: float) -> Flow[Response]:
    def request(remaining: float) -> Request:
        return draft.request(token, remaining)

    return (yield from retrying(session, request, deadline, repeatable=draft.call.is_repeatable))


def retrying(
    session: Session, request_for: Callable[[float], Request], deadline: float, *, repeatable: bool
) -> Flow[Response]:
    """Send the request that `request_for` makes of the remaining seconds, and repeat it while that is safe and may
    help.
    """
    timing, policy = session.settings.timing, session.settings.retry
    failures = 0
    last: MooringError | None = None
    while True:
        remaining = deadline - timing.monotonic()
        if remaining <= 0:
            raise last or DeadlineExceeded("no answer before the deadline")
        request = request_for(remaining)
        watched = session.watch(request, failures + 1)
        try:
            response = yield from send(request)
        except ConnectionFailed as failure:
            watched(failure.detail)
            error: MooringError = failure
            may_repeat = repeatable or not failure.was_sent
        else:
            watched(response)
            if response.is_success:
                return response
            error = error_from_answer(response.status, response.headers, response.body)
            may_repeat = error.retryable and (repeatable or response.status == 429)
        failures += 1
        pause = policy.pause(failures, timing.chance(), error.retry_after_seconds)
        if not may_repeat or failures >= policy.attempts or pause >= deadline - timing.monotonic():
            raise error
        last = error
        yield Backoff(pause)


class PreparedCall:
    """A call made ready, apart from the token, so that every attempt sends the same bytes."""

    def __init__(self, session: Session, call: Call) -> None:
        settings, options = session.settings, call.options
        waits = float(call.query.get("wait") or 0.0)
        self.call = call
        self.target = target_of(call.operation.path, call.path, call.query)
        self.timeout_seconds = (options.timeout_seconds or settings.timeout_seconds) + waits
        self.deadline_seconds = (options.deadline_seconds or settings.deadline_seconds) + waits
        self.headers = common_headers(session, options)
        self.content: bytes | None = None
        if call.operation.takes_key:
            self.headers["idempotency-key"] = options.idempotency_key or uuid.uuid4().hex
        if call.body is not msgspec.UNSET:
            self._encode(call.body)

    def _encode(self, body: Any) -> None:
        if self.call.operation.takes_form:
            self.content = urlencode(body).encode("ascii")
            self.headers["content-type"] = FORM
        else:
            self.content = msgspec.json.encode(body)
            self.headers["content-type"] = JSON

    def request(self, token: Secret | None, remaining_seconds: float) -> Request:
        """One attempt, within the remaining time."""
        headers = self.headers
        if token is not None:
            headers = {**headers, "authorization": f"Bearer {token.reveal()}"}
        timeout = min(self.timeout_seconds, remaining_seconds)
        return Request(self.call.operation.method, self.target, headers, self.content, timeout, timeout)


def common_headers(session: Session, options: CallOptions) -> dict[str, str]:
    """The headers that every request has; none of them is secret."""
    headers = {"accept": JSON, "user-agent": session.settings.user_agent}
    correlation_id = options.correlation_id or session.settings.correlation_id
    if correlation_id:
        headers["x-correlation-id"] = correlation_id
    if options.traceparent:
        headers["traceparent"] = options.traceparent
    return headers


def target_of(template: str, path: Mapping[str, str], query: Mapping[str, Any]) -> str:
    """Path and query. A value stays one segment of the path, whatever it contains."""
    parts = []
    for part in template.split("/"):
        if part.startswith("{"):
            name = part[1:-1]
            value = path[name]
            if value in ("", ".", ".."):
                raise ValueRefusedHere(f"{name} is {value!r}: a path parameter must not be empty or a dot")
            parts.append(quote(value, safe=""))
        else:
            parts.append(part)
    given = {
        name: query_text(value) for name, value in query.items() if value is not None and value is not msgspec.UNSET
    }
    return "/".join(parts) + (f"?{urlencode(given)}" if given else "")


def query_text(value: Any) -> str:
    """A value as it is written in a query."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(query_text(each) for each in value)
    if isinstance(value, str | int | float):
        return str(value)
    text = msgspec.to_builtins(value, str_keys=True)
    return text if isinstance(text, str) else msgspec.json.encode(text).decode()


def given(always: Mapping[str, Any], sometimes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A body: of `sometimes` only what is not None, and nothing that is unset."""
    fields = dict(always) | {name: value for name, value in (sometimes or {}).items() if value is not None}
    return {name: value for name, value in fields.items() if value is not msgspec.UNSET}


def read_answer(response: Response, model: type[Model]) -> Model:
    """Decode the body of an answer; an empty body is read as null."""
    body = response.body or b"null"
    try:
        return decode(body, model)
    except msgspec.DecodeError as error:
        raise UnexpectedAnswer(
            f"cannot decode the answer: {error}",
            status=response.status,
            remedy="The server may be older or newer than this SDK supports.",
            correlation_id=response.headers.get("x-correlation-id"),
        ) from None
