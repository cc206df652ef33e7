"""How the demo speaks, and how it says that it cannot go on."""

WIDTH = 88


class DemoFailed(Exception):
    """The demo cannot go on; the message says why."""


def heading(text: str) -> None:
    """Begin a part of the demo."""
    print(f"\n── {text} {'─' * max(0, WIDTH - len(text) - 4)}")


def tell(name: str, value: object) -> None:
    """One fact."""
    print(f"   {name:<18} {value}")
