"""Log lines: one JSON object per line on stderr, with the same labels as the platform's own lines.

The labels of the current work (`correlation_id`, `trace_id`, `org_id`, `project_id`, `app_slug`, `app_instance_id`) are
kept in the context, so that one correlation id finds the lines of the API, the worker, the adapter and the agent. No
code logs a secret on purpose; anything that looks like a token is masked nevertheless.
"""

import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import msgspec

from mooring_adapter.instance_view import InstanceView, Operation

LEVELS: Final = ("debug", "info", "warning", "error")
LABELS: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("mooring_adapter_labels", default=None)
TRACEBACK_CHARACTERS_MAX: Final = 16_000
_SECRET: Final = re.compile(
    r"mrg[a-z0-9]_[A-Za-z0-9_\-]+|[Bb]earer\s+[A-Za-z0-9._~+/=\-]{8,}|eyJ[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]*"
)
_OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_encode: Final = msgspec.json.Encoder(enc_hook=repr).encode


@contextmanager
def log_labels(**labels: str) -> Iterator[None]:
    """Add these labels to every line that is logged inside."""
    token = LABELS.set({**(LABELS.get() or {}), **{name: value for name, value in labels.items() if value}})
    try:
        yield
    finally:
        LABELS.reset(token)


def labels_of(view: InstanceView, operation: Operation | None = None) -> dict[str, str]:
    """The labels of work on an instance, or on one of its operations."""
    instance = view.instance
    return {
        "org_id": instance.tenant_id,
        "project_id": instance.project_id,
        "app_slug": instance.app_slug,
        "app_instance_id": instance.id,
        "operation_id": "" if operation is None else operation.id,
        "correlation_id": instance.correlation_id if operation is None else operation.correlation_id,
        "trace_id": instance.trace_id if operation is None else operation.trace_id,
    }


class JsonLines(logging.Handler):
    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = sys.stderr if stream is None else stream
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a failed write must never fail the work that it describes."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        fields.update({name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD})
        for name, value in (LABELS.get() or {}).items():
            fields.setdefault(name, value)
        if record.exc_info is not None and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text = "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS_MAX:]
            fields["error"] = {"type": type(error).__qualname__, "message": str(error), "traceback": text}
        try:
            self._stream.write(_SECRET.sub("***", _encode(fields).decode()) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1


def configure_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Write every line of this process as JSON."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(JsonLines(stream))
    root.setLevel(level.upper())
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
