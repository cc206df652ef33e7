"""Entitlements: who may launch what, on which terms, and who may say so."""

from dataclasses import fields, replace
from typing import Any

import pytest

from mooring.core.catalog.entitlement import (
    Entitlement,
    EntitlementKey,
    EntitlementRequest,
    Overlay,
    change_entitlement,
    create_entitlement,
    switched,
    why_not_entitled,
)
from mooring.core.catalog.policy import Layer, LayerRules, NameRules, PolicyChain, PolicyRequest, PolicyRules
from mooring.core.catalog.semver import read_version
from mooring.core.kernel.decision import Insert, PrincipalKind, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.permissions import ACTIONS, Role
from server.tests.support.decision_context import ACCOUNT, NOW, PROJECT, TENANT, context
from tests.support.rows import every_row

REASON = "the tests ask for it"
APP = EntitlementKey(TENANT, PROJECT, "app_1", "web-tool")
V2 = read_version("2.1.0")


def requested(**changes: Any) -> EntitlementRequest:
    given: dict[str, Any] = {
        "enabled": True,
        "overlay": Overlay(),
        "agreed_actions": ("runtime.claim", "task.create"),
        "reason": REASON,
        **changes,
    }
    return EntitlementRequest(**given)


def entitlement(**changes: Any) -> Entitlement:
    return replace(create_entitlement(context(), "ent_1", APP, requested()).result, **changes)


# Whether


def test_an_entitled_project_may_launch_what_was_agreed_to() -> None:
    assert why_not_entitled(entitlement(), V2, ("runtime.claim",)) is None
    assert why_not_entitled(entitlement(versions=">=2.0.0 <3.0.0"), V2, ()) is None


@every_row(
    ("given", "required", "reason"),
    [
        (None, (), "not_entitled"),
        (entitlement(enabled=False), (), "not_entitled"),
        (entitlement(versions="<2.0.0"), (), "version"),
        (entitlement(), ("runtime.claim", "secret.grant"), "actions"),
    ],
)
def test_otherwise_it_may_not_and_the_reason_is_named(
    given: Entitlement | None, required: tuple[str, ...], reason: str
) -> None:
    refusal = why_not_entitled(given, V2, required)

    assert refusal is not None
    assert (refusal.code, refusal.details["reason"]) == (Code.NOT_ENTITLED, reason)


def test_a_version_that_requires_more_waits_until_somebody_agrees() -> None:
    refusal = why_not_entitled(entitlement(), V2, ("secret.grant", "runtime.claim", "instance.delete"))

    assert refusal is not None
    assert refusal.details["missing_actions"] == ["instance.delete", "secret.grant"]


def test_the_overlay_is_the_last_layer_and_only_narrows() -> None:
    given = entitlement(rules={"gpus_max": 4, "regions": {"allow": ["eu-1", "us-1"]}})
    chain = PolicyChain(
        [LayerRules(Layer.GLOBAL, PolicyRules(gpus_max=2, regions=NameRules(allow=("eu-*",)))), given.layer]
    )

    assert chain.gpus_max == 2
    assert chain.decide(PolicyRequest(region="eu-1")).allowed
    assert chain.decide(PolicyRequest(region="us-1")).layer is Layer.GLOBAL
    assert chain.decide(PolicyRequest(region="eu-2")).layer is Layer.ENTITLEMENT


# Giving and taking


def test_an_entitlement_is_given_with_its_terms() -> None:
    overlay = Overlay(" >=2.0.0   <3.0.0", PolicyRules(gpus_max=4, skus=NameRules(allow=("b", "a", "a"))))
    decision = create_entitlement(context(), "ent_1", APP, requested(overlay=overlay))

    made = decision.result
    assert (made.project_id, made.app_id, made.enabled, made.versions) == (PROJECT, "app_1", True, ">=2.0.0 <3.0.0")
    assert made.rules == {"gpus_max": 4, "skus": {"allow": ["a", "b"]}}
    assert made.agreed_actions == ["runtime.claim", "task.create"]
    (write,), (event,), (audit,) = decision.writes, decision.events, decision.audits
    assert isinstance(write, Insert)
    assert set(write.row) == {each.name for each in fields(Entitlement)}
    assert (event.type, event.project_id, event.app_slug) == (EventType.ENTITLEMENT_CHANGED, PROJECT, "web-tool")
    assert (audit.action, audit.reason, audit.before) == ("entitlement.update", REASON, None)
    assert audit.after is not None
    assert audit.after["agreed_actions"] == made.agreed_actions


def test_it_is_switched_off_and_on_and_changed() -> None:
    before = entitlement()
    decision = change_entitlement(context(), before, requested(enabled=False), 0)

    assert decision.result == replace(before, enabled=False, revision=1)
    (change,) = decision.writes
    assert isinstance(change, Update)
    assert (change.id, change.revision_expected) == ("ent_1", 0)
    assert change.set["updated_at"] == NOW
    assert decision.audits[0].before is not None
    assert decision.audits[0].before["enabled"] is True
    assert change_entitlement(context(), decision.result, requested(), 1).result.enabled
    with pytest.raises(Refusal) as refused:
        change_entitlement(context(), before, requested(), 9)
    assert refused.value.code is Code.REVISION_CONFLICT


def test_a_switch_keeps_the_terms() -> None:
    overlay = Overlay(">=2.0.0", PolicyRules(gpus_max=4))
    before = create_entitlement(context(), "ent_1", APP, requested(overlay=overlay)).result
    off = change_entitlement(context(), before, switched(before, False, REASON), None).result
    assert (off.enabled, off.revision) == (False, 1)
    on = change_entitlement(context(), off, switched(off, True, REASON), None)
    assert replace(on.result, revision=0, updated_at=before.updated_at) == before
    (audited,) = on.audits
    assert audited.reason == REASON
    assert audited.before == {**(audited.after or {}), "enabled": False}


@every_row("kind", [kind for kind in PrincipalKind if kind is not PrincipalKind.USER])
def test_only_people_change_entitlements(kind: PrincipalKind) -> None:
    denied = (Code.PERMISSION_DENIED, {"action": "entitlement.update"})
    with pytest.raises(Refusal) as refused:
        create_entitlement(context(ACCOUNT, kind), "ent_1", APP, requested())
    assert (refused.value.code, refused.value.details) == denied
    with pytest.raises(Refusal) as refused:
        change_entitlement(context(ACCOUNT, kind), entitlement(), requested(), None)
    with pytest.raises(Refusal, match="only people"):
        change_entitlement(context(ACCOUNT, kind), entitlement(), switched(entitlement(), False, REASON), None)
    assert (refused.value.code, refused.value.details) == denied


def test_the_key_is_held_by_admins_of_tenant_and_platform_and_is_for_people() -> None:
    key = ACTIONS["entitlement.update"]

    assert set(key.roles) == {Role.TENANT_ADMIN, Role.PLATFORM_ADMIN}
    assert key.human_only


@every_row("key", ["user.create", "entitlement.update", "app.other.go", "app.web-tool2.go", "nothing", "app.web-tool"])
def test_nobody_agrees_to_more_than_an_operator_account_may_hold(key: str) -> None:
    with pytest.raises(Refusal) as refused:
        create_entitlement(context(), "ent_1", APP, requested(agreed_actions=("runtime.claim", key)))
    assert (refused.value.code, refused.value.details) == (Code.GRANT_EXCEEDS_CEILING, {"missing_actions": [key]})


def test_keys_of_the_app_itself_may_be_agreed_to() -> None:
    made = create_entitlement(context(), "ent_1", APP, requested(agreed_actions=("app.web-tool.queue.submit",))).result
    assert made.agreed_actions == ["app.web-tool.queue.submit"]


@every_row(
    ("changes", "path"),
    [
        ({"overlay": Overlay("1.x")}, "overlay.versions"),
        ({"overlay": Overlay(None, PolicyRules(gpus_max=-1))}, "overlay.rules.gpus_max"),
        ({"agreed_actions": tuple(f"a{number}" for number in range(101))}, "agreed_actions"),
        ({"reason": "so"}, "reason"),
    ],
)
def test_bad_terms_are_refused_and_the_value_named(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(Refusal) as refused:
        create_entitlement(context(), "ent_1", APP, requested(**changes))
    assert refused.value.details == {"path": path}
