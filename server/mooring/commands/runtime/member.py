"""Commands on members: add, drain, resume, remove, replace."""

import dataclasses
from typing import Any

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime import launch
from mooring.commands.runtime.instance import InstanceWithLaunch, bounds_of, load_context, load_for_use
from mooring.commands.runtime.launch import LoadOptions
from mooring.core.kernel.decision import Decision
from mooring.core.runtime.instance import InstanceRef
from mooring.core.runtime.instance_change import InstanceContext
from mooring.core.runtime.instance_launch import LaunchedInstance
from mooring.core.runtime.launch_snapshot import (
    EvaluationPurpose,
    LaunchRequest,
    LaunchSnapshot,
    PlacementSpec,
    placement_of,
)
from mooring.core.runtime.member import Member
from mooring.core.runtime.member_change import (
    AddMembersRequest,
    RemoveMemberRequest,
    ReplaceMemberRequest,
    add_members,
    drain_member,
    remove_member,
    replace_member,
    resume_member,
    takes_over,
)
from mooring.core.runtime.operation import Operation
from mooring.storage.fleet import allocation as allocations
from mooring.storage.runtime import instance


@dataclasses.dataclass(frozen=True, slots=True)
class _MemberContext:
    current: InstanceContext
    member: Member


@dataclasses.dataclass(frozen=True, slots=True)
class _ReplaceContext:
    current: InstanceContext
    member: Member
    launch: LaunchSnapshot


async def add(
    work: Work[LaunchedInstance], ref: InstanceRef, request: AddMembersRequest, placement: PlacementSpec | None
) -> Answered:
    """Add members to a component."""

    async def load() -> InstanceWithLaunch:
        current = await load_context(work, ref)
        return InstanceWithLaunch(current, await _facts(work, current, placement, request.count))

    def decide(loaded: InstanceWithLaunch) -> Decision[LaunchedInstance]:
        return add_members(work.context, loaded.current, loaded.launch, request, bounds_of(work.services))

    return await work.execute(load, decide)


async def drain(
    work: Work[Operation], ref: InstanceRef, member_id: str, *, timeout_seconds: int | None, reason: str
) -> Answered:
    """Ask a member to finish its work and accept no more."""

    def decide(loaded: _MemberContext) -> Decision[Operation]:
        current, member = loaded.current, loaded.member
        return drain_member(work.context, current, member, timeout_seconds=timeout_seconds, reason=reason)

    return await work.execute(lambda: _member(work, ref, member_id), decide)


async def resume(work: Work[Member], ref: InstanceRef, member_id: str) -> Answered:
    """Put a member back to work."""

    def decide(loaded: _MemberContext) -> Decision[Member]:
        return resume_member(work.context, loaded.current, loaded.member)

    return await work.execute(lambda: _member(work, ref, member_id, for_use=True), decide)


async def remove(work: Work[Operation], ref: InstanceRef, member_id: str, request: RemoveMemberRequest) -> Answered:
    def decide(loaded: _MemberContext) -> Decision[Operation]:
        return remove_member(work.context, loaded.current, loaded.member, request, bounds_of(work.services))

    return await work.execute(lambda: _member(work, ref, member_id), decide)


async def replace(
    work: Work[LaunchedInstance],
    ref: InstanceRef,
    member_id: str,
    request: ReplaceMemberRequest,
    placement: PlacementSpec | None,
) -> Answered:
    """Replace a member by a new one."""

    async def load() -> _ReplaceContext:
        loaded = await _member(work, ref, member_id)
        current, member = loaded.current, loaded.member
        effective_placement = placement
        if effective_placement is None and member.allocation_id is not None:
            row = await allocations.find(work.database, work.acting, ref.project_id, member.allocation_id)
            if row is not None and takes_over(current, member, row.status, request):
                effective_placement = PlacementSpec(allocations=(row.id,))
        return _ReplaceContext(current, member, await _facts(work, current, effective_placement, 1))

    def decide(loaded: _ReplaceContext) -> Decision[LaunchedInstance]:
        return replace_member(
            work.context, loaded.current, loaded.launch, bounds_of(work.services), member=loaded.member, request=request
        )

    return await work.execute(load, decide)


async def _facts(
    work: Work[LaunchedInstance], current: InstanceContext, placement: PlacementSpec | None, count: int
) -> LaunchSnapshot:
    """The facts for new members: in the given placement, or in more of what the instance was launched with."""
    row = current.instance
    stored = placement_of(row.placement)
    effective_placement = placement or dataclasses.replace(stored, allocations=())
    request = LaunchRequest(
        app=row.app_slug, name=row.name, config=row.config, topology=row.topology, placement=effective_placement
    )
    options = LoadOptions(EvaluationPurpose.ADD, row, current.members, count, pinned=True)
    return await launch.load(work.services, work.acting, row.project_id, request, options)


async def _member(work: Work[Any], ref: InstanceRef, member_id: str, *, for_use: bool = False) -> _MemberContext:
    current = await (load_for_use if for_use else load_context)(work, ref)
    row = await instance.find_member(work.database, work.acting, ref, member_id)
    return _MemberContext(current, require(row, "member"))
