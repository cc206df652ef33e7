"""Evaluating a launch: every reason against it, in one fixed order.

Plan and create call the same function (`evaluate`): a plan lists all refusals, a create raises the first. So a plan
never promises what a launch would refuse. Adding members and upgrading use it too, with fewer checks: a running
instance needs no name, and a version that was deprecated since may still grow.

The order goes from who may launch to how the request is spelled: entitlement, promotion, trust, policy, compatibility,
quota, configuration, secrets, topology, modes, name, account, circuit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mooring.core.catalog.channel import Channel, why_not_offered
from mooring.core.catalog.compatibility import Capacity, CapacityShape, Fact, Offer, fit
from mooring.core.catalog.entitlement import why_not_entitled
from mooring.core.catalog.manifest import Manifest, canonical
from mooring.core.catalog.operating_mode import (
    DEFAULT_MODE,
    NOT_OFFERED,
    ControlPlaneScope,
    OperatingMode,
    why_incoherent,
)
from mooring.core.catalog.policy import PolicyRequest
from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.core.catalog.semver import read_version
from mooring.core.catalog.workload_adapter import OPERATOR_KEYS, why_not_operated
from mooring.core.fleet.allocation import (
    GROUP_MAX,
    OPEN_MAX,
    AllocationRequest,
    AllocationState,
    SkuTerms,
    gpu_count_of,
    regions_of,
    spend_request,
)
from mooring.core.fleet.placement import PlacementBoard
from mooring.core.fleet.placement_forecast import (
    PlacementBatch,
    allowed_choices,
    explain_batch,
    idle_board,
    idle_but_for,
    placement_batch,
)
from mooring.core.identity.project_secret import refused_variables
from mooring.core.identity.service_account import ServiceAccountState
from mooring.core.kernel import validation
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.finding import errors_in
from mooring.core.kernel.form_schema import plain_findings, value_findings
from mooring.core.pricing.spending import SpendRequest, spending_refusals
from mooring.core.runtime.launch_history import why_open
from mooring.core.runtime.launch_snapshot import EvaluationPurpose, LaunchSnapshot
from mooring.core.runtime.topology import member_slots, read_topology

INSTANCES_MAX: Final = 10_000
"""How many instances of one project may exist that are not stopped."""
CONFIG_BYTES_MAX: Final = 65_536
NEEDS_BYTES_MAX: Final = 8_192
"""Each new allocation stores what the app needs of its node."""
STANDS: Final = frozenset({AllocationState.REQUESTED, AllocationState.PROVISIONING, AllocationState.ACTIVE})


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Every reason against a launch, and what it would create."""

    refusals: tuple[Refusal, ...]
    topology: dict[str, int]
    members: int  # number of members to place
    gpu_count: int  # of each new allocation
    regions: tuple[str, ...]  # allowed for new allocations
    offer: Offer  # all allocations together; empty if unknown
    shape: CapacityShape | None

    @property
    def is_new_capacity(self) -> bool:
        """Whether new allocations are requested."""
        return self.gpu_count > 0


def evaluate(launch: LaunchSnapshot) -> Evaluation:
    """Every reason against the launch, in the fixed order, and what it would create."""
    refusals: dict[str, list[Refusal]] = {}
    topology = _try(refusals, "topology", lambda: _topology(launch)) or {}
    members = (len(member_slots(topology)) or 1) if launch.is_new else launch.adding
    capacity = _try(refusals, "capacity", lambda: _new_capacity(launch, members))
    gpu_count, regions = capacity or (0, ())
    offer = _offer(launch, members, gpu_count, refusals)
    shapes = {each.shape for each in offer}
    shape = next(iter(shapes)) if len(shapes) == 1 else None
    refusals |= {
        "entitlement": list(_entitlement(launch)),
        "promotion": list(_promotion(launch)),
        "trust": list(_trust(launch)),
        "policy": [*list(_policy(launch, offer, gpu_count * members)), *refusals.pop("capacity", [])],
        "compatibility": [
            *refusals.pop("allocations", []),
            *(list(_compatibility(launch, offer)) or _placement(launch, members, gpu_count, regions)),
        ],
        "quota": [
            *_quota(launch, members if gpu_count else 0),
            *_spending(launch, requested_spending(launch, members, gpu_count)),
        ],
        "config": list(_config(launch)),
        "secrets": list(refused_variables(launch.request.secrets, launch.secret_names)) if launch.is_new else [],
        "topology": refusals.pop("topology", []),
        "mode": list(_mode(launch)),
        "name": list(_name(launch)),
        "account": list(_account(launch)),
        "circuit": list(_circuit(launch)),
    }
    found: dict[tuple[str, str], Refusal] = {}
    for name in ORDER:
        for each in refusals[name]:
            found.setdefault((each.code.value, each.detail), each)
    return Evaluation(tuple(found.values()), topology, members, gpu_count, tuple(regions), offer, shape)


ORDER: Final = (
    "entitlement", "promotion", "trust", "policy", "compatibility", "quota", "config", "secrets", "topology", "mode",
    "name", "account", "circuit",
)  # fmt: skip


def require(evaluation: Evaluation) -> None:
    """Raise the first refusal, with the codes of the others in its details."""
    if not evaluation.refusals:
        return
    first, *rest = evaluation.refusals
    if not rest:
        raise first
    others = [{"code": each.code.value, "detail": each.detail} for each in rest[:20]]
    raise Refusal(first.code, first.detail, {**first.details, "others": others})


def allocation_request(launch: LaunchSnapshot, terms: SkuTerms, gpu_count: int) -> AllocationRequest:
    """The request for each new allocation."""
    shape = CapacityShape(terms.shape)
    return AllocationRequest(
        shape,
        terms.slug,
        gpu_count,
        launch.request.placement.region,
        needs=() if launch.manifest is None else launch.manifest.compatibility.needs,
        node_id=launch.home_node_id if shape is CapacityShape.GPU_SLICE else None,
    )


def shares_node(launch: LaunchSnapshot, shape: CapacityShape) -> bool:
    """Whether new allocations must share a machine: the network of slices does not reach further."""
    members_max = 1 if launch.manifest is None else launch.manifest.compatibility.members_max
    return shape is CapacityShape.GPU_SLICE and members_max > 1


def batch_of(
    launch: LaunchSnapshot, terms: SkuTerms, *, members: int, gpu_count: int, regions: Sequence[str]
) -> PlacementBatch:
    """What placement is asked for such a launch: one allocation for each member."""
    request = allocation_request(launch, terms, gpu_count)
    same_node = shares_node(launch, request.shape)
    return placement_batch(launch.project_id, terms, request, regions=regions, count=members, same_node=same_node)


def offer_of(terms: SkuTerms, kind: Capacity | None, *, members: int, gpu_count: int, node: str = "new") -> Offer:
    """New allocations of a SKU on machines of one kind: one per member, each with so many GPUs."""
    shape = CapacityShape(terms.shape)
    facts: Mapping[str, Fact] = {"gpu_model": terms.gpu_model} if kind is None else kind.facts
    same_node = shape is CapacityShape.GPU_SLICE
    return tuple(Capacity(shape, gpu_count, node if same_node else f"{node}-{each}", facts) for each in range(members))


def _try(refused: dict[str, list[Refusal]], name: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Refusal as refusal:
        refused[name] = [refusal]
        return None


def _topology(launch: LaunchSnapshot) -> dict[str, int]:
    if launch.manifest is None:
        return dict(launch.request.topology)
    if launch.is_new:
        return read_topology(launch.manifest, launch.request.topology)
    return dict(launch.request.topology)


def _new_capacity(launch: LaunchSnapshot, members: int) -> tuple[int, list[str]] | None:
    """GPUs of each new allocation and its possible regions; None if existing allocations are meant."""
    placement = launch.request.placement
    if placement.sku is None or not members:
        return None
    if launch.terms is None:
        raise validation.invalid("placement.sku", f"SKU {placement.sku} does not exist")
    shape = placement.shape or CapacityShape(launch.terms.shape)
    existing = 0 if launch.group is None else len(launch.group.allocations)
    if shape is CapacityShape.GPU_SLICE and members + existing > GROUP_MAX:
        raise validation.invalid("topology", f"at most {GROUP_MAX} slices fit on one machine")
    request = AllocationRequest(shape, launch.terms.slug, placement.gpu_count, placement.region)
    return gpu_count_of(request, launch.terms), regions_of(request, launch.terms, launch.chain)


def _offer(launch: LaunchSnapshot, members: int, gpu_count: int, refused: dict[str, list[Refusal]]) -> Offer:
    """All allocations together; what is wrong with the named ones goes into `refused`."""
    existing = tuple(each.capacity(launch.group) for each in launch.current_allocations)
    placement = launch.request.placement
    if placement.sku is not None:
        if not gpu_count or launch.terms is None:
            return existing
        kinds, node = launch.kinds.get(launch.terms.slug, ()), "new"
        if existing and (launch.group is not None or launch.home_node_id is not None):
            kinds, node = existing[:1], existing[0].node  # new slices must be on the machine of the existing ones
        offers = [
            (*existing, *offer_of(launch.terms, kind, members=members, gpu_count=gpu_count, node=node))
            for kind in kinds or (None,)
        ]
        if launch.manifest is None:
            return offers[0]
        return next((each for each in offers if fit(launch.manifest.compatibility, each).fits), offers[0])
    refused["allocations"] = list(_named(launch, members))
    known = {each.allocation.id for each in launch.current_allocations}
    fresh = [
        each for each in dict.fromkeys(placement.allocations) if each in launch.target_allocations and each not in known
    ]
    return (*existing, *(launch.target_allocations[each].capacity(launch.group) for each in fresh))


def _named(launch: LaunchSnapshot, members: int) -> Iterator[Refusal]:
    """What is wrong with the named allocations."""
    placement = launch.request.placement
    if not placement.allocations:
        if members or launch.is_new:
            yield validation.invalid("placement", "name allocations of the project, or a SKU for new ones")
        return
    if len(placement.allocations) > max(members, 1):
        yield validation.invalid("placement.allocations", f"{members} members can use at most {members} allocations")
    shares = launch.manifest is not None and launch.manifest.compatibility.shares_allocation
    for number, allocation_id in enumerate(placement.allocations):
        path, target = f"placement.allocations[{number}]", launch.target_allocations.get(allocation_id)
        if target is None:
            yield validation.invalid(path, f"the project has no allocation {allocation_id}")
        elif target.allocation.status not in STANDS:
            yield validation.invalid(path, f"the allocation {allocation_id} is {target.allocation.status}")
        elif target.taken and not (shares and target.shared):
            yield Refusal(
                Code.ALLOCATION_IN_USE,
                f"the allocation {allocation_id} is used by members of another instance",
                {"allocation_id": allocation_id, "path": path},
            )


def _entitlement(launch: LaunchSnapshot) -> Iterator[Refusal]:
    if launch.version is None or launch.manifest is None:
        if launch.entitlement is None or not launch.entitlement.enabled:
            yield Refusal(Code.NOT_ENTITLED, "the project is not entitled to this app", {"reason": "not_entitled"})
        return
    version = read_version(launch.version.version)
    yield from _maybe(why_not_entitled(launch.entitlement, version, launch.manifest.required_actions))


def _promotion(launch: LaunchSnapshot) -> Iterator[Refusal]:
    if launch.version is None or launch.manifest is None:
        wanted = launch.request.version or launch.request.channel or Channel.STABLE
        yield Refusal(
            Code.VERSION_NOT_OFFERED,
            f"no version of {launch.app.slug} is offered to this project as {wanted}",
            {"app": launch.app.slug, "wanted": str(wanted)},
        )
        return
    if launch.purpose is EvaluationPurpose.ADD and launch.version.promotion != PromotionState.RETIRED:
        return  # a running instance continues and may grow
    yield from _maybe(why_not_offered(launch.version.candidate(), launch.project_id))


def _trust(launch: LaunchSnapshot) -> Iterator[Refusal]:
    if launch.version is None:
        return
    known = {artifact.digest for artifact, _ in launch.artifacts}
    for digest in launch.version.digests:
        if digest not in known:
            yield Refusal(Code.ARTIFACT_UNVERIFIED, f"artifact {digest} is not registered", {"digest": digest})
    for artifact, trust in launch.artifacts:
        yield from _maybe(trust.refusal(artifact))


def _policy(launch: LaunchSnapshot, offer: Offer, new_gpus: int) -> Iterator[Refusal]:
    chain = launch.chain
    yield from _maybe(chain.decide(PolicyRequest(app=launch.app.slug)).refusal())
    for allocation_id in dict.fromkeys(launch.request.placement.allocations):
        if (target := launch.target_allocations.get(allocation_id)) is not None:
            request = PolicyRequest(region=target.allocation.region, sku=target.allocation.sku_slug)
            yield from _maybe(chain.decide(request).refusal())
    yield from _maybe(chain.decide(PolicyRequest(gpus=launch.holding.gpus + new_gpus)).refusal())


def _compatibility(launch: LaunchSnapshot, offer: Offer) -> Iterator[Refusal]:
    if launch.manifest is not None and offer:
        yield from _maybe(fit(launch.manifest.compatibility, offer).refusal())


def _placement(launch: LaunchSnapshot, members: int, gpu_count: int, regions: Sequence[str]) -> list[Refusal]:
    """Whether there are machines that could take all new allocations if nobody else used them.

    A launch waits for machines that are in use, but nothing waits for machines that do not exist.
    """
    terms = launch.terms
    if terms is None or not gpu_count or not regions:
        return []
    batch = batch_of(launch, terms, members=members, gpu_count=gpu_count, regions=regions)
    if len(canonical([need.plain() for need in batch.requests[0].needs])) > NEEDS_BYTES_MAX:
        detail = f"the app's needs of a node are longer than {NEEDS_BYTES_MAX} bytes"
        return [Refusal(Code.LIMIT_REACHED, detail, {"limit": NEEDS_BYTES_MAX})]
    if launch.is_new:
        board = idle_board(launch.machines, batch.facts, members)
        because = "no machine could take it, even if idle"
    elif batch.requests[0].node_id is not None:
        own = sum(each.allocation.gpu_count for each in launch.current_allocations)
        home = [] if launch.home is None else [idle_but_for(launch.home, own)]
        board = PlacementBoard([replace(each, facts=launch.current_allocations[0].facts) for each in home], batch.facts)
        because = "it could not be placed, even if nobody else used the node"
    else:
        return []
    answer = explain_batch(board, batch, allowed_choices(terms, launch.chain))
    if answer.fits:
        return []
    change = answer.smallest_change
    details = {"blockers": [{"rule": "placement", "because": answer.because}], "smallest_change": change}
    return [Refusal(Code.INCOMPATIBLE, f"{because}: {answer.because}; what would help: {change}", details)]


def _quota(launch: LaunchSnapshot, allocations: int) -> Iterator[Refusal]:
    if launch.holding.open + allocations > OPEN_MAX:
        yield Refusal(Code.LIMIT_REACHED, f"a project has at most {OPEN_MAX} allocations", {"limit": OPEN_MAX})
    if launch.is_new and launch.open_instances >= INSTANCES_MAX:
        yield Refusal(Code.LIMIT_REACHED, f"a project has at most {INSTANCES_MAX} instances", {"limit": INSTANCES_MAX})


def requested_spending(launch: LaunchSnapshot, members: int, gpu_count: int) -> SpendRequest:
    """What the launch would add to what the project has and spends."""
    instances = 1 if launch.is_new else 0
    if launch.terms is None or not gpu_count:
        return SpendRequest(instances)
    return spend_request(launch.terms, gpu_count, members, instances=instances)


def _spending(launch: LaunchSnapshot, request: SpendRequest) -> Iterator[Refusal]:
    if launch.spending is not None:
        yield from spending_refusals(launch.spending, request)


def _config(launch: LaunchSnapshot) -> Iterator[Refusal]:
    manifest = None if launch.purpose is EvaluationPurpose.ADD else launch.manifest
    yield from config_refusals(manifest, dict(launch.request.config))


def config_refusals(manifest: Manifest | None, config: dict[str, Any]) -> Iterator[Refusal]:
    """What is wrong with a configuration; without a manifest only its size is checked."""
    if malformed := plain_findings(config, CONFIG_BYTES_MAX):
        yield from refusals_of(malformed, "config")
        return
    if len(canonical(config)) > CONFIG_BYTES_MAX:
        yield validation.invalid("config", f"at most {CONFIG_BYTES_MAX} bytes")
        return
    if manifest is None:
        return
    if manifest.config_schema is None:
        if config:
            yield validation.invalid("config", "the app has no configuration")
        return
    yield from refusals_of(value_findings(config, manifest.config_schema), "config")


def refusals_of(findings: Iterable[Any], path: str) -> Iterator[Refusal]:
    """One refusal for each error in a value, with its path."""
    for each in errors_in(findings):
        location = path + each.pointer.replace("/", ".")
        detail = f"{location}: {each.reason}; {each.fix}"
        yield Refusal(Code.VALIDATION_FAILED, detail, {"path": location, "rule": each.rule})


def _mode(launch: LaunchSnapshot) -> Iterator[Refusal]:
    if not launch.is_new:
        return
    mode = (OperatingMode(launch.request.operating_mode), ControlPlaneScope(launch.request.control_plane_scope))
    supported = (DEFAULT_MODE,) if launch.manifest is None else launch.manifest.operating_modes
    offered = [
        {"operating_mode": a.value, "control_plane_scope": b.value} for a, b in supported if (a, b) not in NOT_OFFERED
    ]
    if (why := why_incoherent(mode)) is not None:
        yield validation.invalid("control_plane_scope", why)
    elif mode in NOT_OFFERED:
        detail = f"{mode[0]} with a control plane of scope {mode[1]} is not offered yet"
        yield Refusal(Code.MODE_NOT_OFFERED, detail, {"offered": offered})
    elif launch.manifest is not None and mode not in launch.manifest.operating_modes:
        detail = f"{launch.app.slug} does not support {mode[0]} with a control plane of scope {mode[1]}"
        yield Refusal(Code.MODE_NOT_OFFERED, detail, {"offered": offered})
    yield from _topology_mode(launch)


def _topology_mode(launch: LaunchSnapshot) -> Iterator[Refusal]:
    """The label must be one of those that the manifest offers."""
    wanted = launch.request.topology_mode
    if wanted is None or launch.manifest is None or wanted in launch.manifest.topology_modes:
        return
    offered = ", ".join(launch.manifest.topology_modes)
    reason = f"{launch.app.slug} offers {offered}" if offered else f"{launch.app.slug} has no topology mode to choose"
    yield validation.invalid("topology_mode", reason)


def _name(launch: LaunchSnapshot) -> Iterator[Refusal]:
    if not launch.is_new:
        return
    try:
        validation.slug(launch.request.name, "name")
    except Refusal as refusal:
        yield refusal
    if launch.name_taken:
        yield Refusal(
            Code.NAME_TAKEN,
            f"the project already has an instance with the name {launch.request.name}",
            {"path": "name"},
        )


def _account(launch: LaunchSnapshot) -> Iterator[Refusal]:
    if not launch.is_new:
        return
    account, path = launch.account, "service_account_id"
    if account is None:
        if launch.request.service_account_id is not None:
            yield validation.invalid(path, "the project has no such service account")
        elif launch.entitlement is not None:
            yield validation.invalid(path, "the app has no operator account in this project; name a service account")
        return
    if account.status != ServiceAccountState.ACTIVE:
        yield validation.invalid(path, f"the service account {account.name} is {account.status}")
    missing = [each for each in OPERATOR_KEYS if each not in account.actions]
    if missing and launch.request.service_account_id is not None:
        yield validation.invalid(path, f"the service account {account.name} lacks {' and '.join(missing)}")
    elif launch.manifest is not None and not list(_entitlement(launch)):
        kind = launch.manifest.artifact_kind
        yield from _maybe(why_not_operated(launch.app.slug, kind, account.actions, has_key=launch.account_has_key))


def _circuit(launch: LaunchSnapshot) -> Iterator[Refusal]:
    if launch.circuit is not None and launch.purpose is not EvaluationPurpose.ADD:
        yield from _maybe(why_open(launch.circuit, launch.now))


def _maybe(refusal: Refusal | None) -> Iterator[Refusal]:
    if refusal is not None:
        yield refusal
