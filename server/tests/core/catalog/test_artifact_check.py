"""Artifact checks: state in, decision out."""

from dataclasses import replace
from datetime import timedelta

import pytest

from mooring.core.catalog.artifact_check import (
    ATTEMPTS_MAX,
    SMOKE_COUNTS_FOR,
    UNDER_WAY_MAX,
    ArtifactCheck,
    CheckName,
    CheckOutcome,
    accept_check,
    cancel_check,
    counts_for_staging,
    end_check,
    hand_back_check,
    lose_check,
    require_room,
    running,
    start_check,
)
from mooring.core.catalog.artifact_evidence import add_evidence, measured
from mooring.core.catalog.artifact_trust import Trust
from mooring.core.catalog.trust_lifecycle import TrustState
from mooring.core.kernel.decision import Decision, StateChange, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.lifecycle import IllegalTransition
from server.tests.support.sample_decisions.artifacts import NOW, an_artifact

LATER = NOW.now + timedelta(seconds=30)
READ = CheckOutcome("every byte was fetched and hashed", 7)


def accepted() -> ArtifactCheck:
    return accept_check(NOW, an_artifact(), CheckName.CONTENT, action="artifact.verify").result


def started() -> ArtifactCheck:
    return start_check(NOW, accepted(), LATER).result


def move_of(decision: Decision[ArtifactCheck]) -> StateChange:
    (write,) = decision.writes
    assert isinstance(write, StateChange)
    return write


def test_a_check_is_accepted_for_the_very_digest_and_in_the_name_of_its_caller() -> None:
    artifact = an_artifact()
    decision = accept_check(NOW, artifact, CheckName.SMOKE, action="artifact.promote", bytes_total=9)

    check = decision.result
    assert (check.status, check.subject, check.bytes_done, check.bytes_total) == ("accepted", artifact.digest, 0, 9)
    assert (check.actor, check.correlation_id) == (NOW.actor, NOW.correlation_id)
    assert [each.action for each in decision.audits] == ["artifact.promote"]
    assert decision.events == ()


def test_a_start_takes_the_lease_and_reads_from_the_first_byte() -> None:
    interrupted = replace(accepted(), attempts=1, bytes_done=500, started_at=NOW.now - timedelta(hours=1))
    check = start_check(NOW, interrupted, LATER).result

    assert (check.status, check.attempts, check.bytes_done, check.lease_expires_at) == ("running", 2, 0, LATER)
    assert check.started_at == NOW.now - timedelta(hours=1)


def test_every_start_has_a_generation_of_its_own_which_every_result_must_name() -> None:
    first = started()
    second = start_check(NOW, lose_check(NOW, first).result, LATER).result

    assert first.generation != second.generation
    assert move_of(end_check(NOW, first, READ)).generation_expected == first.generation
    assert move_of(end_check(NOW, second, READ)).generation_expected == second.generation


def test_what_is_lost_is_due_again_after_a_pause_that_grows() -> None:
    dues = [lose_check(NOW, replace(started(), attempts=count)).result.due_at for count in range(1, ATTEMPTS_MAX)]

    assert dues == sorted(dues)
    assert dues[0] > NOW.now
    assert len(set(dues)) == len(dues)


def test_what_is_lost_as_often_as_it_is_tried_has_failed() -> None:
    decision = lose_check(NOW, replace(started(), attempts=ATTEMPTS_MAX))

    assert (decision.result.status, decision.result.failure_code) == ("failed", Code.TEMPORARILY_UNAVAILABLE)
    assert [each.type for each in decision.events] == ["catalog.artifact_check.ended"]


def test_what_is_handed_back_is_due_at_once_and_its_attempt_does_not_count() -> None:
    check = hand_back_check(NOW, started()).result

    assert (check.status, check.attempts, check.due_at, check.lease_expires_at) == ("accepted", 0, NOW.now, None)


def test_a_success_says_how_much_there_was() -> None:
    decision = end_check(NOW, replace(started(), bytes_total=100), READ)

    check = decision.result
    assert (check.status, check.passed, check.bytes_done, check.bytes_total) == ("succeeded", True, 7, 7)
    assert (check.refusal(), check.finished_at, check.lease_expires_at) == (None, NOW.now, None)
    assert decision.events[0].data["status"] == "succeeded"


def test_a_failure_is_raised_again_for_callers_who_wait_for_it() -> None:
    failure = Refusal(Code.DIGEST_MISMATCH, "something else is there", {"found": "sha256:0"})
    check = end_check(NOW, replace(started(), bytes_total=9), CheckOutcome(failure.detail, 3, failure)).result

    assert (check.status, check.passed, check.bytes_done, check.bytes_total) == ("failed", False, 3, 9)
    refusal = check.refusal()
    assert refusal is not None
    assert (refusal.code, refusal.detail) == (Code.DIGEST_MISMATCH, "something else is there")
    assert refusal.details == {"found": "sha256:0", "check_id": check.id, "artifact_id": check.artifact_id}


def test_what_is_under_way_can_be_cancelled_and_what_has_ended_cannot() -> None:
    for check in (accepted(), started()):
        cancelled = cancel_check(NOW, check, "somebody asked for it").result
        refusal = cancelled.refusal()
        assert cancelled.status == "cancelled"
        assert refusal is not None
        assert refusal.code is Code.CHECK_CANCELLED
    with pytest.raises(IllegalTransition):
        cancel_check(NOW, end_check(NOW, started(), READ).result, "somebody asked for it")


def test_a_caller_who_needs_a_running_check_learns_how_far_it_is() -> None:
    refusal = running(replace(started(), bytes_done=5, bytes_total=10))

    assert (refusal.code, refusal.details["bytes_done"], refusal.details["bytes_total"]) == (Code.CHECK_RUNNING, 5, 10)
    assert "unknown" in running(replace(started(), bytes_total=None)).detail


def test_a_smoke_check_counts_for_staging_when_it_passed_not_long_ago() -> None:
    passed = end_check(NOW, started(), READ).result
    failed = end_check(NOW, started(), CheckOutcome("no", 0, Refusal(Code.SMOKE_FAILED, "no"))).result

    assert counts_for_staging(passed, NOW.now + SMOKE_COUNTS_FOR)
    assert not counts_for_staging(passed, NOW.now + SMOKE_COUNTS_FOR + timedelta(seconds=1))
    assert not any(counts_for_staging(each, NOW.now) for each in (failed, started(), None))


def test_a_size_is_stated_with_the_move_of_trust_or_alone() -> None:
    unread = replace(an_artifact(), size_bytes=0)
    verified = measured(add_evidence(NOW, unread, [], Trust(TrustState.VERIFIED)), unread, 7)
    unmoved = measured(add_evidence(NOW, unread, [], Trust(TrustState.UNVERIFIED)), unread, 7)

    (moved,) = verified.writes
    assert isinstance(moved, StateChange)
    assert moved.set["size_bytes"] == 7
    assert unmoved.writes == (Update("artifact", unread.id, unread.revision, {"size_bytes": 7}),)
    assert {verified.result.size_bytes, unmoved.result.size_bytes} == {7}


def test_one_owner_has_a_bounded_number_of_checks_under_way() -> None:
    require_room(UNDER_WAY_MAX - 1)
    with pytest.raises(Refusal, match="running or queued") as refused:
        require_room(UNDER_WAY_MAX)
    assert refused.value.code is Code.LIMIT_REACHED
