"""Reads the catalog: the apps on offer and, for a project, which of them it may launch and why not the others.

Versions are chosen by their numbers alone. Manifests and artifacts are read only for the chosen versions, so a page
costs the same however many versions there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mooring.commands.catalog.artifact_evaluation import evaluate_artifacts
from mooring.commands.services import Services
from mooring.core.catalog.app import App
from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.artifact_evidence import EvaluatedArtifact
from mooring.core.catalog.catalog import (
    CatalogEntry,
    ProjectContext,
    VersionNeeds,
    catalog_entry,
    chosen_candidate,
    newest_candidate,
)
from mooring.core.catalog.channel import Candidate
from mooring.core.catalog.manifest import stored_manifest
from mooring.core.catalog.policy import PolicyChain
from mooring.core.catalog.policy_change import layers_of
from mooring.storage.catalog import app_version as stored_versions
from mooring.storage.catalog import catalog, entitlement, policy, workload_adapter
from mooring.storage.kernel.database import Acting
from mooring.storage.kernel.page_window import PageWindow


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """An app with the version to show."""

    app: App
    version: AppVersion | None

    @property
    def id(self) -> str:
        """The app's: pages go by it."""
        return self.app.id


@dataclass(frozen=True, slots=True)
class ProjectCatalogRow:
    """An app as a project sees it."""

    entry: CatalogEntry

    @property
    def id(self) -> str:
        """The app's: pages go by it."""
        return self.entry.app.id


async def browse(
    services: Services, acting: Acting, wanted: catalog.CatalogFilter, window: PageWindow
) -> list[CatalogRow]:
    """A page of the visible apps, each with its newest offered version."""
    apps = await catalog.page(services.database, acting, wanted, window)
    chosen = await _chosen(services, acting, apps, None)
    return [CatalogRow(app, chosen.get(app.id)) for app in apps]


async def of_project(
    services: Services, acting: Acting, project_id: str, wanted: catalog.CatalogFilter, window: PageWindow
) -> list[ProjectCatalogRow]:
    """A page of the apps as this project sees them."""
    database = services.database
    apps = await catalog.page(database, acting, wanted, window)
    chosen = await _chosen(services, acting, apps, project_id)
    entitled = await entitlement.of_apps(database, acting, project_id, [app.id for app in apps])
    account_ids = [each.service_account_id for each in entitled.values() if each.service_account_id is not None]
    operated = await workload_adapter.operated_by(database, account_ids)
    chain = PolicyChain(layers_of(await policy.chain(database, acting, project_id)))
    digests = sorted({digest for version in chosen.values() for digest in version.digests})
    registered = await stored_versions.artifacts(database, acting, digests, acting.tenant_id, project_id)
    measured = await evaluate_artifacts(services, acting, project_id, list(registered.values()))
    artifacts = {each.artifact.digest: each for each in measured}
    capacity = await services.fleet.capacity_of(database, project_id, chain)
    lines = []
    for app in apps:
        version = chosen.get(app.id)
        needed = None if version is None else _needed(version, artifacts)
        offers = None if needed is None else capacity.offers_for(needed.compatibility)
        entitlement_of_app = entitled.get(app.id)
        has_key = entitlement_of_app is not None and entitlement_of_app.service_account_id in operated
        view = ProjectContext(project_id, entitlement_of_app, chain, has_adapter_key=has_key, offers=offers)
        lines.append(ProjectCatalogRow(catalog_entry(app, version, needed, view)))
    return lines


async def _chosen(
    services: Services, acting: Acting, apps: Sequence[App], project_id: str | None
) -> dict[str, AppVersion]:
    """The version to show for each app, by app id."""
    candidates = await catalog.candidates(services.database, acting, [app.id for app in apps])
    chosen: dict[str, Candidate] = {}
    for app_id, listed in candidates.items():
        one = newest_candidate(listed) if project_id is None else chosen_candidate(listed, project_id)
        if one is not None:
            chosen[app_id] = one
    found = await catalog.versions(services.database, acting, [each.version_id for each in chosen.values()])
    return {app_id: found[each.version_id] for app_id, each in chosen.items() if each.version_id in found}


def _needed(version: AppVersion, artifacts: Mapping[str, EvaluatedArtifact]) -> VersionNeeds | None:
    manifest = stored_manifest(version.manifest)
    if manifest is None:
        return None
    known = [artifacts[digest] for digest in version.digests if digest in artifacts]
    measured = tuple((each.artifact, each.trust) for each in known)
    return VersionNeeds(manifest.compatibility, manifest.required_actions, measured)
