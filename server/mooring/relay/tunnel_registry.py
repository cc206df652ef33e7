"""Which tunnels are open, and which visits wait for one.

A visit needs a tunnel to its owner and port. If there is none, a task asks the node to connect to this very process;
the connection names the task, and is accepted only from the node of that task.
"""

import asyncio
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from mooring.commands.runtime import visit as commands
from mooring.commands.services import Services
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.visit import Visit
from mooring.relay.tunnel_connection import TunnelConnection, TunnelStream

DIAL_SECONDS: Final = 30.0
WAITING_MAX: Final = 1_000

Key = tuple[str, int]


@dataclass(slots=True)
class AwaitedNode:
    """A node that was asked to open a tunnel."""

    node_id: str
    ports: tuple[int, ...]
    tunnel: "asyncio.Future[TunnelConnection]"


class TunnelRegistry:
    """Finds or requests the tunnel for each visit."""

    def __init__(self, services: Services, url: str) -> None:
        self.url = url
        self._services = services
        self._awaited: dict[str, AwaitedNode] = {}
        self._open: dict[Key, TunnelConnection] = {}
        # One lock per tunnel that is being requested, so that two visits do not request the same one.
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    async def stream_to(self, visit: Visit) -> TunnelStream:
        """A stream to the port that a visit is for."""
        if visit.port is None:
            raise ValueError("a visit for a command has no port")
        key = (visit.owner, visit.port)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            tunnel = self._open.get(key)
            if tunnel is None or tunnel.ended:
                tunnel = await self._request(visit, (visit.port,))
                self._open[key] = tunnel
        return await tunnel.open({"port": visit.port})

    async def command(self, visit: Visit) -> TunnelStream:
        """The stream of the command that a visit is for."""
        tunnel = await self._request(visit, ())
        try:
            return await tunnel.open({})
        except BaseException:
            tunnel.hang_up()
            raise

    def take_awaited(self, task_id: str, node_id: str) -> AwaitedNode | None:
        """The request that a node's connection answers; None unless the task is awaited from this node."""
        awaited = self._awaited.get(task_id)
        if awaited is None or awaited.node_id != node_id:
            return None
        return self._awaited.pop(task_id)

    def forget(self, tunnel: TunnelConnection) -> None:
        """Drop a closed tunnel; the next visit requests another one."""
        for key in [key for key, each in self._open.items() if each is tunnel]:
            del self._open[key]

    def close(self) -> None:
        """Close every tunnel."""
        for tunnel in self._open.values():
            tunnel.hang_up()

    async def _request(self, visit: Visit, ports: tuple[int, ...]) -> TunnelConnection:
        if len(self._awaited) >= WAITING_MAX:
            raise Refusal(Code.RATE_LIMITED, "too many tunnels are being opened", {"retry_after_seconds": 5})
        awaited = AwaitedNode(visit.node_id, ports, asyncio.get_running_loop().create_future())
        expected: list[str] = []

        def expect(task_id: str) -> None:
            expected.append(task_id)
            self._awaited[task_id] = awaited

        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await commands.ask_for_tunnel(self._services, visit, self.url, ports, expect)
                return await awaited.tunnel
        except TimeoutError as error:
            raise Refusal(
                Code.TEMPORARILY_UNAVAILABLE,
                f"the node did not connect within {DIAL_SECONDS:.0f} s: is its agent running?",
            ) from error
        finally:
            for task_id in expected:
                self._awaited.pop(task_id, None)
