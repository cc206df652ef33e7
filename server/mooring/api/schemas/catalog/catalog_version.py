"""Response bodies for versions as those see them who launch them: what an app does, meters and promises."""

from typing import Annotated, Any

from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Time
from mooring.core.catalog.app import App
from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.channel import why_not_offered
from mooring.core.catalog.promotion_lifecycle import PromotionState


class CatalogVersionView(Shown):
    """A version of an app as a project sees it."""

    id: str
    app_id: str
    app: str
    version: str
    status: PromotionState
    offered: Annotated[bool, Meta(description="Whether the project may launch it now, as far as the version goes.")]
    reason: Annotated[str | None, Meta(description="Why it is not offered.")]
    release_notes: str
    instances: Annotated[int, Meta(description="How many instances of the project that are not stopped run it.")]
    superseded_by: str | None
    deprecation_reason: str | None
    deprecated_at: Time | None
    created_at: Time


class CatalogVersionDetail(CatalogVersionView):
    """A version with all that its manifest tells those who launch and operate it."""

    manifest_digest: str
    digests: list[str]
    artifact_kind: str
    compatibility: dict[str, Any]
    config_schema: dict[str, Any] | None
    components: list[dict[str, Any]]
    endpoints: list[dict[str, Any]]
    actions: Annotated[
        list[dict[str, Any]], Meta(description="Each with its permission and the schemas of its input and output.")
    ]
    usage_units: list[dict[str, Any]]
    operating_modes: list[dict[str, Any]]
    topology_modes: list[str]
    required_actions: list[str]
    lifecycle: Annotated[
        dict[str, Any], Meta(description="How it is upgraded, rolled back, restarted, drained and deleted, with notes.")
    ]
    runbook: Annotated[dict[str, Any] | None, Meta(description="What to do when it has a problem.")]


def catalog_version_view(app: App, version: AppVersion, instances: int, project_id: str) -> CatalogVersionView:
    return CatalogVersionView(**_fields(app, version, instances, project_id))


def catalog_version_detail(app: App, version: AppVersion, instances: int, project_id: str) -> CatalogVersionDetail:
    manifest = version.manifest
    return CatalogVersionDetail(
        **_fields(app, version, instances, project_id),
        manifest_digest=version.manifest_digest,
        digests=list(version.digests),
        artifact_kind=str(manifest.get("artifact_kind", "")),
        compatibility=dict(manifest.get("compatibility", {})),
        config_schema=manifest.get("config_schema"),
        components=list(manifest.get("components", [])),
        endpoints=list(manifest.get("endpoints", [])),
        actions=list(manifest.get("actions", [])),
        usage_units=list(manifest.get("usage_units", [])),
        operating_modes=list(manifest.get("operating_modes", [])),
        topology_modes=list(manifest.get("topology_modes", [])),
        required_actions=list(manifest.get("required_actions", [])),
        lifecycle=dict(manifest.get("lifecycle", {})),
        runbook=manifest.get("runbook"),
    )


def _fields(app: App, version: AppVersion, instances: int, project_id: str) -> dict[str, Any]:
    refusal = why_not_offered(version.candidate(), project_id)
    return {
        "id": version.id,
        "app_id": app.id,
        "app": app.slug,
        "version": version.version,
        "status": PromotionState(version.promotion),
        "offered": refusal is None,
        "reason": None if refusal is None else refusal.detail,
        "release_notes": str(version.manifest.get("release_notes", "")),
        "instances": instances,
        "superseded_by": version.superseded_by,
        "deprecation_reason": version.deprecation_reason,
        "deprecated_at": version.deprecated_at,
        "created_at": version.created_at,
    }
