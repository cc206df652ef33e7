"""Log lines: one JSON object per line, with the labels of the current work, and without secrets.

Every line of the process goes through the same steps: those of the standard library's loggers (ours, the web server's,
the database driver's) and the request lines. A line gets the labels of the current work, is masked, rendered, and
written with one call.

Masking is the last line of defence: nobody logs a secret on purpose. A field whose name suggests a token, a password or
the like loses its value. In the finished text, everything that looks like one of our tokens, a bearer credential, a
signed assertion, a password hash, a private key or the password of a URL is replaced, also in messages and tracebacks.

A line that cannot be written (the reader is gone, the disk is full) is counted in `LogOutput.lost` and never makes the
logged work fail.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

import msgspec

from mooring.gateways.lazy_import import lazy_module

if TYPE_CHECKING:
    import structlog
else:
    structlog = lazy_module("structlog")

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
MASK: Final = "***"
TRACEBACK_CHARACTERS_MAX: Final = 16_000
DEPTH_MAX: Final = 8

Fields = MutableMapping[str, Any]


class LogContext(Protocol):
    """Work that adds labels to the log lines written during it."""

    def labels(self) -> dict[str, object]:
        """The labels of every line of this work."""
        ...


CARRIED: Final[ContextVar[LogContext | None]] = ContextVar("mooring_carried", default=None)
"""The current work in this context; the tasks that it starts inherit it."""

_SENSITIVE: Final = frozenset(
    {"token", "tokens", "password", "passwords", "passphrase", "secret", "secrets", "authorization", "cookie"}
    | {"cookies", "credential", "credentials", "assertion", "private", "apikey"}
)
_HARMLESS_ENDS: Final = frozenset({"id", "ids", "kind", "type", "name", "count", "seconds", "max", "at"})
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

_SECRETS: Final[tuple[tuple[str, re.Pattern[str], str], ...]] = (
    ("mrg", re.compile(r"mrg[spabnev1]_[A-Za-z0-9_\-]+"), MASK),
    ("earer", re.compile(r"([Bb]earer)\s+[A-Za-z0-9._~+/=\-]{8,}"), rf"\1 {MASK}"),
    ("asic", re.compile(r"([Bb]asic)\s+[A-Za-z0-9+/=]{8,}"), rf"\1 {MASK}"),
    ("://", re.compile(r"(://[^/\s:@\"]*):[^/\s@\"]+@"), rf"\1:{MASK}@"),
    ("whsec_", re.compile(r"whsec_[A-Za-z0-9+/=_\-]+"), MASK),
    ("eyJ", re.compile(r"eyJ[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]*"), MASK),
    ("$argon2", re.compile(r"\$argon2[A-Za-z0-9$=,+/]+"), MASK),
    (
        "PRIVATE KEY",
        re.compile(r"-----BEGIN[A-Z0-9 ]*PRIVATE KEY-----(?:(?!-----END)[^\"])*(?:-----END[A-Z0-9 ]*-----)?"),
        MASK,
    ),
    # PostgreSQL quotes the whole row that violated a constraint.
    ("Failing row", re.compile(r"(Failing row contains )\((?:\\[^n]|[^\"\\\n])*"), rf"\1({MASK})"),
)
"""How to recognise secrets: a text that must occur (a fast test), the pattern, and the replacement."""


def mask(text: str) -> str:
    """The text without anything that looks like a secret."""
    for hint, pattern, instead in _SECRETS:
        if hint in text:
            text = pattern.sub(instead, text)
    return text


@lru_cache(maxsize=4096)
def is_sensitive(name: str) -> bool:
    """Whether a field of this name probably holds a secret; `token_id` and the like do not."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return bool(words) and words[-1] not in _HARMLESS_ENDS and not _SENSITIVE.isdisjoint(words)


def masked(name: str, value: object, depth: int = 0) -> object:
    """The value of a field as it may be logged."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if is_sensitive(name) or depth > DEPTH_MAX:
        return MASK
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return {str(key): masked(str(key), each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [masked("", each, depth + 1) for each in value]
    return value


def error_fields(error: BaseException) -> dict[str, object]:
    """The fields of an exception; only the log contains them."""
    text = "".join(traceback.format_exception(error))
    return {
        "type": f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        "message": str(error),
        "traceback": text[-TRACEBACK_CHARACTERS_MAX:],
    }


class LogOutput:
    """Where the lines of a process go, and the minimum level."""

    def __init__(self, level: str = "info", format: str = "json", stream: TextIO | None = None) -> None:
        self.threshold = LEVELS[level]
        self.lost = 0
        self._stream = sys.stderr if stream is None else stream
        self._lock = threading.Lock()
        self._render = _render_json if format == "json" else _console(self._stream)
        self._processors = (_complete, _without_secrets, self._rendered)

    @cached_property
    def log(self) -> structlog.typing.FilteringBoundLogger:
        """A logger that takes the fields of a line as keywords."""
        logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
            _Out(self),
            processors=self._processors,
            wrapper_class=structlog.make_filtering_bound_logger(self.threshold),
            context_class=dict,
        ).bind()
        return logger

    def write(self, level: str, event: str, fields: Fields) -> None:
        """Write one line, unless its level is below the threshold."""
        if LEVELS.get(level, 0) >= self.threshold:
            fields["event"] = event
            for process in self._processors:
                fields = process(None, level, fields)  # type: ignore[assignment]  # the last processor returns text
            self.put(str(fields))

    def write_own(self, level: str, event: str, fields: Fields) -> None:
        """Write a line without masking: it has only our own words and ids, so it cannot contain a secret."""
        if LEVELS[level] >= self.threshold:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            self.put(self._render({"time": now, "level": level, "event": event, **fields}))

    def put(self, line: str) -> None:
        """Write a finished line."""
        try:
            with self._lock:
                self._stream.write(line + "\n")
                self._stream.flush()
        except (OSError, ValueError):  # the reader is gone, or the stream is closed
            self.lost += 1

    def _rendered(self, _logger: object, _method: str, fields: Fields) -> str:
        return mask(self._render(fields))


class _Out:
    """The logger interface that structlog expects."""

    def __init__(self, lines: LogOutput) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = self.msg = lines.put


def _complete(_logger: object, method: str, fields: Fields) -> Fields:
    """Order the fields: time, level, message, then the fields of the line, then the labels of the work."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    whole: Fields = {"time": now, "level": method, "event": fields.pop("event", "")}
    whole.update(fields)
    carried = CARRIED.get()
    if carried is not None:
        for name, value in carried.labels().items():
            whole.setdefault(name, value)
    return whole


def _without_secrets(_logger: object, _method: str, fields: Fields) -> Fields:
    for name, value in fields.items():
        if type(value) is not str or is_sensitive(name):
            fields[name] = masked(name, value)
    return fields


_encode: Final = msgspec.json.Encoder(enc_hook=repr).encode


def _render_json(fields: Fields) -> str:
    try:
        return _encode(fields).decode()
    except (TypeError, ValueError, UnicodeError):
        # Half of a surrogate pair, or a value without a JSON form: this way is slower, but always works.
        return json.dumps(fields, default=repr, skipkeys=True)


def _console(stream: TextIO) -> Callable[[Fields], str]:
    colours = stream.isatty() if hasattr(stream, "isatty") else False
    renderer = structlog.dev.ConsoleRenderer(
        colors=colours,
        sort_keys=False,
        timestamp_key="time",
        pad_event_to=20,
        exception_formatter=structlog.dev.plain_traceback,  # richer tracebacks print local variables
    )

    def render(fields: Fields) -> str:
        for name in ("trace_id", "span_id"):
            fields.pop(name, None)
        error = fields.pop("error", None)
        if isinstance(error, dict):
            fields["exception"] = error.get("traceback", "")
        return str(renderer(None, str(fields["level"]), fields))

    return render


_OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class _Handler(logging.Handler):
    """Sends the records of the standard library through the same steps."""

    def __init__(self, lines: LogOutput) -> None:
        super().__init__(lines.threshold)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        fields: Fields = {"logger": record.name}
        fields.update({name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD})
        if record.exc_info is not None and record.exc_info[1] is not None:
            fields["error"] = error_fields(record.exc_info[1])
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            message = f"{record.msg} (its arguments do not fit)"
        self.lines.write(_level_of(record.levelno), message, fields)


def _level_of(number: int) -> str:
    return next((name for name, least in reversed(LEVELS.items()) if number >= least), "debug")


_OWN_HANDLERS: Final = ("uvicorn", "uvicorn.error", "uvicorn.asgi", "asyncio", "asyncpg")
_TELLS_ADDRESSES: Final = ("httpx", "httpcore", "urllib3", "hpack")
"""These loggers write complete URLs at low levels, and the URL of a webhook may contain a credential."""


def configured_lines() -> LogOutput | None:
    """The log output of this process, if it was configured."""
    handlers = logging.getLogger().handlers
    return next((each.lines for each in handlers if isinstance(each, _Handler)), None)


def configure_logging(level: str = "info", format: str = "json", stream: TextIO | None = None) -> LogOutput:
    """Send every log line of this process to one output; a later call replaces the configuration."""
    lines = LogOutput(level, format, stream)
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(handler)
    root.addHandler(_Handler(lines))
    root.setLevel(lines.threshold)
    for name in _OWN_HANDLERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    for name in _TELLS_ADDRESSES:
        logging.getLogger(name).setLevel(max(lines.threshold, logging.WARNING))
    # The request line replaces the web server's own access log, which shows raw paths and query strings.
    access = logging.getLogger("uvicorn.access")
    access.handlers.clear()
    access.propagate = False
    logging.captureWarnings(True)
    return lines
