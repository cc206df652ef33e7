"""Drains of workers: they wait for jobs, name them, and are over when none was seen."""

from datetime import timedelta

from adapters.slurm.tests.sample_views import BUSY, FIRST, HEAD, NOW, QUIET, end_of, member, operation, task, view
from mooring_adapter import next_actions
from mooring_slurm.plans import plan
from tests.support.rows import every_row


def test_a_member_is_drained_when_it_was_seen_with_drain_and_no_job_and_not_before() -> None:
    under = operation("drain", FIRST)
    members = (member(HEAD), member(FIRST, "draining"))
    asked = task("cordon/one", {"changed": True})
    busy = task("quiet/one/1", BUSY, "failed", member_id=FIRST)
    here = view(*members, tasks=(asked, busy))
    found = next_actions(plan(here, under), here, under)
    assert (found.members, found.finish) == ({}, None)
    here = view(*members, tasks=(asked, busy, task("quiet/one/2", QUIET, member_id=FIRST)))
    found = next_actions(plan(here, under), here, under)
    assert found.members["one"]["status"] == "drained"


@every_row("kind", ["drain", "remove"])
def test_a_drain_that_waits_names_the_jobs_and_goes_on_checking(kind: str) -> None:
    under = operation(kind, FIRST, deadline_at=NOW + timedelta(hours=1))
    busy = task("quiet/one/1", BUSY, "failed", member_id=FIRST)
    members = (member(HEAD), member(FIRST, "draining"))
    for tasks in ((task("cordon/one"), busy), (task("cordon/one"), busy, task("quiet/one/2", None, "claimed"))):
        here = view(*members, tasks=tasks)
        found = next_actions(plan(here, under), here, under)
        assert found.blocked is not None
        assert (found.blocked.code, "42 (train of ada)" in found.blocked.detail) == ("not_quiet", True)
        assert found.wake_at is not None or len(tasks) == 3, "it checks again"
    here = view(*members, tasks=(task("cordon/one"), busy, task("quiet/one/2", QUIET, member_id=FIRST)))
    assert next_actions(plan(here, under), here, under).blocked is None


def test_a_drain_whose_time_is_over_names_the_jobs() -> None:
    busy = task("quiet/one/1", BUSY, "failed", member_id=FIRST)
    here = view(member(HEAD), member(FIRST, "draining"), tasks=(task("cordon/one"), busy))
    end = end_of(plan(here, operation("drain", FIRST, deadline_at=NOW + timedelta(seconds=1))))
    assert end.failure is not None
    assert (end.failure.code, "42 (train of ada)" in end.failure.detail) == ("not_quiet", True)
    assert end.evidence == {"jobs": ["42"]}
