"""How each function that people's requests about instances decide by is driven, for each shape of it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from mooring.core.catalog.manifest import Manifest, read_manifest
from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.runtime import app_action, instance_change, instance_launch, member_change
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.instance_change import InstanceContext, PinnedVersion, RepairScope
from mooring.core.runtime.instance_launch import LaunchedInstance, OperationBounds
from mooring.core.runtime.launch_snapshot import EvaluationPurpose, LaunchSnapshot, PlacementSpec, TargetAllocation
from mooring.core.runtime.member import Member
from mooring.core.runtime.operation import Operation
from server.tests.support.catalog_rows import version
from server.tests.support.launch_rows import launch, standing, wished
from server.tests.support.manifests import LIFECYCLE, launchable

BOUNDS: Final = OperationBounds()
ACTIONS: Final = [
    {"name": name, "permission": f"app.web-tool.{name}", "input_schema": {"type": "object"}, "read_only": read_only}
    for name, read_only in (("queue.submit", False), ("queue.list", True))
]
DOCUMENT: Final = launchable(
    version="2.1.0",
    components=[{"key": "head", "min_count": 1, "max_count": 2}, {"key": "hand", "max_count": 4}],
    lifecycle={
        **LIFECYCLE,
        "upgrade": {"strategy": "rolling", "from_versions": [">=1.0.0"]},
        "restart": {"supported": True},
        "attach": {"supported": True},
    },
    actions=ACTIONS,
    config_schema=None,
)
DOCUMENT.pop("config_schema")


def manifest() -> Manifest:
    """An app with two kinds of members that can be changed in every way."""
    found = read_manifest(DOCUMENT).manifest
    assert found is not None
    return found


def facts(**changes: Any) -> LaunchSnapshot:
    """A launch of it that nothing stands in the way of."""
    return wished(launch(DOCUMENT, **changes), config={})


def launched(now: DecisionContext) -> LaunchedInstance:
    """What was launched."""
    return instance_launch.create_instance(now, wished(facts(), topology={"head": 1, "hand": 1}), BOUNDS).result


def running(now: DecisionContext, **columns: Any) -> InstanceContext:
    """An instance that runs, with two members that do their part."""
    made = launched(now)
    instance: Instance = replace(made.instance, status="running", **columns)
    members = [replace(each, status="ready") for each in made.members]
    return InstanceContext(instance, members, (), manifest())


def adding(seen: InstanceContext, purpose: EvaluationPurpose = EvaluationPurpose.ADD) -> LaunchSnapshot:
    """What a new member of it is launched into: a place that is named."""
    place = standing(id="alc_new")
    return replace(
        wished(facts(), placement=PlacementSpec(allocations=(place.id,)), topology=seen.instance.topology),
        target_allocations={place.id: TargetAllocation(place)},
        purpose=purpose,
        adding=1,
        terms=None,
    )


def asking(seen: InstanceContext) -> LaunchSnapshot:
    """The same, in capacity that is asked for."""
    return replace(wished(facts(), topology=seen.instance.topology), purpose=EvaluationPurpose.ADD, adding=1)


def _every_launch(now: DecisionContext) -> Iterator[Decision[Any]]:
    yield instance_launch.create_instance(now, facts(), BOUNDS)
    yield instance_launch.create_instance(now, wished(facts(), topology={"hand": 2}), BOUNDS)
    yield instance_launch.create_instance(now, replace(adding(running(now)), purpose=EvaluationPurpose.LAUNCH), BOUNDS)


def _every_stop(now: DecisionContext) -> Iterator[Decision[Any]]:
    seen = running(now)
    yield instance_change.stop_instance(now, seen, BOUNDS)
    yield instance_change.stop_instance(now, replace(seen, operations=[_other(now, seen)]), BOUNDS)


def _other(now: DecisionContext, seen: InstanceContext) -> Operation:
    return instance_change.reconcile_instance(now, seen, BOUNDS).result


def _upgrade(now: DecisionContext) -> Decision[Any]:
    seen = running(now, version="1.9.0", version_id="ver_old")
    return instance_change.upgrade_instance(now, seen, adding(seen, EvaluationPurpose.UPGRADE), BOUNDS)


def _rollback(now: DecisionContext) -> Decision[Any]:
    there = version(PromotionState.DEPRECATED)
    pin = {
        "version_id": there.id,
        "version": there.version,
        "manifest_digest": there.manifest_digest,
        "artifacts": launchable()["artifacts"],
    }
    seen = running(now, previous_pin=pin)
    return instance_change.rollback_instance(now, seen, PinnedVersion(there, facts().artifacts), BOUNDS)


def _configure(now: DecisionContext) -> Decision[Any]:
    document = {
        **DOCUMENT,
        "lifecycle": {**DOCUMENT["lifecycle"], "configure": {"supported": True}},
        "config_schema": {
            "type": "object",
            "properties": {"key": {"type": "string", "maxLength": 9, "writeOnly": True}},
        },
    }
    seen = replace(running(now), manifest=read_manifest(document).manifest)
    return instance_change.configure_instance(now, seen, {"key": "secret"}, BOUNDS)


def _every_add(now: DecisionContext) -> Iterator[Decision[Any]]:
    seen = running(now)
    requested = member_change.AddMembersRequest("hand")
    yield member_change.add_members(now, seen, adding(seen), requested, BOUNDS)
    yield member_change.add_members(now, seen, asking(seen), requested, BOUNDS)


def _member(seen: InstanceContext, **columns: Any) -> Member:
    return replace(seen.members[1], **columns)


def _every_remove(now: DecisionContext) -> Iterator[Decision[Any]]:
    seen = running(now)
    for status in ("ready", "failed"):
        yield member_change.remove_member(
            now, seen, _member(seen, status=status), member_change.RemoveMemberRequest(), BOUNDS
        )


def _every_replace(now: DecisionContext) -> Iterator[Decision[Any]]:
    seen = running(now)
    for surge in (True, False):
        requested = member_change.ReplaceMemberRequest(surge)
        yield member_change.replace_member(now, seen, adding(seen), BOUNDS, member=_member(seen), request=requested)


def _resume(now: DecisionContext) -> Iterator[Decision[Any]]:
    seen = running(now)
    yield member_change.resume_member(now, seen, _member(seen, status="drained"))
    drained = member_change.drain_member(now, seen, _member(seen), timeout_seconds=60, reason="").result
    yield member_change.resume_member(now, replace(seen, operations=[drained]), _member(seen, status="draining"))


DRIVEN_INSTANCES: Final[dict[str, Callable[[DecisionContext], Decision[Any] | Iterator[Decision[Any]]]]] = {
    "app_action.start_action": lambda now: app_action.start_action(now, running(now), "queue.submit", {}, None),
    "instance_change.cancel_operation": lambda now: instance_change.cancel_operation(
        now, running(now).instance, _other(now, running(now)), "not now"
    ),
    "instance_change.reconcile_instance": lambda now: instance_change.reconcile_instance(now, running(now), BOUNDS),
    "instance_change.repair_instance": lambda now: instance_change.repair_instance(
        now, running(now), RepairScope.WHOLE_RUNTIME, None, BOUNDS
    ),
    "instance_change.configure_instance": _configure,
    "instance_change.restart_instance": lambda now: instance_change.restart_instance(now, running(now), BOUNDS),
    "instance_change.rollback_instance": _rollback,
    "instance_change.stop_instance": _every_stop,
    "instance_change.upgrade_instance": _upgrade,
    "instance_launch.create_instance": _every_launch,
    "member_change.add_members": _every_add,
    "member_change.drain_member": lambda now: member_change.drain_member(
        now, running(now), running(now).members[1], timeout_seconds=60, reason=""
    ),
    "member_change.remove_member": _every_remove,
    "member_change.replace_member": _every_replace,
    "member_change.resume_member": _resume,
}
