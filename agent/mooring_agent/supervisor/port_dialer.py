"""Connecting to a port inside the sandbox: on its own addresses, one after the other, never on a requested one."""

import errno
import os
import socket
from typing import Any, Final

from mooring_agent.supervisor.event_loop import EventLoop, Timer
from mooring_agent.supervisor.process_control import RequestRefused
from mooring_agent.supervisor.replies import Reply

CONNECT_SECONDS: Final = 10.0


class PortDialer:
    """One connection attempt; it replies with the connected socket."""

    def __init__(self, loop: EventLoop, addresses: tuple[str, ...], port: Any, reply: Reply) -> None:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
            raise RequestRefused("refused", "a port must be 1 to 65535")
        self._loop = loop
        self._addresses = list(addresses)
        self._port = port
        self._reply = reply
        self._socket: socket.socket | None = None
        self._timer: Timer | None = None

    def try_next(self) -> None:
        """Try the next address; refuse when none is left."""
        while self._addresses:
            address = self._addresses.pop(0)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                attempt = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            except OSError:
                continue
            result = attempt.connect_ex((address, self._port))
            if result in (0, errno.EINPROGRESS):
                self._socket = attempt
                self._loop.watch_writable(attempt.fileno(), self._on_decided)
                self._timer = self._loop.call_later(CONNECT_SECONDS, self._on_decided)
                return
            attempt.close()
        self._reply.refuse(
            RequestRefused("not_found", f"nothing in the sandbox accepts connections on port {self._port}")
        )

    def _on_decided(self) -> None:
        attempt = self._socket
        if attempt is None:
            return
        self._loop.unwatch(attempt.fileno())
        self._socket = None
        if self._timer is not None:
            self._timer.cancel()
        # After the time-out, a socket that is not connected has no error but no peer either.
        failed = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or not _has_peer(attempt)
        with attempt:
            if not failed:
                os.set_blocking(attempt.fileno(), False)
                self._reply.send_and_close((attempt.fileno(),), port=self._port)
        if failed:
            self.try_next()


def _has_peer(attempt: socket.socket) -> bool:
    try:
        attempt.getpeername()
    except OSError:
        return False
    return True
