"""How the tasks of a node share its room, so that no tenant can take a neighbour's.

Each kind of work has a room with a bound per allocation and per tenant. Only brief work (`work`) has a bound for the
whole node too, and what waits for it enters in turn: first the tenant that has the least inside, then its allocation
that has the least. What may last for hours (a program, a probe, a download) holds no worker: it waits for something
outside the agent, and its bound is that of its allocation and tenant alone. So a tenant that fills its own room delays
itself and nobody else. Tunnels and log reads do not wait: over their bound they fail with `capacity`. Teardowns need
no room.

The platform knows the same bounds for what an agent holds at once (`docs/node-plane.md`).
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

RoomKind = Literal["work", "program", "probe", "transfer", "tunnel", "read"]

WORKERS: Final = 16
HELD_MAX: Final = 1_000
"""How many tasks an agent holds at once, running or waiting, teardowns not counted. The platform stops far below it."""


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """How many may be inside at once; None: no bound for the whole node."""

    allocation: int
    tenant: int
    node: int | None = None


LIMITS: Final[dict[RoomKind, RoomLimits]] = {
    "work": RoomLimits(allocation=4, tenant=8, node=WORKERS),
    "program": RoomLimits(allocation=32, tenant=64),
    "probe": RoomLimits(allocation=16, tenant=64),
    "transfer": RoomLimits(allocation=4, tenant=8),
    "tunnel": RoomLimits(allocation=64, tenant=128),
    "read": RoomLimits(allocation=32, tenant=64),
}


@dataclass(frozen=True, slots=True)
class RoomKey:
    """Whose task it is."""

    tenant_id: str
    allocation_id: str


@dataclass(slots=True)
class _Waiter:
    key: RoomKey
    admitted: "asyncio.Future[None]"


@dataclass(slots=True)
class Room:
    """The tasks of one kind that are inside, and those that wait to enter."""

    limits: RoomLimits
    _by_tenant: Counter[str] = field(default_factory=Counter)
    _by_allocation: Counter[str] = field(default_factory=Counter)
    _inside: int = 0
    _waiting: list[_Waiter] = field(default_factory=list)

    def is_full(self, key: RoomKey) -> bool:
        """Whether a task of this owner would have to wait."""
        return (
            (self.limits.node is not None and self._inside >= self.limits.node)
            or self._by_tenant[key.tenant_id] >= self.limits.tenant
            or self._by_allocation[key.allocation_id] >= self.limits.allocation
        )

    @asynccontextmanager
    async def entered(self, key: RoomKey) -> AsyncIterator[None]:
        """Wait for room, and give it back afterwards."""
        await self._enter(key)
        try:
            yield
        finally:
            self._leave(key)

    async def _enter(self, key: RoomKey) -> None:
        if not self.is_full(key):  # this passes nobody: what waits is over a bound of its own, see `_admit`
            self._count(key, 1)
            return
        waiter = _Waiter(key, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:  # admitted and cancelled in the same moment
                self._leave(key)
            raise

    def _leave(self, key: RoomKey) -> None:
        self._count(key, -1)
        self._admit()

    def _count(self, key: RoomKey, change: int) -> None:
        self._inside += change
        for counter, name in ((self._by_tenant, key.tenant_id), (self._by_allocation, key.allocation_id)):
            counter[name] += change
            if not counter[name]:
                del counter[name]

    def _admit(self) -> None:
        """Let in everything that there is room for, so that nothing waits that could be inside."""
        while candidates := [waiter for waiter in self._waiting if not self.is_full(waiter.key)]:
            chosen = min(candidates, key=self._turn)  # of equals the one that waited longest: the list is in order
            self._waiting.remove(chosen)
            self._count(chosen.key, 1)
            if not chosen.admitted.done():
                chosen.admitted.set_result(None)

    def _turn(self, waiter: _Waiter) -> tuple[int, int]:
        return self._by_tenant[waiter.key.tenant_id], self._by_allocation[waiter.key.allocation_id]


def make_rooms(workers: int) -> dict[RoomKind, Room]:
    """The rooms of one agent; a tenant may have half of the workers at most, and an allocation a quarter."""
    work = RoomLimits(max(1, workers // 4), max(1, workers // 2), workers)
    return {kind: Room(work if kind == "work" else limits) for kind, limits in LIMITS.items()}
