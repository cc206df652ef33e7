"""Delays between tries that double up to a bound: the one back-off of the agent and of its supervisors."""


class Backoff:
    """The delay before the next try. Only the standard library is used, because supervisors import it."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = max(first_seconds, longest_seconds)
        self._next_seconds = first_seconds

    def reset(self) -> None:
        """A try succeeded: the next delay is the first one again."""
        self._next_seconds = self._first_seconds

    def next_seconds(self) -> float:
        """The delay to wait now; the one after it is twice as long."""
        seconds = self._next_seconds
        self._next_seconds = min(seconds * 2, self._longest_seconds)
        return seconds
