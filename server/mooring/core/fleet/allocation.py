"""Allocation: a tenant's claim on a whole machine or on slots of one.

An allocation ends by a teardown that its node has observed, or by a write-off that an admin answers for. A partly
created allocation needs a teardown too, which is why `failed` is not final. A slot has a state of its own: it stays
`cleanup_blocked` until a clean receipt, and after a write-off until the node is swept or gone.

This module has what people decide: to request an allocation, to release it, to retry its teardown. What the platform
does by itself in between is in `core/fleet/allocation_reconcile.py`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from mooring.core.catalog.compatibility import CapacityShape, Need
from mooring.core.catalog.policy import PolicyChain, PolicyRequest
from mooring.core.fleet.allocation_metadata import integration_metadata, scheduler_type
from mooring.core.kernel import validation
from mooring.core.kernel.decision import (
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    StateChange,
    Update,
)
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.lifecycle import IllegalTransition, Lifecycle, Transition, Who
from mooring.core.pricing.spending import SpendingSnapshot, SpendRequest, reserve

OPEN_MAX: Final = 10_000
"""How many allocations one project may have at a time, whatever its policy says."""
GROUP_MAX: Final = 64
PLACE_SECONDS_MAX: Final = 604_800


class AllocationState(StrEnum):
    REQUESTED = "requested"
    PROVISIONING = "provisioning"
    ACTIVE = "active"
    RELEASING = "releasing"
    RELEASE_FAILED = "release_failed"
    RELEASED = "released"
    FAILED = "failed"


class AllocationTrigger(StrEnum):
    PROVISION = "provision"
    ACTIVATE = "activate"
    FAIL = "fail"
    RELEASE = "release"
    FAIL_TEARDOWN = "fail_teardown"
    FINISH_TEARDOWN = "finish_teardown"
    WRITE_OFF = "write_off"


S, T = AllocationState, AllocationTrigger

ALLOCATION = Lifecycle(
    name="allocation",
    about="A tenant's claim on a whole machine (`baremetal`) or on slots of one (`gpu_slice`).",
    states=AllocationState,
    triggers=AllocationTrigger,
    initial=S.REQUESTED,
    meaning={
        S.REQUESTED: "accepted, but not placed on a node yet",
        S.PROVISIONING: "slots on a node are reserved, and the node creates the sandbox",
        S.ACTIVE: "the sandbox is ready, and apps may be launched into it",
        S.RELEASING: "the node removes everything that belongs to it, and checks that nothing is left",
        S.RELEASE_FAILED: "the node checked after the teardown and found something left; its slots stay blocked",
        S.RELEASED: "ended, by a clean receipt or by a write-off",
        S.FAILED: "it never became active; what was partly created still needs a teardown",
    },
    edges=(
        Transition(S.REQUESTED, T.PROVISION, S.PROVISIONING, Who.WORKER, "Free slots were found and reserved."),
        Transition(
            S.REQUESTED, T.FAIL, S.FAILED, Who.WORKER, "No place was found in time, or it was released before that."
        ),
        Transition(S.PROVISIONING, T.ACTIVATE, S.ACTIVE, Who.AGENT, "The node reports that the sandbox is ready."),
        Transition(
            S.PROVISIONING,
            T.FAIL,
            S.FAILED,
            Who.WORKER,
            "The node could not create the sandbox in time, or it was released before that.",
        ),
        Transition(S.ACTIVE, T.RELEASE, S.RELEASING, Who.USER, "The tenant releases it."),
        Transition(S.FAILED, T.RELEASE, S.RELEASING, Who.WORKER, "A partly created sandbox still needs a teardown."),
        Transition(S.RELEASING, T.FINISH_TEARDOWN, S.RELEASED, Who.AGENT, "The node checked and found nothing left."),
        Transition(
            S.RELEASING,
            T.FAIL_TEARDOWN,
            S.RELEASE_FAILED,
            Who.AGENT,
            "The node checked and found something that it could not remove.",
        ),
        Transition(
            S.RELEASING,
            T.WRITE_OFF,
            S.RELEASED,
            Who.ADMIN,
            "The node is lost for good; an admin retires it and states what may be left.",
        ),
        Transition(
            S.RELEASE_FAILED,
            T.RELEASE,
            S.RELEASING,
            Who.WORKER,
            "The teardown is retried after a pause, or at once on request.",
        ),
        Transition(
            S.RELEASE_FAILED,
            T.WRITE_OFF,
            S.RELEASED,
            Who.ADMIN,
            "What is left will never be removed; an admin retires the node and answers for it.",
        ),
    ),
    requires={
        S.PROVISIONING: frozenset({"node_id"}),
        S.ACTIVE: frozenset({"node_id", "activated_at"}),
        S.RELEASING: frozenset({"releasing_at"}),
        S.RELEASE_FAILED: frozenset({"releasing_at"}),
        S.RELEASED: frozenset({"released_at", "teardown_proof"}),
        S.FAILED: frozenset({"failed_at", "failure_code"}),
    },
)


class TeardownProof(StrEnum):
    """What proves that nothing of an allocation is left."""

    RECEIPTS = "receipts"  # its node checked and found nothing left
    NOTHING_STARTED = "nothing_started"  # no node ever began anything for it
    WRITTEN_OFF = "written_off"  # its node is lost for good, and an admin stated what may be left


class LostBy(StrEnum):
    """Who took an allocation from its tenant."""

    NODE_GONE = "node_gone"
    BALANCE = "balance"
    BUDGET = "budget"
    ADMIN = "admin"


class FailureReason(StrEnum):
    """Why an allocation never became active, beside the failure codes of tasks."""

    NO_CAPACITY = "no_capacity"
    CANCELLED = "cancelled"
    NODE_LOST = "node_lost"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What was requested, what it got, and where it is in its lifecycle."""

    id: str
    tenant_id: str
    project_id: str
    name: str
    shape: str
    sku_id: str | None
    sku_slug: str
    gpu_model: str
    gpu_count: int
    regions: list[str]
    price_minor_per_gpu_hour: int
    currency: str
    price_revision: int
    deadline_at: datetime
    correlation_id: str
    trace_id: str
    status: str
    generation: int
    revision: int
    created_at: datetime
    group_id: str | None = None
    scheduler_type: str | None = None
    integration_metadata: Mapping[str, Any] | None = None
    node_id: str | None = None
    region: str | None = None
    host: str | None = None
    slots: list[dict[str, Any]] | None = None
    subnet: str | None = None
    address: str | None = None
    facts: Mapping[str, Any] | None = None
    blocker: str | None = None
    task_id: str | None = None
    attempts: int = 0
    retry_at: datetime | None = None
    placed_at: datetime | None = None
    activated_at: datetime | None = None
    releasing_at: datetime | None = None
    released_at: datetime | None = None
    lost_at: datetime | None = None
    failed_at: datetime | None = None
    failure_code: str | None = None
    failure_detail: str | None = None
    teardown_proof: str | None = None
    receipt_id: str | None = None
    needs: list[dict[str, Any]] = field(default_factory=list)  # what its node must have, see `compatibility.Need`
    wanted_node_id: str | None = None  # it is placed on that node or not at all
    price_id: str | None = None  # a contract's; the database fills in the line of the SKU's history otherwise

    @property
    def place(self) -> tuple[str, str]:
        return self.tenant_id, self.project_id


UNWRITTEN: Final = frozenset({"status", "generation"})
"""Columns that the unit of work sets for a new row, from the lifecycle."""


@dataclass(frozen=True, slots=True)
class SkuTerms:
    """What a SKU offers, and at which price, at the time of a request."""

    id: str
    slug: str
    shape: str
    gpu_model: str
    regions: list[str]
    allowed_gpu_counts: list[int]
    price_minor_per_gpu_hour: int
    currency: str
    price_revision: int
    status: str
    price_id: str | None = None  # of the tenant's contract, if it has one


@dataclass(frozen=True, slots=True)
class ProjectHolding:
    """What a project has: GPUs that are requested or in use, and allocations that are not released yet."""

    gpus: int
    open: int
    quota_revision: int


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """What the caller requests; None means that the platform chooses."""

    shape: CapacityShape
    sku: str
    gpu_count: int | None = None
    region: str | None = None
    name: str | None = None
    place_within_seconds: int | None = None
    scheduler_type: str | None = None
    integration_metadata: Mapping[str, str] | None = None
    needs: tuple[Need, ...] = ()  # of the app that it is requested for
    node_id: str | None = None  # that node or none


@dataclass(frozen=True, slots=True)
class AllocationContext:
    """Who requests, on which terms, under which policies, and what the project has already."""

    tenant_id: str
    project_id: str
    terms: SkuTerms
    chain: PolicyChain
    holding: ProjectHolding
    place_seconds: int  # how long to look for a place when the request does not say
    spending: SpendingSnapshot | None = None  # None if nothing limits what it may spend


def spend_request(terms: SkuTerms, gpu_count: int, allocations: int, *, instances: int = 0) -> SpendRequest:
    """What so many allocations of a SKU add to what the project has and spends."""
    return SpendRequest(instances, allocations, gpu_count, terms.price_minor_per_gpu_hour, terms.currency)


def gpu_count_of(request: AllocationRequest, terms: SkuTerms) -> int:
    """How many GPUs are requested; a SKU that is sold in one size needs no number."""
    if request.shape != terms.shape:
        raise validation.invalid("shape", f"the SKU {terms.slug} is a {terms.shape}")
    if request.gpu_count is None and len(terms.allowed_gpu_counts) == 1:
        return terms.allowed_gpu_counts[0]
    if request.gpu_count is None or request.gpu_count not in terms.allowed_gpu_counts:
        listed = ", ".join(str(each) for each in sorted(terms.allowed_gpu_counts))
        raise validation.invalid("gpu_count", f"the SKU {terms.slug} is sold with {listed} GPUs")
    return request.gpu_count


def regions_of(request: AllocationRequest, terms: SkuTerms, chain: PolicyChain) -> list[str]:
    """Where it may be placed: the requested region, or all regions of the SKU, as far as policy allows."""
    if terms.status != "offered":
        raise validation.invalid("sku", f"the SKU {terms.slug} is no longer offered")
    if request.region is not None and request.region not in terms.regions:
        raise validation.invalid("region", f"the SKU {terms.slug} is sold in {', '.join(sorted(terms.regions))}")
    wanted = sorted(terms.regions) if request.region is None else [request.region]
    verdicts = {region: chain.decide(PolicyRequest(region=region, sku=terms.slug)) for region in wanted}
    allowed = [region for region, verdict in verdicts.items() if verdict.allowed]
    if not allowed:
        refusal = verdicts[wanted[0]].refusal()
        if refusal is not None:
            raise refusal
    return allowed


def request_allocation(
    context: DecisionContext, requester: AllocationContext, request: AllocationRequest, group_id: str | None = None
) -> Decision[Allocation]:
    """Request one allocation, to be placed as soon as there is room."""
    decision = request_allocations(context, requester, request, [request.name], group_id)
    return Decision(decision.result[0], decision.writes, decision.events, decision.audits)


def request_allocations(
    context: DecisionContext,
    requester: AllocationContext,
    request: AllocationRequest,
    names: list[str | None],
    group_id: str | None,
) -> Decision[tuple[Allocation, ...]]:
    """Request equal allocations, one for each name; None lets the platform choose the name."""
    count, regions = gpu_count_of(request, requester.terms), regions_of(request, requester.terms, requester.chain)
    if requester.holding.open + len(names) > OPEN_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"a project has at most {OPEN_MAX} allocations", {"limit": OPEN_MAX})
    refusal = requester.chain.decide(PolicyRequest(gpus=requester.holding.gpus + count * len(names))).refusal()
    if refusal is not None:
        raise refusal
    made = tuple(
        _requested(context, requester, request, name=name, group_id=group_id, gpu_count=count, regions=regions)
        for name in names
    )
    quota = () if requester.chain.gpus_max is None else (_guard(requester),)
    spend = spend_request(requester.terms, count, len(names))
    reserved = reserve(requester.spending, spend, [each.id for each in made])
    rows = tuple(
        Insert(
            "allocation",
            {name: value for name, value in asdict(each).items() if name not in UNWRITTEN},
            (ALLOCATION,),
        )
        for each in made
    )
    return Decision(
        result=made,
        writes=(*quota, *reserved, *rows),
        events=tuple(allocation_event(EventType.ALLOCATION_REQUESTED, each, summary(each)) for each in made),
        audits=tuple(
            AuditRecord("allocation.create", "allocation", each.id, *each.place, after=summary(each)) for each in made
        ),
    )


def release_allocation(context: DecisionContext, allocation: Allocation) -> Decision[Allocation]:
    """Release it in any state; one that is not active yet fails first and is then torn down."""
    state = AllocationState(allocation.status)
    if state in (S.REQUESTED, S.PROVISIONING):
        columns = {
            "failed_at": context.now,
            "failure_code": FailureReason.CANCELLED.value,
            "failure_detail": "it was released before it was active",
            "blocker": None,
        }
        return moved(
            context, allocation, T.FAIL, columns, action="allocation.release", event=EventType.ALLOCATION_FAILED
        )
    decision = _released_by_user(context, allocation)
    if context.actor.break_glass_id is None:
        return decision
    lost = allocation_event(EventType.ALLOCATION_LOST, decision.result, {"cause": LostBy.ADMIN.value})
    return replace(decision, events=(*decision.events, lost))


def retry_release(context: DecisionContext, allocation: Allocation) -> Decision[Allocation]:
    """Retry at once a teardown that left something; the platform retries by itself after a pause."""
    state = AllocationState(allocation.status)
    if state is not S.RELEASE_FAILED:
        raise IllegalTransition("allocation", state, T.RELEASE, ALLOCATION.allowed(state))
    return _released_by_user(context, allocation)


def _released_by_user(context: DecisionContext, allocation: Allocation) -> Decision[Allocation]:
    columns = releasing_columns(context, allocation)
    event = EventType.ALLOCATION_RELEASING
    return moved(context, allocation, T.RELEASE, columns, action="allocation.release", event=event)


def releasing_columns(context: DecisionContext, allocation: Allocation) -> dict[str, object]:
    """What a release sets: charging ends at the first release, and the teardown starts with a new task."""
    return {
        "releasing_at": allocation.releasing_at or context.now,
        "task_id": None,
        "retry_at": None,
        "blocker": None,
        "attempts": allocation.attempts if allocation.status == S.RELEASE_FAILED else 0,
    }


def moved(
    context: DecisionContext,
    allocation: Allocation,
    trigger: AllocationTrigger,
    columns: Mapping[str, Any],
    *,
    action: str,
    event: EventType,
) -> Decision[Allocation]:
    """One transition, with the columns that it sets, its event and its audit row."""
    edge = ALLOCATION.step(AllocationState(allocation.status), trigger)
    after = replace(allocation, status=edge.target.value, generation=allocation.generation + 1, **columns)
    changed = {"status": after.status} | {
        name: getattr(after, name)
        for name in ("failure_code", "failure_detail", "teardown_proof", "receipt_id", "node_id")
        if getattr(after, name) is not None
    }
    return Decision(
        result=after,
        writes=(
            StateChange("allocation", after.id, ALLOCATION, edge, allocation.generation, after.tenant_id, columns),
        ),
        events=(allocation_event(event, after, summary(after) | changed),),
        audits=(
            AuditRecord(
                action, "allocation", after.id, *after.place, before={"status": allocation.status}, after=changed
            ),
        ),
    )


def allocation_event(event: EventType, allocation: Allocation, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(event, "allocation", allocation.id, *allocation.place, data=data)


def summary(allocation: Allocation) -> dict[str, object]:
    """What events and audit records say about an allocation."""
    return {
        "name": allocation.name,
        "shape": allocation.shape,
        "sku": allocation.sku_slug,
        "gpu_count": allocation.gpu_count,
        "regions": allocation.regions,
        "group_id": allocation.group_id,
    }


def _guard(requester: AllocationContext) -> Update:
    """All requests of a project change this row, so that two of them cannot both take the last GPUs of its quota."""
    return Update("project_quota", requester.project_id, requester.holding.quota_revision, {})


def _requested(
    context: DecisionContext,
    requester: AllocationContext,
    request: AllocationRequest,
    *,
    name: str | None,
    group_id: str | None,
    gpu_count: int,
    regions: list[str],
) -> Allocation:
    allocation_id = context.mint(Prefix.ALLOCATION)
    seconds = request.place_within_seconds or requester.place_seconds
    if not 1 <= seconds <= PLACE_SECONDS_MAX:
        raise validation.invalid("place_within_seconds", f"1 to {PLACE_SECONDS_MAX}")
    terms = requester.terms
    return Allocation(
        id=allocation_id,
        tenant_id=requester.tenant_id,
        project_id=requester.project_id,
        name=validation.slug(name or f"alc-{allocation_id[-12:]}", "name"),
        shape=request.shape.value,
        sku_id=terms.id,
        sku_slug=terms.slug,
        gpu_model=terms.gpu_model,
        gpu_count=gpu_count,
        regions=regions,
        price_minor_per_gpu_hour=terms.price_minor_per_gpu_hour,
        currency=terms.currency,
        price_revision=terms.price_revision,
        price_id=terms.price_id,
        deadline_at=context.now + timedelta(seconds=seconds),
        correlation_id=context.correlation_id,
        trace_id=context.trace_id,
        status=S.REQUESTED.value,
        generation=0,
        revision=0,
        created_at=context.now,
        group_id=group_id,
        scheduler_type=scheduler_type(request.scheduler_type),
        integration_metadata=integration_metadata(request.integration_metadata),
        slots=[],
        facts={},
        needs=[each.plain() for each in request.needs],
        wanted_node_id=request.node_id,
    )
