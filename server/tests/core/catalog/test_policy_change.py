"""Writing a policy: canonical lists, one layer a row, and nothing that widens."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.catalog.policy import (
    Layer,
    LayerRules,
    NameRules,
    PolicyChain,
    PolicyRequest,
    PolicyRules,
    SignatureRules,
)
from mooring.core.catalog.policy_change import (
    NAMES_MAX,
    Policy,
    PolicySpec,
    change_policy,
    check_rules,
    create_policy,
    layer_of,
    layers_of,
    plain_rules,
    read_rules,
)
from mooring.core.kernel.decision import Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from server.tests.support.decision_context import NOW, PROJECT, TENANT, context
from tests.support.rows import every_row

REASON = "the tests ask for it"
GLOBAL = LayerRules(Layer.GLOBAL, PolicyRules(apps=NameRules(allow=("a*",)), gpus_max=8))


def policy(rules: dict[str, Any], tenant_id: str | None = None, project_id: str | None = None) -> Policy:
    return Policy(f"pol_{tenant_id}_{project_id}", tenant_id, project_id, rules, 3, NOW, NOW)


# Lists


def test_lists_are_made_canonical_and_sorted() -> None:
    given_ = PolicyRules(
        sources=NameRules(allow=("oci://Registry.Example/*", "*", "*"), deny=("s3://bucket/key",)),
        apps=NameRules(deny=("b", "a*", "b")),
        regions=NameRules(allow=()),
    )

    assert check_rules(given_) == PolicyRules(
        sources=NameRules(allow=("*", "oci://registry.example/*"), deny=("s3://bucket/key",)),
        apps=NameRules(deny=("a*", "b")),
        regions=NameRules(allow=()),
    )


@every_row(
    ("rules", "path"),
    [
        (PolicyRules(sources=NameRules(allow=("registry.example/*",))), "rules.sources.allow.0"),
        (PolicyRules(sources=NameRules(deny=("*", "oci://registry.example*"))), "rules.sources.deny.1"),
        (PolicyRules(apps=NameRules(allow=("UPPER",))), "rules.apps.allow.0"),
        (PolicyRules(apps=NameRules(allow=("a*b",))), "rules.apps.allow.0"),
        (PolicyRules(skus=NameRules(deny=("",))), "rules.skus.deny.0"),
        (PolicyRules(regions=NameRules(allow=("x" * 90,))), "rules.regions.allow.0"),
        (
            PolicyRules(regions=NameRules(allow=tuple(f"r{number}" for number in range(NAMES_MAX + 1)))),
            "rules.regions.allow",
        ),
        (PolicyRules(gpus_max=-1), "rules.gpus_max"),
        (PolicyRules(gpus_max=10**7), "rules.gpus_max"),
    ],
)
def test_a_malformed_rule_is_refused_and_named(rules: PolicyRules, path: str) -> None:
    with pytest.raises(Refusal) as refused:
        check_rules(rules)
    assert refused.value.details == {"path": path}


def drawn(chance: Random) -> PolicyRules:
    def some() -> tuple[str, ...]:
        return tuple(sorted(chance.sample(["*", "a", "a*", "b"], chance.randint(0, 3))))

    lists: dict[str, Any] = {
        field: NameRules(chance.choice((None, some())), some()) for field in ("regions", "skus", "apps")
    }
    return PolicyRules(**lists, signatures=chance.choice((None, *SignatureRules)), gpus_max=chance.choice((None, 0, 7)))


@settings(max_examples=40)
@given(st.integers(0, 2**64).map(Random))
def test_rules_come_back_from_what_was_stored(chance: Random) -> None:
    rules = drawn(chance)

    assert read_rules(plain_rules(rules)) == rules == check_rules(rules)


def test_an_empty_policy_is_stored_as_an_empty_object() -> None:
    assert plain_rules(PolicyRules()) == {}
    assert plain_rules(PolicyRules(regions=NameRules(allow=()), signatures=SignatureRules.NONE, gpus_max=0)) == {
        "regions": {"allow": []},
        "signatures": "none",
        "gpus_max": 0,
    }


# Layers


def test_a_place_has_its_layer_and_the_chain_its_order() -> None:
    assert [layer_of(*place) for place in ((None, None), (TENANT, None), (TENANT, PROJECT))] == list(Layer)[:3]
    rows = [policy({"gpus_max": 2}, TENANT, PROJECT), policy({"gpus_max": 8}), policy({}, TENANT)]

    assert [layer for layer, _ in layers_of(rows)] == [Layer.GLOBAL, Layer.TENANT, Layer.PROJECT]
    assert PolicyChain(layers_of(rows)).gpus_max == 2


# Decisions


def test_the_first_rules_of_a_layer_are_stored_with_a_reason() -> None:
    requested = PolicySpec(PolicyRules(apps=NameRules(allow=("ab",)), gpus_max=4), REASON)
    decision = create_policy(context(), "pol_1", requested, [GLOBAL], tenant_id=TENANT, project_id=None)

    made = decision.result
    assert (made.layer, made.rules, made.revision) == (
        Layer.TENANT,
        {"apps": {"allow": ["ab"]}, "gpus_max": 4},
        0,
    )
    (write,), (event,), (audit,) = decision.writes, decision.events, decision.audits
    assert isinstance(write, Insert)
    assert write.noun == "policy"
    assert (event.type, event.tenant_id, event.data) == (EventType.POLICY_CHANGED, TENANT, {"layer": "tenant"})
    assert (audit.action, audit.before, audit.after, audit.reason) == (
        "policy.update",
        None,
        {"rules": made.rules},
        REASON,
    )


def test_other_rules_take_the_place_of_the_old_ones() -> None:
    before = policy({"gpus_max": 2}, TENANT, PROJECT)
    decision = change_policy(context(), before, PolicySpec(PolicyRules(gpus_max=3), REASON), [GLOBAL], 3)

    assert decision.result == replace(before, rules={"gpus_max": 3}, revision=4)
    assert decision.writes == (Update("policy", before.id, 3, {"rules": {"gpus_max": 3}, "updated_at": NOW}),)
    assert decision.audits[0].before == {"rules": {"gpus_max": 2}}
    with pytest.raises(Refusal) as refused:
        change_policy(context(), before, PolicySpec(PolicyRules(), REASON), [GLOBAL], 2)
    assert refused.value.code is Code.REVISION_CONFLICT


@every_row(
    "rules",
    [PolicyRules(gpus_max=9), PolicyRules(apps=NameRules(allow=("b",))), PolicyRules(apps=NameRules(allow=("*",)))],
)
def test_an_overlay_that_widens_is_refused_when_it_is_written(rules: PolicyRules) -> None:
    with pytest.raises(Refusal) as refused:
        create_policy(context(), "pol_1", PolicySpec(rules, REASON), [GLOBAL], tenant_id=TENANT, project_id=None)
    assert refused.value.code is Code.POLICY_WIDENS
    with pytest.raises(Refusal) as refused:
        change_policy(context(), policy({}, TENANT), PolicySpec(rules, REASON), [GLOBAL], None)
    assert refused.value.code is Code.POLICY_WIDENS


def test_a_layer_above_may_be_narrowed_later_and_takes_effect_at_once() -> None:
    below = policy({"apps": {"allow": ["ab"]}}, TENANT)
    above = policy({"apps": {"allow": ["a*"]}})
    after = change_policy(
        context(), above, PolicySpec(PolicyRules(apps=NameRules(deny=("ab",))), REASON), [], None
    ).result

    assert PolicyChain(layers_of([above, below])).decide(PolicyRequest(app="ab")).allowed
    verdict = PolicyChain(layers_of([after, below])).decide(PolicyRequest(app="ab"))
    assert (verdict.allowed, verdict.layer) == (False, Layer.GLOBAL)


def test_a_change_has_a_reason() -> None:
    with pytest.raises(Refusal) as refused:
        create_policy(context(), "pol_1", PolicySpec(PolicyRules(), "so"), [], tenant_id=None, project_id=None)
    assert refused.value.details == {"path": "reason"}
