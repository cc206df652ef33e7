"""Every kind of operation ends the same on a simulated Slurm if the adapter is killed at any of its requests."""

from collections.abc import Callable

import pytest

from adapters.slurm.tests.simulated_run import SimulatedRun
from mooring_adapter.conformance.fake_records import FakeOperation
from mooring_slurm.catalog import VERSION
from mooring_slurm.simulated_slurm import HOLD, SimulatedSlurmNode

Play = tuple[SimulatedRun, FakeOperation]


def deploy() -> Play:
    here = SimulatedRun()
    return here, here.operation("deploy")


def deploy_with_accounting() -> Play:
    here = SimulatedRun(accounting=True, users=["app", "ada"])
    return here, here.operation("deploy")


def add() -> Play:
    here = SimulatedRun().deployed()
    return here, here.store.add(here.instance, "worker", 2)


def drain() -> Play:
    here = SimulatedRun().deployed()
    return here, here.store.change(here.instance, "drain", {"timeout_seconds": 300}, here.member("worker-1").id)


def drain_with_a_job() -> Play:
    """The job ends during the drain, by the platform's clock."""
    here = SimulatedRun().deployed()
    job = here.cluster.submit({}, {"script": HOLD, "user": "app"})["job_id"]
    worker = here.member(str(here.cluster.jobs[job].node).removeprefix("c-"))
    began = here.store.now()

    def pass_time(number: int) -> None:
        if (here.store.now() - began).total_seconds() > 5:
            here.cluster.jobs[job].state = "COMPLETED"

    here.on_round = pass_time
    return here, here.store.change(here.instance, "drain", {"timeout_seconds": 300}, worker.id)


def remove() -> Play:
    here = SimulatedRun().deployed()
    return here, here.store.change(here.instance, "remove", {"timeout_seconds": 300}, here.member("worker-1").id)


def remove_what_never_ends() -> Play:
    here = SimulatedRun().deployed()
    job = here.cluster.submit({}, {"script": HOLD, "user": "app"})["job_id"]
    worker = here.member(str(here.cluster.jobs[job].node).removeprefix("c-"))
    return here, here.store.change(here.instance, "remove", {"timeout_seconds": 5}, worker.id)


def replace() -> Play:
    here = SimulatedRun().deployed()
    return here, here.replace(here.member("worker-1"), surge=True)


def replace_without_surge() -> Play:
    here = SimulatedRun().deployed()
    return here, here.replace(here.member("worker-1"), surge=False)


def replace_what_is_lost() -> Play:
    here = SimulatedRun().deployed()
    old = here.member("worker-1")
    here.store.lose(here.instance, old)
    here.cluster.forget(old.name)
    return here, here.replace(old, surge=True)


def replace_the_controller() -> Play:
    """Without a surge: the platform refuses one for a component with at most one member."""
    here = SimulatedRun(workers=1).deployed()
    return here, here.replace(here.member("controller-0"), surge=False)


def upgrade() -> Play:
    here = SimulatedRun().deployed()
    here.cluster.submit({}, {"script": HOLD, "user": "app"})
    return here, here.upgrade()


def rollback() -> Play:
    here = SimulatedRun(workers=1).deployed()
    here = here.once("upgraded", here.upgrade)
    return here, here.upgrade(VERSION, "rollback")


def restart() -> Play:
    here = SimulatedRun(workers=1).deployed()
    return here, here.store.change(here.instance, "restart", {}, None)


def reconcile() -> Play:
    """A node without a member, and a stale drain of the platform."""
    here = SimulatedRun().deployed()
    here.cluster.nodes["stranger"] = SimulatedSlurmNode("stranger")
    here.cluster.drain({"node": "c-worker-0", "owner": "member", "reason": "left behind"}, {})
    return here, here.store.change(here.instance, "reconcile", {}, None)


def repair() -> Play:
    """A worker that failed, and another whose daemon is down."""
    here = SimulatedRun(workers=3).deployed()
    broken, down = here.member("worker-1"), here.member("worker-2")
    with here.store.changing(here.instance):
        broken.status, broken.failure = "failed", {"code": "unhealthy", "detail": "it is broken"}
        here.store.nodes.running[down.id].discard("slurmd")
    here.cluster.stop(down.name, "slurmd", whole=False)
    return here, here.store.change(here.instance, "repair", {"scope": "whole_runtime"}, None)


def decommission() -> Play:
    here = SimulatedRun().deployed()
    return here, here.store.change(here.instance, "decommission", {}, None)


def attach() -> Play:
    here = SimulatedRun(accounting=True).deployed()
    return here, here.store.attach(here.instance, "p-other")


def detach() -> Play:
    here = SimulatedRun(accounting=True).deployed()
    here = here.once("attached", lambda: here.store.attach(here.instance, "p-other"))
    here.cluster.submit({}, {"script": HOLD, "user": "p-other", "account": "p-other", "key": "theirs"})
    identity = next(iter(here.instance.attachments))
    return here, here.store.detach(here.instance, identity, cancel_work=True, seconds=60)


def submit() -> Play:
    here = SimulatedRun().deployed()
    request = {"action": "queue.submit", "input": {"script": f"#!/bin/sh\n{HOLD}\n", "key": "mine"}}
    return here, here.store.change(here.instance, "action", request, None)


def cancelled_drain() -> Play:
    here, drained = drain_with_a_job()
    here.on_round = lambda number: here.store.cancel(here.instance, drained) if number == 4 else None
    return here, drained


def cancelled_upgrade() -> Play:
    here, changed = upgrade()

    def cancel(number: int) -> None:
        if any(each.step.startswith("stop/") for each in here.instance.tasks.values()) and changed.status == "running":
            here.store.cancel(here.instance, changed)

    here.on_round = cancel
    return here, changed


PLAYS: tuple[Callable[[], Play], ...] = (
    deploy,
    deploy_with_accounting,
    add,
    drain,
    drain_with_a_job,
    remove,
    remove_what_never_ends,
    replace,
    replace_without_surge,
    replace_what_is_lost,
    replace_the_controller,
    upgrade,
    rollback,
    restart,
    reconcile,
    repair,
    decommission,
    attach,
    detach,
    submit,
    cancelled_drain,
    cancelled_upgrade,
)
ENDS = {"cancelled_drain": "cancelled", "cancelled_upgrade": "cancelled", "replace_what_is_lost": "running"}
"""The operations that do not succeed: what is left on a lost machine waits for a write-off."""


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__)
def test_the_end_is_the_same_wherever_the_adapter_is_killed(play: Callable[[], Play]) -> None:
    here, operation = play()
    requests = here.until_over(operation)
    undisturbed = here.end_state(operation)
    assert operation.status == ENDS.get(play.__name__, "succeeded"), operation.outcome
    assert here.store.nodes.started_twice == []
    assert here.store.observations == []
    if play.__name__.startswith("cancelled"):
        return  # when it is cancelled depends on the round, and so does what was done before
    for point in range(1, requests + 1):
        here, operation = play()
        here.until_over(operation, point, is_done=point > 1)  # before one is behind the one before
        assert here.end_state(operation) == undisturbed, f"killed at request {point}"
        assert (here.store.nodes.started_twice, here.store.observations) == ([], [])


def test_a_node_that_a_forced_remove_left_in_slurm_is_deleted_and_its_job_metered() -> None:
    here = SimulatedRun().deployed()
    job = here.cluster.submit({}, {"script": HOLD, "user": "app"})["job_id"]
    node = str(here.cluster.jobs[job].node)
    with here.store.changing(here.instance):
        here.member(node.removeprefix("c-")).status = "removed"  # by the platform alone, which tells nobody
    here.cluster.forget(node)
    here.cluster.nodes["admins-own"] = SimulatedSlurmNode("admins-own", responding=False)
    here.watch(lambda: node not in here.cluster.nodes)
    here.watch(lambda: [each["node"] for each in here.instance.adapter_detail["drift"]] == ["admins-own"])
    assert here.cluster.jobs[job].state == "NODE_FAIL"
    assert "admins-own" in here.cluster.nodes, "it is shown, and left alone"
    asked = [each.step for each in here.instance.tasks.values() if each.step.startswith("forget/")]
    assert len(asked) == 1
    here.watch(lambda: f"job/{job}/" in str(here.instance.usage))
