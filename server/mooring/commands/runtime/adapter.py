"""What an adapter does under a claim: read the instance, report on it, and end its operations.

All rows are loaded for the calling account: an instance of another account is not found. The fence is checked when the
instance is read, for a better error, and guarded again in the statement that writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.services import Services
from mooring.core.catalog.manifest import Manifest, stored_manifest
from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.task import Task
from mooring.core.kernel.decision import DecisionContext
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.adapter_report import AdapterReport, ReportContext, take_report, with_correlation
from mooring.core.runtime.attachment import Attachment
from mooring.core.runtime.claim import InstanceClaim, require_fence
from mooring.core.runtime.instance import Instance, InstanceRef
from mooring.core.runtime.member import Member
from mooring.core.runtime.operation import ATTACHMENT_KINDS, Operation, Phase
from mooring.core.runtime.operation_finish import FinishContext, OperationEnd, finish_operation
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.runtime import attachment as attachments
from mooring.storage.runtime import claim as claims
from mooring.storage.runtime import instance as instances
from mooring.storage.runtime.claim import MemberNodeView

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """The claim under which an adapter acts: its account and project, the instance, and the fence."""

    account_id: str
    project_id: str
    instance_id: str
    fence: int

    @property
    def instance(self) -> InstanceRef:
        return InstanceRef(self.project_id, self.instance_id)


@dataclass(frozen=True, slots=True)
class InstanceForAdapter:
    """An instance with everything that its adapter needs to continue."""

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


async def require_claim(database: RowReader, acting: Acting, ref: ClaimRef) -> tuple[InstanceClaim, Instance]:
    """The claim and the instance, if the instance is the account's and held under this fence."""
    row = await claims.find(database, acting, ref.project_id, ref.account_id, ref.instance_id)
    claim, instance = require(row, "instance")
    require_fence(claim, ref.fence)
    return claim, instance


async def load_for_adapter(services: Services, acting: Acting, ref: ClaimRef) -> InstanceForAdapter:
    """Everything that the next holder needs to continue.

    All of it but the nodes is read at one moment, so an operation never appears without what was written together with
    it, such as its members or the reason that a caller gave.
    """

    async def read(database: RowReader) -> InstanceForAdapter:
        _, instance = await require_claim(database, acting, ref)
        members = (await instances.members_of(database, acting, [instance.id]))[instance.id]
        operations = (await instances.open_operations(database, acting, [instance.id]))[instance.id]
        adapter_operations = [
            each for each in operations if each.phase == Phase.ADAPTER and each.dispatched_at is not None
        ]
        target = next((each.target_pin for each in adapter_operations if each.target_pin is not None), None)
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
            operations=adapter_operations,
            tasks=await claims.tasks(database, acting, instance.id, [each.id for each in adapter_operations]),
            attachments=await attachments.live_of(database, acting, instance.id) if instance.is_shared else (),
        )

    snapshot = await services.database.in_snapshot(acting, read)
    nodes = {each.node_id for each in snapshot.allocations.values() if each.node_id is not None}
    return replace(snapshot, nodes=await claims.nodes(services.database, sorted(nodes)))


async def report(work: Work[Instance], ref: ClaimRef, operation_id: str | None, report: AdapterReport) -> Answered:
    """Apply what was observed, all of it or nothing."""
    named = [each.id for each in report.members]
    if report.instance is not None and report.instance.endpoints is not None:
        named += [str(each.plain["member_id"]) for each in report.instance.endpoints]

    async def load() -> ReportContext:
        return await load_report_context(work, ref, operation_id, named)

    def context_of(current: ReportContext) -> DecisionContext:
        return with_correlation(work.context, current)

    return await work.execute(
        load, lambda current: take_report(context_of(current), current, report), context_of=context_of
    )


async def finish(work: Work[Operation], ref: ClaimRef, operation_id: str, ending: OperationEnd) -> Answered:
    """End an operation, as far as its adapter is concerned."""

    async def load() -> FinishContext:
        current = await load_report_context(work, ref, operation_id, None)
        operation = require(current.operation, "operation")
        manifest = await pinned_manifest(work, current.instance)
        holds = await claims.holds(work.database, work.acting, current.instance.id) if operation.target_pin else []
        attachment = None
        if operation.kind in ATTACHMENT_KINDS:
            attachment = await attachments.of_operation(work.database, work.acting, current.instance.id, operation.id)
        return FinishContext(current, operation, manifest, holds, attachment)

    def context_of(finishing: FinishContext) -> DecisionContext:
        return with_correlation(work.context, finishing.report_context)

    return await work.execute(
        load, lambda finishing: finish_operation(context_of(finishing), finishing, ending), context_of=context_of
    )


async def load_report_context(
    work: Work[Any], ref: ClaimRef, operation_id: str | None, member_ids: Sequence[str] | None
) -> ReportContext:
    """What a report is checked against; without `member_ids`, all members that are not removed."""
    database, acting = work.database, work.acting
    claim, instance = await require_claim(work.database, acting, ref)
    operation = None
    if operation_id is not None:
        row = await instances.find_operation(database, acting, ref.instance, operation_id)
        operation = require(row, "operation")
    if member_ids is None:
        members = (await instances.members_of(database, acting, [instance.id]))[instance.id]
    else:
        members = await claims.members(database, acting, instance.id, sorted(set(member_ids)))
    draining = [each.allocation_id for each in members if each.status == "draining" and each.allocation_id is not None]
    silent = await claims.silent_allocations(database, draining)
    unreachable = frozenset(each.id for each in members if each.allocation_id in silent)
    return ReportContext(claim, instance, {each.id: each for each in members}, operation, unreachable)


async def pinned_manifest(work: Work[Any], instance: Instance) -> Manifest:
    """The manifest of the version that the instance is pinned to."""
    plain = (await claims.manifests(work.database, work.acting, [instance.version_id]))[instance.version_id]
    manifest = stored_manifest(plain)
    if manifest is None:
        raise Refusal(Code.INTERNAL, "the instance's pinned manifest can no longer be read")
    return manifest


def under_correlation(work: Work[Result], subject: Operation | Instance) -> Work[Result]:
    """The work under the correlation of the operation or instance that it is done for."""
    context = replace(work.context, correlation_id=subject.correlation_id, trace_id=subject.trace_id)
    return replace(work, context=context)
