"""Apps: what can be launched, as a card with a slug, a name and a category. What an app means, its adapter knows.

An app belongs to the platform or to a tenant, never to a project. A category may have a family of action keys of its
own (`<category>.instance.create` and others); which it has is data of the table of permissions. A category that is
called like the platform's own keys is refused, for it would borrow them.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final

from mooring.core import names
from mooring.core.address import read_url
from mooring.core.decision import Audited, Change, Context, Decision, Happened, Insert
from mooring.core.events import EventType
from mooring.core.ids import Prefix
from mooring.core.manifest_lint import RESERVED_CATEGORIES
from mooring.core.tenant import require_revision

DESCRIPTION_LENGTH_MAX: Final = 4_000
_CATEGORY: Final = re.compile(r"[a-z][a-z0-9_]{1,39}")


@dataclass(frozen=True, slots=True)
class App:
    """Something that can be launched."""

    id: str
    tenant_id: str | None  # none: the platform's, for everybody
    slug: str
    display_name: str
    category: str
    description: str
    icon: str
    revision: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class AppCard:
    """What people see of an app, and may change."""

    display_name: str
    description: str = ""
    icon: str = ""


def read_category(text: str, path: str = "category") -> str:
    """The category of an app, one lower-case word."""
    if not _CATEGORY.fullmatch(text):
        raise names.invalid(path, "2 to 40 lower-case letters, digits and underscores, beginning with a letter")
    if text in RESERVED_CATEGORIES:
        raise names.invalid(path, f"{text!r} begins action keys of the platform's own; choose another word")
    return text


def create_app(context: Context, tenant_id: str | None, slug: str, category: str, card: AppCard) -> Decision[App]:
    """A new app without versions."""
    app = App(
        id=context.mint(Prefix.APP),
        tenant_id=tenant_id,
        slug=names.slug(slug),
        category=read_category(category),
        revision=0,
        created_at=context.now,
        **_card(card),
    )
    told = {"slug": app.slug, "category": app.category, "display_name": app.display_name}
    return Decision(
        result=app,
        writes=(Insert("app", asdict(app)),),
        events=(_happened(EventType.APP_CREATED, app, told),),
        audits=(Audited("app.create", "app", app.id, tenant_id, after=told),),
    )


def update_app(context: Context, app: App, card: AppCard, revision_seen: int | None) -> Decision[App]:
    """Another card; slug and category are in other people's scripts and permissions."""
    require_revision(app.revision, revision_seen)
    wanted = _card(card)
    changed = {name: value for name, value in wanted.items() if getattr(app, name) != value}
    if not changed:
        return Decision(result=app)
    after = replace(app, revision=app.revision + 1, **changed)  # type: ignore[arg-type]
    before = {name: getattr(app, name) for name in changed}
    return Decision(
        result=after,
        writes=(Change("app", app.id, app.revision, changed),),
        events=(_happened(EventType.APP_UPDATED, after, {"changed": sorted(changed)}),),
        audits=(Audited("app.update", "app", app.id, app.tenant_id, before=before, after=changed),),
    )


def _card(card: AppCard) -> dict[str, str]:
    return {
        "display_name": names.display_name(card.display_name),
        "description": _description(card.description),
        "icon": _icon(card.icon),
    }


def _description(text: str) -> str:
    """Text of several lines: each line is printable."""
    if len(text) > DESCRIPTION_LENGTH_MAX:
        raise names.invalid("description", f"at most {DESCRIPTION_LENGTH_MAX} characters")
    lines = (names.remark(line, "description", DESCRIPTION_LENGTH_MAX) for line in text.strip().splitlines())
    return "\n".join(lines)


def _icon(text: str) -> str:
    """An https address; none for the picture of the category."""
    if not text:
        return ""
    target = read_url(text, "icon")
    if target.scheme != "https":
        raise names.invalid("icon", "an https address")
    return target.url


def _happened(type_: EventType, app: App, data: Mapping[str, object]) -> Happened:
    return Happened(type_, "app", app.id, app.tenant_id, data=data, app_slug=app.slug)
