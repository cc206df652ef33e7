"""The stream of one command, as a terminal that its process holds uses it."""

from mooring.core.kernel.errors import Refusal
from mooring.core.runtime.visit import Visit
from mooring.relay.frames import FAILURE, TunnelFrame
from mooring.relay.tunnel_connection import TunnelStream, failure_of
from mooring.relay.tunnel_registry import TunnelRegistry


class TunnelCommand:
    """A command in a sandbox, over a tunnel of its own."""

    def __init__(self, stream: TunnelStream) -> None:
        self._stream = stream
        self.next = stream.next
        self.send = stream.send
        self.send_control = stream.send_control

    async def end(self) -> None:
        """Hang up: the node ends what still runs."""
        await self._stream.close()
        self._stream.tunnel.hang_up()

    def failure(self, data: bytes) -> Refusal:
        return failure_of(TunnelFrame(FAILURE, self._stream.number, data))


async def open_command(tunnels: TunnelRegistry, visit: Visit) -> TunnelCommand:
    """Ask the visit's node for its command."""
    return TunnelCommand(await tunnels.command(visit))
