"""What is asked of an instance that is there: what is accepted, what is refused, and with which way out."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mooring.core.catalog.artifact_trust import Trust, TrustDoubt
from mooring.core.catalog.manifest import Drain
from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.core.catalog.trust_lifecycle import TrustState
from mooring.core.kernel.decision import Insert, PrincipalKind, StateChange, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import FAMILIES, Place, Scope, categories_of, holds_family
from mooring.core.runtime import app_action, instance_change, member_change
from mooring.core.runtime.app_action import check_output, may_act, start_action
from mooring.core.runtime.instance_change import InstanceContext, PinnedVersion, RepairScope
from mooring.core.runtime.launch_snapshot import EvaluationPurpose
from mooring.core.runtime.member_change import (
    REPORT_GRACE,
    RemoveMemberRequest,
    ReplaceMemberRequest,
    surges,
    takes_over,
)
from mooring.core.runtime.operation import Operation
from mooring.core.runtime.topology import free_ordinals
from server.tests.support.catalog_rows import version
from server.tests.support.decision_context import ACCOUNT, NOW, PROJECT, TENANT, authority, context
from server.tests.support.manifests import launchable
from server.tests.support.sample_decisions.instances import BOUNDS, adding, facts, manifest, running
from tests.support.rows import every_row

PLACE = Place(Scope.PROJECT, TENANT, PROJECT)


def refused(ask: Callable[[], Any]) -> Refusal:
    """With what it is refused."""
    with pytest.raises(Refusal) as raised:
        ask()
    return raised.value


def moves(writes: Any) -> list[tuple[str, str]]:
    """Which nouns move where."""
    return [(each.noun, each.edge.target.value) for each in writes if isinstance(each, StateChange)]


def earlier(
    promotion: PromotionState = PromotionState.DEPRECATED, **changes: Any
) -> tuple[InstanceContext, PinnedVersion]:
    """An instance that came from another version, and that version as it is now."""
    there = version(promotion)
    pin = {
        "version_id": there.id,
        "version": there.version,
        "manifest_digest": there.manifest_digest,
        "artifacts": launchable()["artifacts"],
    }
    return running(context(), previous_pin=pin), PinnedVersion(there, changes.get("artifacts", facts().artifacts))


def test_a_stop_cancels_what_is_open_and_takes_over_a_teardown_that_has_begun() -> None:
    now, seen = context(), running(context())
    open_ = instance_change.reconcile_instance(now, seen, BOUNDS).result
    decision = instance_change.stop_instance(now, replace(seen, operations=[open_]), BOUNDS)
    assert moves(decision.writes) == [("instance", "stopping"), ("operation", "cancelling")]
    assert decision.result.phase_deadline_at == NOW + timedelta(seconds=120), "the manifest's graceful time"
    assert set(decision.result.member_ids) == {each.id for each in seen.members}
    failed = replace(seen, instance=replace(seen.instance, status="failed"), operations=[decision.result])
    again = instance_change.stop_instance(now, failed, BOUNDS)
    assert again.result is decision.result
    assert moves(again.writes) == [("instance", "stopping")]
    stopping = replace(failed, instance=replace(seen.instance, status="stopping"))
    assert instance_change.stop_instance(now, stopping, BOUNDS).writes == ()
    stopped = replace(stopping, instance=replace(seen.instance, status="stopped"), operations=[], last_stop=open_)
    assert instance_change.stop_instance(now, stopped, BOUNDS).result is open_


def test_only_what_runs_is_changed() -> None:
    seen = running(context())
    starting = replace(seen, instance=replace(seen.instance, status="starting"))
    refusal = refused(lambda: instance_change.reconcile_instance(context(), starting, BOUNDS))
    assert (refusal.code, refusal.details["allowed"]) == (Code.ILLEGAL_TRANSITION, ["report_ready", "fail", "stop"])


def test_an_upgrade_is_refused_where_the_target_does_not_take_over() -> None:
    seen = running(context(), version="0.9.0", version_id="ver_old")
    refusal = refused(
        lambda: instance_change.upgrade_instance(context(), seen, adding(seen, EvaluationPurpose.UPGRADE), BOUNDS)
    )
    assert (refusal.code, refusal.details["from_versions"]) == (Code.NOT_SUPPORTED, [">=1.0.0"])
    same = running(context())
    target = adding(same, EvaluationPurpose.UPGRADE)
    again = replace(
        same,
        instance=replace(same.instance, version_id=str(target.version and target.version.id)),
        members=[replace(each, version_id=str(target.version and target.version.id)) for each in same.members],
    )
    assert refused(lambda: instance_change.upgrade_instance(context(), again, target, BOUNDS)).code is Code.CONFLICT


def test_a_target_that_is_held_already_is_not_held_twice() -> None:
    seen = running(context(), version="1.9.0", version_id="ver_old")
    decision = instance_change.upgrade_instance(
        context(),
        replace(seen, held=frozenset(manifest().digests[:1])),
        adding(seen, EvaluationPurpose.UPGRADE),
        BOUNDS,
    )
    holds = [each.row for each in decision.writes if isinstance(each, Insert) and each.noun == "artifact_hold"]
    assert [each["digest"] for each in holds] == list(manifest().digests[1:])
    assert decision.result.target_pin is not None


def test_a_rollback_leads_to_what_is_still_what_it_was() -> None:
    assert instance_change.rollback_instance(context(), *earlier(), BOUNDS).result.target_pin is not None
    retired = refused(lambda: instance_change.rollback_instance(context(), *earlier(PromotionState.RETIRED), BOUNDS))
    assert retired.code is Code.ROLLBACK_UNAVAILABLE
    revoked = Trust(TrustState.REVOKED, (TrustDoubt(Code.ARTIFACT_REVOKED, "it is revoked"),))
    gone = [(artifact, revoked) for artifact, _ in facts().artifacts]
    seen, there = earlier(artifacts=gone)
    assert refused(lambda: instance_change.rollback_instance(context(), seen, there, BOUNDS)).code is (
        Code.ROLLBACK_UNAVAILABLE
    )
    doubted = Trust(TrustState.UNVERIFIED, (TrustDoubt(Code.SIGNATURE_MISSING, "nobody signed it"),))
    seen, there = earlier(artifacts=[(artifact, doubted) for artifact, _ in facts().artifacts])
    assert refused(lambda: instance_change.rollback_instance(context(), seen, there, BOUNDS)).code is (
        Code.SIGNATURE_MISSING
    )
    nothing = running(context())
    assert (
        refused(lambda: instance_change.rollback_instance(context(), nothing, PinnedVersion(None, ()), BOUNDS)).code
        is Code.ROLLBACK_UNAVAILABLE
    )


def test_after_a_failed_upgrade_a_rollback_leads_to_the_pin() -> None:
    seen = running(context())
    new = [replace(seen.members[0], version_id="ver_new"), *seen.members[1:]]
    assert instance_change.rollback_target(seen.instance, new) == seen.instance.pin
    assert instance_change.rollback_target(seen.instance, seen.members) is None


def test_a_repair_of_one_member_names_it() -> None:
    seen = running(context())
    one = seen.members[0].id
    made = instance_change.repair_instance(context(), seen, RepairScope.MEMBER, one, BOUNDS).result
    assert (made.member_ids, made.request) == ([one], {"scope": "member", "member_id": one})
    for scope, named in ((RepairScope.MEMBER, None), (RepairScope.CONTROL_PLANE, one), (RepairScope.MEMBER, "mem_x")):
        asked = refused(
            lambda scope=scope, named=named: instance_change.repair_instance(context(), seen, scope, named, BOUNDS)  # type: ignore[misc]
        )
        assert asked.details["path"] == "member_id"


def test_a_member_that_failed_goes_below_the_minimum_and_its_place_stays_wanted() -> None:
    seen = running(context())
    head = next(each for each in seen.members if each.component_key == "head")
    refusal = refused(lambda: member_change.remove_member(context(), seen, head, RemoveMemberRequest(), BOUNDS))
    assert (refusal.code, refusal.details["instead"]) == (
        Code.NOT_SUPPORTED,
        "replace the member, or stop the instance",
    )
    decision = member_change.remove_member(
        context(), seen, replace(head, status="failed"), RemoveMemberRequest(), BOUNDS
    )
    changed = next(each.set for each in decision.writes if isinstance(each, Update) and each.noun == "instance")
    assert changed["topology"] == {"head": 1, "hand": 1}
    forced = member_change.remove_member(
        context(), seen, seen.members[1], RemoveMemberRequest(force=True), BOUNDS
    ).result
    assert (forced.phase, forced.phase_deadline_at) == ("platform", NOW)


def test_an_adapters_hold_stays_until_it_lets_go() -> None:
    seen = running(context())
    holds = [{"owner": "usr_other", "reason": "", "since": ""}, {"owner": ACCOUNT, "reason": "jobs", "since": ""}]
    held = replace(seen.members[1], status="drained", holds=holds)
    refusal = refused(lambda: member_change.resume_member(context(), seen, held))
    assert (refusal.code, refusal.details["holds"]) == (Code.CONFLICT, holds[1:])
    free = replace(held, holds=holds[:1])
    assert member_change.resume_member(context(), seen, free).result.status == "ready"
    robot = context("sa_1", PrincipalKind.SERVICE_ACCOUNT)
    assert refused(lambda: member_change.resume_member(robot, seen, free)).code is Code.CONFLICT


def test_one_operation_is_open_for_each_member() -> None:
    seen = running(context())
    first, second = seen.members
    drained: Operation = member_change.drain_member(context(), seen, first, timeout_seconds=60, reason="").result
    busy = replace(seen, operations=[drained])
    refusal = refused(lambda: member_change.remove_member(context(), busy, first, RemoveMemberRequest(), BOUNDS))
    assert (refusal.code, refusal.details["operation_id"]) == (Code.OPERATION_IN_PROGRESS, drained.id)
    assert member_change.remove_member(context(), busy, second, RemoveMemberRequest(), BOUNDS).result.member_ids == [
        second.id
    ]


def test_a_member_whose_drain_ran_out_of_time_is_asked_again() -> None:
    seen = running(context())
    held = [{"owner": "usr_other", "reason": "a new disk", "since": ""}]
    member = replace(seen.members[0], status="draining", holds=held)
    decision = member_change.drain_member(context(), seen, member, timeout_seconds=600, reason="again")
    assert (decision.result.kind, decision.result.member_ids) == ("drain", [member.id])
    assert moves(decision.writes) == []
    change = next(each for each in decision.writes if isinstance(each, Update) and each.noun == "member")
    assert change.generation_expected == member.generation
    holds: Any = change.set["holds"]
    assert [each["reason"] for each in holds] == ["a new disk", "again"]
    assert change.set["last_operation_id"] == decision.result.id


def test_a_replacement_takes_over_the_place_or_joins_first() -> None:
    seen = running(context())
    old = replace(seen.members[1], allocation_id="alc_new", owns_allocation=True)
    decision = member_change.replace_member(
        context(), seen, adding(seen), BOUNDS, member=old, request=ReplaceMemberRequest(surge=False)
    )
    _, new = decision.result.members
    assert (new.allocation_id, new.owns_allocation, new.replaces_id) == ("alc_new", True, old.id)
    leaving = next(each for each in decision.writes if isinstance(each, StateChange) and each.noun == "member")
    assert (leaving.edge.target, leaving.set["owns_allocation"]) == ("draining", False)
    surge = member_change.replace_member(
        context(), seen, adding(seen), BOUNDS, member=seen.members[1], request=ReplaceMemberRequest()
    )
    assert moves(surge.writes) == [], "the old one works until the new one does"


def test_a_replacement_joins_first_only_where_there_may_be_one_more() -> None:
    seen = running(context())
    assert seen.manifest is not None
    alone = [replace(each, max_count=1) if each.key == "head" else each for each in seen.manifest.components]
    seen = replace(seen, manifest=replace(seen.manifest, components=tuple(alone)))
    head = replace(next(each for each in seen.members if each.component_key == "head"), allocation_id="alc_new")
    launch, request = adding(seen), ReplaceMemberRequest()
    assert [surges(seen, each, request) for each in (head, seen.members[1])] == [False, True]
    replaced = member_change.replace_member(context(), seen, launch, BOUNDS, member=head, request=request).result
    assert replaced.operation.request["surge"] is False
    refusal = refused(
        lambda: member_change.replace_member(
            context(), seen, launch, BOUNDS, member=head, request=ReplaceMemberRequest(surge=True)
        )
    )
    assert refusal.code is Code.NOT_SUPPORTED
    assert takes_over(seen, head, "active", request)
    assert not takes_over(seen, replace(seen.members[1], allocation_id="alc_new"), "active", request)


@every_row(
    ("asked", "config", "seconds"),
    [(None, {}, 300), (None, {"patience": 900}, 900), (60, {"patience": 900}, 60), (None, {"patience": "long"}, 300)],
)
def test_a_drain_without_a_time_limit_gets_the_one_of_the_app(
    asked: int | None, config: dict[str, Any], seconds: int
) -> None:
    seen = running(context(), config=config)
    assert seen.manifest is not None
    assert seen.manifest.lifecycle is not None
    drain = Drain(from_config="patience")
    seen = replace(seen, manifest=replace(seen.manifest, lifecycle=replace(seen.manifest.lifecycle, drain=drain)))
    member = seen.members[1]
    drained = member_change.drain_member(context(), seen, member, timeout_seconds=asked, reason="").result
    assert drained.request == {"timeout_seconds": seconds}
    assert drained.phase_deadline_at == NOW + timedelta(seconds=seconds)
    assert drained.deadline_at == drained.phase_deadline_at + REPORT_GRACE, "its adapter still says what held it up"
    removed = member_change.remove_member(
        context(), seen, member, RemoveMemberRequest(timeout_seconds=asked), BOUNDS
    ).result
    assert removed.request["timeout_seconds"] == seconds
    requested = ReplaceMemberRequest(timeout_seconds=asked)
    replaced = member_change.replace_member(
        context(), seen, adding(seen), BOUNDS, member=member, request=requested
    ).result
    assert replaced.operation.request["timeout_seconds"] == seconds


def test_ordinals_of_members_being_torn_down_are_not_given_away() -> None:
    hand = running(context()).members[1]
    there = [replace(hand, ordinal=0, status="removing"), replace(hand, ordinal=2)]
    assert free_ordinals(there, "hand", 2) == [1, 3]
    assert free_ordinals([replace(each, status="removed") for each in there], "hand", 1) == [0]


def test_an_action_is_bounded_on_both_ways_and_leaves_no_trace_when_it_only_reads() -> None:
    seen = running(context())
    made = start_action(context(), seen, "queue.submit", {"a": 1}, None)
    assert (made.result.request, made.traceless, len(made.audits)) == (
        {"action": "queue.submit", "permission": made.audits[0].action, "input": {"a": 1}},
        False,
        1,
    )
    quiet = start_action(context(), seen, "queue.list", {}, None)
    assert (quiet.events, quiet.audits, quiet.traceless) == ((), (), True)
    large = {"a": "x" * app_action.INPUT_BYTES_MAX}
    assert refused(lambda: start_action(context(), seen, "queue.submit", large, None)).details["path"] == "input"
    large = {"a": "x" * app_action.OUTPUT_BYTES_MAX}
    assert refused(lambda: check_output(manifest(), made.result, large)).details["path"] == "output"
    assert refused(lambda: start_action(context(), seen, "queue.submit", {}, "mem_1")).details["path"] == "member_id"
    assert refused(lambda: start_action(context(), seen, "no.such", {}, None)).code is Code.NOT_FOUND
    many = replace(seen, operations=[made.result] * app_action.OPEN_MAX)
    assert refused(lambda: start_action(context(), many, "queue.list", {}, None)).code is Code.LIMIT_REACHED


def test_an_apps_own_key_goes_with_launching_and_an_account_needs_it_on_its_list() -> None:
    key = "app.web-tool.queue.submit"
    person, robot = context().actor, context("sa_1", PrincipalKind.SERVICE_ACCOUNT).actor
    member = authority(("project_member", PROJECT))
    assert may_act(person, member, PLACE, key)
    assert not may_act(robot, member, PLACE, key)
    assert not may_act(person, authority(("project_viewer", PROJECT)), PLACE, key)
    assert not may_act(person, authority(("project_member", PROJECT), limit={"instance.create"}), PLACE, key)
    assert may_act(person, authority(("project_viewer", PROJECT)), PLACE, "scheduler.queue.read")


def test_a_category_has_its_family_of_keys() -> None:
    assert FAMILIES["instance.create"] == {"scheduler": "scheduler.instance.create"}
    whole, narrow = (
        authority(("project_member", PROJECT)),
        authority(("project_member", PROJECT), limit={"scheduler.instance.create"}),
    )
    assert categories_of(whole, PLACE, "instance.create") is None
    assert categories_of(narrow, PLACE, "instance.create") == ("scheduler",)
    assert holds_family(narrow, PLACE, "instance.create", "scheduler")
    assert not holds_family(narrow, PLACE, "instance.create", "tool")
    assert categories_of(narrow, PLACE, "instance.delete") == ()
