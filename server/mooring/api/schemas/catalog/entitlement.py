"""Request and response bodies for entitlements."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mooring.api.schemas.catalog.app import AppId, Reason
from mooring.api.schemas.catalog.policy import RulesBody, rules_of
from mooring.api.schemas.kernel.fields import ActionKey, Revision, Shown, Strict, Time, allowed
from mooring.core.catalog.entitlement import AGREED_MAX, Entitlement, EntitlementRequest, Overlay
from mooring.core.catalog.workload_adapter import OperatedBy
from mooring.core.kernel.permissions import Authority, Place, Scope

VersionRange = Annotated[
    str, Meta(min_length=1, max_length=300, description="Such as `>=1.2.0 <2.0.0`; null for every version.")
]
AgreedActions = Annotated[
    list[ActionKey],
    Meta(max_length=AGREED_MAX, description="What the app's operator account may do: agree to `required_actions`."),
]


class CreateEntitlement(Strict):
    """A project may launch an app, on these terms."""

    app_id: AppId
    reason: Reason
    enabled: bool = True
    versions: VersionRange | None = None
    rules: RulesBody = msgspec.field(default_factory=RulesBody)
    agreed_actions: AgreedActions = msgspec.field(default_factory=list)


class UpdateEntitlement(Strict):
    """All new terms of an entitlement."""

    enabled: bool
    reason: Reason
    versions: VersionRange | None = None
    rules: RulesBody = msgspec.field(default_factory=RulesBody)
    agreed_actions: AgreedActions = msgspec.field(default_factory=list)
    revision: Revision | None = None


class SwitchEntitlement(Strict):
    """Why the entitlement is switched on or off."""

    reason: Reason


class EntitlementView(Shown):
    """A project's right to launch an app, and the actions that the newest offered version requires."""

    id: str
    tenant_id: str
    project_id: str
    app_id: str
    app_slug: str
    enabled: bool
    versions: str | None
    rules: dict[str, Any]
    agreed_actions: list[str]
    required_actions: list[str]
    missing_actions: list[str]
    service_account_id: str | None
    operated_by: Annotated[
        OperatedBy,
        Meta(description="Whose adapter can use the operator account: the app's own, the platform's workload adapter."),
    ]
    created_at: Time
    updated_at: Time
    revision: int
    etag: str
    allowed_actions: list[str]


def request_of(body: CreateEntitlement | UpdateEntitlement) -> EntitlementRequest:
    overlay = Overlay(body.versions, rules_of(body.rules))
    return EntitlementRequest(body.enabled, overlay, tuple(body.agreed_actions), body.reason)


def entitlement_view(
    authority: Authority, entitlement: Entitlement, required_actions: list[str], operated_by: OperatedBy
) -> EntitlementView:
    place = Place(Scope.PROJECT, entitlement.tenant_id, entitlement.project_id, platform_too=True)
    return EntitlementView(
        id=entitlement.id,
        tenant_id=entitlement.tenant_id,
        project_id=entitlement.project_id,
        app_id=entitlement.app_id,
        app_slug=entitlement.app_slug,
        enabled=entitlement.enabled,
        versions=entitlement.versions,
        rules=entitlement.rules,
        agreed_actions=list(entitlement.agreed_actions),
        required_actions=sorted(required_actions),
        missing_actions=sorted(set(required_actions) - set(entitlement.agreed_actions)),
        service_account_id=entitlement.service_account_id,
        operated_by=operated_by,
        created_at=entitlement.created_at,
        updated_at=entitlement.updated_at,
        revision=entitlement.revision,
        etag=str(entitlement.revision),
        allowed_actions=allowed(authority, place, ("entitlement.update",)),
    )
