"""The closed table of event types.

An event says what became true, in the past tense, and is written in the transaction that made it true. A new type
needs a proven use. `docs/events.md` is generated from this table.
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
    PROJECT_SECRET_CHANGED = "identity.project_secret.changed"
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
    IDENTITY_PROVIDER_CHANGED = "identity.identity_provider.changed"
    PASSKEY_CHANGED = "identity.passkey.changed"
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
    WORKLOAD_ADAPTER_CHANGED = "catalog.workload_adapter.changed"
    ENTITLEMENT_CHANGED = "catalog.entitlement.changed"
    POLICY_CHANGED = "catalog.policy.changed"
    ALLOCATION_REQUESTED = "capacity.allocation.requested"
    ALLOCATION_PLACED = "capacity.allocation.placed"
    ALLOCATION_ACTIVE = "capacity.allocation.active"
    ALLOCATION_FAILED = "capacity.allocation.failed"
    ALLOCATION_RELEASING = "capacity.allocation.releasing"
    ALLOCATION_RELEASE_FAILED = "capacity.allocation.release_failed"
    ALLOCATION_RELEASED = "capacity.allocation.released"
    ALLOCATION_LOST = "capacity.allocation.lost"
    ALLOCATION_WAITING = "capacity.allocation.waiting"
    ALLOCATION_GROUP_CREATED = "capacity.allocation_group.created"
    ENROLMENT_TOKEN_CHANGED = "nodes.enrolment_token.changed"
    NODE_ENROLLED = "nodes.node.enrolled"
    NODE_CHANGED = "nodes.node.changed"
    NODE_UNREACHABLE = "nodes.node.unreachable"
    NODE_REACHABLE = "nodes.node.reachable"
    NODE_RETIRED = "nodes.node.retired"
    PLATFORM_KEY_PREPARED = "nodes.platform_key.prepared"
    PLATFORM_KEY_ROTATED = "nodes.platform_key.rotated"
    SKU_CHANGED = "nodes.sku.changed"
    CORRECTION_BOOKED = "billing.correction.booked"
    PRICE_SET = "billing.price.set"
    STATEMENT_CLOSING = "billing.statement.closing"
    STATEMENT_CLOSED = "billing.statement.closed"
    METER_SET = "billing.meter.set"
    QUOTA_CHANGED = "billing.quota.changed"
    BUDGET_CHANGED = "billing.budget.changed"
    BUDGET_CROSSED = "billing.budget.crossed"
    PREPAID_CHANGED = "billing.prepaid.changed"
    PAYMENT_BOOKED = "billing.payment.booked"
    BALANCE_LOW = "billing.balance.low"
    BALANCE_DEPLETED = "billing.balance.depleted"
    LATE_USAGE_RECEIVED = "billing.late_usage.received"
    LATE_USAGE_RESOLVED = "billing.late_usage.resolved"
    TASK_QUEUED = "nodes.task.queued"
    TASK_CANCELLING = "nodes.task.cancelling"
    TASK_FINISHED = "nodes.task.finished"
    RECEIPT_ADDED = "nodes.receipt.added"
    VISIT_GRANTED = "nodes.visit.granted"
    VISIT_OPENED = "nodes.visit.opened"
    VISIT_ENDED = "nodes.visit.ended"
    INSTANCE_REQUESTED = "apps.instance.requested"
    INSTANCE_STARTING = "apps.instance.starting"
    INSTANCE_RUNNING = "apps.instance.running"
    INSTANCE_FAILED = "apps.instance.failed"
    INSTANCE_DELETING = "apps.instance.deleting"
    INSTANCE_DELETED = "apps.instance.deleted"
    INSTANCE_START_COMPLETED = "apps.instance.start_completed"
    INSTANCE_HEALTHY = "apps.instance.healthy"
    INSTANCE_CHANGED = "apps.instance.changed"
    INSTANCE_TRUST_LOST = "apps.instance.trust_lost"
    INSTANCE_TRUST_RESTORED = "apps.instance.trust_restored"
    MEMBER_ADDED = "apps.instance.member_added"
    MEMBER_DRAINED = "apps.instance.member_drained"
    MEMBER_REMOVED = "apps.instance.member_removed"
    MEMBER_FAILED = "apps.instance.member_failed"
    MEMBER_CHANGED = "apps.member.changed"
    OPERATION_CHANGED = "apps.operation.changed"
    ATTACHMENT_CHANGED = "apps.attachment.changed"
    ATTACHMENT_ACTION_CHANGED = "apps.attachment.action_changed"
    ATTACHMENT_TRUST_LOST = "apps.attachment.trust_lost"
    ATTACHMENT_TRUST_RESTORED = "apps.attachment.trust_restored"


MEANING: Final[Mapping[EventType, str]] = {
    EventType.TENANT_CREATED: "A tenant was made, with its first admin.",
    EventType.TENANT_UPDATED: "A tenant's display name or its source networks changed.",
    EventType.PROJECT_CREATED: "A project was made.",
    EventType.PROJECT_UPDATED: "A project's display name changed.",
    EventType.PROJECT_DELETED: "An empty project was deleted.",
    EventType.PROJECT_SECRET_CHANGED: "A project's secret was created, rotated or deleted; `data.change` says which.",
    EventType.USER_CREATED: "A user was made; their creator got the one-time sign-in code.",
    EventType.USER_UPDATED: (
        "A user was disabled, enabled or reset, changed the password, or ended sessions; `data.change` says which."
    ),
    EventType.MEMBERSHIP_CREATED: "A user was given a role.",
    EventType.MEMBERSHIP_DELETED: "A role was taken from a user; the user's open streams are closed.",
    EventType.SERVICE_ACCOUNT_CREATED: "A service account was made.",
    EventType.SERVICE_ACCOUNT_UPDATED: "A service account's list of actions changed.",
    EventType.SERVICE_ACCOUNT_DISABLED: "A service account was switched off; its tokens are no longer accepted.",
    EventType.SERVICE_ACCOUNT_ENABLED: "A service account was switched on again.",
    EventType.SERVICE_ACCOUNT_DELETED: "A service account was permanently deleted.",
    EventType.SERVICE_ACCOUNT_KEY_ADDED: "A public key was added to a service account.",
    EventType.SERVICE_ACCOUNT_KEY_REVOKED: "A key of a service account was revoked, and the tokens made with it.",
    EventType.IDENTITY_PROVIDER_CHANGED: (
        "An identity provider was set up, changed or deleted; `data.change` says which."
    ),
    EventType.PASSKEY_CHANGED: "A user registered, renamed or deleted a passkey; `data.change` says which.",
    EventType.TOKEN_ISSUED: "A token was issued; no event contains its secret.",
    EventType.TOKEN_REVOKED: "A token was revoked; every process refuses it once its token cache has expired.",
    EventType.BREAK_GLASS_OPENED: "A platform admin entered a tenant for a bounded time; `data.reason` says why.",
    EventType.WEBHOOK_CREATED: "A webhook was made.",
    EventType.WEBHOOK_UPDATED: "A webhook was changed, paused, resumed or re-keyed; `data.change` says which.",
    EventType.WEBHOOK_DELETED: "A webhook was deleted; its undelivered events are dropped.",
    EventType.DELIVERY_DEAD: "A delivery failed on every attempt and waits for a replay.",
    EventType.DELIVERY_REPLAYED: "A delivery is sent again on request.",
    EventType.APP_CREATED: "An app was registered.",
    EventType.APP_UPDATED: "An app's card changed.",
    EventType.APP_VERSION_CREATED: "A version was published as a draft.",
    EventType.APP_VERSION_UPDATED: "A draft's manifest or a canary's percentage changed; `data.change` says which.",
    EventType.APP_VERSION_PROMOTED: "A version moved through its promotion; `data` says from where to where and why.",
    EventType.ARTIFACT_PUSH_ALLOWED: "A token to push to one repository of the platform's registry was issued.",
    EventType.ARTIFACT_REGISTERED: "An artifact was registered under its digest.",
    EventType.ARTIFACT_PROMOTED: "An artifact moved through its promotion; `data` says from where to where and why.",
    EventType.ARTIFACT_TRUST_CHANGED: "What the evidence says about an artifact changed; `data` says how and why.",
    EventType.ARTIFACT_CHECK_ENDED: "The check of an artifact's bytes ended; `data` says how: succeeded, failed or "
    "cancelled.",
    EventType.ARTIFACT_SOURCE_CHANGED: "A source was put on the list or taken off it; `data.change` says which.",
    EventType.SIGNER_KEY_CHANGED: "A signer key was added or removed; trust is derived from the new list of keys.",
    EventType.WORKLOAD_ADAPTER_CHANGED: "The key of the platform's workload adapter was set or removed.",
    EventType.ENTITLEMENT_CHANGED: "A project's right to launch an app was granted, narrowed or withdrawn.",
    EventType.POLICY_CHANGED: "A layer of the policy changed.",
    EventType.ALLOCATION_REQUESTED: "Capacity was requested; the scheduler looks for a place.",
    EventType.ALLOCATION_PLACED: "An allocation has a machine and its slots; the node creates its sandbox.",
    EventType.ALLOCATION_ACTIVE: "An allocation's sandbox is ready; charging starts.",
    EventType.ALLOCATION_FAILED: "An allocation could not be set up; `data.failure_code` says why.",
    EventType.ALLOCATION_RELEASING: "The teardown of an allocation began; charging stops.",
    EventType.ALLOCATION_RELEASE_FAILED: "A teardown left something behind or did not finish; the slots stay blocked.",
    EventType.ALLOCATION_RELEASED: "An allocation is over; `data.teardown_proof` says what proves it.",
    EventType.ALLOCATION_LOST: "A tenant lost an allocation: because of its node, the tenant's balance, or an admin.",
    EventType.ALLOCATION_WAITING: "What an allocation waits for changed; `data.blocker` names it, or is null.",
    EventType.ALLOCATION_GROUP_CREATED: "Several allocations were requested together.",
    EventType.ENROLMENT_TOKEN_CHANGED: "A one-time token for a machine was made or revoked; `data.change` says which.",
    EventType.NODE_ENROLLED: "A machine joined as a node; it accepts work once its agent has reported its inventory.",
    EventType.NODE_CHANGED: "A node became ready, is draining, is drained, resumed, has another inventory, or was "
    "swept; `data.change` says which.",
    EventType.NODE_UNREACHABLE: "A node sent no heartbeat for too long; `data.last_seen_at` says since when.",
    EventType.NODE_REACHABLE: "An unreachable node sends heartbeats again.",
    EventType.NODE_RETIRED: "A node was permanently retired and its key is no longer accepted; `data.written_off` says "
    "whether something may be left on it.",
    EventType.PLATFORM_KEY_PREPARED: "A new key waits for the signature of the operator's root key.",
    EventType.PLATFORM_KEY_ROTATED: "A new key signs tasks, and nodes refuse the previous one; `data.epoch` is set if "
    "the operator's root key signed it.",
    EventType.SKU_CHANGED: "A SKU was made, changed, re-priced, withdrawn or offered again; `data.change` says which.",
    EventType.CORRECTION_BOOKED: "An admin credited a project, or charged it, for a booked transaction; "
    "`data.micro` is the difference in 10⁻⁶ minor unit.",
    EventType.LATE_USAGE_RECEIVED: "Usage came after the window and waits until somebody resolves it; `data.late` says "
    "how many events of the batch.",
    EventType.LATE_USAGE_RESOLVED: "Late usage was accepted, or rejected; `data.status` says which.",
    EventType.PRICE_SET: "A price was added to the list, or to a tenant's contract; `data.existing_from` says from "
    "when on running allocations are charged by it.",
    EventType.STATEMENT_CLOSING: "A month was frozen: nothing more counts in it, and a worker closes its statement.",
    EventType.STATEMENT_CLOSED: "A month's statement was closed and never changes again; `data` has the month, the "
    "currency, the total in 10⁻⁶ minor unit and the digest.",
    EventType.METER_SET: "It was decided how a unit of an app is billed; `data` has app, unit, billing and status.",
    EventType.QUOTA_CHANGED: "The quota of a tenant or project was set.",
    EventType.BUDGET_CHANGED: "The budget of a tenant or project was set.",
    EventType.BUDGET_CROSSED: "What was spent reached a threshold of a budget, once in this month; `data.action` says "
    "what follows, `data.basis` whether it is booked (`measured`) or also counts running clocks (`estimated`).",
    EventType.PREPAID_CHANGED: "A tenant pays in advance, or its low-balance mark changed.",
    EventType.PAYMENT_BOOKED: "A payment, credit or refund of a tenant was booked.",
    EventType.BALANCE_LOW: "The balance of a tenant that pays in advance is low; once after each payment.",
    EventType.BALANCE_DEPLETED: "The balance of a tenant that pays in advance is used up: its instances are stopped "
    "and its allocations released.",
    EventType.TASK_QUEUED: "A task waits for its node's agent, for the first time or because its lease was lost.",
    EventType.TASK_CANCELLING: "The agent that holds a task was asked to end it early.",
    EventType.TASK_FINISHED: "A task is over; `data` says how, and names its receipt where there is one.",
    EventType.RECEIPT_ADDED: "A receipt arrived after its task had been given up, and was added to the record.",
    EventType.VISIT_GRANTED: "A principal may reach an endpoint, or run a command, for a limited time; "
    "`data.kind` says which, and the audit trail has a command's arguments.",
    EventType.VISIT_OPENED: "A link became a browser's session, or a command was started; `data.kind` says which.",
    EventType.VISIT_ENDED: "A terminal that could be resumed ended; `data.reason` says why.",
    EventType.INSTANCE_REQUESTED: "The launch of an app was accepted; nothing is built yet.",
    EventType.INSTANCE_STARTING: "The adapter began to build the instance.",
    EventType.INSTANCE_RUNNING: "The adapter observed that the instance is ready.",
    EventType.INSTANCE_FAILED: "The instance failed; `data` names the cause.",
    EventType.INSTANCE_DELETING: "The teardown of the instance began.",
    EventType.INSTANCE_DELETED: "Each member has a closing record; `data.teardown_proof` says of which kind.",
    EventType.INSTANCE_START_COMPLETED: "A launch, an upgrade, a rollback or a restart finished.",
    EventType.INSTANCE_HEALTHY: "An unhealthy instance was observed to be healthy again.",
    EventType.INSTANCE_CHANGED: "The instance's health, endpoints or adapter details changed.",
    EventType.INSTANCE_TRUST_LOST: "An artifact that the instance runs is not trusted any more, or the policy reacts "
    "to that in another way; `data` names the digests, the reasons and the reaction.",
    EventType.INSTANCE_TRUST_RESTORED: "Everything that the instance runs is trusted again.",
    EventType.MEMBER_ADDED: "A member is in service.",
    EventType.MEMBER_DRAINED: "The adapter observed that a member has no work left.",
    EventType.MEMBER_REMOVED: "A member has its closing record.",
    EventType.MEMBER_FAILED: "A member failed; `data` names the cause.",
    EventType.MEMBER_CHANGED: "Something else about a member changed: its state, its health, what it waits for.",
    EventType.OPERATION_CHANGED: "An operation was accepted, made progress, met a blocker or ended; `data` says which.",
    EventType.ATTACHMENT_CHANGED: "A project's use of another project's instance was requested, began, is being ended, "
    "ended or was refused; `data.status` says which. Both projects get the event.",
    EventType.ATTACHMENT_ACTION_CHANGED: "An action of the project on an instance that it is attached to was "
    "accepted or ended; `data` says how.",
    EventType.ATTACHMENT_TRUST_LOST: "An artifact of the instance that the project is attached to is not trusted any "
    "more, or the policy reacts to that in another way; `data` has the codes and the reaction.",
    EventType.ATTACHMENT_TRUST_RESTORED: "Everything that the instance runs is trusted again, to which the project is "
    "attached.",
}
if set(MEANING) != set(EventType):
    raise ValueError("every event type needs a meaning, and every meaning a type")
