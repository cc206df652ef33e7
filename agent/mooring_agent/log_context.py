"""Whose work a log line belongs to: the correlation id of the task that is under way.

The label is the one that the platform signed with the task: whoever searches for it finds the lines of the API, the
workers, the adapter and the node. A failure's detail may hold what a tenant's program said, so that it is not logged:
the platform has it, under the tenant's own permissions.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from mooring_agent.control_plane.messages import Task

_ABOUT: Final[ContextVar[str]] = ContextVar("about", default="")
FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s%(about)s"


class Labelled(logging.Filter):
    """Adds the label to each record that a handler writes."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Every record passes."""
        about = _ABOUT.get()
        record.about = f" [{about}]" if about else ""
        return True


@contextmanager
def about(task: Task) -> Iterator[None]:
    """What is logged within belongs to this task."""
    outer = _ABOUT.set(f"correlation_id={task.correlation_id} trace_id={task.trace_id} task_id={task.task_id}")
    try:
        yield
    finally:
        _ABOUT.reset(outer)


def configure(level: str) -> None:
    """Log to the standard error output, each line with its label."""
    handler = logging.StreamHandler()
    handler.addFilter(Labelled())
    handler.setFormatter(logging.Formatter(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
