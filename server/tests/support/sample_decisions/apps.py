"""How each function that decides about apps, versions, policy and entitlements is driven, for each shape of it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from mooring.core.catalog import app, app_version, entitlement, policy_change
from mooring.core.catalog.artifact_promotion import CheckResult, PromotionRequest
from mooring.core.catalog.policy import PolicyRules
from mooring.core.catalog.promotion_lifecycle import PROMOTION
from mooring.core.kernel.decision import Actor, Decision, DecisionContext, PrincipalKind
from mooring.core.kernel.ids import Prefix
from server.tests.support.catalog_rows import artifact
from server.tests.support.lifecycle_rows import context
from server.tests.support.manifests import digest, oci

WHY: Final = "because the tests say so"
NOW: Final = context()
TENANT: Final = NOW.mint(Prefix.TENANT)
PROJECT: Final = NOW.mint(Prefix.PROJECT)
CARD: Final = app.AppCard("Hello", "Says it")
POLICY: Final = policy_change.PolicySpec(PolicyRules(gpus_max=1), WHY)
TERMS: Final = entitlement.EntitlementRequest(True, entitlement.Overlay(), (), WHY)


def an_app() -> app.App:
    return app.create_app(NOW, TENANT, "hello", "tool", CARD).result


def a_version() -> app_version.AppVersion:
    return app_version.create_version(NOW, an_app(), oci()).result


def a_policy() -> policy_change.Policy:
    return policy_change.create_policy(
        NOW, NOW.mint(Prefix.POLICY), POLICY, (), tenant_id=TENANT, project_id=None
    ).result


def an_entitlement() -> entitlement.Entitlement:
    return _entitled(_person(NOW)).result


def _person(now: DecisionContext) -> DecisionContext:
    return replace(now, actor=Actor(PrincipalKind.USER, now.mint(Prefix.USER)))


def _entitled(now: DecisionContext) -> Decision[entitlement.Entitlement]:
    entitled = entitlement.EntitlementKey(TENANT, PROJECT, an_app().id, "hello")
    return entitlement.create_entitlement(now, now.mint(Prefix.ENTITLEMENT), entitled, TERMS)


def _every_move(now: DecisionContext) -> Iterator[Decision[Any]]:
    version = a_version()
    held = artifact("a", tenant_id=TENANT, trust="verified")
    checks = [CheckResult(name, version.manifest_digest, True) for name in app_version.CHECKS_TO_STAGE]
    parts = [app_version.VersionPart("main", digest("a"), held)]
    facts = app_version.VersionFacts(parts, checks, grace_period=timedelta())
    for edge in PROMOTION.edges:
        stands = replace(version, promotion=edge.source.value, deprecated_at=now.now)
        because = WHY if edge.trigger == "deprecate" else None
        requested = PromotionRequest(edge.trigger, WHY, canary_percentage=10, no_successor_because=because)
        yield app_version.move_version(now, stands, requested, facts)


def _a_percentage(now: DecisionContext) -> Decision[app_version.AppVersion]:
    canary = replace(a_version(), promotion="canary", canary_percentage=Decimal(10))
    return app_version.set_canary_percentage(now, canary, 20, WHY)


DRIVEN_APPS: Final[dict[str, Callable[[DecisionContext], Decision[Any] | Iterator[Decision[Any]]]]] = {
    "app.create_app": lambda now: app.create_app(now, TENANT, "hello", "tool", CARD),
    "app.update_app": lambda now: app.update_app(now, an_app(), app.AppCard("Other", "Card"), None),
    "app_version.create_version": lambda now: app_version.create_version(now, an_app(), oci()),
    "app_version.replace_manifest": lambda now: app_version.replace_manifest(
        now, an_app(), a_version(), oci(release_notes="new"), None
    ),
    "app_version.move_version": _every_move,
    "app_version.set_canary_percentage": _a_percentage,
    "policy_change.create_policy": lambda now: policy_change.create_policy(
        now, now.mint(Prefix.POLICY), POLICY, (), tenant_id=TENANT, project_id=None
    ),
    "policy_change.change_policy": lambda now: policy_change.change_policy(now, a_policy(), POLICY, (), None),
    "entitlement.create_entitlement": lambda now: _entitled(_person(now)),
    "entitlement.change_entitlement": lambda now: entitlement.change_entitlement(
        _person(now), an_entitlement(), TERMS, None
    ),
    "entitlement.delete_entitlement": lambda now: entitlement.delete_entitlement(_person(now), an_entitlement()),
}
