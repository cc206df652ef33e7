"""Apps: what users can launch, described by a slug, a name and a category. Only its adapter knows what an app does.

An app belongs to the platform or to a tenant, never to a project. A category may have its own family of action keys
(`<category>.instance.create` and others); the table of permissions lists them. A category must not have the name of
one of the platform's own families of keys, because it would then use their keys.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from mooring.core.catalog.manifest_lint import RESERVED_CATEGORIES
from mooring.core.identity.service_account import ED25519_KEY_BYTES
from mooring.core.identity.tenant import require_revision
from mooring.core.kernel import validation
from mooring.core.kernel.address import read_url
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix

DESCRIPTION_LENGTH_MAX: Final = 4_000
KEYS_KNOWN_MAX: Final = 20
"""How many former adapter keys an app remembers, to revoke them in the operator accounts."""
_CATEGORY: Final = re.compile(r"[a-z][a-z0-9_]{1,39}")


@dataclass(frozen=True, slots=True)
class App:
    """Something that users can launch."""

    id: str
    tenant_id: str | None  # None: it belongs to the platform, and every tenant sees it
    slug: str
    display_name: str
    category: str
    description: str
    icon: str
    revision: int
    created_at: datetime
    adapter_key: bytes | None = None  # the public key of the adapter that serves the app
    adapter_keys_before: list[bytes] = field(default_factory=list)  # former keys, which accounts may still have


@dataclass(frozen=True, slots=True)
class AppCard:
    """The description of an app for people; it can be changed."""

    display_name: str
    description: str = ""
    icon: str = ""


def read_category(text: str, path: str = "category") -> str:
    """Validate the category of an app: one lower-case word."""
    if not _CATEGORY.fullmatch(text):
        raise validation.invalid(path, "2 to 40 lower-case letters, digits and underscores, beginning with a letter")
    if text in RESERVED_CATEGORIES:
        raise validation.invalid(path, f"the platform's own action keys begin with {text!r}; choose another word")
    return text


def create_app(
    context: DecisionContext, tenant_id: str | None, slug: str, category: str, card: AppCard
) -> Decision[App]:
    """Register an app; it has no versions yet."""
    shown = _card(card)
    app = App(
        id=context.mint(Prefix.APP),
        tenant_id=tenant_id,
        slug=validation.slug(slug),
        display_name=shown["display_name"],
        category=read_category(category),
        description=shown["description"],
        icon=shown["icon"],
        revision=0,
        created_at=context.now,
    )
    data = {"slug": app.slug, "category": app.category, "display_name": app.display_name}
    return Decision(
        result=app,
        writes=(Insert("app", asdict(app)),),
        events=(_happened(EventType.APP_CREATED, app, data),),
        audits=(AuditRecord("app.create", "app", app.id, tenant_id, after=data),),
    )


def update_app(context: DecisionContext, app: App, card: AppCard, revision_seen: int | None) -> Decision[App]:
    """Change an app's card. The slug and the category never change: scripts and permissions refer to them."""
    require_revision(app.revision, revision_seen)
    wanted = _card(card)
    changed = {name: value for name, value in wanted.items() if getattr(app, name) != value}
    if not changed:
        return Decision(result=app)
    after = replace(app, revision=app.revision + 1, **changed)  # type: ignore[arg-type]
    before = {name: getattr(app, name) for name in changed}
    return Decision(
        result=after,
        writes=(Update("app", app.id, app.revision, changed),),
        events=(_happened(EventType.APP_UPDATED, after, {"changed": sorted(changed)}),),
        audits=(AuditRecord("app.update", "app", app.id, app.tenant_id, before=before, after=changed),),
    )


def set_adapter_key(context: DecisionContext, app: App, public_key: bytes | None) -> Decision[App]:
    """Set the key of the adapter that serves the app; operator accounts that are created later get it.

    The former keys stay stored, so that a request that is repeated after a crash knows which ones to revoke.
    """
    if public_key is not None and len(public_key) != ED25519_KEY_BYTES:
        raise validation.invalid("public_key", f"the {ED25519_KEY_BYTES} bytes of an Ed25519 public key, in base64")
    if app.adapter_key == public_key:
        return Decision(result=app)
    known = [each for each in app.adapter_keys_before if each not in (app.adapter_key, public_key)]
    known += [] if app.adapter_key is None else [app.adapter_key]
    columns: dict[str, Any] = {"adapter_key": public_key, "adapter_keys_before": known[-KEYS_KNOWN_MAX:]}
    after = replace(app, revision=app.revision + 1, **columns)
    old_fingerprint, new_fingerprint = _fingerprint(app.adapter_key), _fingerprint(public_key)
    return Decision(
        result=after,
        writes=(Update("app", app.id, app.revision, columns),),
        events=(_happened(EventType.APP_UPDATED, after, {"changed": ["adapter_key"]}),),
        audits=(
            AuditRecord(
                "app.update",
                "app",
                app.id,
                app.tenant_id,
                before={"adapter_key": old_fingerprint},
                after={"adapter_key": new_fingerprint},
            ),
        ),
    )


def former_keys(before: App, public_key: bytes | None, *, keep_previous: bool) -> list[bytes]:
    """The keys to revoke once `public_key` is set; `before` is the app before that change.

    With `keep_previous`, the key that was current until now stays valid while the adapter's replicas switch over. A key
    that was kept at an earlier change is revoked.
    """
    known = [*before.adapter_keys_before, *([] if before.adapter_key is None else [before.adapter_key])]
    former = [each for each in known if each != public_key]
    return former[:-1] if keep_previous else former


def _fingerprint(public_key: bytes | None) -> str | None:
    return None if public_key is None else f"sha256:{hashlib.sha256(public_key).hexdigest()}"


def _card(card: AppCard) -> dict[str, str]:
    return {
        "display_name": validation.display_name(card.display_name),
        "description": _description(card.description),
        "icon": _icon(card.icon),
    }


def _description(text: str) -> str:
    """Validate text of several lines; each line must be printable."""
    if len(text) > DESCRIPTION_LENGTH_MAX:
        raise validation.invalid("description", f"at most {DESCRIPTION_LENGTH_MAX} characters")
    lines = (validation.remark(line, "description", DESCRIPTION_LENGTH_MAX) for line in text.strip().splitlines())
    return "\n".join(lines)


def _icon(text: str) -> str:
    """Validate the icon: an https address, or empty for the icon of the category."""
    if not text:
        return ""
    target = read_url(text, "icon")
    if target.scheme != "https":
        raise validation.invalid("icon", "an https address")
    return target.url


def _happened(type_: EventType, app: App, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(type_, "app", app.id, app.tenant_id, data=data, app_slug=app.slug)
