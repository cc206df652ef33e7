"""The connection of one request, until the reply is sent or the requester is gone."""

import contextlib
import socket
from collections.abc import Callable
from typing import Any

from mooring_agent.supervisor import packets
from mooring_agent.supervisor.event_loop import EventLoop
from mooring_agent.supervisor.process_control import RequestRefused


class Reply:
    """The reply to one request; after the final message the connection is closed."""

    def __init__(self, loop: EventLoop, connection: socket.socket) -> None:
        self._loop = loop
        self._connection: socket.socket | None = connection
        self._waiting = False

    @property
    def is_open(self) -> bool:
        """Whether the requester still waits."""
        return self._connection is not None

    def send_and_close(self, descriptors: tuple[int, ...] = (), **fields: Any) -> None:
        """Send the final message and close."""
        self.send(descriptors, **fields)
        self.close()

    def refuse(self, refusal: RequestRefused) -> None:
        """Reply that the request is refused, and why."""
        self._transmit({"ok": False, "code": refusal.code, "detail": refusal.detail}, ())
        self.close()

    def send(self, descriptors: tuple[int, ...] = (), **fields: Any) -> None:
        """Send a message and keep the connection open for more."""
        self._transmit({"ok": True, **fields}, descriptors)

    def wait(self, on_gone: Callable[[], None], on_message: Callable[[packets.Message], None] | None = None) -> None:
        """The reply comes later; call back if the requester leaves, or sends more messages."""
        if self._connection is None:
            on_gone()
            return
        connection = self._connection

        def on_readable() -> None:
            try:
                message, descriptors = packets.receive_message(connection)
            except (packets.WireError, OSError):
                message, descriptors = None, []
            packets.close_all(descriptors)
            if message is not None and on_message is not None:
                with contextlib.suppress(RequestRefused, OSError):  # nobody waits for an answer to these
                    on_message(message)
                return
            self.close()
            on_gone()

        self._waiting = True
        self._loop.watch(connection.fileno(), on_readable)

    def close(self) -> None:
        if self._connection is None:
            return
        if self._waiting:
            self._loop.unwatch(self._connection.fileno())
        self._connection.close()
        self._connection = None

    def _transmit(self, message: packets.Message, descriptors: tuple[int, ...]) -> None:
        if self._connection is None:
            return
        try:
            packets.send_message(self._connection, message, descriptors)
        except OSError:
            # The requester is gone or does not read; the result is in the records.
            self.close()
