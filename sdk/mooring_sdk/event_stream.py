"""Event streams that survive broken connections: no event is missed, none is repeated.

The stream is Server-Sent Events. The `id` of each event is its cursor; after a break the last cursor is sent back as
`Last-Event-ID`, and the server continues after it. A cursor that the server no longer knows is raised as an error,
because events are missing then.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mooring_sdk.calls import Call, common_headers, target_of
from mooring_sdk.decoding import decode
from mooring_sdk.flow import Backoff, Close, Emit, Flow, Request, Response, authorize, open_stream, read_piece
from mooring_sdk.mooring_error import ConnectionFailed, MooringError, UnexpectedAnswer, error_from_answer
from mooring_sdk.secret import Secret
from mooring_sdk.session import Session

EVENT_STREAM: Final = "text/event-stream"
MESSAGE_LENGTH_MAX: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """One message of a stream; `data` is None if it only moves the cursor."""

    cursor: str | None
    kind: str
    data: str | None


@dataclass(slots=True)
class StreamParser:
    """Parses Server-Sent Events, wherever the chunks are cut."""

    retry_seconds: float | None = None
    _buffer: bytes = b""
    _cursor: str | None = None
    _kind: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, piece: bytes) -> Iterator[StreamMessage]:
        """The messages that this chunk completes."""
        self._buffer += piece
        if len(self._buffer) + sum(map(len, self._data)) > MESSAGE_LENGTH_MAX:
            raise UnexpectedAnswer("an event exceeds the size limit of this client")
        # A carriage return at the end may be the first half of a line ending: keep it for the next chunk.
        text = self._buffer.replace(b"\r\n", b"\n")
        held = b"\r" if text.endswith(b"\r") else b""
        *lines, rest = text.removesuffix(held).replace(b"\r", b"\n").split(b"\n")
        self._buffer = rest + held
        for line in lines:
            message = self._line(line.decode("utf-8", "replace"))
            if message is not None:
                yield message

    def _line(self, line: str) -> StreamMessage | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._kind = value
        elif name == "id" and "\0" not in value:
            self._cursor = value
        elif name == "retry" and value.isdigit():
            self.retry_seconds = int(value) / 1000
        return None

    def _dispatch(self) -> StreamMessage | None:
        data = "\n".join(self._data) if self._data else None
        message = StreamMessage(self._cursor, self._kind or "message", data)
        self._data, self._kind, self._cursor = [], "", None
        return message if data is not None or message.cursor is not None else None


@dataclass(slots=True)
class StreamPosition:
    """How far a follower has read, and how long the server has been unreachable."""

    cursor: str | None
    failures: int = 0
    unreached_since: float | None = None
    renewed: bool = False
    asked_seconds: float | None = None

    def progressed(self) -> None:
        """Data arrived: forget earlier failures."""
        self.failures, self.unreached_since, self.renewed = 0, None, False


def follow(session: Session, call: Call, model: Any, cursor: str | None = None) -> Flow[None]:
    """Emit every event after `cursor` as `model`, without an end."""
    position = StreamPosition(cursor)
    token: Secret | None = None
    while True:
        token = session.current() or (yield from authorize(token))
        error: MooringError
        try:
            response = yield from _open(session, call, position, token)
            if response.is_success:
                yield from _messages(position, model)
                error = ConnectionFailed(f"{session.url} ended the stream", was_sent=True)
            else:
                error = error_from_answer(response.status, response.headers, response.body)
        except ConnectionFailed as failure:
            error = failure
        yield Close()
        if error.status == 401 and session.can_renew and not position.renewed:
            position.renewed = True
            token = yield from authorize(stale=token)
            continue
        yield Backoff(_backoff_seconds(session, position, error))


def _open(session: Session, call: Call, position: StreamPosition, token: Secret | None) -> Flow[Response]:
    headers = {**common_headers(session, call.options), "accept": EVENT_STREAM, "accept-encoding": "identity"}
    if position.cursor is not None:
        headers["last-event-id"] = position.cursor
    if token is not None:
        headers["authorization"] = f"Bearer {token.reveal()}"
    target = target_of(call.operation.path, call.path, call.query)
    silence = session.settings.stream_silence_seconds
    request = Request("GET", target, headers, None, silence, session.settings.timeout_seconds)
    watched = session.watch(request, position.failures + 1)
    try:
        response = yield from open_stream(request)
    except ConnectionFailed as failure:
        watched(failure.detail)
        raise
    watched(response)
    media_type = response.headers.get("content-type", "").partition(";")[0].strip()
    if response.is_success and media_type != EVENT_STREAM:
        raise UnexpectedAnswer(
            f"the server answered with {media_type!r} instead of an event stream", status=response.status
        )
    return response


def _messages(position: StreamPosition, model: Any) -> Flow[None]:
    """Emit the events of one connection until it ends."""
    parser = StreamParser()
    while piece := (yield from read_piece()):
        position.progressed()
        for message in parser.feed(piece):
            position.asked_seconds = parser.retry_seconds
            if message.cursor is None or message.cursor == position.cursor:
                continue  # a heartbeat, or an event that was emitted already
            if message.data is not None:
                yield Emit(_read(message.data, model))
            position.cursor = message.cursor


def _read(data: str, model: Any) -> Any:
    try:
        return decode(data.encode(), model)
    except msgspec.DecodeError as error:
        raise UnexpectedAnswer(f"cannot decode an event: {error}") from None


def _backoff_seconds(session: Session, position: StreamPosition, error: MooringError) -> float:
    """How long to wait before the next connection; raises an error that waiting cannot help."""
    if not error.retryable:
        raise error
    timing, policy = session.settings.timing, session.settings.retry
    now = timing.monotonic()
    position.failures += 1
    if position.unreached_since is None:
        position.unreached_since = now
    elif now - position.unreached_since > policy.stream_give_up_seconds:
        raise error
    asked = error.retry_after_seconds if error.retry_after_seconds is not None else position.asked_seconds
    return policy.pause(position.failures, timing.chance(), asked)
