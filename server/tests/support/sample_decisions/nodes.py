"""How each function that decides about nodes and SKUs is driven once, or once for each shape of what it decides."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.fleet import enrolment, inventory, node, node_approval, node_operation, sku, slot
from mooring.core.identity import platform_key
from mooring.core.identity.token import FreshToken
from mooring.core.kernel.decision import Actor, Decision, DecisionContext, PrincipalKind
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.secret import Sealed
from server.tests.support.lifecycle_rows import context

WHY: Final = "because the tests say so"
NOW: Final = context()
FRESH: Final = FreshToken(NOW.mint(Prefix.ENROLMENT_TOKEN), b"h" * 32)
JOINING: Final = enrolment.JoinRequest("machine", node.HostKind.SIMULATED, {"rack": "a"}, b"k" * 32, b"s" * 32)
SEALED: Final = Sealed(NOW.mint(Prefix.SECRET), None, "task_signing", "k", b"w", b"c")
GPU: Final = inventory.Gpu(0, 0, "made-up", 2**30, simulated=True)
INVENTORY: Final = inventory.Inventory("1.0.0", node.HostKind.SIMULATED, 4, 2**30, gpus=(GPU, replace(GPU, index=1)))


def a_token() -> enrolment.EnrolmentToken:
    """One that is made when it is asked for: a run may last longer than a token does."""
    return enrolment.create_enrolment_token(context(), FRESH, "local", {}, 0).result


def a_node(status: str = "ready") -> node.Node:
    return replace(
        enrolment.enrol(_as_node(NOW), enrolment.EnrolmentContext(a_token()), JOINING).result,
        status=status,
        inventory=None if status == "enrolled" else INVENTORY.document(),
    )


def a_slot(status: str = "free", index: int = 0) -> slot.Slot:
    held = NOW.mint(Prefix.ALLOCATION) if status in ("claimed", "cleanup_blocked") else None
    return slot.Slot(NOW.mint(Prefix.SLOT), "n", index, 0, "made-up", 2**30, True, status, held, 0, NOW.now)


def a_key() -> platform_key.PlatformKey:
    return platform_key.PlatformKey(NOW.mint(Prefix.KEY), b"k" * 32, None, None, 0, NOW.now)


CHAIN: Final = platform_key.KeyChain(a_key(), replace(a_key(), epoch=1), 1, 0)


def a_next_key(now: DecisionContext) -> platform_key.NextKey:
    return platform_key.NextKey(now.mint(Prefix.KEY), b"n" * 32, SEALED, b"s" * 64)


def _every_prepared_key(now: DecisionContext) -> Iterator[Decision[Any]]:
    yield platform_key.prepare_key(now, replace(CHAIN, prepared=None), a_next_key(now))
    yield platform_key.prepare_key(now, CHAIN, a_next_key(now))


def a_sku() -> sku.Sku:
    requested = sku.SkuSpec(
        "small", "Small", CapacityShape.GPU_SLICE, "made-up", ("local",), (1, 2), sku.SkuPriceSpec(100, "EUR")
    )
    return sku.create_sku(NOW, requested, 0).result


def _as_node(now: DecisionContext) -> DecisionContext:
    return replace(now, actor=Actor(PrincipalKind.NODE, now.mint(Prefix.NODE)))


def _every_report(now: DecisionContext) -> Iterator[Decision[Any]]:
    yield inventory.report_inventory(now, a_node("enrolled"), [], INVENTORY)
    yield inventory.report_inventory(now, a_node(), [a_slot(index=0), a_slot(index=5)], replace(INVENTORY, cpus=8))
    yield inventory.report_inventory(now, a_node(), [a_slot("claimed", 7)], INVENTORY)
    renamed = replace(INVENTORY, gpus=(replace(GPU, model="another"),))
    yield inventory.report_inventory(now, a_node(), [a_slot()], renamed)
    waiting = replace(a_node("enrolled"), approval="required", expects={"gpu_count": 9})
    yield inventory.report_inventory(now, waiting, [], INVENTORY)


def _every_change_of_a_sku(now: DecisionContext) -> Iterator[Decision[Any]]:
    for change in (
        sku.SkuChange(display_name="Other"),
        sku.SkuChange(regions=("north",)),
        sku.SkuChange(allowed_gpu_counts=(4,)),
        sku.SkuChange(price_minor_per_gpu_hour=7, reason=WHY),
        sku.SkuChange(currency="USD", reason=WHY),
        sku.SkuChange(status=sku.SkuStatus.WITHDRAWN),
        sku.SkuChange("Other", ("north",), (4,), 7, "USD", sku.SkuStatus.WITHDRAWN, WHY),
    ):
        yield sku.update_sku(now, a_sku(), change, None)


def _some_marks(now: DecisionContext) -> Iterator[Decision[Any]]:
    silent = replace(a_node(), last_seen_at=now.now - timedelta(minutes=5))
    for count in (1, 2, 200):
        yield node.mark_unreachable(now, [silent] * count)


DRIVEN_NODES: Final[dict[str, Callable[[DecisionContext], Decision[Any] | Iterator[Decision[Any]]]]] = {
    "enrolment.create_enrolment_token": lambda now: enrolment.create_enrolment_token(now, FRESH, "local", {}, 0),
    "enrolment.revoke_enrolment_token": lambda now: enrolment.revoke_enrolment_token(now, a_token()),
    "enrolment.enrol": lambda now: enrolment.enrol(_as_node(now), enrolment.EnrolmentContext(a_token()), JOINING),
    "inventory.report_inventory": _every_report,
    "node_approval.approve_node": lambda now: node_approval.approve_node(now, a_node("pending")),
    "node_approval.reject_node": lambda now: node_approval.reject_node(now, a_node("pending"), [a_slot()], WHY),
    "node_approval.acknowledge_node": lambda now: node_approval.acknowledge_node(now, a_node()),
    "node_approval.leave_to_operator": lambda now: node_approval.leave_to_operator(now, a_node("pending"), WHY),
    "node_operation.cordon_node": lambda now: node_operation.cordon_node(now, a_node(), WHY),
    "node_operation.uncordon_node": lambda now: node_operation.uncordon_node(
        now, replace(a_node(), cordoned_at=now.now, cordon_reason=WHY)
    ),
    "node_operation.label_node": lambda now: node_operation.label_node(now, a_node(), {"rack": "b", "spare": None}),
    "node.drain_node": lambda now: node.drain_node(now, a_node()),
    "node.resume_node": lambda now: node.resume_node(now, a_node("drained")),
    "node.finish_drain": lambda now: node.finish_drain(now, a_node("draining")),
    "node.retire_node": lambda now: node.retire_node(now, a_node(), [a_slot()], (), WHY),
    "node.write_off_node": lambda now: node.write_off_node(
        now, a_node(), [a_slot("claimed")], node.WriteOff(WHY, "everything")
    ),
    "node.finish_sweep": lambda now: node.finish_sweep(now, replace(a_node(), sweep_due=True)),
    "node.mark_unreachable": _some_marks,
    "node.mark_reachable": lambda now: node.mark_reachable(now, [a_node()]),
    "platform_key.rotate_key": lambda now: platform_key.rotate_key(now, a_key(), a_next_key(now), 1),
    "platform_key.prepare_key": _every_prepared_key,
    "platform_key.install_key": lambda now: platform_key.install_key(
        now, CHAIN, CHAIN.prepared.id if CHAIN.prepared else "", platform_key.Vouched(b"s" * 64, b"r" * 64)
    ),
    "sku.create_sku": lambda now: sku.create_sku(
        now,
        sku.SkuSpec(
            "small", "Small", CapacityShape.GPU_SLICE, "made-up", ("local",), (1,), sku.SkuPriceSpec(100, "EUR")
        ),
        0,
    ),
    "sku.update_sku": _every_change_of_a_sku,
}
