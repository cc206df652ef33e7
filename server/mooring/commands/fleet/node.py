"""Commands on nodes: what admins request, what agents report, and what the node worker finds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mooring.commands.kernel.apply import apply_once
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work, system_context
from mooring.commands.services import Services
from mooring.core.fleet.inventory import Inventory, report_inventory
from mooring.core.fleet.node import (
    NAMED_MAX,
    Node,
    WriteOff,
    drain_node,
    finish_drain,
    mark_reachable,
    mark_unreachable,
    resume_node,
    retire_node,
    write_off_node,
)
from mooring.core.fleet.node_operation import cordon_node, label_node, uncordon_node
from mooring.core.fleet.slot import Slot
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.storage.fleet import node as nodes
from mooring.storage.fleet import slot as slots
from mooring.storage.kernel.database import PLATFORM

BATCH: Final = 200

Loaded = tuple[Node, list[Slot], list[str]]


async def drain(work: Work[Node], node_id: str) -> Answered:
    return await work.execute(lambda: find_node(work, node_id), lambda node: drain_node(work.context, node))


async def resume(work: Work[Node], node_id: str) -> Answered:
    return await work.execute(lambda: find_node(work, node_id), lambda node: resume_node(work.context, node))


async def cordon(work: Work[Node], node_id: str, reason: str) -> Answered:
    return await work.execute(lambda: find_node(work, node_id), lambda node: cordon_node(work.context, node, reason))


async def uncordon(work: Work[Node], node_id: str) -> Answered:
    return await work.execute(lambda: find_node(work, node_id), lambda node: uncordon_node(work.context, node))


async def label(work: Work[Node], node_id: str, labels: Mapping[str, str | None]) -> Answered:
    return await work.execute(lambda: find_node(work, node_id), lambda node: label_node(work.context, node, labels))


async def retire(work: Work[Node], node_id: str, reason: str) -> Answered:
    return await work.execute(
        lambda: find_with_slots(work, node_id),
        lambda loaded: retire_node(work.context, loaded[0], loaded[1], loaded[2], reason),
    )


async def write_off(work: Work[Node], node_id: str, stated: WriteOff) -> Answered:
    return await work.execute(
        lambda: find_with_slots(work, node_id),
        lambda loaded: write_off_node(work.context, loaded[0], loaded[1], stated),
    )


async def report(work: Work[Node], inventory: Inventory) -> Answered:
    """Record the inventory of the calling node."""
    node_id = work.context.actor.id
    return await work.execute(
        lambda: find_with_slots(work, node_id),
        lambda loaded: report_inventory(work.context, loaded[0], loaded[1], inventory),
    )


async def finish_drains(services: Services) -> int:
    """End the drain of each node without allocations; returns how many."""
    done = 0
    for node in await nodes.emptied(services.database, BATCH):
        done += await _applied(services, [node], lambda context, loaded: finish_drain(context, loaded[0]))
    return done


async def mark_silent(services: Services, seconds: float) -> int:
    """Mark the nodes without a heartbeat for so long as unreachable; returns how many."""
    return await _applied(services, await nodes.silent(services.database, seconds, BATCH), mark_unreachable)


async def mark_returned(services: Services, seconds: float) -> int:
    """Mark the nodes with heartbeats again as reachable; returns how many."""
    return await _applied(services, await nodes.returned(services.database, seconds, BATCH), mark_reachable)


async def _applied(
    services: Services, changing: Sequence[Node], decide: Callable[[DecisionContext, Sequence[Node]], Decision[Any]]
) -> int:
    """Decide about all of them at once; after a lost race about each by itself. Returns how many were changed."""
    if not changing:
        return 0
    context = system_context(services)
    decision = decide(context, changing)
    if await apply_once(services, PLATFORM, context, decision):
        return len(changing)
    if len(changing) == 1:
        return 0  # it changed a moment ago: the next pass reads it again
    return sum([await _applied(services, [each], decide) for each in changing])


async def find_node(work: Work[Any], node_id: str) -> Node:
    return require(await nodes.find(work.database, node_id, acting=work.acting), "node")


async def find_with_slots(work: Work[Any], node_id: str) -> Loaded:
    node = await find_node(work, node_id)
    held = await slots.of_node(work.database, work.acting, node_id)
    return node, held, await nodes.allocation_ids(work.database, work.acting, node_id, NAMED_MAX)
