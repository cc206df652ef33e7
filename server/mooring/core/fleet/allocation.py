"""Allocation: a tenant's claim on a whole machine or on slots of one.

An allocation ends by a teardown that a node has observed, or by a write-off that an admin answers for. Also
a half-made one is owed a teardown, which is why `failed` is not final. Whether a slot is free is the slot's
own matter: it stays `cleanup_blocked` until a clean receipt, and after a write-off until the node is swept
or gone.

Here is what people decide about one: to ask for it, to give it back, to try its teardown again. What the platform
does by itself in between is in `core/fleet/allocation_reconcile.py`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.catalog.policy import PolicyChain
from mooring.core.catalog.policy import PolicyRequest as Asked
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

OPEN_MAX: Final = 10_000
"""How many allocations one project has at a time, whatever its policy says."""
GROUP_MAX: Final = 64
PLACE_SECONDS_MAX: Final = 604_800
METADATA_MAX: Final = 64
METADATA_VALUE_LENGTH: Final = 200
METADATA_LENGTH: Final = 16_384


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
        S.REQUESTED: "accepted; no place was chosen for it yet",
        S.PROVISIONING: "a place is reserved, and its node makes the sandbox",
        S.ACTIVE: "the sandbox stands, and apps may be launched into it",
        S.RELEASING: "the node tears down what belongs to it, and looks",
        S.RELEASE_FAILED: "the node tore down, looked, and found something left; its slots stay blocked",
        S.RELEASED: "ended, by a clean receipt or by a write-off",
        S.FAILED: "it never came to stand; what was half made is still owed a teardown",
    },
    edges=(
        Transition(S.REQUESTED, T.PROVISION, S.PROVISIONING, Who.WORKER, "Free slots were found and reserved."),
        Transition(
            S.REQUESTED, T.FAIL, S.FAILED, Who.WORKER, "No place was found in time, or it is not wanted any more."
        ),
        Transition(S.PROVISIONING, T.ACTIVATE, S.ACTIVE, Who.AGENT, "The node reports that the sandbox stands."),
        Transition(
            S.PROVISIONING,
            T.FAIL,
            S.FAILED,
            Who.WORKER,
            "The node could not make the sandbox in time, or it is not wanted any more.",
        ),
        Transition(S.ACTIVE, T.RELEASE, S.RELEASING, Who.USER, "The tenant gives it back."),
        Transition(S.FAILED, T.RELEASE, S.RELEASING, Who.WORKER, "A half-made sandbox is still owed a teardown."),
        Transition(S.RELEASING, T.FINISH_TEARDOWN, S.RELEASED, Who.AGENT, "The node looked and found nothing."),
        Transition(
            S.RELEASING,
            T.FAIL_TEARDOWN,
            S.RELEASE_FAILED,
            Who.AGENT,
            "The node looked and found something that it could not remove.",
        ),
        Transition(
            S.RELEASING,
            T.WRITE_OFF,
            S.RELEASED,
            Who.ADMIN,
            "The node is lost for ever; an admin retires it and says what may be left.",
        ),
        Transition(
            S.RELEASE_FAILED,
            T.RELEASE,
            S.RELEASING,
            Who.WORKER,
            "The teardown is tried again after a pause, or at once when somebody asks.",
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
    """By what an allocation is known to have ended."""

    RECEIPTS = "receipts"  # its node looked and found nothing
    NOTHING_STARTED = "nothing_started"  # no node ever began anything for it
    WRITTEN_OFF = "written_off"  # its node is lost for ever, and an admin said what may be left


class LostBy(StrEnum):
    """Who took an allocation from its tenant."""

    NODE_GONE = "node_gone"
    BALANCE = "balance"
    ADMIN = "admin"


class FailureReason(StrEnum):
    """Why an allocation never came to stand, beside the failure codes of tasks."""

    NO_CAPACITY = "no_capacity"
    CANCELLED = "cancelled"
    NODE_LOST = "node_lost"


@dataclass(frozen=True, slots=True)
class Allocation:
    """A claim, what it asked for and what it got."""

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

    @property
    def place(self) -> tuple[str, str]:
        """Whose it is."""
        return self.tenant_id, self.project_id


UNWRITTEN: Final = frozenset({"status", "generation"})
"""What the row of a new allocation leaves to its lifecycle."""


@dataclass(frozen=True, slots=True)
class SkuTerms:
    """A SKU as it is sold when somebody asks for it."""

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


@dataclass(frozen=True, slots=True)
class ProjectHolding:
    """What a project has: GPUs of what is asked for and stands, and everything that is not over yet."""

    gpus: int
    open: int
    quota_revision: int


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """What the caller asks for."""

    shape: CapacityShape
    sku: str
    gpu_count: int | None = None
    region: str | None = None
    name: str | None = None
    place_within_seconds: int | None = None
    scheduler_type: str | None = None
    integration_metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class AllocationContext:
    """Where something is asked for, what it would cost, what is allowed, and what is there already."""

    tenant_id: str
    project_id: str
    terms: SkuTerms
    chain: PolicyChain
    holding: ProjectHolding
    place_seconds: int  # how long a place is looked for when nobody says


def gpu_count_of(request: AllocationRequest, terms: SkuTerms) -> int:
    """How many GPUs are meant; a SKU that is sold in one size needs no number."""
    if request.shape != terms.shape:
        raise validation.invalid("shape", f"the SKU {terms.slug} is a {terms.shape}")
    if request.gpu_count is None and len(terms.allowed_gpu_counts) == 1:
        return terms.allowed_gpu_counts[0]
    if request.gpu_count is None or request.gpu_count not in terms.allowed_gpu_counts:
        listed = ", ".join(str(each) for each in sorted(terms.allowed_gpu_counts))
        raise validation.invalid("gpu_count", f"the SKU {terms.slug} is sold with {listed} GPUs")
    return request.gpu_count


def regions_of(request: AllocationRequest, terms: SkuTerms, chain: PolicyChain) -> list[str]:
    """Where it may be placed: what was asked for, where the SKU is sold, as far as policy allows."""
    if terms.status != "offered":
        raise validation.invalid("sku", f"the SKU {terms.slug} is no longer offered")
    if request.region is not None and request.region not in terms.regions:
        raise validation.invalid("region", f"the SKU {terms.slug} is sold in {', '.join(sorted(terms.regions))}")
    wanted = sorted(terms.regions) if request.region is None else [request.region]
    verdicts = {region: chain.decide(Asked(region=region, sku=terms.slug)) for region in wanted}
    allowed = [region for region, verdict in verdicts.items() if verdict.allowed]
    if not allowed:
        refusal = verdicts[wanted[0]].refusal()
        if refusal is not None:
            raise refusal
    return allowed


def request_allocation(
    context: DecisionContext, asking: AllocationContext, request: AllocationRequest, group_id: str | None = None
) -> Decision[Allocation]:
    """One claim, to be placed as soon as there is room."""
    decision = request_allocations(context, asking, request, [request.name], group_id)
    return Decision(decision.result[0], decision.writes, decision.events, decision.audits)


def request_allocations(
    context: DecisionContext,
    asking: AllocationContext,
    request: AllocationRequest,
    called: list[str | None],
    group_id: str | None,
) -> Decision[tuple[Allocation, ...]]:
    """Several equal claims at once, or one."""
    count, regions = gpu_count_of(request, asking.terms), regions_of(request, asking.terms, asking.chain)
    if asking.holding.open + len(called) > OPEN_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"a project has at most {OPEN_MAX} allocations", {"limit": OPEN_MAX})
    refusal = asking.chain.decide(Asked(gpus=asking.holding.gpus + count * len(called))).refusal()
    if refusal is not None:
        raise refusal
    made = tuple(_asked_for(context, asking, request, (name, group_id, count, regions)) for name in called)
    quota = () if asking.chain.gpus_max is None else (_guard(asking),)
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
        writes=(*quota, *rows),
        events=tuple(happened(EventType.ALLOCATION_REQUESTED, each, asked(each)) for each in made),
        audits=tuple(
            AuditRecord("allocation.create", "allocation", each.id, *each.place, after=asked(each)) for each in made
        ),
    )


def release_allocation(context: DecisionContext, allocation: Allocation) -> Decision[Allocation]:
    """Give it back, whatever has become of it. What never came to stand fails first, and is then torn down."""
    state = AllocationState(allocation.status)
    reason = "it was given back before it stood"
    if state in (S.REQUESTED, S.PROVISIONING):
        columns = {
            "failed_at": context.now,
            "failure_code": FailureReason.CANCELLED.value,
            "failure_detail": reason,
            "blocker": None,
        }
        return moved(context, allocation, T.FAIL, columns, ("allocation.release", EventType.ALLOCATION_FAILED))
    decision = moved(
        context,
        allocation,
        T.RELEASE,
        releasing_columns(context, allocation),
        ("allocation.release", EventType.ALLOCATION_RELEASING),
    )
    if context.actor.break_glass_id is None:
        return decision
    lost = happened(EventType.ALLOCATION_LOST, decision.result, {"cause": LostBy.ADMIN.value})
    return replace(decision, events=(*decision.events, lost))


def retry_release(context: DecisionContext, allocation: Allocation) -> Decision[Allocation]:
    """Try a teardown again at once that left something; the platform does so by itself after a pause."""
    state = AllocationState(allocation.status)
    if state is not S.RELEASE_FAILED:
        raise IllegalTransition("allocation", state, T.RELEASE, ALLOCATION.allowed(state))
    return moved(
        context,
        allocation,
        T.RELEASE,
        releasing_columns(context, allocation),
        ("allocation.release", EventType.ALLOCATION_RELEASING),
    )


def releasing_columns(context: DecisionContext, allocation: Allocation) -> dict[str, object]:
    """What is true from the moment on that it is given back: it is not charged any more, and starts anew."""
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
    told: tuple[str, EventType],
) -> Decision[Allocation]:
    """One step of its lifecycle, with what becomes true of its row, its event and its audit row."""
    action, event = told
    edge = ALLOCATION.step(AllocationState(allocation.status), trigger)
    after = replace(allocation, status=edge.target.value, generation=allocation.generation + 1, **columns)
    said = {"status": after.status} | {
        name: getattr(after, name)
        for name in ("failure_code", "failure_detail", "teardown_proof", "receipt_id", "node_id")
        if getattr(after, name) is not None
    }
    return Decision(
        result=after,
        writes=(
            StateChange("allocation", after.id, ALLOCATION, edge, allocation.generation, after.tenant_id, columns),
        ),
        events=(happened(event, after, asked(after) | said),),
        audits=(
            AuditRecord(action, "allocation", after.id, *after.place, before={"status": allocation.status}, after=said),
        ),
    )


def happened(event: EventType, allocation: Allocation, data: Mapping[str, object]) -> EventRecord:
    """An event about an allocation."""
    return EventRecord(event, "allocation", allocation.id, *allocation.place, data=data)


def asked(allocation: Allocation) -> dict[str, object]:
    """What an allocation is, for events and the audit trail."""
    return {
        "name": allocation.name,
        "shape": allocation.shape,
        "sku": allocation.sku_slug,
        "gpu_count": allocation.gpu_count,
        "regions": allocation.regions,
        "group_id": allocation.group_id,
    }


def _guard(asking: AllocationContext) -> Update:
    """Requests of one project meet here, so that two of them do not both see the last free GPUs of its quota."""
    return Update("project_quota", asking.project_id, asking.holding.quota_revision, {})


def _asked_for(
    context: DecisionContext,
    asking: AllocationContext,
    request: AllocationRequest,
    what: tuple[str | None, str | None, int, list[str]],
) -> Allocation:
    name, group_id, count, regions = what
    allocation_id = context.mint(Prefix.ALLOCATION)
    seconds = request.place_within_seconds or asking.place_seconds
    if not 1 <= seconds <= PLACE_SECONDS_MAX:
        raise validation.invalid("place_within_seconds", f"1 to {PLACE_SECONDS_MAX}")
    terms = asking.terms
    return Allocation(
        id=allocation_id,
        tenant_id=asking.tenant_id,
        project_id=asking.project_id,
        name=validation.slug(name or f"alc-{allocation_id[-12:]}", "name"),
        shape=request.shape.value,
        sku_id=terms.id,
        sku_slug=terms.slug,
        gpu_model=terms.gpu_model,
        gpu_count=count,
        regions=regions,
        price_minor_per_gpu_hour=terms.price_minor_per_gpu_hour,
        currency=terms.currency,
        price_revision=terms.price_revision,
        deadline_at=context.now + timedelta(seconds=seconds),
        correlation_id=context.correlation_id,
        trace_id=context.trace_id,
        status=S.REQUESTED.value,
        generation=0,
        revision=0,
        created_at=context.now,
        group_id=group_id,
        scheduler_type=_scheduler_type(request.scheduler_type),
        integration_metadata=_metadata(request.integration_metadata),
        slots=[],
        facts={},
    )


def _scheduler_type(text: str | None) -> str | None:
    return None if text is None else validation.display_name(text, "scheduler_type", 100)


def _metadata(given: Mapping[str, str] | None) -> dict[str, str]:
    """Opaque to the platform, and bounded."""
    plain = dict(given or {})
    if len(plain) > METADATA_MAX:
        raise validation.invalid("integration_metadata", f"at most {METADATA_MAX} entries")
    for key, value in plain.items():
        if len(key) > METADATA_VALUE_LENGTH or len(value) > METADATA_VALUE_LENGTH or "\0" in key + value:
            raise validation.invalid(
                "integration_metadata", f"names and values of at most {METADATA_VALUE_LENGTH} characters"
            )
    if len(json.dumps(plain, ensure_ascii=False)) > METADATA_LENGTH:
        raise validation.invalid("integration_metadata", f"at most {METADATA_LENGTH} characters in all")
    return plain
