"""How each function that decides about attachments is driven, for each shape of it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from mooring.core.identity.project import Project
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.runtime import attachment_change
from mooring.core.runtime.attachment import Attachment
from mooring.core.runtime.attachment_change import AttachContext, DetachRequest
from mooring.core.runtime.instance_change import InstanceContext
from server.tests.support.sample_decisions.instances import BOUNDS, running


def neighbour(now: DecisionContext) -> Project:
    """The project that is attached."""
    return Project("prj_attached", "ten_1", "research", "Research", 0, now.now, None)


def shared(now: DecisionContext, **columns: Any) -> InstanceContext:
    """An instance that runs and is the tenant's."""
    return running(now, control_plane_scope="tenant", **columns)


def attached(
    now: DecisionContext, seen: InstanceContext | None = None, **columns: Any
) -> tuple[InstanceContext, Attachment]:
    """An attachment to it, with the operation that makes it while that is open."""
    there = seen or shared(now)
    decided = attachment_change.attach_project(now, AttachContext(there, neighbour(now), (), frozenset()), BOUNDS)
    return there, replace(decided.result, **columns)


def _attach(now: DecisionContext) -> Decision[Any]:
    return attachment_change.attach_project(now, AttachContext(shared(now), neighbour(now), (), frozenset()), BOUNDS)


def _every_detach(now: DecisionContext) -> Iterator[Decision[Any]]:
    seen, active = attached(now, status="active")
    yield attachment_change.detach_project(now, seen, active, DetachRequest())
    ended = replace(seen, instance=replace(seen.instance, status="failed"))
    yield attachment_change.detach_project(now, ended, active, DetachRequest(cancel_work=True))
    yield attachment_change.detach_project(now, seen, replace(active, status="detaching"), DetachRequest())


DRIVEN_ATTACHMENTS: Final[dict[str, Callable[[DecisionContext], Decision[Any] | Iterator[Decision[Any]]]]] = {
    "attachment_change.attach_project": _attach,
    "attachment_change.detach_project": _every_detach,
}
