"""Loading what a launch looks at: plan, create, add, replace and upgrade ask the same facts.

Nothing is decided here. What a tenant may not read (machines, how others' launches went) is read for the platform and
comes out only as what follows from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mooring.commands.catalog.artifact_evaluation import TrustContext, evaluate_under, trust_context
from mooring.commands.kernel.lookup import require
from mooring.commands.services import Services
from mooring.core.catalog.app import App
from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_trust import Trust
from mooring.core.catalog.catalog import chosen_candidate
from mooring.core.catalog.channel import Candidate, Channel, first_canary
from mooring.core.catalog.compatibility import Capacity
from mooring.core.catalog.entitlement import Entitlement
from mooring.core.catalog.manifest import Manifest, stored_manifest
from mooring.core.catalog.semver import read_version
from mooring.core.fleet.allocation import SkuTerms
from mooring.core.fleet.allocation_group import GroupWithAllocations
from mooring.core.runtime.circuit_breaker import WINDOW
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.launch import EvaluationPurpose, LaunchRequest, LaunchSnapshot, TargetAllocation
from mooring.core.runtime.launch_estimate import LaunchEstimate, expect
from mooring.core.runtime.member import Member
from mooring.storage.catalog import app_version as stored_versions
from mooring.storage.catalog import catalog
from mooring.storage.fleet import allocation as allocations
from mooring.storage.kernel.database import Acting
from mooring.storage.runtime import launch


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What is asked of the facts beside the wish."""

    purpose: EvaluationPurpose = EvaluationPurpose.LAUNCH
    instance: Instance | None = None
    members: Sequence[Member] = ()
    adding: int = 0
    planning: bool = False  # also what only a plan tells: every SKU, and the time it takes
    pinned: bool = False  # the version is the one that the instance is pinned to
    standing: Sequence[TargetAllocation] = field(default_factory=tuple)


async def load(
    services: Services, acting: Acting, project_id: str, request: LaunchRequest, about: LoadOptions
) -> LaunchSnapshot:
    """Everything that a launch looks at, as it is now."""
    database, instance = services.database, about.instance
    named, asked = request.app if instance is None else instance.app_id, (request.name, request.service_account_id)
    opening = require(await launch.opening(database, acting, project_id, named, asked), "project")
    app, entitled = require(opening.app, "app"), opening.entitlement
    version = await _version(services, acting, (app, project_id), request, about)
    manifest = None if version is None else stored_manifest(version.manifest)
    measure = await trust_context(services, acting, project_id)
    spots = await launch.target_allocations(
        database, acting, project_id, request.placement.allocations, "" if instance is None else instance.id
    )
    standing = await _standing(services, acting, project_id, about)
    terms = None if request.placement.sku is None else await allocations.terms(database, acting, request.placement.sku)
    facts = LaunchSnapshot(
        tenant_id=str(acting.tenant_id),
        project_id=project_id,
        app=app,
        wish=request,
        now=services.clock.now(),
        version=version,
        manifest=manifest,
        entitlement=entitled,
        policy=measure.policy,
        artifacts=() if version is None else await _trusted(services, acting, measure, entitled, version.digests),
        spots=spots,
        terms=terms,
        holding=opening.holding,
        place_seconds=services.settings.allocation_place_seconds,
        purpose=about.purpose,
        standing=standing,
        group=await _group(services, acting, project_id, standing or list(spots.values())),
        adding=about.adding,
    )
    if about.planning or request.placement.sku is not None:
        facts = replace(facts, kinds=await _kinds(services, acting, project_id, facts))
    if about.purpose is EvaluationPurpose.ADD:
        return facts
    facts = replace(
        facts,
        account=opening.account,
        name_taken=facts.is_new and opening.name_taken,
        open_instances=opening.open_instances,
    )
    return await _for_launching(services, acting, facts, about.planning)


async def trusted(
    services: Services, acting: Acting, project_id: str, entitled: Entitlement | None, digests: Sequence[str]
) -> list[tuple[Artifact, Trust]]:
    """What is registered under these digests, and what it is worth under the policy and the entitlement of now."""
    return await _trusted(services, acting, await trust_context(services, acting, project_id), entitled, digests)


async def _trusted(
    services: Services, acting: Acting, measure: TrustContext, entitled: Entitlement | None, digests: Sequence[str]
) -> list[tuple[Artifact, Trust]]:
    registered = await stored_versions.artifacts(services.database, acting, list(digests), acting.tenant_id)
    return await evaluate_under(services, acting, measure, entitled, list(registered.values()))


async def _version(
    services: Services, acting: Acting, where: tuple[App, str], request: LaunchRequest, about: LoadOptions
) -> AppVersion | None:
    """The version that is meant: the pinned one, the one of this number, or what the channel means here."""
    (app, project_id), database = where, services.database
    if about.pinned and about.instance is not None:
        versions = await catalog.versions(database, acting, [about.instance.version_id])
        return versions.get(about.instance.version_id)
    if request.version is not None:
        return await launch.version(database, acting, app.id, str(read_version(request.version)))
    candidates = (await catalog.candidates(database, acting, [app.id]))[app.id]
    chosen = _chosen(candidates, request.channel, project_id)
    if chosen is None:
        return None
    return (await catalog.versions(database, acting, [chosen.version_id])).get(chosen.version_id)


def _chosen(candidates: Sequence[Candidate], channel: str | None, project_id: str) -> Candidate | None:
    if channel == Channel.CANARY:
        return first_canary(candidates, project_id)
    return chosen_candidate(candidates, project_id)


async def _standing(
    services: Services, acting: Acting, project_id: str, about: LoadOptions
) -> tuple[TargetAllocation, ...]:
    """Where the members of the instance are already."""
    if about.instance is None:
        return ()
    ids = [each.allocation_id for each in about.members if each.allocation_id is not None]
    spots = await launch.target_allocations(services.database, acting, project_id, ids, about.instance.id)
    return tuple(spots.values())


async def _group(
    services: Services, acting: Acting, project_id: str, standing: Sequence[TargetAllocation]
) -> GroupWithAllocations | None:
    """The group on one machine that all of these places are in."""
    groups = {each.allocation.group_id for each in standing}
    group_id = next(iter(groups)) if len(groups) == 1 else None
    if group_id is None:
        return None
    group = await allocations.find_group(services.database, acting, project_id, group_id)
    if group is None or not group.same_node:
        return None
    members = await allocations.of_groups(services.database, acting, project_id, [group_id])
    return GroupWithAllocations(group, tuple(members[group_id]))


async def _for_launching(services: Services, acting: Acting, facts: LaunchSnapshot, planning: bool) -> LaunchSnapshot:
    """The facts with what only launching and upgrading ask: how launches went, what else there is."""
    database, version = services.database, facts.version
    circuit = None
    if version is not None:
        since = facts.now - WINDOW
        circuit = await launch.deploys(database, facts.tenant_id, version.id, _shape(facts), since)
    expected = LaunchEstimate()
    shelf: list[SkuTerms] = []
    if planning:
        shelf = await launch.shelf(database, acting)
        if version is not None:
            expected = expect(await launch.measured(database, facts.tenant_id, facts.app.id, version.id), version.id)
    return replace(
        facts,
        circuit=circuit,
        expected=expected,
        shelf=shelf,
    )


async def _kinds(
    services: Services, acting: Acting, project_id: str, facts: LaunchSnapshot
) -> dict[str, list[Capacity]]:
    """What each SKU can be had on: the kinds of machines that there are, whoever is on them now."""
    kinds: dict[str, list[Capacity]] = {}
    for each in (await services.fleet.capacity_of(services.database, project_id, facts.chain)).possible:
        kinds.setdefault(each.sku, []).append(each.capacity)
    return kinds


def _shape(facts: LaunchSnapshot) -> str | None:
    """The one shape of all the capacity; none where there are several."""
    shapes = {each.allocation.shape for each in (*facts.spots.values(), *facts.standing)}
    if facts.terms is not None:
        shapes.add(facts.terms.shape)
    return next(iter(shapes)) if len(shapes) == 1 else None


def manifest_of(version: AppVersion | None) -> Manifest | None:
    """The manifest of a version; what was staged can be read."""
    return None if version is None else stored_manifest(version.manifest)
