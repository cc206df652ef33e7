"""A single-threaded event loop: descriptors, timers and ending children."""

import heapq
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Final

Callback = Callable[[], None]

_TRACEBACKS_MAX: Final = 1000


class Timer:
    """A callback at a later time, unless it is cancelled."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callback) -> None:
        self.when = when
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: "Timer") -> bool:
        return self.when < other.when


class EventLoop:
    """The loop of one supervisor process; a forked one needs a new loop, because epoll would be shared."""

    def __init__(self, on_child: Callback) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._on_child = on_child
        self._running = True
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _ignore_signal)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        self.watch(self._wake_reader, self._children_changed)

    def watch(self, descriptor: int, callback: Callback) -> None:
        """Call whenever there is something to read, or the end."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def watch_writable(self, descriptor: int, callback: Callback) -> None:
        """Call whenever it can be written to; for a connecting socket, when the outcome is known."""
        self._selector.register(descriptor, selectors.EVENT_WRITE, callback)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching; must be called before the descriptor is closed."""
        self._selector.unregister(descriptor)

    def call_later(self, seconds: float, callback: Callback) -> Timer:
        """Call once after this time."""
        timer = Timer(time.monotonic() + seconds, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def stop(self) -> None:
        """Leave `run` after the current callback."""
        self._running = False

    def run(self) -> None:
        """Run until stopped. An exception in a callback is printed and does not end the process, which must not end."""
        while self._running:
            while self._timers and self._timers[0].callback is None:
                heapq.heappop(self._timers)
            wait = max(0.0, self._timers[0].when - time.monotonic()) if self._timers else None
            for key, _ in self._selector.select(wait):
                # An earlier callback may have closed and unwatched it.
                if self._selector.get_map().get(key.fd) is key:
                    _call(key.data)
            now = time.monotonic()
            while self._timers and self._timers[0].when <= now:
                callback = heapq.heappop(self._timers).callback
                if callback is not None:
                    _call(callback)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._selector.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _children_changed(self) -> None:
        try:
            while os.read(self._wake_reader, 512):
                pass
        except BlockingIOError:
            pass
        self._on_child()


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Python needs a handler for the signal to reach the wake-up descriptor, which does the work."""


class _Errors:
    """Writes tracebacks to standard error, which is a file on the machine's disk: only so many of them."""

    left = _TRACEBACKS_MAX

    @classmethod
    def write(cls) -> None:
        if cls.left > 0:
            cls.left -= 1
            traceback.print_exc(file=sys.stderr)


def _call(callback: Callback) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - an init that ends takes the sandbox with it; what went wrong is written down
        _Errors.write()
