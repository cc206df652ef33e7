"""Entitlements: a project may launch an app, on terms that an admin agreed to.

An entitlement is on or off. It may have an overlay that narrows it further: a range of versions, and rules that become
the last layer of the policy, so that they can only narrow too. It also records which action keys the app's operator
account has: the admin who entitles a project sees what the manifest requires and agrees to that list. A later version
that requires more cannot be launched until an admin agrees again, so an app cannot extend its own rights by an upgrade.

Only people may change entitlements, as admins of the tenant or of the platform: no service account can have the action
key, and the decision checks it again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from mooring.core.catalog.policy import Layer, LayerRules, PolicyRules
from mooring.core.catalog.policy_change import check_rules, plain_rules, read_rules
from mooring.core.catalog.semver import SemVer, read_range
from mooring.core.identity.tenant import require_revision
from mooring.core.kernel import validation
from mooring.core.kernel.decision import (
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    PrincipalKind,
    Remove,
    Update,
)
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.permissions import OPERATOR_CEILING, RETIRED_ACTIONS, is_app_action

AGREED_MAX: Final = 100
ACTIONS_REASON: Final = "actions"
"""`details.reason` of a refusal because an admin did not agree to an action that the version requires."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """The limits of an entitlement."""

    versions: str | None = None  # a range; None means every version
    rules: PolicyRules = field(default_factory=PolicyRules)


@dataclass(frozen=True, slots=True)
class Entitlement:
    """A project's right to launch an app."""

    id: str
    tenant_id: str
    project_id: str
    app_id: str
    app_slug: str
    enabled: bool
    versions: str | None
    rules: dict[str, Any]
    agreed_actions: list[str]
    revision: int
    created_at: datetime
    updated_at: datetime
    service_account_id: str | None = None  # the operator account, created when the entitlement was first switched on

    @property
    def layer(self) -> LayerRules:
        """The rules of the entitlement, as the last layer of the policy."""
        return LayerRules(Layer.ENTITLEMENT, read_rules(self.rules))


@dataclass(frozen=True, slots=True)
class EntitlementRequest:
    """The terms that the caller asks for; `agreed_actions` are the actions that they saw and agree to."""

    enabled: bool
    overlay: Overlay
    agreed_actions: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class EntitlementKey:
    """The app and the project of an entitlement."""

    tenant_id: str
    project_id: str
    app_id: str
    app_slug: str


def why_not_entitled(
    entitlement: Entitlement | None, version: SemVer, required_actions: Iterable[str]
) -> Refusal | None:
    """Why the project may not launch this version; None when it may."""
    if entitlement is None or not entitlement.enabled:
        return Refusal(Code.NOT_ENTITLED, "the project is not entitled to this app", {"reason": "not_entitled"})
    if entitlement.versions is not None and version not in read_range(entitlement.versions):
        return Refusal(
            Code.NOT_ENTITLED,
            f"the entitlement is for versions {entitlement.versions}, not for {version}",
            {"reason": "version", "versions": entitlement.versions, "version": str(version)},
        )
    missing = sorted(set(required_actions) - set(entitlement.agreed_actions) - RETIRED_ACTIONS)
    if missing:
        return Refusal(
            Code.NOT_ENTITLED,
            f"version {version} requires {', '.join(missing)} for its operator account, which nobody has agreed to",
            {"reason": ACTIONS_REASON, "missing_actions": missing},
        )
    return None


def create_entitlement(
    context: DecisionContext,
    entitlement_id: str,
    entitled: EntitlementKey,
    request: EntitlementRequest,
    service_account_id: str | None = None,
) -> Decision[Entitlement]:
    """Create the entitlement of a project to an app, with the operator account that was created for it."""
    entitlement = Entitlement(
        id=entitlement_id,
        **asdict(entitled),
        **_terms(context, entitled.app_slug, request),
        revision=0,
        created_at=context.now,
        updated_at=context.now,
        service_account_id=service_account_id,
    )
    return _decision(entitlement, Insert("entitlement", asdict(entitlement)), None, request)


def change_entitlement(
    context: DecisionContext,
    entitlement: Entitlement,
    request: EntitlementRequest,
    revision_seen: int | None,
    service_account_id: str | None = None,
) -> Decision[Entitlement]:
    """Replace all terms. When it is switched off, running instances continue and new ones are refused.

    `service_account_id` is a newly created operator account; None leaves the account as it is.
    """
    require_revision(entitlement.revision, revision_seen)
    terms = {**_terms(context, entitlement.app_slug, request), "updated_at": context.now}
    if service_account_id is not None:
        terms["service_account_id"] = service_account_id
    after = replace(entitlement, revision=entitlement.revision + 1, **terms)
    change = Update("entitlement", entitlement.id, entitlement.revision, terms)
    return _decision(after, change, _audit_data(entitlement), request)


def switched(entitlement: Entitlement, enabled: bool, reason: str) -> EntitlementRequest:
    """The request to switch an entitlement on or off without changing its terms."""
    overlay = Overlay(entitlement.versions, read_rules(entitlement.rules))
    return EntitlementRequest(enabled, overlay, tuple(entitlement.agreed_actions), reason)


def delete_entitlement(context: DecisionContext, entitlement: Entitlement) -> Decision[Entitlement]:
    """Delete an entitlement: it acts as if it were switched off, and the agreement is lost."""
    _require_person(context)
    place = (entitlement.tenant_id, entitlement.project_id)
    data = {"app_id": entitlement.app_id, "enabled": False}
    return Decision(
        result=entitlement,
        writes=(Remove("entitlement", entitlement.id, entitlement.revision),),
        events=(
            EventRecord(
                EventType.ENTITLEMENT_CHANGED,
                "entitlement",
                entitlement.id,
                *place,
                data=data,
                app_slug=entitlement.app_slug,
            ),
        ),
        audits=(
            AuditRecord(
                "entitlement.update",
                "entitlement",
                entitlement.id,
                *place,
                before=_audit_data(entitlement),
            ),
        ),
    )


def _terms(context: DecisionContext, app_slug: str, request: EntitlementRequest) -> dict[str, Any]:
    _require_person(context)
    overlay = request.overlay
    versions = None if overlay.versions is None else str(read_range(overlay.versions, "overlay.versions"))
    return {
        "enabled": request.enabled,
        "versions": versions,
        "rules": plain_rules(check_rules(overlay.rules, "overlay.rules")),
        "agreed_actions": _agreed(app_slug, request.agreed_actions),
    }


def _require_person(context: DecisionContext) -> None:
    if context.actor.kind is not PrincipalKind.USER:
        raise Refusal(
            Code.PERMISSION_DENIED,
            "only people who administer the tenant or the platform may change entitlements",
            {"action": "entitlement.update"},
        )


def _agreed(app_slug: str, actions: tuple[str, ...]) -> list[str]:
    """Check that an operator account may have these actions."""
    agreed = set(actions) - RETIRED_ACTIONS
    if len(agreed) > AGREED_MAX:
        raise validation.invalid("agreed_actions", f"at most {AGREED_MAX} action keys")
    own = f"app.{app_slug}."
    beyond = sorted(
        key for key in agreed if key not in OPERATOR_CEILING and not (is_app_action(key) and key.startswith(own))
    )
    if beyond:
        raise Refusal(
            Code.GRANT_EXCEEDS_CEILING,
            f"no service account may have {beyond[0]}, or it belongs to another app",
            {"missing_actions": beyond},
        )
    return sorted(agreed)


def _audit_data(entitlement: Entitlement) -> dict[str, Any]:
    return {
        "app_id": entitlement.app_id,
        "enabled": entitlement.enabled,
        "versions": entitlement.versions,
        "rules": entitlement.rules,
        "agreed_actions": list(entitlement.agreed_actions),
    }


def _decision(
    entitlement: Entitlement, write: Insert | Update, before: Mapping[str, Any] | None, request: EntitlementRequest
) -> Decision[Entitlement]:
    place = (entitlement.tenant_id, entitlement.project_id)
    data = {"app_id": entitlement.app_id, "enabled": entitlement.enabled}
    return Decision(
        result=entitlement,
        writes=(write,),
        events=(
            EventRecord(
                EventType.ENTITLEMENT_CHANGED,
                "entitlement",
                entitlement.id,
                *place,
                data=data,
                app_slug=entitlement.app_slug,
            ),
        ),
        audits=(
            AuditRecord(
                "entitlement.update",
                "entitlement",
                entitlement.id,
                *place,
                before=before,
                after=_audit_data(entitlement),
                reason=validation.reason(request.reason),
            ),
        ),
    )
