"""The closed table of event types.

An event says what became true, in the past tense, and is written in the transaction that made it true. New types
come only with a use that is shown. `docs/events.md` is made from this table.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class EventType(StrEnum):
    """The name of an event: part of the public contract, changed only by adding."""

    TENANT_CREATED = "identity.tenant.created"
    TENANT_UPDATED = "identity.tenant.updated"
    PROJECT_CREATED = "identity.project.created"
    PROJECT_UPDATED = "identity.project.updated"
    PROJECT_DELETED = "identity.project.deleted"
    USER_CREATED = "identity.user.created"
    USER_UPDATED = "identity.user.updated"
    MEMBERSHIP_CREATED = "identity.membership.created"
    MEMBERSHIP_DELETED = "identity.membership.deleted"
    SERVICE_ACCOUNT_CREATED = "identity.service_account.created"
    SERVICE_ACCOUNT_UPDATED = "identity.service_account.updated"
    SERVICE_ACCOUNT_DISABLED = "identity.service_account.disabled"
    SERVICE_ACCOUNT_ENABLED = "identity.service_account.enabled"
    SERVICE_ACCOUNT_DELETED = "identity.service_account.deleted"
    SERVICE_ACCOUNT_KEY_ADDED = "identity.service_account.key_added"
    SERVICE_ACCOUNT_KEY_REVOKED = "identity.service_account.key_revoked"
    TOKEN_ISSUED = "identity.token.issued"
    TOKEN_REVOKED = "identity.token.revoked"
    BREAK_GLASS_OPENED = "identity.break_glass.opened"
    WEBHOOK_CREATED = "contract.webhook.created"
    WEBHOOK_UPDATED = "contract.webhook.updated"
    WEBHOOK_DELETED = "contract.webhook.deleted"
    DELIVERY_DEAD = "contract.delivery.dead"
    DELIVERY_REPLAYED = "contract.delivery.replayed"
    APP_CREATED = "catalog.app.created"
    APP_UPDATED = "catalog.app.updated"
    APP_VERSION_CREATED = "catalog.app_version.created"
    APP_VERSION_UPDATED = "catalog.app_version.updated"
    APP_VERSION_PROMOTED = "catalog.app_version.promoted"
    ARTIFACT_PUSH_ALLOWED = "catalog.artifact.push_allowed"
    ARTIFACT_REGISTERED = "catalog.artifact.registered"
    ARTIFACT_PROMOTED = "catalog.artifact.promoted"
    ARTIFACT_TRUST_CHANGED = "catalog.artifact.trust_changed"
    ARTIFACT_CHECK_ENDED = "catalog.artifact_check.ended"
    ARTIFACT_SOURCE_CHANGED = "catalog.artifact_source.changed"
    SIGNER_KEY_CHANGED = "catalog.signer_key.changed"
    ENTITLEMENT_CHANGED = "catalog.entitlement.changed"
    POLICY_CHANGED = "catalog.policy.changed"


MEANING: Final[Mapping[EventType, str]] = {
    EventType.TENANT_CREATED: "A tenant was made, with its first admin.",
    EventType.TENANT_UPDATED: "A tenant's display name changed.",
    EventType.PROJECT_CREATED: "A project was made.",
    EventType.PROJECT_UPDATED: "A project's display name changed.",
    EventType.PROJECT_DELETED: "An empty project was deleted.",
    EventType.USER_CREATED: "A user was made; the one-time sign-in went to whoever made it.",
    EventType.USER_UPDATED: "A user was disabled, enabled, reset, or changed the password; `data.change` says which.",
    EventType.MEMBERSHIP_CREATED: "A user was given a role.",
    EventType.MEMBERSHIP_DELETED: "A role was taken from a user; its open streams close.",
    EventType.SERVICE_ACCOUNT_CREATED: "A service account was made.",
    EventType.SERVICE_ACCOUNT_UPDATED: "A service account's list of actions changed.",
    EventType.SERVICE_ACCOUNT_DISABLED: "A service account was switched off; its tokens no longer count.",
    EventType.SERVICE_ACCOUNT_ENABLED: "A service account was switched on again.",
    EventType.SERVICE_ACCOUNT_DELETED: "A service account was deleted for ever.",
    EventType.SERVICE_ACCOUNT_KEY_ADDED: "A public key was added to a service account.",
    EventType.SERVICE_ACCOUNT_KEY_REVOKED: "A key of a service account was revoked, and the tokens made with it.",
    EventType.TOKEN_ISSUED: "A token was issued; its secret is in no event.",
    EventType.TOKEN_REVOKED: "A token was revoked; it is refused everywhere within the token cache's time.",
    EventType.BREAK_GLASS_OPENED: "A platform admin entered a tenant for a bounded time; `data.reason` says why.",
    EventType.WEBHOOK_CREATED: "A webhook was made.",
    EventType.WEBHOOK_UPDATED: "A webhook was changed, paused, resumed or re-keyed; `data.change` says which.",
    EventType.WEBHOOK_DELETED: "A webhook was deleted; what it had not delivered is dropped.",
    EventType.DELIVERY_DEAD: "A delivery failed as often as it is tried and waits for a replay.",
    EventType.DELIVERY_REPLAYED: "A delivery is sent again at somebody's request.",
    EventType.APP_CREATED: "An app was registered.",
    EventType.APP_UPDATED: "An app's card changed.",
    EventType.APP_VERSION_CREATED: "A version was published as a draft.",
    EventType.APP_VERSION_UPDATED: "A draft's manifest or a canary's percentage changed; `data.change` says which.",
    EventType.APP_VERSION_PROMOTED: "A version moved through its promotion; `data` says from where to where and why.",
    EventType.ARTIFACT_PUSH_ALLOWED: "A token to push to one repository of the platform's registry was given.",
    EventType.ARTIFACT_REGISTERED: "An artifact was registered under its digest.",
    EventType.ARTIFACT_PROMOTED: "An artifact moved through its promotion; `data` says from where to where and why.",
    EventType.ARTIFACT_TRUST_CHANGED: "What the evidence says about an artifact changed; `data` says how and why.",
    EventType.ARTIFACT_CHECK_ENDED: "The check of an artifact's bytes succeeded, failed or was cancelled; `data` says.",
    EventType.ARTIFACT_SOURCE_CHANGED: "A source was put on the list or taken off it; `data.change` says which.",
    EventType.SIGNER_KEY_CHANGED: "A signer key was added or removed; trust is derived with it from now on.",
    EventType.ENTITLEMENT_CHANGED: "A project's right to launch an app was given, narrowed or taken.",
    EventType.POLICY_CHANGED: "A layer of the policy changed.",
}
if set(MEANING) != set(EventType):
    raise ValueError("every event type needs a meaning, and every meaning a type")
