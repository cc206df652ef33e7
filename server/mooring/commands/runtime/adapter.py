"""What an adapter does under a claim: read the instance, report on it, and end its operations.

Everything is loaded for the account that calls: an instance of another account is not there. The fence is looked at
when the instance is read, for the better answer, and guarded in the statement that writes.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.services import Services
from mooring.core.catalog.manifest import Manifest, stored_manifest
from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.task import Task
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.adapter_report import AdapterReport, ReportContext, take_report, under
from mooring.core.runtime.attachment import Attachment
from mooring.core.runtime.claim import InstanceClaim, require_fence
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.member import Member
from mooring.core.runtime.operation import ATTACHMENT_KINDS, Operation, Phase
from mooring.core.runtime.operation_finish import FinishContext, OperationEnd, finish_operation
from mooring.gateways.telemetry.instruments import bound
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.runtime import attachment as attachments
from mooring.storage.runtime import claim as claims
from mooring.storage.runtime import instance as instances
from mooring.storage.runtime.claim import MemberNodeView

Snapshot = TypeVar("Snapshot")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """Under which claim something is asked for: the account and its project, the instance, the fence."""

    account_id: str
    project_id: str
    instance_id: str
    fence: int

    @property
    def place(self) -> tuple[str, str]:
        """The project and the instance."""
        return self.project_id, self.instance_id


@dataclass(frozen=True, slots=True)
class InstanceForAdapter:
    """An instance with all that its adapter goes on from."""

    now: datetime
    instance: Instance
    manifest: dict[str, Any]
    target_manifest: dict[str, Any] | None
    members: Sequence[Member]
    allocations: Mapping[str, Allocation]
    nodes: Mapping[str, MemberNodeView]
    operations: Sequence[Operation]
    tasks: Sequence[Task]
    attachments: Sequence[Attachment] = ()


async def held(database: RowReader, acting: Acting, claimed: ClaimRef) -> tuple[InstanceClaim, Instance]:
    """The instance, when it is the account's and held under this fence."""
    row = await claims.find(database, acting, claimed.project_id, claimed.account_id, claimed.instance_id)
    claim, instance = require(row, "instance")
    require_fence(claim, claimed.fence)
    return claim, instance


async def whole(services: Services, acting: Acting, claimed: ClaimRef) -> InstanceForAdapter:
    """All that the next holder goes on from, at one moment but for the nodes: an operation is never seen without what
    was written with it, such as its members or the reason that somebody gave.
    """

    async def read(database: RowReader) -> InstanceForAdapter:
        _, instance = await held(database, acting, claimed)
        members = (await instances.members_of(database, acting, [instance.id]))[instance.id]
        open_ = (await instances.open_operations(database, acting, [instance.id]))[instance.id]
        turns = [each for each in open_ if each.phase == Phase.ADAPTER and each.dispatched_at is not None]
        target = next((each.target_pin for each in turns if each.target_pin is not None), None)
        versions = [instance.version_id, *([] if target is None else [target["version_id"]])]
        manifests = await claims.manifests(database, acting, versions)
        return InstanceForAdapter(
            now=services.clock.now(),
            instance=instance,
            manifest=manifests[instance.version_id],
            target_manifest=None if target is None else manifests.get(target["version_id"]),
            members=members,
            allocations=await claims.allocations(database, acting, [each.allocation_id or "" for each in members]),
            nodes={},
            operations=turns,
            tasks=await claims.tasks(database, acting, instance.id, [each.id for each in turns]),
            attachments=await attachments.live_of(database, acting, instance.id) if instance.is_shared else (),
        )

    seen = await services.database.in_snapshot(acting, read)
    nodes = {each.node_id for each in seen.allocations.values() if each.node_id is not None}
    return replace(seen, nodes=await claims.nodes(services.database, sorted(nodes)))


async def report(work: Work[Instance], claimed: ClaimRef, operation_id: str | None, report: AdapterReport) -> Answered:
    """What was observed becomes true, all of it or nothing."""
    named = [each.id for each in report.members]
    if report.instance is not None and report.instance.endpoints is not None:
        named += [str(each.plain["member_id"]) for each in report.instance.endpoints]

    async def load() -> ReportContext:
        return await seen_of(work, claimed, operation_id, named)

    return await _execute(work, load, lambda seen: take_report(under(work.context, seen), seen, report))


async def finish(work: Work[Operation], claimed: ClaimRef, operation_id: str, ending: OperationEnd) -> Answered:
    """An operation ends, as far as its adapter is concerned."""

    async def load() -> FinishContext:
        seen = await seen_of(work, claimed, operation_id, None)
        operation = require(seen.operation, "operation")
        manifest = await pinned_manifest(work, seen.instance)
        holds = await claims.holds(work.database, work.acting, seen.instance.id) if operation.target_pin else []
        attachment = None
        if operation.kind in ATTACHMENT_KINDS:
            attachment = await attachments.of_operation(work.database, work.acting, seen.instance.id, operation.id)
        return FinishContext(seen, operation, manifest, holds, attachment)

    return await _execute(
        work,
        load,
        lambda there: finish_operation(under(work.context, there.seen), there, ending),
        of=lambda there: there.seen,
    )


async def seen_of(
    work: Work[Any], claimed: ClaimRef, operation_id: str | None, member_ids: Sequence[str] | None
) -> ReportContext:
    """What a report is held against; without member ids all members that are not removed."""
    database, acting = work.database, work.acting
    claim, instance = await held(work.database, acting, claimed)
    operation = None
    if operation_id is not None:
        row = await instances.find_operation(database, acting, claimed.place, operation_id)
        operation = require(row, "operation")
    if member_ids is None:
        listed = (await instances.members_of(database, acting, [instance.id]))[instance.id]
    else:
        listed = await claims.members(database, acting, instance.id, sorted(set(member_ids)))
    draining = [each.allocation_id for each in listed if each.status == "draining" and each.allocation_id is not None]
    silent = await claims.silent_allocations(database, draining)
    unreachable = frozenset(each.id for each in listed if each.allocation_id in silent)
    return ReportContext(claim, instance, {each.id: each for each in listed}, operation, unreachable)


async def pinned_manifest(work: Work[Any], instance: Instance) -> Manifest:
    """The manifest of the version that the instance is pinned to."""
    plain = (await claims.manifests(work.database, work.acting, [instance.version_id]))[instance.version_id]
    manifest = stored_manifest(plain)
    if manifest is None:
        raise Refusal(Code.INTERNAL, "the manifest that the instance is pinned to does not read any more")
    return manifest


async def _execute(
    work: Work[Result],
    load: Callable[[], Awaitable[Snapshot]],
    decide: Callable[[Snapshot], Decision[Result]],
    of: Callable[[Snapshot], ReportContext] = lambda seen: seen,  # type: ignore[assignment, return-value]
) -> Answered:
    """Do it under the correlation of what is reported on, and let the log say so too."""
    first: list[Snapshot] = [await load()]
    context = under(work.context, of(first[0]))

    async def loaded() -> Snapshot:
        return first.pop() if first else await load()

    with bound(correlation_id=context.correlation_id, trace_id=context.trace_id):
        return await replace(work, context=context).execute(loaded, decide)


def under_correlation(work: Work[Result], subject: Operation | Instance) -> Work[Result]:
    """The work under the correlation of what it is done for."""
    context = replace(work.context, correlation_id=subject.correlation_id, trace_id=subject.trace_id)
    return replace(work, context=context)
