"""Apps and their versions: drafts change, what is staged does not, and no version is ahead of its artifacts."""

from dataclasses import fields, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from mooring.core.catalog.app import AppCard, create_app, read_category, update_app
from mooring.core.catalog.app_version import (
    AppVersion,
    VersionFacts,
    VersionPart,
    create_version,
    move_version,
    replace_manifest,
    set_canary_percentage,
)
from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_promotion import GRACE_PERIOD, NEEDS, CheckResult, Hold, PromotionRequest
from mooring.core.catalog.artifact_trust import Trust, TrustDoubt
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState, PromotionTrigger
from mooring.core.catalog.trust_lifecycle import TrustState
from mooring.core.kernel.decision import Insert, StateChange, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix, is_id
from mooring.core.kernel.lifecycle import IllegalTransition
from server.tests.support.catalog_rows import REASON, app, artifact, parts, version
from server.tests.support.decision_context import NOW, OTHER_TENANT, PROJECT, TENANT, context
from server.tests.support.manifests import controller, digest, launchable
from tests.support.rows import every_row

S, T = PromotionState, PromotionTrigger

LONG_AGO = NOW - GRACE_PERIOD - timedelta(days=1)
SUCCESSOR = version(S.ACTIVE, "3.0.0")
GOOD = artifact("b", trust="verified")


def standing(promotion: PromotionState) -> AppVersion:
    return version(promotion, deprecated_at=LONG_AGO if promotion is S.DEPRECATED else None)


def requested(trigger: PromotionTrigger, **more: Any) -> PromotionRequest:
    said: dict[PromotionTrigger, dict[str, Any]] = {
        T.CANARY: {"canary_percentage": 10},
        T.DEPRECATE: {"superseded_by": SUCCESSOR.id},
    }
    return PromotionRequest(trigger, REASON, **(more or said.get(trigger, {})))


def facts(subject: AppVersion, *artifacts: Artifact, **more: Any) -> VersionFacts:
    checks = [CheckResult(name, subject.manifest_digest, True) for name in ("lint", "smoke")]
    given: dict[str, Any] = {"checks": checks, "successor": SUCCESSOR, **more}
    return VersionFacts(parts(*artifacts), **given)


def refusal(subject: AppVersion, asked: PromotionRequest, known: VersionFacts) -> Refusal:
    with pytest.raises(Refusal) as refused:
        move_version(context(), subject, asked, known)
    return refused.value


# Apps


def test_an_app_is_a_card_with_a_slug_and_a_category() -> None:
    decision = create_app(
        context(), TENANT, "web-tool", "tool", AppCard(" Web tool ", "One\nTwo ", "https://A.example/i.svg")
    )

    made = decision.result
    assert is_id(made.id, Prefix.APP)
    assert (made.slug, made.category, made.display_name, made.tenant_id) == ("web-tool", "tool", "Web tool", TENANT)
    assert (made.description, made.icon) == ("One\nTwo", "https://a.example/i.svg")
    assert [write.noun for write in decision.writes if isinstance(write, Insert)] == ["app"]
    assert (decision.events[0].type, decision.events[0].app_slug) == (EventType.APP_CREATED, "web-tool")
    assert decision.audits[0].action == "app.create"


@every_row("category", ["", "a", "Tool", "two words", "instance", "secret", "app", "tenant", "x" * 41])
def test_a_category_that_would_borrow_keys_is_refused(category: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_category(category)
    assert refused.value.details == {"path": "category"}
    assert read_category("scheduler") == "scheduler"


@every_row(
    ("slug", "card", "path"),
    [
        ("X", AppCard("x"), "slug"),
        ("web-tool", AppCard(""), "display_name"),
        ("web-tool", AppCard("x", "y" * 4_001), "description"),
        ("web-tool", AppCard("x", "y\x07"), "description"),
        ("web-tool", AppCard("x", "", "http://a.example/i.svg"), "icon"),
        ("web-tool", AppCard("x", "", "javascript:alert(1)"), "icon"),
    ],
)
def test_a_bad_card_is_refused_and_the_value_named(slug: str, card: AppCard, path: str) -> None:
    with pytest.raises(Refusal) as refused:
        create_app(context(), TENANT, slug, "tool", card)
    assert refused.value.details == {"path": path}


def test_only_the_card_of_an_app_changes() -> None:
    before = app()
    decision = update_app(context(), before, AppCard("New name"), 4)

    assert decision.result == replace(before, display_name="New name", revision=5)
    assert decision.writes == (Update("app", before.id, 4, {"display_name": "New name"}),)
    assert update_app(context(), before, AppCard("Web tool"), None).writes == ()
    with pytest.raises(Refusal) as refused:
        update_app(context(), before, AppCard("x"), 3)
    assert refused.value.code is Code.REVISION_CONFLICT


# Drafts


def test_a_version_is_published_as_a_draft_with_its_digests() -> None:
    owner = app()
    decision = create_version(context(), owner, launchable())

    made = decision.result
    assert is_id(made.id, Prefix.APP_VERSION)
    assert (made.app_id, made.app_slug, made.version, made.promotion) == (owner.id, "web-tool", "2.1.0", "draft")
    assert made.digests == [digest("b"), digest("c")]
    assert made.version_order == made.candidate().version.order
    assert made.manifest == launchable()
    (write,) = decision.writes
    assert isinstance(write, Insert)
    assert (write.noun, write.born) == ("app_version", (PROMOTION,))
    assert set(write.row) == {each.name for each in fields(AppVersion)}
    assert (decision.events[0].type, decision.audits[0].action) == (EventType.APP_VERSION_CREATED, "app_version.create")


def test_a_draft_may_have_errors_of_lint_but_not_of_shape_and_not_another_app() -> None:
    assert create_version(context(), app(), launchable(runtime_profile={})).result.promotion == "draft"
    for plain in ({"app": "x"}, launchable(version="1"), launchable("other-app"), controller(), "no object", None):
        with pytest.raises(Refusal) as refused:
            create_version(context(), app(), plain)
        assert refused.value.code is Code.MANIFEST_INVALID


def test_numbers_are_stored_as_the_database_gives_them_back() -> None:
    made = create_version(context(), app(), launchable(compatibility={"min_gpu_count": 2.0})).result
    twin = create_version(context(), app(), launchable(compatibility={"min_gpu_count": 2})).result

    assert type(made.manifest["compatibility"]["min_gpu_count"]) is int
    assert made.manifest_digest == twin.manifest_digest


def test_the_manifest_of_a_draft_is_replaced_and_its_number_stays() -> None:
    before = version()
    plain = launchable(artifacts={"main": digest("b"), "weights": digest("9")})
    decision = replace_manifest(context(), app(), before, plain, 2)

    after = decision.result
    assert after.digests == [digest("9"), digest("b")]
    assert after.manifest_digest != before.manifest_digest
    (change,) = decision.writes
    assert isinstance(change, Update)
    assert (change.noun, change.revision_expected, set(change.set)) == (
        "app_version",
        2,
        {"manifest", "manifest_digest", "digests"},
    )
    with pytest.raises(Refusal) as refused:
        replace_manifest(context(), app(), before, launchable(version="2.1.1"), None)
    assert refused.value.details == {"path": "manifest.version"}


def test_only_required_actions_of_a_staged_version_change_and_only_while_nothing_uses_it() -> None:
    before = standing(S.STAGED)
    actions = launchable(required_actions=["runtime.claim"])
    decision = replace_manifest(context(), app(), before, actions, None)
    (change,) = decision.writes
    assert isinstance(change, Update)
    assert change.set["staged_digest"] == change.set["manifest_digest"] != before.manifest_digest
    held = [Hold(digest("b"), "instance", "ins_1", before.id)]
    for plain, holds, code in (
        (actions | {"release_notes": "other"}, [], Code.VERSION_IMMUTABLE),
        (launchable(required_actions=["tenant.create"]), [], Code.MANIFEST_INVALID),
        (actions, held, Code.HOLD_PRESENT),
    ):
        with pytest.raises(Refusal) as refused:
            replace_manifest(context(), app(), before, plain, None, holds=holds)
        assert refused.value.code is code


@every_row("state", [state for state in S if state not in (S.DRAFT, S.STAGED)])
def test_a_version_is_immutable_once_it_was_offered(state: PromotionState) -> None:
    with pytest.raises(Refusal) as refused:
        replace_manifest(context(), app(), version(state), launchable(), None)
    assert (refused.value.code, refused.value.details["promotion"]) == (Code.VERSION_IMMUTABLE, state.value)


# Moves


@every_row("edge", PROMOTION.edges, ids=lambda edge: f"{edge.source}-{edge.trigger}")
def test_a_move_is_stored_published_and_audited_with_its_reason(edge: Any) -> None:
    before = standing(edge.source)
    decision = move_version(context(), before, requested(edge.trigger), facts(before))

    after = decision.result
    assert (after.promotion, after.promotion_generation) == (edge.target.value, before.promotion_generation + 1)
    (move,), (event,), (audit,) = decision.writes, decision.events, decision.audits
    assert isinstance(move, StateChange)
    assert (move.machine, move.edge, move.generation_expected) == (PROMOTION, edge, before.promotion_generation)
    assert PROMOTION.requires.get(edge.target, frozenset()) <= set(move.set)
    assert all(getattr(after, name) == value for name, value in move.set.items())
    assert (event.type, event.app_slug) == (EventType.APP_VERSION_PROMOTED, "web-tool")
    assert event.data["reason"] == audit.reason == REASON
    assert audit.before == {"promotion": edge.source.value}
    assert audit.after is not None
    assert audit.after["promotion"] == edge.target.value
    assert all(value is None or isinstance(value, str) for value in audit.after.values())


ILLEGAL = [(state, trigger) for state in S for trigger in T if trigger not in PROMOTION.allowed(state)]


@every_row(("state", "trigger"), ILLEGAL)
def test_every_other_move_is_refused(state: PromotionState, trigger: PromotionTrigger) -> None:
    with pytest.raises(IllegalTransition):
        move_version(context(), standing(state), requested(trigger), facts(version()))


def test_staging_needs_lint_and_smoke_of_this_very_manifest() -> None:
    draft = version()
    for checks, missing in (
        ([], ["lint", "smoke"]),
        ([CheckResult("lint", draft.manifest_digest, True)], ["smoke"]),
        ([CheckResult("lint", digest("0"), True), CheckResult("smoke", draft.manifest_digest, True)], ["lint"]),
        (
            [CheckResult("lint", draft.manifest_digest, False), CheckResult("smoke", draft.manifest_digest, True)],
            ["lint"],
        ),
    ):
        refused = refusal(draft, requested(T.STAGE), facts(draft, checks=checks))
        assert refused.code is Code.PROMOTION_REFUSED
        assert isinstance(refused.details["missing"], list)
        assert [each["check"] for each in refused.details["missing"]] == missing
    staged = move_version(context(), draft, requested(T.STAGE), facts(draft)).result
    assert staged.staged_digest == staged.manifest_digest


# Artifacts


@every_row("edge", PROMOTION.edges, ids=lambda edge: f"{edge.source}-{edge.trigger}")
@every_row("of_artifact", S)
def test_no_move_of_a_version_leaves_its_artifacts_behind(edge: Any, of_artifact: PromotionState) -> None:
    before = standing(edge.source)
    known = facts(before, artifact("b", promotion=of_artifact.value, trust="verified"))

    if of_artifact in NEEDS[edge.target]:
        assert move_version(context(), before, requested(edge.trigger), known).result.promotion == edge.target
    else:
        refused = refusal(before, requested(edge.trigger), known)
        assert refused.code is Code.VERSION_AHEAD_OF_ARTIFACT
        assert isinstance(refused.details["artifacts"], list)
        assert [each["role"] for each in refused.details["artifacts"]] == ["main"]
        assert f"it is {of_artifact}" in refused.detail


@every_row("trust", TrustState)
def test_active_needs_artifacts_that_are_verified(trust: TrustState) -> None:
    canary = version(S.CANARY)
    known = facts(canary, artifact("b", trust=trust.value))

    if trust is TrustState.VERIFIED:
        assert move_version(context(), canary, requested(T.ACTIVATE), known).result.promotion == "active"
    else:
        refused = refusal(canary, requested(T.ACTIVATE), known)
        assert refused.code is Code.VERSION_AHEAD_OF_ARTIFACT
        assert trust.value in refused.detail


def test_the_trust_of_this_moment_counts_and_not_the_stored_one() -> None:
    canary = version(S.CANARY)
    doubt = Trust(TrustState.UNVERIFIED, (TrustDoubt(Code.SIGNATURE_KEY_UNKNOWN, "the key was removed"),))
    known = [replace(part, trust=doubt if part.role == "main" else Trust(TrustState.VERIFIED)) for part in parts(GOOD)]
    refused = refusal(canary, requested(T.ACTIVATE), VersionFacts(known))

    assert "the key was removed" in refused.detail


@every_row(("state", "trigger"), [(S.DRAFT, T.STAGE), (S.STAGED, T.CANARY), (S.CANARY, T.ROLLBACK)])
def test_nothing_moves_on_with_a_revoked_artifact(state: PromotionState, trigger: PromotionTrigger) -> None:
    subject = version(state)
    refused = refusal(subject, requested(trigger), facts(subject, artifact("b", trust="revoked")))
    assert "it is revoked" in refused.detail


def test_a_version_with_a_revoked_artifact_can_be_deprecated_and_retired() -> None:
    revoked = artifact("b", trust="revoked")
    active, old = version(S.ACTIVE), standing(S.DEPRECATED)

    assert (
        move_version(context(), active, requested(T.DEPRECATE), facts(active, revoked)).result.promotion == "deprecated"
    )
    assert move_version(context(), old, requested(T.RETIRE), facts(old, revoked)).result.promotion == "retired"


@every_row(
    ("behind", "said"),
    [
        (None, "no such artifact is registered"),
        (artifact("b", tenant_id=OTHER_TENANT), "not everybody who sees the app"),
        (artifact("b", project_id=PROJECT, visibility="project"), "not everybody who sees the app"),
    ],
)
def test_an_artifact_that_not_all_may_use_serves_no_version(behind: Artifact | None, said: str) -> None:
    draft = version()
    known = VersionFacts(
        (VersionPart("main", digest("b"), behind), *parts()[1:]),
        [CheckResult(name, draft.manifest_digest, True) for name in ("lint", "smoke")],
    )
    assert said in refusal(draft, requested(T.STAGE), known).detail


def test_a_snapshot_without_one_of_its_artifacts_is_a_mistake_of_ours() -> None:
    draft = version()
    with pytest.raises(ValueError, match="snapshot lacks"):
        move_version(context(), draft, requested(T.STAGE), replace(facts(draft), parts=parts()[:1]))


# Canary


def test_a_canary_has_a_percentage_and_nothing_else_has() -> None:
    staged, canary = version(S.STAGED), version(S.CANARY, canary_percentage=Decimal(10))

    assert move_version(context(), staged, requested(T.CANARY), facts(staged)).result.canary_percentage == 10
    assert move_version(context(), canary, requested(T.ACTIVATE), facts(canary)).result.canary_percentage is None
    assert move_version(context(), canary, requested(T.ROLLBACK), facts(canary)).result.canary_percentage is None
    refused = refusal(staged, requested(T.CANARY, superseded_by="x"), facts(staged))
    assert refused.details == {"path": "canary_percentage"}


def test_the_percentage_of_a_canary_is_changed_with_a_reason() -> None:
    canary = version(S.CANARY, canary_percentage=Decimal(10))
    decision = set_canary_percentage(context(), canary, "25.5", REASON)

    assert decision.result.canary_percentage == Decimal("25.5")
    assert decision.writes == (Update("app_version", canary.id, 2, {"canary_percentage": Decimal("25.5")}),)
    assert (decision.audits[0].before, decision.audits[0].after, decision.audits[0].reason) == (
        {"canary_percentage": "10"},
        {"canary_percentage": "25.5"},
        REASON,
    )
    assert set_canary_percentage(context(), canary, 10, REASON).writes == ()
    with pytest.raises(Refusal) as refused:
        set_canary_percentage(context(), version(S.ACTIVE), 10, REASON)
    assert refused.value.code is Code.PROMOTION_REFUSED


# Deprecating and retiring


@every_row(
    "successor",
    [None, version(S.ACTIVE), replace(SUCCESSOR, promotion="canary"), replace(SUCCESSOR, app_id="app_2")],
)
def test_a_successor_is_another_active_version_of_the_app(successor: AppVersion | None) -> None:
    active = version(S.ACTIVE)
    refused = refusal(active, requested(T.DEPRECATE), facts(active, successor=successor))
    assert refused.code is Code.PROMOTION_REFUSED


def test_nothing_supersedes_itself() -> None:
    active = version(S.ACTIVE)
    refused = refusal(active, requested(T.DEPRECATE, superseded_by=active.id), facts(active, successor=active))
    assert refused.code is Code.PROMOTION_REFUSED


def test_a_deprecated_version_names_its_successor_to_those_who_ask_for_it() -> None:
    active = version(S.ACTIVE)
    after = move_version(context(), active, requested(T.DEPRECATE), facts(active)).result

    assert (after.superseded_by, after.deprecated_at) == (SUCCESSOR.id, NOW)
    assert after.candidate().superseded_by == SUCCESSOR.id


def test_retiring_waits_for_the_grace_period_and_for_what_uses_this_version() -> None:
    early = version(S.DEPRECATED, deprecated_at=NOW - timedelta(days=1))
    old = standing(S.DEPRECATED)
    held = facts(old, holds=[Hold(digest("b"), "instance", "ins_1", old.id)])
    unknown = facts(old, holds=[Hold(digest("c"), "operation", "op_1")])
    others = facts(old, holds=[Hold(digest("b"), "instance", "ins_2", "ver_other"), Hold(digest("0"), "instance", "x")])

    assert refusal(early, requested(T.RETIRE), facts(early)).code is Code.GRACE_PERIOD
    assert refusal(old, requested(T.RETIRE), held).code is Code.HOLD_PRESENT
    assert refusal(old, requested(T.RETIRE), unknown).code is Code.HOLD_PRESENT
    assert move_version(context(), old, requested(T.RETIRE), others).result.retired_at == NOW
