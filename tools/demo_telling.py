"""How the demo speaks, how it says that it cannot go on, and how it cleans up without being disturbed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

WIDTH = 88


class DemoFailed(Exception):
    """The demo cannot go on; the message says why."""


def heading(text: str) -> None:
    """Begin a part of the demo."""
    print(f"\n── {text} {'─' * max(0, WIDTH - len(text) - 4)}")


def tell(name: str, value: object) -> None:
    """One fact."""
    print(f"   {name:<18} {value}")


@contextmanager
def undisturbed() -> Iterator[None]:
    """While this lasts, neither Ctrl-C nor the demo's time ends it: what is being removed is removed whole."""
    left = signal.alarm(0)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.alarm(left)
