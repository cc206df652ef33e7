"""How the demo speaks, how it says that it cannot go on, and how it cleans up without being disturbed."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

WIDTH = 88
HOLD = "MOORING_DEMO_HOLD"
"""Names a fact, by its name in the left column. Having told it, the demo stands still until its standard input ends:
whoever disturbs it there, as its own tests do, knows what it has and what it has not done yet."""


class DemoFailed(Exception):
    """The demo cannot go on; the message says why."""


def heading(text: str) -> None:
    """Begin a part of the demo."""
    print(f"\n── {text} {'─' * max(0, WIDTH - len(text) - 4)}")


def tell(name: str, value: object) -> None:
    """One fact; the demo may be held there."""
    print(f"   {name:<18} {value}")
    if os.environ.get(HOLD) == name:
        sys.stdin.read()


@contextmanager
def undisturbed() -> Iterator[None]:
    """While this lasts, neither Ctrl-C nor the demo's time ends it: what is being removed is removed whole.

    Whoever asked for the end meanwhile gets it afterwards, unless the demo is ending already, for a cause to be told.
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
