"""Loading the facts that a launch is evaluated on: plan, create, add, replace and upgrade use the same ones.

Nothing is decided here. What a tenant may not read (machines, launches of other tenants) is read as the platform, and
only conclusions from it are returned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from mooring.commands.catalog.artifact_evaluation import TrustContext, evaluate_under, trust_context
from mooring.commands.kernel.lookup import require
from mooring.commands.pricing import spending
from mooring.commands.services import Services
from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.artifact_trust import ArtifactTrust
from mooring.core.catalog.catalog import chosen_candidate
from mooring.core.catalog.channel import Candidate, Channel, first_canary
from mooring.core.catalog.compatibility import Capacity
from mooring.core.catalog.entitlement import Entitlement
from mooring.core.catalog.manifest import Manifest, stored_manifest
from mooring.core.catalog.semver import read_version
from mooring.core.fleet.allocation import SkuTerms
from mooring.core.fleet.allocation_group import GroupWithAllocations
from mooring.core.fleet.capacity_offers import possible_for
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.instance_snapshot import ClaimWatch
from mooring.core.runtime.launch_history import WINDOW, LaunchEstimate, estimate
from mooring.core.runtime.launch_snapshot import EvaluationPurpose, LaunchRequest, LaunchSnapshot, TargetAllocation
from mooring.core.runtime.member import Member
from mooring.storage.catalog import app_version as stored_versions
from mooring.storage.catalog import catalog
from mooring.storage.fleet import allocation as allocations
from mooring.storage.fleet import placement
from mooring.storage.identity import project_secret as project_secrets
from mooring.storage.kernel.database import Acting
from mooring.storage.runtime import claim, launch


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Which facts to load besides those that the request names."""

    purpose: EvaluationPurpose = EvaluationPurpose.LAUNCH
    instance: Instance | None = None
    members: Sequence[Member] = ()
    adding: int = 0
    planning: bool = False  # also what only a plan shows: every SKU, and the estimate
    pinned: bool = False  # use the version that the instance is pinned to


async def load(
    services: Services, acting: Acting, project_id: str, request: LaunchRequest, options: LoadOptions
) -> LaunchSnapshot:
    """Everything that the evaluation of a launch reads."""
    database, instance = services.database, options.instance
    opening = require(
        await launch.opening(
            database,
            acting,
            project_id,
            request.app if instance is None else instance.app_id,
            instance_name=request.name,
            service_account_id=request.service_account_id,
        ),
        "project",
    )
    app, entitlement = require(opening.app, "app"), opening.entitlement
    version = await _version(services, acting, request, options, app_id=app.id, project_id=project_id)
    manifest = None if version is None else stored_manifest(version.manifest)
    context = await trust_context(services, acting, project_id)
    digests = () if version is None else version.digests
    target_allocations = await launch.target_allocations(
        database, acting, project_id, request.placement.allocations, "" if instance is None else instance.id
    )
    current_allocations = await _current_allocations(services, acting, project_id, options)
    terms = None if request.placement.sku is None else await allocations.terms(database, acting, request.placement.sku)
    facts = LaunchSnapshot(
        tenant_id=str(acting.tenant_id),
        project_id=project_id,
        app=app,
        request=request,
        now=services.clock.now(),
        version=version,
        manifest=manifest,
        entitlement=entitlement,
        policy=context.policy,
        artifacts=await _trusted(services, acting, context, entitlement, digests=digests, project_id=project_id),
        target_allocations=target_allocations,
        terms=terms,
        holding=opening.holding,
        spending=await spending.load(services, acting, project_id),
        place_seconds=services.settings.allocation_place_seconds,
        purpose=options.purpose,
        current_allocations=current_allocations,
        group=await _group(services, acting, project_id, current_allocations or list(target_allocations.values())),
        adding=options.adding,
    )
    if options.planning or request.placement.sku is not None:
        facts = await _with_machines(services, facts, options.planning)
    if options.purpose is EvaluationPurpose.ADD:
        return facts
    facts = replace(
        facts,
        account=opening.account,
        account_has_key=opening.account_has_key,
        name_taken=facts.is_new and opening.name_taken,
        open_instances=opening.open_instances,
    )
    if facts.is_new and request.secrets:
        named = await project_secrets.find_named(database, acting, project_id, list(request.secrets.values()))
        facts = replace(facts, secret_names=frozenset(named))
    return await _for_launching(services, acting, facts, options.planning)


async def trusted(
    services: Services, acting: Acting, project_id: str, entitled: Entitlement | None, digests: Sequence[str]
) -> list[ArtifactTrust]:
    """The registered artifacts of these digests, with their trust under the current policy and entitlement."""
    context = await trust_context(services, acting, project_id)
    return await _trusted(services, acting, context, entitled, digests=digests, project_id=project_id)


async def _trusted(
    services: Services,
    acting: Acting,
    context: TrustContext,
    entitled: Entitlement | None,
    *,
    digests: Sequence[str],
    project_id: str,
) -> list[ArtifactTrust]:
    database, tenant_id = services.database, acting.tenant_id
    registered = await stored_versions.artifacts(database, acting, list(digests), tenant_id, project_id)
    return await evaluate_under(services, acting, context, entitled, list(registered.values()))


async def _version(
    services: Services, acting: Acting, request: LaunchRequest, options: LoadOptions, *, app_id: str, project_id: str
) -> AppVersion | None:
    """The pinned version, the one of this number, or the one that the channel means in this project."""
    database = services.database
    if options.pinned and options.instance is not None:
        versions = await catalog.versions(database, acting, [options.instance.version_id])
        return versions.get(options.instance.version_id)
    if request.version is not None:
        return await launch.version(database, acting, app_id, str(read_version(request.version)))
    candidates = (await catalog.candidates(database, acting, [app_id]))[app_id]
    chosen = _chosen(candidates, request.channel, project_id)
    if chosen is None:
        return None
    return (await catalog.versions(database, acting, [chosen.version_id])).get(chosen.version_id)


def _chosen(candidates: Sequence[Candidate], channel: str | None, project_id: str) -> Candidate | None:
    if channel == Channel.CANARY:
        return first_canary(candidates, project_id)
    return chosen_candidate(candidates, project_id)


async def _current_allocations(
    services: Services, acting: Acting, project_id: str, options: LoadOptions
) -> tuple[TargetAllocation, ...]:
    """The allocations of the instance's current members."""
    if options.instance is None:
        return ()
    ids = [each.allocation_id for each in options.members if each.allocation_id is not None]
    found = await launch.target_allocations(services.database, acting, project_id, ids, options.instance.id)
    return tuple(found.values())


async def _group(
    services: Services, acting: Acting, project_id: str, targets: Sequence[TargetAllocation]
) -> GroupWithAllocations | None:
    """The same-node group that all of these allocations belong to, if there is one."""
    groups = {each.allocation.group_id for each in targets}
    group_id = next(iter(groups)) if len(groups) == 1 else None
    if group_id is None:
        return None
    group = await allocations.find_group(services.database, acting, project_id, group_id)
    if group is None or not group.same_node:
        return None
    members = await allocations.of_groups(services.database, acting, project_id, [group_id])
    return GroupWithAllocations(group, tuple(members[group_id]))


async def _for_launching(services: Services, acting: Acting, facts: LaunchSnapshot, planning: bool) -> LaunchSnapshot:
    """Add what only launches and upgrades need: circuit breaker, estimate, SKUs, and when the adapter was last seen."""
    database, version = services.database, facts.version
    circuit = None
    if version is not None:
        since = facts.now - WINDOW
        circuit = await launch.deploys(database, facts.tenant_id, version.id, _shape(facts), since)
    expected, adapter = LaunchEstimate(), ClaimWatch()
    shelf: list[SkuTerms] = []
    if planning:
        shelf = await launch.shelf(database, acting)
        if facts.account is not None:
            adapter = ClaimWatch(adapter_seen_at=await claim.seen_at(database, facts.account.id))
        if version is not None:
            expected = estimate(await launch.measured(database, facts.tenant_id, facts.app.id, version.id), version.id)
    return replace(
        facts,
        circuit=circuit,
        expected=expected,
        shelf=shelf,
        adapter=adapter,
        claim_lease=timedelta(seconds=services.settings.adapter_lease_seconds),
    )


async def _with_machines(services: Services, facts: LaunchSnapshot, planning: bool) -> LaunchSnapshot:
    """The facts with the machines: their kinds, whether free or not; for a plan also each of them as it is now."""
    machines, terms = await services.fleet.read(services.database)
    kinds: dict[str, list[Capacity]] = {}
    for each in possible_for(terms, machines, facts.chain):
        kinds.setdefault(each.sku, []).append(each.capacity)
    facts = replace(facts, machines=machines, kinds=kinds)
    if facts.terms is None:
        return facts
    if facts.home_node_id is not None:
        facts = replace(facts, home=await placement.node_snapshot(services.database, facts.home_node_id))
    if planning:
        asks = facts.manifest is not None and bool(facts.manifest.compatibility.needs)
        facts = replace(facts, fleet=await placement.snapshot(services.database, with_facts=asks))
    return facts


def _shape(facts: LaunchSnapshot) -> str | None:
    """The one shape of all the capacity; None if there are several."""
    shapes = {each.allocation.shape for each in (*facts.target_allocations.values(), *facts.current_allocations)}
    if facts.terms is not None:
        shapes.add(facts.terms.shape)
    return next(iter(shapes)) if len(shapes) == 1 else None


def manifest_of(version: AppVersion | None) -> Manifest | None:
    """The version's manifest; it was validated when the version was published."""
    return None if version is None else stored_manifest(version.manifest)
