"""Log lines carry the correlation id of the task that they are about.

The id is the one that the platform signed with the task, so searching for it finds the lines of the API, the workers,
the adapter and the node. A failure's detail may quote a tenant's program and is therefore not logged: the platform has
it, under the tenant's own permissions.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from mooring_agent.control_plane.messages import Task

_CONTEXT: Final[ContextVar[str]] = ContextVar("log_context", default="")
FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s%(context)s"


class ContextFilter(logging.Filter):
    """Adds the bound task to each record that a handler writes; no record is dropped."""

    def filter(self, record: logging.LogRecord) -> bool:
        context = _CONTEXT.get()
        record.context = f" [{context}]" if context else ""
        return True


@contextmanager
def bind(task: Task) -> Iterator[None]:
    """Everything that is logged within belongs to this task."""
    token = _CONTEXT.set(f"correlation_id={task.correlation_id} trace_id={task.trace_id} task_id={task.task_id}")
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def configure(level: str) -> None:
    """Log to standard error, each line with its context."""
    handler = logging.StreamHandler()
    handler.addFilter(ContextFilter())
    handler.setFormatter(logging.Formatter(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
