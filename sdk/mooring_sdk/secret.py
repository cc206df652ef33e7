"""A string that must not be shown: its repr, and so logs and exceptions, only have dots."""

from typing import Final


class Secret:
    """Wraps a token or a password, so that only an explicit `reveal()` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text: Final = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a secret cannot be pickled")
