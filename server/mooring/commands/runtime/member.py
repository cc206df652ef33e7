"""Commands on members: add, drain, resume, remove, replace."""

from dataclasses import replace
from typing import Any

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime import launch
from mooring.commands.runtime.instance import InstanceRef, bounds_of, standing
from mooring.commands.runtime.launch import LoadOptions
from mooring.core.kernel.decision import Decision
from mooring.core.runtime.instance_change import InstanceContext
from mooring.core.runtime.instance_launch import LaunchedInstance
from mooring.core.runtime.launch import EvaluationPurpose, LaunchRequest, LaunchSnapshot, PlacementSpec, placement_of
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


async def add(
    work: Work[LaunchedInstance], at: InstanceRef, request: AddMembersRequest, placement: PlacementSpec | None
) -> Answered:
    """New members of a component."""

    async def load() -> tuple[InstanceContext, LaunchSnapshot]:
        seen = await standing(work, at)
        return seen, await _facts(work, seen, placement, request.count)

    def decide(loaded: tuple[InstanceContext, LaunchSnapshot]) -> Decision[LaunchedInstance]:
        return add_members(work.context, *loaded, request, bounds_of(work.services))

    return await work.execute(load, decide)


async def drain(work: Work[Operation], at: InstanceRef, member_id: str, asked: tuple[int | None, str]) -> Answered:
    """Ask a member to finish its work and take no more."""

    def decide(loaded: tuple[InstanceContext, Member]) -> Decision[Operation]:
        return drain_member(work.context, *loaded, asked, bounds_of(work.services))

    return await work.execute(lambda: _member(work, at, member_id), decide)


async def resume(work: Work[Member], at: InstanceRef, member_id: str) -> Answered:
    """Put a member back to work."""

    def decide(loaded: tuple[InstanceContext, Member]) -> Decision[Member]:
        return resume_member(work.context, *loaded)

    return await work.execute(lambda: _member(work, at, member_id), decide)


async def remove(work: Work[Operation], at: InstanceRef, member_id: str, request: RemoveMemberRequest) -> Answered:
    """Take a member out."""

    def decide(loaded: tuple[InstanceContext, Member]) -> Decision[Operation]:
        return remove_member(work.context, *loaded, request, bounds_of(work.services))

    return await work.execute(lambda: _member(work, at, member_id), decide)


async def exchange(
    work: Work[LaunchedInstance],
    at: InstanceRef,
    member_id: str,
    request: ReplaceMemberRequest,
    placement: PlacementSpec | None,
) -> Answered:
    """Put a new member in place of one."""

    async def load() -> tuple[InstanceContext, LaunchSnapshot, Member]:
        seen, member = await _member(work, at, member_id)
        where = placement
        if where is None and member.allocation_id is not None:
            row = await allocations.find(work.database, work.acting, at.project_id, member.allocation_id)
            if row is not None and takes_over(seen, member, row.status, request):
                where = PlacementSpec(allocations=(row.id,))
        return seen, await _facts(work, seen, where, 1), member

    def decide(loaded: tuple[InstanceContext, LaunchSnapshot, Member]) -> Decision[LaunchedInstance]:
        seen, facts, member = loaded
        return replace_member(work.context, seen, facts, (member, request), bounds_of(work.services))

    return await work.execute(load, decide)


async def _facts(
    work: Work[LaunchedInstance], seen: InstanceContext, placement: PlacementSpec | None, count: int
) -> LaunchSnapshot:
    """What new members are launched into: where they are told to go, or more of what the instance was launched with."""
    row = seen.instance
    stored = placement_of(row.placement)
    where = placement or replace(stored, allocations=())
    wish = LaunchRequest(app=row.app_slug, name=row.name, config=row.config, topology=row.topology, placement=where)
    about = LoadOptions(EvaluationPurpose.ADD, row, seen.members, count, pinned=True)
    return await launch.load(work.services, work.acting, row.project_id, wish, about)


async def _member(work: Work[Any], at: InstanceRef, member_id: str) -> tuple[InstanceContext, Member]:
    seen = await standing(work, at)
    row = await instance.find_member(work.database, work.acting, at.place, member_id)
    return seen, require(row, "member")
