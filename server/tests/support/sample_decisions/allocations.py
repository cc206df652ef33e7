"""How each function that decides about allocations is driven, for each shape of it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from mooring.core.catalog.policy import PolicyRules
from mooring.core.fleet import allocation, allocation_group, allocation_reconcile
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.ids import Prefix
from mooring.core.money import forced_release
from server.tests.support.allocation_rows import REQUESTED, asking, network, node, pick, requested
from server.tests.support.lifecycle_rows import context

NOW: Final = context()
HOME: Final = (NOW.mint(Prefix.TENANT), NOW.mint(Prefix.PROJECT))


def _with_and_without_a_quota(now: DecisionContext) -> Iterator[Decision[Any]]:
    yield allocation.request_allocation(now, asking(HOME), REQUESTED)
    yield allocation.request_allocation(now, asking(HOME, PolicyRules(gpus_max=8)), REQUESTED)


def _every_release(now: DecisionContext) -> Iterator[Decision[Any]]:
    for status in ("requested", "provisioning", "active", "failed", "release_failed"):
        yield allocation.release_allocation(now, replace(requested(now, HOME), status=status))


def _placed(now: DecisionContext) -> Decision[Any]:
    waits, there = requested(now, HOME), node(now)
    placed = allocation_reconcile.AllocationPlacement(waits, pick(waits, there))
    return allocation_reconcile.place_allocations(now, [placed], there, network(now, waits, there))


DRIVEN_ALLOCATIONS: Final[dict[str, Callable[[DecisionContext], Decision[Any] | Iterator[Decision[Any]]]]] = {
    "allocation.request_allocation": _with_and_without_a_quota,
    "allocation.release_allocation": _every_release,
    "forced_release.release_unpaid": lambda now: forced_release.release_unpaid(
        now, replace(requested(now, HOME), status="active"), allocation.LostBy.BUDGET
    ),
    "allocation.retry_release": lambda now: allocation.retry_release(
        now, replace(requested(now, HOME), status="release_failed")
    ),
    "allocation_group.create_group": lambda now: allocation_group.create_group(
        now, asking(HOME), allocation_group.AllocationGroupRequest("cluster", 2, True, REQUESTED)
    ),
    "allocation_reconcile.place_allocations": _placed,
    "allocation_reconcile.give_up_placing": lambda now: allocation_reconcile.give_up_placing(
        now, requested(now, HOME), "no room"
    ),
}
