"""Who may do what: action keys, roles as sets of keys, and one pure decision.

A route requires an action key at a place (the platform, a tenant, a project); no code checks for a role by its name.
A role is a set of keys, defined by the table below. A platform role applies only at platform places and gives no
access to a tenant's data: that takes break-glass, which has its own endpoint and requires a reason. A tenant role
applies in the tenant and in each of its projects, a project role in that project only. A service account has its own
list of keys in its one project; one that a tenant's admin made a publisher (`catalog.publish`) may use its catalog keys
in the tenant's catalog too, since apps belong to tenants, and nowhere else outside of its project. A node has
the keys of its agent, which apply to that node only.

There are three answers: allowed; denied (the caller belongs here but lacks the key: 403); hidden (the caller does not
belong here and learns nothing: 404).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Scope(StrEnum):
    """The kind of place that a route acts in."""

    PUBLIC = "public"  # no token is required
    SELF = "self"  # the caller's own resources: any principal with a token
    PLATFORM = "platform"
    TENANT = "tenant"
    PROJECT = "project"
    NODE = "node"  # a node's own resources: for its agent only
    RUNTIME = "runtime"  # the one project of a service account: for adapters only, never for people


class Role(StrEnum):
    """A named set of action keys that a membership gives."""

    PLATFORM_ADMIN = "platform_admin"
    PLATFORM_OPERATOR = "platform_operator"
    TENANT_ADMIN = "tenant_admin"
    PROJECT_ADMIN = "project_admin"
    PROJECT_MEMBER = "project_member"
    PROJECT_VIEWER = "project_viewer"


ROLE_SCOPE: Final[Mapping[Role, Scope]] = {
    Role.PLATFORM_ADMIN: Scope.PLATFORM,
    Role.PLATFORM_OPERATOR: Scope.PLATFORM,
    Role.TENANT_ADMIN: Scope.TENANT,
    Role.PROJECT_ADMIN: Scope.PROJECT,
    Role.PROJECT_MEMBER: Scope.PROJECT,
    Role.PROJECT_VIEWER: Scope.PROJECT,
}

_PA, _PO, _TA = Role.PLATFORM_ADMIN, Role.PLATFORM_OPERATOR, Role.TENANT_ADMIN
_JA, _JM, _JV = Role.PROJECT_ADMIN, Role.PROJECT_MEMBER, Role.PROJECT_VIEWER

_EVERYONE = (_PA, _PO, _TA, _JA, _JM, _JV)
_PLATFORM = (_PA, _PO)
_IN_PROJECT = (_TA, _JA, _JM, _JV)
_WORKS_IN_PROJECT = (_TA, _JA, _JM)
_LEADS_PROJECT = (_TA, _JA)


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One action key: what it allows, and which roles include it."""

    key: str
    meaning: str
    roles: tuple[Role, ...]
    human_only: bool = False  # never on a service account's list
    node_only: bool = False  # held by a node's agent, and part of no role
    widens: bool = False  # opens nothing by itself: with it, other keys apply in one more place
    by_app: bool = False  # for the actions of apps of the category: their manifests name it, and no route does


_TABLE: Final = (
    # identity
    ActionSpec("tenant.create", "make a tenant with its first admin", (_PA,)),
    ActionSpec("tenant.read", "read a tenant", _EVERYONE),
    ActionSpec("tenant.update", "change a tenant's display name", (_PA, _TA)),
    ActionSpec("source_network.read", "read from which networks a tenant may be used", (_PA, _PO, _TA)),
    ActionSpec("source_network.update", "change from which networks a tenant may be used", (_PA, _TA), human_only=True),
    ActionSpec("project.create", "make a project in a tenant", (_TA,)),
    ActionSpec("project.read", "read a project", _IN_PROJECT),
    ActionSpec("project.update", "change a project's display name", _LEADS_PROJECT),
    ActionSpec("project.delete", "delete an empty project", (_TA,)),
    ActionSpec("project_secret.create", "store a secret in a project", _WORKS_IN_PROJECT),
    ActionSpec("project_secret.read", "list a project's secrets, never their values", _IN_PROJECT),
    ActionSpec("project_secret.rotate", "replace the value of a project's secret", _WORKS_IN_PROJECT),
    ActionSpec("project_secret.delete", "delete a project's secret", _WORKS_IN_PROJECT),
    ActionSpec("project_secret.use", "name a project's secrets in a launch", _WORKS_IN_PROJECT),
    ActionSpec("user.create", "make a user with a one-time sign-in", (_PA, _TA), human_only=True),
    ActionSpec("user.read", "read users", (_PA, _PO, _TA)),
    ActionSpec("user.update", "disable, enable or reset a user", (_PA, _TA), human_only=True),
    ActionSpec("membership.create", "give a user a role", (_PA, _TA, _JA), human_only=True),
    ActionSpec("membership.read", "read who has which role", (_PA, _PO, _TA, _JA, _JM, _JV)),
    ActionSpec("membership.delete", "take a role away", (_PA, _TA, _JA), human_only=True),
    ActionSpec("service_account.create", "make a service account", _LEADS_PROJECT, human_only=True),
    ActionSpec("service_account.read", "read service accounts and their public keys", _IN_PROJECT),
    ActionSpec(
        "service_account.update",
        "change a service account's list of actions",
        _LEADS_PROJECT,
        human_only=True,
    ),
    ActionSpec("service_account.disable", "switch a service account off", _LEADS_PROJECT),
    ActionSpec("service_account.enable", "switch a service account on again", _LEADS_PROJECT, human_only=True),
    ActionSpec("service_account.delete", "permanently delete a service account", _LEADS_PROJECT),
    ActionSpec("service_account.key.create", "add a public key to a service account", _LEADS_PROJECT),
    ActionSpec("service_account.key.revoke", "revoke a key of a service account", _LEADS_PROJECT),
    ActionSpec("token.create", "make a personal access token", _EVERYONE, human_only=True),
    ActionSpec("token.read", "read one's own tokens, never their secret", _EVERYONE),
    ActionSpec("token.revoke", "revoke one's own token", _EVERYONE),
    ActionSpec("user_token.read", "read the sessions and tokens of users, never their secret", (_PA, _TA)),
    ActionSpec("user_token.revoke", "end sessions and revoke tokens of users", (_PA, _TA)),
    ActionSpec("self.read", "read who one is and what one may do", _EVERYONE),
    ActionSpec(
        "self.update",
        "change one's own password and passkeys, and end one's other sessions",
        _EVERYONE,
        human_only=True,
    ),
    ActionSpec("identity_provider.read", "read the identity providers of a place, never their secret", (_PA, _TA)),
    ActionSpec(
        "identity_provider.update",
        "decide which identity providers sign people in, and with which roles",
        (_PA, _TA),
        human_only=True,
    ),
    ActionSpec("break_glass.open", "enter a tenant for a bounded time with a stated reason", (_PA,), human_only=True),
    ActionSpec("break_glass.read", "read who entered which tenant, when and why", (_PA, _PO, _TA)),
    # contract
    ActionSpec(
        "overview.read", "see counts, health, capacity and failures over all tenants, and no tenant's data", _PLATFORM
    ),
    ActionSpec("event.read", "read and follow events", _EVERYONE),
    ActionSpec("audit.read", "read the audit trail", (_PA, _PO, _TA, _JA)),
    ActionSpec("webhook.create", "send events to an address", (_PA, _TA, _JA)),
    ActionSpec("webhook.read", "read webhooks, never their key", (_PA, _PO, _TA, _JA)),
    ActionSpec("webhook.update", "change, pause or re-key a webhook", (_PA, _TA, _JA)),
    ActionSpec("webhook.delete", "delete a webhook", (_PA, _TA, _JA)),
    ActionSpec("outbox.read", "read deliveries and dead letters", (_PA, _PO, _TA, _JA)),
    ActionSpec("outbox.replay", "send a delivery again", (_PA, _PO, _TA, _JA)),
    # catalog
    ActionSpec("catalog.read", "browse apps and their versions", _EVERYONE),
    ActionSpec("catalog.publish", "use one's artifact and version keys in the tenant's catalog", (_TA,), widens=True),
    ActionSpec("app.create", "register an app", (_PA, _TA)),
    ActionSpec("app.update", "change an app's card", (_PA, _TA)),
    ActionSpec("app_version.create", "publish a version with its manifest", (_PA, _TA, _JA)),
    ActionSpec("app_version.read", "read versions and manifests", _EVERYONE),
    ActionSpec("app_version.promote", "move a version through its promotion", (_PA, _TA)),
    ActionSpec("artifact.create", "publish an artifact", (_PA, _TA, _JA)),
    ActionSpec("artifact.read", "read artifacts, evidence and history", _EVERYONE),
    ActionSpec("artifact.verify", "verify an artifact's evidence", (_PA, _PO, _TA, _JA)),
    ActionSpec("artifact.promote", "move an artifact through its promotion", (_PA, _TA)),
    ActionSpec("artifact.revoke", "permanently revoke an artifact", (_PA, _TA)),
    ActionSpec("artifact_source.read", "read the allowed sources", _EVERYONE),
    ActionSpec("artifact_source.update", "change the allowed sources", (_PA, _TA), human_only=True),
    ActionSpec("signer_key.read", "read trusted signer keys", (_PA, _PO, _TA, _JA)),
    ActionSpec("signer_key.update", "add, rotate or remove trusted signer keys", (_PA, _TA), human_only=True),
    ActionSpec("policy.read", "read and explain policy", _EVERYONE),
    ActionSpec("policy.update", "change a policy layer", (_PA, _TA, _JA), human_only=True),
    ActionSpec("entitlement.read", "read which apps a project may launch", _EVERYONE),
    ActionSpec("entitlement.update", "allow or forbid a project an app", (_PA, _TA), human_only=True),
    # capacity
    ActionSpec("node.enrol", "let a machine join", (_PA,), human_only=True),
    ActionSpec("node.approve", "accept or reject a machine, or what it reports", (_PA,), human_only=True),
    ActionSpec("node.read", "read nodes, slots and their health", _PLATFORM),
    ActionSpec("node.drain", "drain a node, or resume it", _PLATFORM),
    ActionSpec("node.operate", "drain, resume, cordon, uncordon and label nodes", _PLATFORM),
    ActionSpec("node.retire", "permanently retire a node", (_PA,), human_only=True),
    ActionSpec("sku.update", "change SKUs and prices", (_PA,), human_only=True),
    ActionSpec("allocation.create", "request capacity", _WORKS_IN_PROJECT),
    ActionSpec("allocation.read", "read allocations", _IN_PROJECT),
    ActionSpec("allocation.release", "release an allocation", _WORKS_IN_PROJECT),
    ActionSpec("receipt.read", "read and verify receipts", (_PA, _PO, *_IN_PROJECT)),
    ActionSpec("teardown.write_off", "write off what a lost node held", (_PA,), human_only=True),
    ActionSpec("platform_key.read", "read the keys that sign tasks, never their private half", _PLATFORM),
    ActionSpec("platform_key.rotate", "put the next key that signs tasks into use", (_PA,), human_only=True),
    # agents
    ActionSpec(
        "agent.claim", "claim the tasks of one's own node, and read the keys that it trusts", (), node_only=True
    ),
    ActionSpec("agent.report", "report one's own node's inventory and results", (), node_only=True),
    # instances
    ActionSpec("instance.create", "launch any app", _WORKS_IN_PROJECT),
    ActionSpec("instance.read", "read instances", _IN_PROJECT),
    ActionSpec("instance.update", "upgrade, roll back, reconcile, repair or restart", _WORKS_IN_PROJECT),
    ActionSpec("instance.delete", "stop and decommission an instance", _WORKS_IN_PROJECT),
    ActionSpec("instance.connect", "open an endpoint of an instance", _WORKS_IN_PROJECT),
    ActionSpec("instance.exec", "run an interactive command in a sandbox", _LEADS_PROJECT),
    ActionSpec("exec_recording.read", "list and read what recorded commands showed", (_TA,), human_only=True),
    ActionSpec("member.read", "read members", _IN_PROJECT),
    ActionSpec("member.add", "add members", _WORKS_IN_PROJECT),
    ActionSpec("member.drain", "drain a member, or resume it", _WORKS_IN_PROJECT),
    ActionSpec("member.remove", "remove a member", _WORKS_IN_PROJECT),
    ActionSpec("member.replace", "replace a member", _WORKS_IN_PROJECT),
    ActionSpec("operation.read", "read operations", _IN_PROJECT),
    ActionSpec("operation.cancel", "cancel an operation", _WORKS_IN_PROJECT),
    ActionSpec("attachment.create", "attach a project to a shared instance", (_TA,), human_only=True),
    ActionSpec("attachment.read", "read attachments", _IN_PROJECT),
    ActionSpec("attachment.delete", "detach a project", (_TA,), human_only=True),
    # adapters
    ActionSpec("runtime.claim", "claim instances of an app as its adapter", _LEADS_PROJECT),
    ActionSpec("runtime.report", "report steps, members, endpoints and health", _LEADS_PROJECT),
    ActionSpec("task.create", "make tasks for the nodes of one's own members", _LEADS_PROJECT),
    ActionSpec("task.read", "read tasks and their logs", _IN_PROJECT),
    ActionSpec("task.cancel", "end a task early", _WORKS_IN_PROJECT),
    ActionSpec("secret.create", "store a runtime secret", _LEADS_PROJECT),
    ActionSpec("secret.read", "list runtime secrets, never their values", _LEADS_PROJECT),
    ActionSpec("secret.grant", "hand a runtime secret to one task", _LEADS_PROJECT),
    # money
    ActionSpec("usage.read", "read usage records", (_PA, _PO, *_IN_PROJECT)),
    ActionSpec("usage.report", "report usage of an app", _LEADS_PROJECT),
    ActionSpec("billing.price.read", "read prices: the list's, and those of one's own contract", _EVERYONE),
    ActionSpec("billing.price.update", "add prices to the list or to a contract", (_PA,), human_only=True),
    ActionSpec("billing.meter.read", "read how units of apps are billed", _PLATFORM),
    ActionSpec("billing.meter.update", "decide how units of apps are billed", (_PA,), human_only=True),
    ActionSpec("billing.read", "read cost, ledger and statements", _IN_PROJECT),
    ActionSpec("billing.overview.read", "see what tenants, apps, SKUs and units cost, over all tenants", _PLATFORM),
    ActionSpec(
        "billing.statement.close", "list the statements of all tenants, and close a month", (_PA,), human_only=True
    ),
    ActionSpec("billing.prove", "prove that the ledger follows from the lifecycle log", (_PA, _PO, _TA)),
    ActionSpec("billing.correct", "credit or charge a project by hand, with a reason", (_PA,), human_only=True),
    ActionSpec("usage.resolve", "accept or reject usage that came too late", _LEADS_PROJECT, human_only=True),
    ActionSpec("billing.budget.read", "read budgets, quotas, the balance and payments", (_PA, _PO, *_IN_PROJECT)),
    ActionSpec("billing.budget.update", "set the budget of a tenant or project", _LEADS_PROJECT, human_only=True),
    ActionSpec(
        "billing.quota.update", "set a tenant's quota (platform) or a project's (tenant)", (_PA, _TA), human_only=True
    ),
    ActionSpec(
        "billing.payment.create", "book payments and credits, and let tenants pay in advance", (_PA,), human_only=True
    ),
    # the family of the category `scheduler`
    ActionSpec("scheduler.catalog.read", "browse apps of this category", _IN_PROJECT),
    ActionSpec("scheduler.instance.read", "read instances of this category", _IN_PROJECT),
    ActionSpec("scheduler.instance.create", "launch apps of this category", _WORKS_IN_PROJECT),
    ActionSpec("scheduler.instance.update", "change instances of this category", _WORKS_IN_PROJECT),
    ActionSpec("scheduler.instance.delete", "decommission instances of this category", _WORKS_IN_PROJECT),
    ActionSpec("scheduler.queue.submit", "submit to a queue", _WORKS_IN_PROJECT, by_app=True),
    ActionSpec("scheduler.queue.read", "read a queue", _IN_PROJECT, by_app=True),
    ActionSpec("scheduler.queue.cancel", "cancel queued and running jobs", _WORKS_IN_PROJECT, by_app=True),
    ActionSpec("scheduler.node.read", "read a scheduler's nodes", _IN_PROJECT, by_app=True),
    ActionSpec("scheduler.node.operate", "drain and resume a scheduler's nodes", _LEADS_PROJECT, by_app=True),
)

ACTIONS: Final[Mapping[str, ActionSpec]] = {action.key: action for action in _TABLE}
if len(ACTIONS) != len(_TABLE):
    raise ValueError("the table has the same action key twice")

RETIRED_ACTIONS: Final = frozenset({"sku.read", "ledger.read", "ledger.correct", "budget.read", "budget.update"})
"""Keys that never opened anything. They are still accepted where a caller names keys, and mean nothing."""

ROLE_ACTIONS: Final[Mapping[Role, frozenset[str]]] = {
    role: frozenset(action.key for action in _TABLE if role in action.roles) for role in Role
}
PUBLISH: Final = "catalog.publish"
PUBLISHER_KEYS: Final = frozenset({PUBLISH, "app_version.promote", "artifact.promote"})
"""What a tenant's admin may give a service account that publishes, and what no app's operator account may have."""
PUBLISHING: Final = PUBLISHER_KEYS | {
    "app_version.create",
    "app_version.read",
    "artifact.create",
    "artifact.read",
    "artifact.verify",
    "artifact_source.read",
    "catalog.read",
}
"""The keys that apply in the tenant's catalog too, if the account's list has them and `catalog.publish`."""
OPERATOR_CEILING: Final = frozenset(
    action.key for action in _TABLE if Role.PROJECT_ADMIN in action.roles and not action.human_only
)
"""The most that an app may require for its operator account."""
SERVICE_ACCOUNT_CEILING: Final = OPERATOR_CEILING | PUBLISHER_KEYS
"""The most that a service account's list may contain, no matter who grants it."""

NODE_ACTIONS: Final = frozenset(action.key for action in _TABLE if action.node_only)
"""What a node's agent may do; every key applies to that node only."""

SELF_ACTIONS: Final = frozenset({"self.read", "token.read", "token.revoke"})
"""What any principal with a token may do with its own resources."""

APP_ACTION_PATTERN: Final = r"^app\.[a-z][a-z0-9-]{1,38}[a-z0-9](\.[a-z][a-z0-9_-]{0,39}){1,3}$"
_APP_ACTION: Final = re.compile(APP_ACTION_PATTERN)

_NOTHING: Final[frozenset[str]] = frozenset()
_TENANT_WIDE: Final = frozenset({"tenant.read"})


class AccessDecision(StrEnum):
    """The answer to "may this caller do this here?"."""

    ALLOWED = "allowed"
    DENIED = "denied"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request acts."""

    scope: Scope
    tenant_id: str | None = None
    project_id: str | None = None
    platform_too: bool = False  # platform roles apply too, although the place is in a tenant (reading the tenant)


@dataclass(frozen=True, slots=True)
class RoleBinding:
    """The keys held at one place: by a role, or by a service account's list in its project."""

    scope: Scope
    actions: frozenset[str]
    project_id: str | None = None


@dataclass(frozen=True, slots=True)
class Authority:
    """All action keys that a caller holds, by place."""

    tenant_id: str | None = None
    own: frozenset[str] = _NOTHING
    platform: frozenset[str] = _NOTHING
    tenant: frozenset[str] = _NOTHING
    projects: Mapping[str, frozenset[str]] = field(default_factory=dict)
    node: frozenset[str] = _NOTHING
    limit: frozenset[str] | None = None  # the keys that the token is limited to; all fields above respect it already

    def at(self, place: Place) -> frozenset[str]:
        """The keys that apply at this place."""
        if place.scope is Scope.SELF:
            return self.own
        if place.scope is Scope.PLATFORM:
            return self.platform
        if place.scope is Scope.NODE:
            return self.node
        if place.scope is Scope.RUNTIME:
            return self.projects.get(place.project_id or "", _NOTHING)
        if place.scope is Scope.TENANT:
            if self._is_home(place):
                return self.tenant | self._tenant_wide()
            return self.platform if place.platform_too else _NOTHING
        if place.scope is Scope.PROJECT and place.project_id is not None:
            if self._is_foreign(place):
                return self.platform if place.platform_too else _NOTHING
            project = self.projects.get(place.project_id)
            if project is None:
                return self.tenant
            return self.tenant | project if self.tenant else project
        return _NOTHING

    def access(self, action: str, place: Place) -> AccessDecision:
        """Whether `action` is allowed at this place, denied, or hidden."""
        if action in self.at(place):
            return AccessDecision.ALLOWED
        return AccessDecision.DENIED if self._belongs(place) else AccessDecision.HIDDEN

    def _is_home(self, place: Place) -> bool:
        return self.tenant_id is not None and self.tenant_id == place.tenant_id

    def _is_foreign(self, place: Place) -> bool:
        """Whether the place is known to be another tenant's; a project's route does not name the tenant."""
        return place.tenant_id is not None and place.tenant_id != self.tenant_id

    def _tenant_wide(self) -> frozenset[str]:
        """Who may read the tenant from a project of it may read the tenant itself; a publisher may publish there."""
        held = _TENANT_WIDE if any("tenant.read" in keys for keys in self.projects.values()) else _NOTHING
        for keys in self.projects.values():
            if PUBLISH in keys:
                held = held | keys & PUBLISHING
        return held

    def _belongs(self, place: Place) -> bool:
        if place.scope is Scope.TENANT:
            return self._is_home(place) or (place.platform_too and bool(self.platform))
        if place.scope is Scope.PROJECT:
            if self._is_foreign(place):
                return place.platform_too and bool(self.platform)
            return bool(self.tenant) or place.project_id in self.projects
        return True  # the existence of the platform's own collections is not secret


def authority_of(
    tenant_id: str | None, bindings: Iterable[RoleBinding], limit: frozenset[str] | None = None
) -> Authority:
    """What a caller holds: the union of its bindings, reduced to `limit` when its token has one."""
    held: dict[tuple[Scope, str | None], frozenset[str]] = {(Scope.SELF, None): SELF_ACTIONS}
    for binding in bindings:
        key = (binding.scope, binding.project_id)
        held[key] = held.get(key, _NOTHING) | binding.actions
    if limit is not None:
        held = {key: actions & limit for key, actions in held.items()}
    return Authority(
        tenant_id=tenant_id,
        own=held.get((Scope.SELF, None), _NOTHING) | {"self.read"},
        platform=held.get((Scope.PLATFORM, None), _NOTHING),
        tenant=held.get((Scope.TENANT, None), _NOTHING),
        projects={project: keys for (scope, project), keys in held.items() if scope is Scope.PROJECT and project},
        limit=limit,
    )


FAMILIES: Final[Mapping[str, Mapping[str, str]]] = {
    action: {
        key.removesuffix(f".{action}"): key
        for key in ACTIONS
        if key.endswith(f".{action}") and "." not in key.removesuffix(f".{action}")
    }
    for action in ACTIONS
}
"""For each action key, the keys that allow the same for the apps of one category, by category."""


def categories_of(authority: Authority, place: Place, action: str) -> tuple[str, ...] | None:
    """The categories of apps for which the caller may do this at this place; None means every category."""
    held = authority.at(place)
    if action in held:
        return None
    return tuple(sorted(category for category, key in FAMILIES.get(action, {}).items() if key in held))


def holds_family(authority: Authority, place: Place, action: str, category: str) -> bool:
    """Whether the caller may do this at this place to an app of this category."""
    allowed = categories_of(authority, place, action)
    return allowed is None or category in allowed


def access_by_family(authority: Authority, action: str, place: Place) -> AccessDecision:
    """The access to a route that the key of a category allows too."""
    return AccessDecision.ALLOWED if categories_of(authority, place, action) else authority.access(action, place)


def is_app_action(key: str) -> bool:
    """Whether this key has the form of an app's own action: `app.<slug>.<action>`."""
    return _APP_ACTION.fullmatch(key) is not None


def on_an_account(actions: Iterable[str]) -> frozenset[str]:
    """The keys that a service account may ever hold; others on its list are ignored."""
    return frozenset(key for key in actions if key in SERVICE_ACCOUNT_CEILING or is_app_action(key))


def beyond_ceiling(wanted: Iterable[str], held: frozenset[str]) -> tuple[str, ...]:
    """The keys of `wanted` that the granting principal does not hold, sorted."""
    return tuple(sorted(set(wanted) - held))
