"""The failure of a member contains the last log lines of its daemon."""

import msgspec

from adapters.slurm.tests.sample_views import (
    FIRST,
    HEAD,
    SECOND,
    UNHEARD,
    end_of,
    member,
    named,
    operation,
    task,
    view,
)
from mooring_adapter import Finish
from mooring_slurm.daemons import BEGINS
from mooring_slurm.plans import plan


def test_a_worker_that_is_given_up_is_reported_in_its_daemons_words() -> None:
    error = {"error": {"code": "daemon_down", "detail": "the slurmd of c-one does not stay up"}}
    bad = task("prove/one", error, "failed", exit_code=1, failure_code="exited")
    here = view(member(HEAD), member(FIRST, "joining"), member(SECOND, "joining"), tasks=(bad,))
    found = plan(here, operation("add", FIRST, SECOND))
    asked = named(found, "why/one")
    assert (asked.type, asked.arguments, asked.after) == ("service.inspect", {"name": "slurmd"}, ())
    assert not [each for each in found.steps if isinstance(each, Finish) or each.step == "failed/one"]
    assert any(each.step == "prove/two" for each in found.steps)

    lines = ["slurmd: debug: hello", "slurmd: fatal: Unable to bind listen port", "slurmd: bye"]
    heard = msgspec.structs.replace(UNHEARD, status="succeeded", result={"state": "waiting", "last_lines": lines})
    for how in ("joining", "failed"):  # before its failure was reported, and after
        seen = view(member(HEAD), member(FIRST, how), tasks=(bad, heard))
        failure = end_of(plan(seen, operation("add", FIRST))).failure
        assert failure is not None
        expected = "c-one: the slurmd of c-one does not stay up; slurmd: fatal: Unable to bind listen port"
        assert (failure.detail, failure.last_lines) == (expected, tuple(lines))


def test_a_daemon_that_restarts_is_reported_by_what_ended_its_last_run() -> None:
    bad = task("prove/one", {"error": {"code": "daemon_down", "detail": "it is down"}}, "failed", exit_code=1)
    start = [BEGINS, "slurmd: error: other hardware"]
    lines = [*start, "slurmd: error: the port is taken", *start]
    heard = msgspec.structs.replace(UNHEARD, status="succeeded", result={"state": "running", "last_lines": lines})
    failure = end_of(
        plan(view(member(HEAD), member(FIRST, "joining"), tasks=(bad, heard)), operation("add", FIRST))
    ).failure
    assert failure is not None
    assert failure.detail.endswith("slurmd: error: the port is taken")


def test_a_daemon_on_a_machine_that_cannot_be_reached_is_not_asked() -> None:
    bad = task("prove/one", {"error": {"code": "timed_out", "detail": "no job ran"}}, "failed")
    here = view(member(HEAD), member(FIRST, "joining", node_reachable=False), tasks=(bad,))
    assert end_of(plan(here, operation("add", FIRST))).outcome == "failed"
