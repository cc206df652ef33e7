"""Commands about machines that wait for approval: what admins decide, and what the attestation command decides."""

from dataclasses import replace
from typing import Any

from mooring.commands.fleet.node import find_node, find_with_slots
from mooring.commands.kernel.apply import apply_once
from mooring.commands.kernel.work import Answered, Work, system_context
from mooring.commands.services import Services
from mooring.core.fleet.node import Node
from mooring.core.fleet.node_approval import acknowledge_node, approve_node, leave_to_operator, reject_node
from mooring.core.kernel.decision import Decision, RowGuard
from mooring.gateways.attestation import Attestation, AttestationCommand, Verdict
from mooring.storage.fleet import node as nodes
from mooring.storage.fleet import slot as slots
from mooring.storage.kernel.database import PLATFORM


async def approve(work: Work[Node], node_id: str) -> Answered:
    return await work.execute(lambda: find_node(work, node_id), lambda node: approve_node(work.context, node))


async def reject(work: Work[Node], node_id: str, reason: str) -> Answered:
    return await work.execute(
        lambda: find_with_slots(work, node_id),
        lambda loaded: reject_node(work.context, loaded[0], loaded[1], reason),
    )


async def acknowledge(work: Work[Node], node_id: str) -> Answered:
    return await work.execute(lambda: find_node(work, node_id), lambda node: acknowledge_node(work.context, node))


async def attest(services: Services, command: AttestationCommand, limit: int) -> int:
    """Let the command judge nodes that wait and that it has not seen; returns how many it saw."""
    waiting = await nodes.to_attest(services.database, limit)
    for node in waiting:
        attestation = await command.run(facts_for_attestation(node))
        decision = await _decided(services, node, attestation)
        # The verdict is about this report: if the node sent another meanwhile, the command is asked again.
        unchanged = RowGuard("node", {"id": node.id, "revision": node.revision})
        guarded = replace(decision, writes=(unchanged, *decision.writes))
        await apply_once(services, PLATFORM, system_context(services), guarded)
    return len(waiting)


def facts_for_attestation(node: Node) -> dict[str, Any]:
    """What the command reads: everything that the machine and its token say, and nothing that is secret."""
    return {
        "node_id": node.id,
        "name": node.name,
        "region": node.region,
        "host": node.host,
        "labels": node.labels,
        "expects": node.expects,
        "inventory": node.inventory,
        "findings": node.findings,
        "previous_node_id": node.previous_node_id,
    }


async def _decided(services: Services, node: Node, attestation: Attestation) -> Decision[Node]:
    context, said = system_context(services), f"attestation command: {attestation.detail}"
    if attestation.verdict is Verdict.ACCEPTED:
        return approve_node(context, node, said)
    if attestation.verdict is Verdict.REFUSED:
        return reject_node(context, node, await slots.of_node(services.database, PLATFORM, node.id), said)
    return leave_to_operator(context, node, attestation.detail)
