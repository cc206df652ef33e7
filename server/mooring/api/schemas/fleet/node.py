"""Request and response bodies for nodes and enrolment."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

from msgspec import Meta, field

from mooring.api.page import PageQuery
from mooring.api.schemas.fleet.enrolment import Labels
from mooring.api.schemas.kernel.fields import Shown, Slug, Strict, Time
from mooring.core.fleet.enrolment import LABEL_PATTERN, LABEL_VALUE_MAX, LABELS_MAX
from mooring.core.fleet.inventory import (
    ADDRESSES_MAX,
    BYTES_MAX,
    CPUS_MAX,
    FACT_PATTERN,
    FACT_TEXT_MAX,
    FACTS_MAX,
    GPUS_MAX,
    MODEL_MAX,
    NUMA_MAX,
    VERSION_MAX,
    Gpu,
    Inventory,
    NumaNode,
    facts_of,
)
from mooring.core.fleet.node import NODE, HostKind, Node, NodeState, NodeTrigger, why_no_work
from mooring.core.fleet.node_certificate import REQUEST_LENGTH_MAX
from mooring.core.fleet.node_plan import Approval
from mooring.core.fleet.slot import Slot, SlotStatus, SlotUse
from mooring.core.identity.platform_key import PlatformKey, encoded, root_statement
from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.kernel.permissions import Authority, Place, Scope
from mooring.storage.fleet.node import NodeUsageCounts

HERE = Place(Scope.PLATFORM)
RawKey = Annotated[
    str, Meta(min_length=43, max_length=43, pattern="^[A-Za-z0-9_-]{43}$", description="32 bytes in base64url.")
]
Signature = Annotated[
    str, Meta(min_length=86, max_length=86, pattern="^[A-Za-z0-9_-]{86}$", description="64 bytes in base64url.")
]
Reason = Annotated[str, Meta(min_length=10, max_length=1000, description="Why, in a sentence.")]
NodeId = Annotated[str, Meta(pattern=pattern(Prefix.NODE))]


class NodeMove(StrEnum):
    """What an admin may do with a node."""

    DRAIN = "drain"
    RESUME = "resume"
    RETIRE = "retire"
    WRITE_OFF = "write_off"
    APPROVE = "approve"
    REJECT = "reject"


_MOVES: Final[Mapping[NodeMove, tuple[NodeTrigger, str]]] = {
    NodeMove.DRAIN: (NodeTrigger.DRAIN, "node.operate"),
    NodeMove.RESUME: (NodeTrigger.RESUME, "node.operate"),
    NodeMove.RETIRE: (NodeTrigger.RETIRE, "node.retire"),
    NodeMove.WRITE_OFF: (NodeTrigger.RETIRE, "teardown.write_off"),
    NodeMove.APPROVE: (NodeTrigger.APPROVE, "node.approve"),
    NodeMove.REJECT: (NodeTrigger.REJECT, "node.approve"),
}
"""The lifecycle trigger of each move, and the action that the caller needs."""
_INSTEAD: Final[Mapping[str, frozenset[str]]] = {"node.operate": frozenset({"node.operate", "node.drain"})}
"""The keys of which one is enough for a move that needs this action."""


class EnrolNode(Strict):
    """A machine's request to join: its token, its keys, and the signing key's signature over all three."""

    token: Annotated[str, Meta(min_length=1, max_length=100)]
    name: Slug
    host: HostKind
    signing_key: RawKey
    sealing_key: RawKey
    proof: Signature
    labels: Labels = field(default_factory=dict)
    previous_node_id: (
        Annotated[NodeId, Meta(description="The node that the agent's earlier state belongs to, if any.")] | None
    ) = None
    certificate_request: (
        Annotated[str, Meta(max_length=REQUEST_LENGTH_MAX, description="As for `POST /agent/certificates`.")] | None
    ) = None
    certificate_proof: Signature | None = None


class PlatformKeyView(Shown):
    """A present or former task signing key, with the signature of the key before it."""

    key_id: str
    public_key: str
    signed_by: str | None
    signature: str | None
    created_at: Time
    retired_at: Time | None
    epoch: int | None
    root_signature: str | None


class PreparedKeyView(Shown):
    """A key that waits for the root key's signature over `document`, as it is, without a line end."""

    key_id: str
    public_key: str
    epoch: int
    audience: str
    document: str
    created_at: Time


class InstallKey(Strict):
    """The prepared key, and the root key's signature over its document."""

    key_id: Annotated[str, Meta(pattern=pattern(Prefix.KEY))]
    root_signature: Signature


class Enrolled(Shown):
    """What a node stores and trusts from now on."""

    node_id: str
    name: str
    region: str
    audience: str
    platform_keys: list[PlatformKeyView]
    root_key: str | None
    sweep_due: bool
    certificate: str | None = None


class PlatformKeys(Shown):
    """The keys that sign tasks, the newest one last."""

    audience: str
    platform_keys: list[PlatformKeyView]


class ReportedGpu(Strict):
    """One GPU, real or simulated."""

    index: Annotated[int, Meta(ge=0, le=GPUS_MAX * 8)]
    model: Annotated[str, Meta(min_length=1, max_length=MODEL_MAX)]
    memory_bytes: Annotated[int, Meta(ge=0, le=BYTES_MAX)]
    simulated: bool
    numa: Annotated[int, Meta(ge=0, le=NUMA_MAX * 8)] = 0


class ReportedNuma(Strict):
    """One NUMA node."""

    index: Annotated[int, Meta(ge=0, le=NUMA_MAX * 8)]
    cpus: Annotated[int, Meta(ge=0, le=CPUS_MAX)]
    memory_bytes: Annotated[int, Meta(ge=0, le=BYTES_MAX)]


Facts = Annotated[
    dict[
        Annotated[str, Meta(pattern=FACT_PATTERN)],
        bool | int | float | Annotated[str, Meta(max_length=FACT_TEXT_MAX)],
    ],
    Meta(max_length=FACTS_MAX),
]


class ReportInventory(Strict):
    """The inventory of a machine."""

    agent_version: Annotated[str, Meta(min_length=1, max_length=VERSION_MAX)]
    host: HostKind
    cpus: Annotated[int, Meta(ge=0, le=CPUS_MAX)]
    memory_bytes: Annotated[int, Meta(ge=0, le=BYTES_MAX)]
    numa: Annotated[list[ReportedNuma], Meta(max_length=NUMA_MAX)] = field(default_factory=list)
    gpus: Annotated[list[ReportedGpu], Meta(max_length=GPUS_MAX)] = field(default_factory=list)
    facts: Annotated[Facts, Meta(description="What was found on the machine; a manifest's needs compare these.")] = (
        field(default_factory=dict)
    )
    addresses: Annotated[list[Annotated[str, Meta(max_length=45)]], Meta(max_length=ADDRESSES_MAX)] = field(
        default_factory=list
    )
    limits: Annotated[Facts, Meta(description="The limits that the agent sets for itself.")] = field(
        default_factory=dict
    )


class CordonNode(Strict):
    """Why a node is to take no new allocations."""

    reason: Reason


class LabelNode(Strict):
    """Labels to set; null removes one, and others stay."""

    labels: Annotated[
        dict[Annotated[str, Meta(pattern=LABEL_PATTERN)], Annotated[str, Meta(max_length=LABEL_VALUE_MAX)] | None],
        Meta(min_length=1, max_length=LABELS_MAX),
    ]


class NodeFindingView(Shown):
    """Something about a node that an operator should look at."""

    code: str
    detail: str
    slot_index: int | None = None
    allocation_id: str | None = None


class InventoryTaken(Shown):
    """The answer to an inventory report."""

    node_id: str
    status: NodeState
    sweep_due: bool
    findings: list[NodeFindingView]


class RejectNode(Strict):
    """Why a machine is refused."""

    reason: Reason


class RetireNode(Strict):
    """Why a node is retired."""

    reason: Reason


class WriteOffNode(Strict):
    """Why a machine is given up, and what may still be on it: an admin answers for both."""

    reason: Reason
    may_be_left: Annotated[str, Meta(min_length=1, max_length=1000, description="What may still be on the machine.")]


class NodeQuery(PageQuery):
    """Which nodes are listed."""

    status: NodeState | None = None
    region: Slug | None = None
    reachable: bool | None = None


class NodeSlotView(Shown):
    """A GPU of a node, and the allocation that has it."""

    id: str
    index: int
    numa: int
    gpu_model: str
    memory_bytes: int
    simulated: bool
    status: SlotStatus
    allocation_id: str | None


class WhyView(Shown):
    """One reason why a node takes no new allocations."""

    code: str
    detail: str


class NodeView(Shown, kw_only=True):
    """A machine whose agent connects to the platform."""

    id: str
    name: str
    host: HostKind
    region: str
    labels: dict[str, str]
    status: NodeState
    reachable: bool
    last_seen_at: Time | None
    unreachable_since: Time | None
    takes_work: bool
    needs_attention: bool
    why: list[WhyView]
    sweep_due: bool
    cordoned_at: Time | None
    cordon_reason: str | None
    previous_node_id: str | None
    slots_total: int
    slots_free: int
    slot_uses: Annotated[list[SlotUse], Meta(description="What each slot is used for, by its index.")] = field(
        default_factory=list
    )
    allocations: int
    created_at: Time
    retired_at: Time | None
    retirement_reason: str | None
    written_off_at: Time | None
    may_be_left: str | None
    generation: int
    revision: int
    etag: str
    allowed_moves: list[NodeMove]
    allowed_actions: list[str]


class NodeDetail(NodeView, kw_only=True):
    """A node with everything that is known about it."""

    signing_key: str
    sealing_key: str
    slots: list[NodeSlotView]
    inventory: dict[str, Any] | None
    inventory_at: Time | None
    facts: dict[str, bool | int | float | str]
    findings: list[NodeFindingView]
    health: dict[str, Any] | None
    approval: Approval
    expects: dict[str, Any] | None


def enrolled(audience: str, keys: list[PlatformKey], root_key: bytes | None, node: Node) -> Enrolled:
    return Enrolled(
        node_id=node.id,
        name=node.name,
        region=node.region,
        audience=audience,
        platform_keys=[platform_key_view(key) for key in keys],
        root_key=None if root_key is None else encoded(root_key),
        sweep_due=node.sweep_due,
    )


def platform_key_view(key: PlatformKey) -> PlatformKeyView:
    return PlatformKeyView(
        key_id=key.id,
        public_key=encoded(key.public_key),
        signed_by=key.signed_by,
        signature=None if key.signature is None else encoded(key.signature),
        created_at=key.created_at,
        retired_at=key.retired_at,
        epoch=key.epoch,
        root_signature=None if key.root_signature is None else encoded(key.root_signature),
    )


def prepared_key_view(audience: str, key: PlatformKey) -> PreparedKeyView:
    epoch = key.epoch or 0
    return PreparedKeyView(
        key_id=key.id,
        public_key=encoded(key.public_key),
        epoch=epoch,
        audience=audience,
        document=root_statement(audience, epoch, key.id, key.public_key).decode(),
        created_at=key.created_at,
    )


def inventory_of(body: ReportInventory) -> Inventory:
    return Inventory(
        agent_version=body.agent_version,
        host=body.host,
        cpus=body.cpus,
        memory_bytes=body.memory_bytes,
        numa=tuple(NumaNode(each.index, each.cpus, each.memory_bytes) for each in body.numa),
        gpus=tuple(Gpu(each.index, each.numa, each.model, each.memory_bytes, each.simulated) for each in body.gpus),
        facts=body.facts,
        addresses=tuple(body.addresses),
        limits=body.limits,
    )


def inventory_taken(node: Node) -> InventoryTaken:
    return InventoryTaken(
        node_id=node.id,
        status=NodeState(node.status),
        sweep_due=node.sweep_due,
        findings=[NodeFindingView(**each) for each in node.findings],
    )


def node_view(authority: Authority, node: Node, counts: NodeUsageCounts) -> NodeView:
    return NodeView(**_node_fields(authority, node, counts))


def node_detail(authority: Authority, node: Node, slots: Sequence[Slot], counts: NodeUsageCounts) -> NodeDetail:
    return NodeDetail(
        **_node_fields(authority, node, counts),
        signing_key=encoded(node.signing_key),
        sealing_key=encoded(node.sealing_key),
        slots=[slot_view(slot) for slot in slots],
        inventory=node.inventory,
        inventory_at=node.inventory_at,
        facts=facts_of(node),
        findings=[NodeFindingView(**each) for each in node.findings],
        health=node.health,
        approval=Approval(node.approval),
        expects=node.expects,
    )


def slot_view(slot: Slot) -> NodeSlotView:
    return NodeSlotView(
        id=slot.id,
        index=slot.index,
        numa=slot.numa,
        gpu_model=slot.gpu_model,
        memory_bytes=slot.memory_bytes,
        simulated=slot.simulated,
        status=SlotStatus(slot.status),
        allocation_id=slot.allocation_id,
    )


def _node_fields(authority: Authority, node: Node, counts: NodeUsageCounts) -> dict[str, Any]:
    state, held = NodeState(node.status), authority.at(HERE)
    triggers = NODE.allowed(state)
    moves = [move for move, (trigger, key) in _MOVES.items() if trigger in triggers and _INSTEAD.get(key, {key}) & held]
    return {
        "id": node.id,
        "name": node.name,
        "host": HostKind(node.host),
        "region": node.region,
        "labels": node.labels,
        "status": state,
        "reachable": node.last_seen_at is not None and node.unreachable_since is None,
        "last_seen_at": node.last_seen_at,
        "unreachable_since": node.unreachable_since,
        "takes_work": node.takes_work,
        "needs_attention": bool(node.findings) or state is NodeState.PENDING,
        "why": [WhyView(**each) for each in why_no_work(node, counts.allocations)],
        "sweep_due": node.sweep_due,
        "cordoned_at": node.cordoned_at,
        "cordon_reason": node.cordon_reason,
        "previous_node_id": node.previous_node_id,
        "slots_total": counts.slots,
        "slots_free": counts.free,
        "slot_uses": [SlotUse(use) for use in counts.uses],
        "allocations": counts.allocations,
        "created_at": node.created_at,
        "retired_at": node.retired_at,
        "retirement_reason": node.retirement_reason,
        "written_off_at": node.written_off_at,
        "may_be_left": node.may_be_left,
        "generation": node.generation,
        "revision": node.revision,
        "etag": f"{node.generation}.{node.revision}",
        "allowed_moves": moves,
        "allowed_actions": sorted(
            {key for move in moves for key in _INSTEAD.get(_MOVES[move][1], {_MOVES[move][1]})} & held
        ),
    }
