"""Event streams that go on over broken connections: none missed, none repeated.

The stream is Server-Sent Events. The `id` of each is its cursor; after a break the last cursor that was
handed out is sent back as `Last-Event-ID`, and the server goes on behind it. A cursor that the server no
longer knows is an error that the caller must see, since events are missing then.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mooring_sdk.calls import Call, labels, target_of
from mooring_sdk.flow import Close, Emit, Flow, Pause, Request, Response, authorize, open_stream, read_piece
from mooring_sdk.mooring_error import ConnectionFailed, MooringError, UnexpectedAnswer, error_from_answer
from mooring_sdk.decoding import decode
from mooring_sdk.secret import Secret
from mooring_sdk.session import Session

EVENT_STREAM: Final = "text/event-stream"
MESSAGE_LENGTH_MAX: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Message:
    """One dispatched message of a stream; `data` is None for one that only moves the cursor."""

    cursor: str | None
    kind: str
    data: str | None


@dataclass(slots=True)
class Parser:
    """Server-Sent Events out of bytes, wherever the pieces are cut."""

    retry_seconds: float | None = None
    _buffer: bytes = b""
    _cursor: str | None = None
    _kind: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, piece: bytes) -> Iterator[Message]:
        """The messages that are complete with this piece."""
        self._buffer += piece
        if len(self._buffer) + sum(map(len, self._data)) > MESSAGE_LENGTH_MAX:
            raise UnexpectedAnswer("an event is longer than this client takes")
        # A carriage return at the end may be the first half of a line's end: it is kept for the next piece.
        text = self._buffer.replace(b"\r\n", b"\n")
        held = b"\r" if text.endswith(b"\r") else b""
        *lines, rest = text.removesuffix(held).replace(b"\r", b"\n").split(b"\n")
        self._buffer = rest + held
        for line in lines:
            message = self._line(line.decode("utf-8", "replace"))
            if message is not None:
                yield message

    def _line(self, line: str) -> Message | None:
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

    def _dispatch(self) -> Message | None:
        data = "\n".join(self._data) if self._data else None
        message = Message(self._cursor, self._kind or "message", data)
        self._data, self._kind, self._cursor = [], "", None
        return message if data is not None or message.cursor is not None else None


@dataclass(slots=True)
class Position:
    """How far a follower is, and how long it has been without the server."""

    cursor: str | None
    failures: int = 0
    unreached_since: float | None = None
    renewed: bool = False
    asked_seconds: float | None = None

    def progressed(self) -> None:
        """Something came: what failed before no longer counts."""
        self.failures, self.unreached_since, self.renewed = 0, None, False


def follow(session: Session, call: Call, model: Any, cursor: str | None = None) -> Flow[None]:
    """Emit every event behind `cursor`, and go on for ever; each event is of `model`."""
    position = Position(cursor)
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
        yield Pause(_pause(session, position, error))


def _open(session: Session, call: Call, position: Position, token: Secret | None) -> Flow[Response]:
    headers = {**labels(session, call.options), "accept": EVENT_STREAM, "accept-encoding": "identity"}
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


def _messages(position: Position, model: Any) -> Flow[None]:
    """Emit the events of one connection until it ends."""
    parser = Parser()
    while piece := (yield from read_piece()):
        position.progressed()
        for message in parser.feed(piece):
            position.asked_seconds = parser.retry_seconds
            if message.cursor is None or message.cursor == position.cursor:
                continue  # a note of the stream about itself, or an event that was handed out already
            if message.data is not None:
                yield Emit(_read(message.data, model))
            position.cursor = message.cursor


def _read(data: str, model: Any) -> Any:
    try:
        return decode(data.encode(), model)
    except msgspec.DecodeError as error:
        raise UnexpectedAnswer(f"an event could not be read: {error}") from None


def _pause(session: Session, position: Position, error: MooringError) -> float:
    """How long to wait before the next connection; raises what cannot be waited out."""
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
