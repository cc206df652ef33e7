"""Accepting requests on a supervisor's socket: one packet a connection, from the agent's user only."""

import socket
import struct
from collections.abc import Callable
from typing import Final

from mooring_agent.supervisor import packets
from mooring_agent.supervisor.event_loop import EventLoop

CONNECTIONS_MAX: Final = 128
BACKLOG: Final = 128
_PAUSE_SECONDS: Final = 0.5

RequestHandler = Callable[[bytes, list[int], socket.socket], None]


class RequestListener:
    """Passes each request to a handler, which owns the connection; its descriptors are closed afterwards."""

    def __init__(self, loop: EventLoop, listener: int, agent_uid: int, handler: RequestHandler) -> None:
        self._loop = loop
        self._listener = socket.socket(fileno=listener)
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)  # repeated here, so that the socket names this process as its peer
        self._agent_uid = agent_uid
        self._handler = handler
        self._new_connections: dict[int, socket.socket] = {}

    def start(self) -> None:
        self._loop.watch(self._listener.fileno(), self._accept)

    def close(self) -> None:
        self._listener.close()
        for connection in self._new_connections.values():
            connection.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # Out of descriptors or memory. The connection stays in the queue, so without a pause this would spin.
            self._loop.unwatch(self._listener.fileno())
            self._loop.call_later(_PAUSE_SECONDS, self.start)
            return
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        uid = struct.unpack("3i", credentials)[1]
        if uid != self._agent_uid or len(self._new_connections) >= CONNECTIONS_MAX:
            connection.close()
            return
        self._new_connections[connection.fileno()] = connection
        self._loop.watch(connection.fileno(), lambda: self._on_readable(connection))

    def _on_readable(self, connection: socket.socket) -> None:
        self._loop.unwatch(connection.fileno())
        del self._new_connections[connection.fileno()]
        try:
            packet, descriptors = packets.receive_packet(connection)
        except (packets.WireError, OSError):
            packet, descriptors = b"", []
        if not packet:
            packets.close_all(descriptors)
            connection.close()
            return
        try:
            self._handler(packet, descriptors, connection)
        finally:
            packets.close_all(descriptors)
