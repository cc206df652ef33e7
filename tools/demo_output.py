"""Output of the demo, its failure, and a cleanup that signals cannot interrupt."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

WIDTH = 88
HOLD = "MOORING_DEMO_HOLD"
"""The name of a fact, from the left column. After printing it, the demo waits until its standard input ends. Its own
tests use this to interrupt it at a known point."""


class DemoFailed(Exception):
    """The demo cannot continue; the message says why."""


def heading(text: str) -> None:
    """Begin a part of the demo."""
    print(f"\n── {text} {'─' * max(0, WIDTH - len(text) - 4)}")


def show_fact(name: str, value: object) -> None:
    """Print one fact; the demo may be held there."""
    print(f"   {name:<18} {value}")
    if os.environ.get(HOLD) == name:
        sys.stdin.read()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Defer Ctrl-C and the time limit, so that a cleanup is completed.

    A deferred signal is raised afterwards, unless the demo is ending already because of an error.
    """
    asked: list[int] = []
    left = signal.alarm(0)
    before = {
        number: signal.signal(number, lambda given, frame: asked.append(given))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.alarm(left)
    if asked and sys.exception() is None:
        raise KeyboardInterrupt
