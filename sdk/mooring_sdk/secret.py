"""A text that must not be shown: in a representation, a log line or an exception it is only dots."""

from typing import Final


class Secret:
    """Wraps a token or a password. What needs it asks by `reveal()`, and nothing else gets it by accident."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text: Final = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a secret is not pickled")
