"""Request and response bodies for apps, versions and manifests."""

from decimal import Decimal
from typing import Annotated, Any

from msgspec import Meta

from mooring.api.schemas.kernel.fields import DisplayName, PublicKey, Revision, Shown, Slug, Strict, Time, allowed
from mooring.core.catalog.app import DESCRIPTION_LENGTH_MAX, App
from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState, PromotionTrigger
from mooring.core.identity.platform_key import encoded
from mooring.core.kernel.finding import Finding
from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.kernel.permissions import Authority, Place, Scope
from mooring.storage.catalog.app_version import VersionTransition

Category = Annotated[
    str, Meta(pattern="^[a-z][a-z0-9_]{1,39}$", min_length=2, max_length=40, description="What kind of app it is.")
]
CardText = Annotated[str, Meta(max_length=DESCRIPTION_LENGTH_MAX, description="What the app is for, in a few lines.")]
Icon = Annotated[str, Meta(max_length=2048, description="The https address of a picture; empty for none.")]
AppId = Annotated[str, Meta(pattern=pattern(Prefix.APP))]
VersionId = Annotated[str, Meta(pattern=pattern(Prefix.APP_VERSION))]
Reason = Annotated[
    str, Meta(min_length=10, max_length=1000, description="The reason; it is stored in the audit trail.")
]
ManifestBody = Annotated[
    dict[str, Any], Meta(description="A manifest, as `GET /api/v1/schemas/manifest` describes it.")
]
Percentage = Annotated[float, Meta(gt=0, le=100, description="Share of the projects, with at most two decimals.")]


class CreateApp(Strict):
    """A new app."""

    slug: Slug
    display_name: DisplayName
    category: Category
    description: CardText = ""
    icon: Icon = ""


class UpdateApp(Strict):
    """Changes of an app's card; omitted fields stay unchanged."""

    display_name: DisplayName | None = None
    description: CardText | None = None
    icon: Icon | None = None
    revision: Revision | None = None


class AppView(Shown):
    """An app that users can launch."""

    id: str
    tenant_id: str | None
    slug: str
    display_name: str
    category: str
    description: str
    icon: str
    adapter_key: Annotated[str | None, Meta(description="The public key of its adapter, in base64url.")]
    created_at: Time
    revision: int
    etag: str
    allowed_actions: list[str]


class SetAdapterKey(Strict):
    """The public key of the adapter that serves an app; null removes it."""

    public_key: PublicKey | None
    keep_previous: Annotated[
        bool, Meta(description="Whether the previous key stays valid while adapters switch over.")
    ] = False


class CreateVersion(Strict):
    """A new version; the manifest contains its number and its app."""

    manifest: ManifestBody


class ReplaceManifest(Strict):
    """A new manifest for a draft."""

    manifest: ManifestBody
    revision: Revision | None = None


class PromoteVersion(Strict):
    """One step of a version's promotion; `canary` for a canary changes its percentage."""

    move: PromotionTrigger
    reason: Reason
    canary_percentage: Percentage | None = None
    superseded_by: VersionId | None = None
    no_successor_because: Reason | None = None


class VersionView(Shown):
    """One version of an app."""

    id: str
    tenant_id: str | None
    app_id: str
    app_slug: str
    version: str
    status: PromotionState
    manifest: dict[str, Any]
    manifest_digest: str
    digests: list[str]
    canary_percentage: float | None
    superseded_by: str | None
    deprecation_reason: str | None
    deprecated_at: Time | None
    retired_at: Time | None
    created_at: Time
    generation: int
    revision: int
    etag: str
    allowed_moves: list[PromotionTrigger]
    allowed_actions: list[str]


class VersionStepView(Shown):
    """One transition of a version, with who made it and why."""

    generation: int
    before: str | None
    move: str
    after: PromotionState
    occurred_at: Time
    actor_kind: str | None
    actor_id: str | None
    reason: str | None
    correlation_id: str


class VersionHistory(Shown):
    """Every transition of a version, oldest first."""

    items: list[VersionStepView]


class LintManifest(Strict):
    """A manifest to check, and optionally its app's slug and category."""

    manifest: Any
    app_slug: Slug | None = None
    category: Category | None = None


class FindingView(Shown):
    """One mistake: where (a JSON pointer), why, and how to fix it."""

    pointer: str
    rule: str
    severity: str
    reason: str
    fix: str
    why: str | None


class LintedView(Shown):
    """The findings of lint; `stageable` means that no finding is an error."""

    stageable: bool
    manifest_digest: str | None
    findings: list[FindingView]


def app_view(authority: Authority, app: App) -> AppView:
    return AppView(
        id=app.id,
        tenant_id=app.tenant_id,
        slug=app.slug,
        display_name=app.display_name,
        category=app.category,
        description=app.description,
        icon=app.icon,
        adapter_key=None if app.adapter_key is None else encoded(app.adapter_key),
        created_at=app.created_at,
        revision=app.revision,
        etag=str(app.revision),
        allowed_actions=allowed(authority, _place(app.tenant_id), ("app.update", "app_version.create")),
    )


def version_view(authority: Authority, version: AppVersion) -> VersionView:
    state = PromotionState(version.promotion)
    moves = [edge.trigger for edge in PROMOTION.edges if edge.source is state]
    actions = allowed(authority, _place(version.tenant_id), ("app_version.create", "app_version.promote"))
    if state is not PromotionState.DRAFT:
        actions = [each for each in actions if each != "app_version.create"]
    percentage: Decimal | None = version.canary_percentage
    return VersionView(
        id=version.id,
        tenant_id=version.tenant_id,
        app_id=version.app_id,
        app_slug=version.app_slug,
        version=version.version,
        status=state,
        manifest=version.manifest,
        manifest_digest=version.manifest_digest,
        digests=list(version.digests),
        canary_percentage=None if percentage is None else float(percentage),
        superseded_by=version.superseded_by,
        deprecation_reason=version.deprecation_reason,
        deprecated_at=version.deprecated_at,
        retired_at=version.retired_at,
        created_at=version.created_at,
        generation=version.promotion_generation,
        revision=version.revision,
        etag=f"{version.promotion_generation}.{version.revision}",
        allowed_moves=moves if "app_version.promote" in actions else [],
        allowed_actions=actions if moves else [],
    )


def step_view(step: VersionTransition) -> VersionStepView:
    return VersionStepView(
        generation=step.generation,
        before=step.source or None,
        move=step.trigger,
        after=PromotionState(step.target),
        occurred_at=step.occurred_at,
        actor_kind=step.actor_kind,
        actor_id=step.actor_id,
        reason=step.reason,
        correlation_id=step.correlation_id,
    )


def finding_view(finding: Finding, why: str | None) -> FindingView:
    return FindingView(
        pointer=finding.pointer,
        rule=finding.rule,
        severity=finding.severity.value,
        reason=finding.reason,
        fix=finding.fix,
        why=why,
    )


def _place(tenant_id: str | None) -> Place:
    return Place(Scope.PLATFORM) if tenant_id is None else Place(Scope.TENANT, tenant_id)
