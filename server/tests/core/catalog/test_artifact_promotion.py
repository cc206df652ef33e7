"""Artifacts move through their promotion, and never leave a version ahead of them."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from mooring.core.catalog.artifact_promotion import (
    GRACE_PERIOD,
    NAMED_MAX,
    NEEDS,
    ArtifactFacts,
    CheckResult,
    Hold,
    PromotionRequest,
    VersionUse,
    move_artifact,
)
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState, PromotionTrigger
from mooring.core.kernel.decision import StateChange
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.lifecycle import IllegalTransition
from server.tests.support.catalog_rows import REASON, artifact
from server.tests.support.decision_context import NOW, OTHER_TENANT, context
from server.tests.support.manifests import digest
from tests.support.rows import every_row

S, T = PromotionState, PromotionTrigger

SMOKE = CheckResult("smoke", digest("b"), True)
LONG_AGO = NOW - GRACE_PERIOD - timedelta(days=1)
SUCCESSOR = artifact("f")
ENOUGH: Mapping[PromotionTrigger, dict[str, Any]] = {T.DEPRECATE: {"no_successor_because": "the app is given up"}}


def use(promotion: PromotionState, number: int = 1) -> VersionUse:
    return VersionUse(f"ver_{number}", "web-tool", f"1.{number}.0", promotion)


def requested(trigger: PromotionTrigger, **more: Any) -> PromotionRequest:
    return PromotionRequest(trigger, REASON, **(more or ENOUGH.get(trigger, {})))


def standing(promotion: PromotionState, **changes: Any) -> Any:
    """An artifact in this state, deprecated long ago where it is."""
    return artifact(
        "b", promotion=promotion.value, deprecated_at=LONG_AGO if promotion is S.DEPRECATED else None, **changes
    )


def refusal(promotion: PromotionState, asked: PromotionRequest, facts: ArtifactFacts, **changes: Any) -> Refusal:
    with pytest.raises(Refusal) as refused:
        move_artifact(context(), standing(promotion, **changes), asked, facts)
    return refused.value


# Moves


@every_row("edge", PROMOTION.edges, ids=lambda edge: f"{edge.source}-{edge.trigger}")
def test_a_move_is_stored_published_and_audited_with_its_reason(edge: Any) -> None:
    before = standing(edge.source)
    decision = move_artifact(context(), before, requested(edge.trigger), ArtifactFacts(checks=[SMOKE]))

    after = decision.result
    assert (after.promotion, after.promotion_generation) == (edge.target.value, before.promotion_generation + 1)
    (move,), (event,), (audit,) = decision.writes, decision.events, decision.audits
    assert isinstance(move, StateChange)
    assert (move.machine, move.edge, move.generation_expected) == (PROMOTION, edge, before.promotion_generation)
    assert PROMOTION.requires.get(edge.target, frozenset()) <= set(move.set)
    assert all(getattr(after, name) == value for name, value in move.set.items())
    assert event.type is EventType.ARTIFACT_PROMOTED
    assert event.data["reason"] == audit.reason == REASON
    assert (audit.before, audit.action) == ({"promotion": edge.source.value}, "artifact.promote")
    assert audit.after is not None
    assert audit.after["promotion"] == edge.target.value


ILLEGAL = [(state, trigger) for state in S for trigger in T if trigger not in PROMOTION.allowed(state)]


@every_row(("state", "trigger"), ILLEGAL)
def test_every_other_move_is_refused(state: PromotionState, trigger: PromotionTrigger) -> None:
    with pytest.raises(IllegalTransition):
        move_artifact(context(), standing(state), requested(trigger), ArtifactFacts(checks=[SMOKE]))


def test_every_move_has_a_reason() -> None:
    asked = PromotionRequest(T.STAGE, "because")
    assert refusal(S.DRAFT, asked, ArtifactFacts(checks=[SMOKE])).details == {"path": "reason"}


# Staging


@every_row(
    "checks",
    [
        [],
        [CheckResult("smoke", digest("0"), True)],
        [CheckResult("smoke", digest("b"), False, "the entry point is missing")],
        [SMOKE, CheckResult("smoke", digest("b"), False, "the entry point is missing")],
        [CheckResult("lint", digest("b"), True)],
    ],
)
def test_staging_needs_a_smoke_check_of_these_bytes_that_passed(checks: list[CheckResult]) -> None:
    refused = refusal(S.DRAFT, requested(T.STAGE), ArtifactFacts(checks=checks))

    assert refused.code is Code.PROMOTION_REFUSED
    assert isinstance(refused.details["missing"], list)
    assert [each["check"] for each in refused.details["missing"]] == ["smoke"]


# Versions


def test_the_states_that_a_version_bears_are_those_of_the_design() -> None:
    assert {
        S.DRAFT: frozenset(S),
        S.STAGED: {S.STAGED, S.CANARY, S.ACTIVE},
        S.CANARY: {S.CANARY, S.ACTIVE},
        S.ACTIVE: {S.ACTIVE},
        S.DEPRECATED: {S.ACTIVE, S.DEPRECATED},
        S.RETIRED: frozenset(S),
    } == NEEDS


@every_row("edge", PROMOTION.edges, ids=lambda edge: f"{edge.source}-{edge.trigger}")
@every_row("of_version", S)
def test_no_move_of_an_artifact_leaves_a_version_ahead(edge: Any, of_version: PromotionState) -> None:
    facts = ArtifactFacts(versions=[use(of_version)], checks=[SMOKE])

    if edge.target in NEEDS[of_version]:
        assert (
            move_artifact(context(), standing(edge.source), requested(edge.trigger), facts).result.promotion
            == edge.target
        )
    else:
        refused = refusal(edge.source, requested(edge.trigger), facts)
        assert refused.code is Code.VERSION_AHEAD_OF_ARTIFACT
        assert refused.details["versions"] == [
            {"version_id": "ver_1", "app_slug": "web-tool", "version": "1.1.0", "promotion": of_version.value}
        ]
        assert f"web-tool 1.1.0 ({of_version})" in refused.detail


def test_the_versions_are_named_up_to_a_bound() -> None:
    versions = [use(S.ACTIVE, number) for number in range(50)] + [use(S.DEPRECATED, 99)]
    refused = refusal(S.ACTIVE, requested(T.DEPRECATE), ArtifactFacts(versions=versions))

    assert isinstance(refused.details["versions"], list)
    assert len(refused.details["versions"]) == NAMED_MAX
    assert refused.detail.endswith("and 30 more")
    assert "1.99.0" not in refused.detail


# Deprecating


def test_a_deprecation_names_what_takes_its_place() -> None:
    facts = ArtifactFacts(successor=SUCCESSOR)
    after = move_artifact(
        context(), standing(S.ACTIVE), requested(T.DEPRECATE, superseded_by=SUCCESSOR.id), facts
    ).result

    assert (after.superseded_by, after.deprecation_reason, after.deprecated_at) == (SUCCESSOR.id, None, NOW)


def test_a_deprecation_says_why_nothing_takes_its_place() -> None:
    after = move_artifact(context(), standing(S.ACTIVE), requested(T.DEPRECATE), ArtifactFacts()).result

    assert (after.superseded_by, after.deprecation_reason) == (None, "the app is given up")


@every_row(
    "said",
    [
        {"canary_percentage": 1},
        {"superseded_by": SUCCESSOR.id, "no_successor_because": "the app is given up"},
        {"no_successor_because": "no"},
    ],
)
def test_a_deprecation_says_exactly_one_of_both(said: dict[str, Any]) -> None:
    refused = refusal(S.ACTIVE, requested(T.DEPRECATE, **said), ArtifactFacts(successor=SUCCESSOR))
    assert refused.code is Code.VALIDATION_FAILED


@every_row(
    "successor",
    [
        None,
        artifact("f", id="art_3"),
        artifact("f", id="art_2", promotion="canary"),
        artifact("f", id="art_2", tenant_id=OTHER_TENANT),
    ],
)
def test_a_successor_is_another_active_artifact_that_can_be_seen(successor: Any) -> None:
    refused = refusal(S.ACTIVE, requested(T.DEPRECATE, superseded_by="art_2"), ArtifactFacts(successor=successor))
    assert refused.code is Code.PROMOTION_REFUSED


def test_nothing_supersedes_itself() -> None:
    before = standing(S.ACTIVE)
    with pytest.raises(Refusal, match="not another active artifact"):
        move_artifact(
            context(), before, requested(T.DEPRECATE, superseded_by=before.id), ArtifactFacts(successor=before)
        )


# Retiring


def test_retiring_waits_for_the_grace_period() -> None:
    short = ArtifactFacts(grace_period=timedelta(hours=1))
    for ago, retired in ((timedelta(minutes=59), False), (timedelta(hours=1), True), (timedelta(hours=2), True)):
        before = artifact("b", promotion="deprecated", deprecated_at=NOW - ago)
        if retired:
            assert move_artifact(context(), before, requested(T.RETIRE), short).result.retired_at == NOW
        else:
            with pytest.raises(Refusal) as early:
                move_artifact(context(), before, requested(T.RETIRE), short)
            assert early.value.code is Code.GRACE_PERIOD
            assert early.value.details["ready_at"] == (NOW + timedelta(minutes=1)).isoformat()


@every_row(("state", "trigger"), [(S.DEPRECATED, T.RETIRE), (S.STAGED, T.WITHDRAW), (S.DRAFT, T.WITHDRAW)])
def test_nothing_that_is_held_is_retired_by_any_way(state: PromotionState, trigger: PromotionTrigger) -> None:
    holds = [Hold(digest("b"), "instance", f"ins_{number}") for number in range(25)]
    refused = refusal(state, requested(trigger), ArtifactFacts(holds=holds))

    assert refused.code is Code.HOLD_PRESENT
    assert refused.details["holders_count"] == 25
    assert isinstance(refused.details["holders"], list)
    assert refused.details["holders"][0] == {"digest": digest("b"), "noun": "instance", "id": "ins_0"}
    assert len(refused.details["holders"]) == NAMED_MAX


def test_a_hold_of_another_digest_does_not_count() -> None:
    facts = ArtifactFacts(holds=[Hold(digest("0"), "instance", "ins_1")])

    assert move_artifact(context(), standing(S.DEPRECATED), requested(T.RETIRE), facts).result.promotion == "retired"


def test_a_hold_does_not_hinder_the_moves_before() -> None:
    facts = ArtifactFacts(holds=[Hold(digest("b"), "instance", "ins_1")])

    assert move_artifact(context(), standing(S.ACTIVE), requested(T.DEPRECATE), facts).result.promotion == "deprecated"
    assert move_artifact(context(), standing(S.CANARY), requested(T.ACTIVATE), facts).result.promotion == "active"
