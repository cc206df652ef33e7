"""Commands on nodes: what admins ask for, what agents report, and what is looked after."""

from collections.abc import Callable, Sequence
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
from mooring.core.fleet.slot import Slot
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.storage.fleet import node as nodes
from mooring.storage.fleet import slot as slots
from mooring.storage.kernel.database import PLATFORM

BATCH: Final = 200

Loaded = tuple[Node, list[Slot], list[str]]


async def drain(work: Work[Node], node_id: str) -> Answered:
    """Take no new allocations on a node."""
    return await work.execute(lambda: _find(work, node_id), lambda seen: drain_node(work.context, seen))


async def resume(work: Work[Node], node_id: str) -> Answered:
    """Take a drain back."""
    return await work.execute(lambda: _find(work, node_id), lambda seen: resume_node(work.context, seen))


async def retire(work: Work[Node], node_id: str, reason: str) -> Answered:
    """Retire a node on which nothing is left."""
    return await work.execute(
        lambda: _whole(work, node_id),
        lambda seen: retire_node(work.context, seen[0], seen[1], seen[2], reason),
    )


async def write_off(work: Work[Node], node_id: str, stated: WriteOff) -> Answered:
    """Give a lost machine up, with all that it holds."""
    return await work.execute(
        lambda: _whole(work, node_id), lambda seen: write_off_node(work.context, seen[0], seen[1], stated)
    )


async def report(work: Work[Node], inventory: Inventory) -> Answered:
    """Take what the calling node says that it has."""
    node_id = work.context.actor.id
    return await work.execute(
        lambda: _whole(work, node_id), lambda seen: report_inventory(work.context, seen[0], seen[1], inventory)
    )


async def finish_drains(services: Services) -> int:
    """End the drain of each node on which nothing is left; returns how many."""
    done = 0
    for node in await nodes.emptied(services.database, BATCH):
        done += await _applied(services, [node], lambda context, seen: finish_drain(context, seen[0]))
    return done


async def mark_silent(services: Services, seconds: float) -> int:
    """Mark the nodes that were not heard of for so long; returns how many."""
    return await _applied(services, await nodes.silent(services.database, seconds, BATCH), mark_unreachable)


async def mark_heard(services: Services, seconds: float) -> int:
    """Take the mark from those that were heard of since; returns how many."""
    return await _applied(services, await nodes.heard(services.database, seconds, BATCH), mark_reachable)


async def _applied(
    services: Services, seen: Sequence[Node], decide: Callable[[DecisionContext, Sequence[Node]], Decision[Any]]
) -> int:
    """Decide about these at once; where somebody was faster with one of them, about each by itself."""
    if not seen:
        return 0
    context = system_context(services)
    decision = decide(context, seen)
    if await apply_once(services, PLATFORM, context, decision):
        return len(seen)
    if len(seen) == 1:
        return 0  # it changed a moment ago: the next pass reads it again
    return sum([await _applied(services, [each], decide) for each in seen])


async def _find(work: Work[Any], node_id: str) -> Node:
    return require(await nodes.find(work.database, node_id, acting=work.acting), "node")


async def _whole(work: Work[Any], node_id: str) -> Loaded:
    node = await _find(work, node_id)
    held = await slots.of_node(work.database, work.acting, node_id)
    return node, held, await nodes.allocation_ids(work.database, work.acting, node_id, NAMED_MAX)
