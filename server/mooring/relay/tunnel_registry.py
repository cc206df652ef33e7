"""The desk: which carriers stand, and who waits for one.

A visit needs a carrier of its owner and port. If none stands, the node is asked by a task to dial this very process;
its dial names the task, and only the node that the task is for may take it up.
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
    """A node that was asked to dial."""

    node_id: str
    ports: tuple[int, ...]
    carrier: "asyncio.Future[TunnelConnection]"


class TunnelRegistry:
    """Where viewers and nodes are brought together."""

    def __init__(self, services: Services, url: str) -> None:
        self.url = url
        self._services = services
        self._awaited: dict[str, AwaitedNode] = {}
        self._carriers: dict[Key, TunnelConnection] = {}
        self._asking: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()  # for as long as somebody asks

    async def stream_to(self, visit: Visit) -> TunnelStream:
        """A stream to the port that a visit is for."""
        if visit.port is None:
            raise ValueError("a visit for a command has no port")
        key = (visit.owner, visit.port)
        asking = self._asking.setdefault(key, asyncio.Lock())
        async with asking:
            carrier = self._carriers.get(key)
            if carrier is None or carrier.ended:
                carrier = await self._asked(visit, (visit.port,))
                self._carriers[key] = carrier
        return await carrier.open({"port": visit.port})

    async def command(self, visit: Visit) -> TunnelStream:
        """The stream of the command that a visit is for."""
        carrier = await self._asked(visit, ())
        try:
            return await carrier.open({})
        except BaseException:
            carrier.hang_up()
            raise

    def expects(self, task_id: str, node_id: str) -> AwaitedNode | None:
        """Take up the wait for a task, if this is the node that it is for."""
        awaited = self._awaited.get(task_id)
        if awaited is None or awaited.node_id != node_id:
            return None
        return self._awaited.pop(task_id)

    def forget(self, carrier: TunnelConnection) -> None:
        """A carrier is gone: whoever comes next asks for another one."""
        for key in [key for key, each in self._carriers.items() if each is carrier]:
            del self._carriers[key]

    def close(self) -> None:
        """Hang up on every node."""
        for carrier in self._carriers.values():
            carrier.hang_up()

    async def _asked(self, visit: Visit, ports: tuple[int, ...]) -> TunnelConnection:
        if len(self._awaited) >= WAITING_MAX:
            raise Refusal(Code.RATE_LIMITED, "too many nodes are being waited for", {"retry_after_seconds": 5})
        awaited = AwaitedNode(visit.node_id, ports, asyncio.get_running_loop().create_future())
        expected: list[str] = []

        def expect(task_id: str) -> None:
            expected.append(task_id)
            self._awaited[task_id] = awaited

        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await commands.ask_for_tunnel(self._services, visit, self.url, ports, expect)
                return await awaited.carrier
        except TimeoutError as error:
            raise Refusal(
                Code.TEMPORARILY_UNAVAILABLE,
                f"the node did not dial within {DIAL_SECONDS:.0f} s: is its agent running?",
            ) from error
        finally:
            for task_id in expected:
                self._awaited.pop(task_id, None)
