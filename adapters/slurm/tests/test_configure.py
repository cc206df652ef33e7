"""Changing the configuration of a cluster: what changes live, what is restarted, and what is refused."""

from typing import Any

from adapters.slurm.tests.sample_views import FIRST, HEAD, SECOND, member, operation, task, view
from mooring_adapter import Finish, Operation, Plan, RunTask
from mooring_slurm.plans import plan
from tests.support.rows import every_row

QUEUES = [{"name": "main", "default": True}]
MEMBERS = (member(HEAD), member(FIRST), member(SECOND))


def changing(target: dict[str, Any]) -> Operation:
    return operation("configure", HEAD, FIRST, SECOND, request={"input": target, "changed": ["/x"]})


def planned(before: dict[str, Any], target: dict[str, Any], *tasks: Any) -> Plan:
    return plan(view(*MEMBERS, config=before, tasks=tasks), changing(target))


def end_of(found: Plan) -> Finish:
    last = found.steps[-1]
    assert isinstance(last, Finish)
    return last


def tasks_of(found: Plan) -> list[str]:
    return [each.step for each in found.steps if isinstance(each, RunTask)]


def test_partitions_change_live() -> None:
    found = planned({"partitions": QUEUES}, {"partitions": [*QUEUES, {"name": "night", "max_minutes": 60}]})
    assert tasks_of(found) == ["files/head", "files/one", "files/two", "partition/night", "gate/changed"]
    written = next(each for each in found.steps if isinstance(each, RunTask) and each.step == "files/one")
    assert "PartitionName=night Nodes=ALL Default=NO State=UP MaxTime=60" in str(written.arguments)
    assert end_of(found).evidence["applied_by"] == "reload"


def test_new_users_are_created_on_every_member() -> None:
    found = planned({"users": ["app"]}, {"users": ["app", "ada"]})
    assert {"users/head", "users/one", "users/two"} <= set(tasks_of(found))


def test_the_size_of_a_worker_needs_a_restart_of_it_alone() -> None:
    idle = task(f"before/{HEAD}", {"jobs": []})
    found = planned({}, {"cpus_per_worker": 2}, idle)
    steps = tasks_of(found)
    assert steps.index("delete/one") < steps.index("stop/one") < steps.index("start/one") < steps.index("delete/two")
    assert not {"stop/head", "start/head"} & set(steps)
    assert end_of(found).evidence == {"applied_by": "restart", "restarted": ["c-one", "c-two"]}


@every_row(
    ("before", "target", "said"),
    [
        ({}, {"accounting": True}, "accounting"),
        ({}, {"gpu_type": "a100"}, "gpu_type"),
        ({"users": ["ada", "bob"]}, {"users": ["bob"]}, "users"),
        ({"accounting": True}, {"accounting": True, "users": ["app", "ada"]}, "users"),
        ({"partitions": QUEUES}, {"partitions": [{"name": "other"}]}, "the jobs of main"),
        ({}, {"users": ["root"]}, "system user"),
    ],
)
def test_what_cannot_change_is_refused_with_the_reason(before: Any, target: Any, said: str) -> None:
    end = end_of(planned(before, target))
    assert (end.outcome, end.failure and end.failure.code) == ("failed", "config_refused")
    assert end.failure is not None
    assert said in end.failure.detail


def test_a_worker_with_jobs_does_not_change_its_size() -> None:
    busy = task(f"before/{HEAD}", {"jobs": [{"id": "7", "state": "RUNNING"}]})
    end = end_of(planned({}, {"cpus_per_worker": 2}, busy))
    assert end.failure is not None
    assert (end.failure.code, "jobs 7 run" in end.failure.detail) == ("config_refused", True)


def test_what_no_daemon_reads_changes_at_once() -> None:
    found = planned({}, {"drain_seconds": 5})
    assert (tasks_of(found), end_of(found).evidence["applied_by"]) == ([], "nothing")
