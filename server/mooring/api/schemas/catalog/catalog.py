"""Request and response bodies for the catalog."""

from typing import Annotated, Any

from msgspec import Meta

from mooring.api.page import Cursor, Limit
from mooring.api.schemas.catalog.app import Category
from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.commands.catalog.catalog import CatalogRow, ProjectCatalogRow
from mooring.core.catalog.app import App
from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.catalog import SEARCH_LENGTH_MAX, Obstacle
from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.core.kernel.errors import Code


class CatalogQuery(Strict):
    """Which apps to list."""

    cursor: Cursor | None = None
    limit: Limit = 100
    search: (
        Annotated[
            str, Meta(max_length=SEARCH_LENGTH_MAX, description="Prefixes of words; an app must match all of them.")
        ]
        | None
    ) = None
    category: Category | None = None


class CatalogVersion(Shown):
    """The selected version, with what a launcher needs to know."""

    id: str
    version: str
    status: PromotionState
    artifact_kind: str
    release_notes: str
    compatibility: dict[str, Any]
    config_schema: dict[str, Any] | None
    components: list[dict[str, Any]]
    required_actions: list[str]


class CatalogApp(Shown):
    """An app on offer, with its newest version."""

    app_id: str
    tenant_id: str | None
    slug: str
    display_name: str
    category: str
    description: str
    icon: str
    created_at: Time
    version: CatalogVersion | None


class HindranceView(Shown):
    """One reason why an app may not be launched."""

    obstacle: Obstacle
    code: Code
    reason: str
    details: dict[str, Any]


class CatalogEntryView(CatalogApp):
    """An app as a project sees it: whether the project may launch it and, if not, every reason why."""

    launchable: bool
    entitled: bool
    hindrances: list[HindranceView]


def shelf_view(shelf: CatalogRow) -> CatalogApp:
    return CatalogApp(**_app(shelf.app, shelf.version))


def line_view(line: ProjectCatalogRow) -> CatalogEntryView:
    entry = line.entry
    return CatalogEntryView(
        **_app(entry.app, entry.version),
        launchable=entry.launchable,
        entitled=all(each.refusal.code is not Code.NOT_ENTITLED for each in entry.obstacles),
        hindrances=[
            HindranceView(
                obstacle=each.obstacle, code=each.refusal.code, reason=each.reason, details=each.refusal.details
            )
            for each in entry.obstacles
        ],
    )


def _app(app: App, version: AppVersion | None) -> dict[str, Any]:
    return {
        "app_id": app.id,
        "tenant_id": app.tenant_id,
        "slug": app.slug,
        "display_name": app.display_name,
        "category": app.category,
        "description": app.description,
        "icon": app.icon,
        "created_at": app.created_at,
        "version": None if version is None else _version(version),
    }


def _version(version: AppVersion) -> CatalogVersion:
    manifest = version.manifest
    return CatalogVersion(
        id=version.id,
        version=version.version,
        status=PromotionState(version.promotion),
        artifact_kind=str(manifest.get("artifact_kind", "")),
        release_notes=str(manifest.get("release_notes", "")),
        compatibility=dict(manifest.get("compatibility", {})),
        config_schema=manifest.get("config_schema"),
        components=list(manifest.get("components", [])),
        required_actions=list(manifest.get("required_actions", [])),
    )
