"""Observing a running cluster: Slurm's state in; health, differences and usage out."""

import json
from datetime import timedelta
from typing import Any

import msgspec

from adapters.slurm.tests.sample_views import FIRST, HEAD, NOW, SECOND, member, operation, view
from mooring_adapter import Attachment, InstanceView, Member, MemberObservation, Observation, Task
from mooring_slurm.watch import fingerprint, watch
from tests.support.rows import every_row

IDLE = {"name": "c-one", "state": ["IDLE"], "responding": True, "version": "22.05.8", "jobs": 0}


def looked(here: InstanceView, nodes: list[dict[str, Any]], **more: Any) -> InstanceView:
    """The view after a look that found this."""
    said = {"version": "22.05.8", "nodes": nodes, "job_counts": {"RUNNING": 1}, "ended_until": "mark", **more}
    look = Task(
        id="look",
        step=f"look/{fingerprint(here)}/1",
        member_id=HEAD,
        status="succeeded",
        finished_at=NOW,
        result={"output": json.dumps(said)},
    )
    return InstanceView(
        instance=here.instance,
        manifest=here.manifest,
        members=here.members,
        operations=here.operations,
        tasks=[look],
        now=here.now,
        attachments=more.get("attachments", []),
    )


def seen_of(found: Observation, identity: str = FIRST) -> MemberObservation:
    return next(each for each in found.members if each.member_id == identity)


def cluster(worker: Member | None = None) -> InstanceView:
    return view(member(HEAD), worker or member(FIRST))


def test_a_cluster_that_was_not_observed_is_observed_on_the_controller_and_nothing_is_reported() -> None:
    found = watch(cluster())
    assert [(each.type, each.member_id) for each in found.looks] == [("probe.exec", HEAD)]
    assert (found.health, found.members) == (None, ())


def test_one_look_is_made_at_a_time_and_none_for_each_step_of_a_change() -> None:
    under = operation("add", FIRST)
    joining = view(member(HEAD), member(FIRST, "requested"))
    (asked,) = watch(msgspec.structs.replace(joining, operations=[under])).looks
    open_look = Task(id="look", step=asked.step, member_id=HEAD, status="claimed")
    later = view(member(HEAD), member(FIRST, "joining"), tasks=(open_look,))
    assert watch(msgspec.structs.replace(later, operations=[under])).looks == ()
    grown = view(member(HEAD), member(FIRST), tasks=(open_look,))
    assert watch(grown).looks == ()  # it is over soon, and then the change is looked at
    done = msgspec.structs.replace(open_look, status="succeeded", result={"output": json.dumps({"nodes": [IDLE]})})
    (again,) = watch(view(member(HEAD), member(FIRST), tasks=(done,))).looks
    assert again.step.split("/")[1] == fingerprint(grown)
    restarted = [msgspec.structs.replace(each, last_operation_id="op_restart") for each in grown.members]
    after = msgspec.structs.replace(grown, members=restarted)
    assert fingerprint(after) != fingerprint(grown), "what was seen before a restart is not believed after it"
    stuck = msgspec.structs.replace(open_look, step="look/changing/1")
    assert len(watch(view(member(HEAD), member(FIRST), tasks=(stuck,))).looks) == 1


def test_a_node_that_takes_jobs_is_healthy_and_operators_see_what_slurm_says() -> None:
    found = watch(looked(cluster(), [IDLE]))
    observed = seen_of(found)
    assert (observed.status, observed.health, found.health) == ("ready", "healthy", "healthy")
    assert observed.detail is not None
    assert observed.detail["slurm"]["state"] == ["IDLE"]
    assert found.detail is not None
    assert found.detail["slurm"] == {"version": "22.05.8", "nodes": 1, "jobs": {"RUNNING": 1}}


def test_a_node_that_is_down_makes_its_member_degraded_with_slurms_reason() -> None:
    found = watch(looked(cluster(), [{**IDLE, "state": ["DOWN"], "reason": "Not responding", "responding": False}]))
    observed = seen_of(found)
    assert (observed.status, observed.health, found.health) == ("degraded", "degraded", "degraded")
    assert "Not responding" in (observed.health_detail or "")


def test_a_node_that_was_silent_once_is_checked_again_before_its_member_is_degraded() -> None:
    silent = {**IDLE, "state": ["IDLE", "NOT_RESPONDING"], "responding": False}
    observed = seen_of(watch(looked(cluster(), [silent])))
    assert observed.status == "ready"
    assert observed.detail is not None
    again = member(FIRST, adapter_detail=dict(observed.detail))
    assert seen_of(watch(looked(cluster(again), [silent]))).status == "degraded"


def test_somebody_elses_drain_is_shown_and_never_cleared() -> None:
    found = watch(looked(cluster(), [{**IDLE, "state": ["IDLE", "DRAIN"], "reason": "swap", "reason_by": "root"}]))
    assert seen_of(found).status == "degraded"
    assert "drained in Slurm by root: swap" in (seen_of(found).health_detail or "")
    assert [each.step.split("/")[0] for each in found.looks] == ["look"]
    assert found.detail is not None
    assert [each["difference"] for each in found.detail["drift"]] == ["foreign_drain"]


def test_a_member_that_was_resumed_has_the_platforms_own_drain_cleared() -> None:
    drained = {**IDLE, "state": ["IDLE", "DRAIN"], "reason": "mooring:member: drain op_1"}
    found = watch(looked(cluster(), [drained]))
    assert seen_of(found).status == "ready"
    asked = next(each for each in found.looks if each.member_id == FIRST)
    assert asked.arguments["argv"][-5:] == ["resume", "--node", "c-one", "--owner", "member"]


def test_a_drain_that_is_wanted_is_left_as_it_is() -> None:
    drained = {**IDLE, "state": ["IDLE", "DRAIN"], "reason": "mooring:member: drain op_1"}
    found = watch(looked(cluster(member(FIRST, "drained")), [drained]))
    assert (seen_of(found).status, seen_of(found).health) == (None, "healthy")
    assert len(found.looks) == 1


def test_a_look_from_before_a_change_says_nothing_about_members() -> None:
    old = looked(cluster(member(FIRST, "drained")), [{**IDLE, "state": ["IDLE", "DRAIN"]}])
    here = InstanceView(instance=old.instance, members=cluster().members, tasks=old.tasks, now=NOW)
    found = watch(here)
    assert (found.members, found.health, len(found.looks)) == ((), None, 1)
    busy = InstanceView(
        instance=old.instance, members=old.members, tasks=old.tasks, operations=[operation("upgrade")], now=NOW
    )
    assert watch(busy).members == ()


def test_a_controller_that_does_not_answer_is_reported_with_its_words() -> None:
    here = cluster()
    error = {"error": {"code": "unreachable", "detail": "slurmctld does not listen"}}
    look = Task(id="look", step="look/x/1", member_id=HEAD, status="failed", result={"output": json.dumps(error)})
    found = watch(InstanceView(instance=here.instance, members=here.members, tasks=[look], now=NOW))
    assert (seen_of(found, HEAD).status, found.health) == ("degraded", "degraded")
    assert "slurmctld does not listen" in (found.health_detail or "")


def test_a_cluster_without_workers_is_well_and_says_so() -> None:
    here = looked(view(member(HEAD)), [])
    assert (watch(here).health, watch(here).health_detail) == (
        "healthy",
        "the controller takes jobs; there are no workers",
    )


LEFT = {**IDLE, "name": "c-worker-1", "state": ["DOWN", "NOT_RESPONDING"], "responding": False}


def forced(*nodes: dict[str, Any], **more: Any) -> InstanceView:
    """A cluster called c, after a member was torn down without Slurm being informed."""
    return looked(view(member(HEAD), member(FIRST), name="c", **more), [IDLE, *nodes])


def test_a_node_whose_member_was_removed_by_force_is_deleted_by_the_controller() -> None:
    found = watch(forced(LEFT))
    (asked,) = found.looks
    assert (asked.member_id, asked.type) == (HEAD, "probe.exec")
    assert asked.arguments["argv"][-6:] == ["delete", "--node", "c-worker-1", "--gone", "--owner", "member"]
    assert found.health == "degraded"
    assert "its member was removed" in (found.health_detail or "")
    assert found.detail is not None
    assert [(each["difference"], each["repairable"]) for each in found.detail["drift"]] == [("left_node", True)]
    assert seen_of(found).status == "ready"


def test_a_node_that_is_being_deleted_is_checked_again_in_the_next_interval() -> None:
    here = forced(LEFT)
    (asked,) = watch(here).looks
    for status in ("claimed", "succeeded", "failed"):
        done = Task(id="x", step=asked.step, member_id=HEAD, status=status, created_at=NOW)
        assert watch(msgspec.structs.replace(here, tasks=[*here.tasks, done])) == Observation()  # and no other is made
        later = msgspec.structs.replace(here, tasks=[*here.tasks, done], now=NOW + timedelta(seconds=20))
        assert [each.step.split("/")[0] for each in watch(later).looks] == ["look"]
    healed = watch(forced())
    assert (healed.health, [each.step.split("/")[0] for each in healed.looks]) == ("healthy", ["look"])


@every_row(
    "node",
    [
        {**LEFT, "state": ["IDLE"], "responding": True},  # it answers: its teardown is not over
        {**LEFT, "name": "admins-own"},
        {**LEFT, "name": "c-worker-x"},
        {**LEFT, "name": "c-worker-"},
        {**LEFT, "name": "c-controller-1"},
        {**LEFT, "name": "b-c-worker-1"},
    ],
)
def test_a_node_that_answers_or_has_another_name_is_never_deleted_by_a_look(node: dict[str, Any]) -> None:
    found = watch(forced(node))
    assert [each.step.split("/")[0] for each in found.looks] == ["look"]
    assert found.health == "degraded"


@every_row("status", ["requested", "joining", "ready", "failed", "removing"])
def test_a_node_whose_member_is_there_in_whatever_state_is_never_deleted_by_a_look(status: str) -> None:
    standing = msgspec.structs.replace(member(SECOND, status), name="c-worker-1")
    here = looked(view(member(HEAD), member(FIRST), standing, name="c"), [IDLE, LEFT])
    assert not any(each.step.startswith("forget/") for each in watch(here).looks)


def test_nothing_is_deleted_by_a_look_while_members_are_changed() -> None:
    here = msgspec.structs.replace(forced(LEFT), operations=[operation("add", FIRST)])
    assert not any(each.step.startswith("forget/") for each in watch(here).looks)
    acting = msgspec.structs.replace(forced(LEFT), operations=[operation("action")])
    assert any(each.step.startswith("forget/") for each in watch(acting).looks)


def test_each_attempt_of_a_job_is_metered_once_and_names_the_project_it_was_for() -> None:
    began = NOW - timedelta(hours=2)
    job = {
        "id": "7",
        "account": "p-other",
        "restarts": 1,
        "gpus": 2,
        "started_at": began.isoformat(),
        "ended_at": NOW.isoformat(),
    }
    attached = Attachment(id="att_1", project_id="prj_2", account_name="p-other", status="active")
    never_ran = {"id": "8", "started_at": None, "ended_at": NOW.isoformat()}
    here = looked(cluster(), [IDLE], ended=[job, never_ran])
    here = InstanceView(
        instance=here.instance,
        manifest=here.manifest,
        members=here.members,
        tasks=here.tasks,
        now=NOW,
        attachments=[attached],
    )
    found = watch(here)
    observed = [(each.record_id, each.unit, each.quantity, each.attached_project_id) for each in found.usage]
    name = f"job/7/1/{int(began.timestamp())}"
    assert observed == [
        (f"{name}/job_hours", "job_hours", 2.0, "prj_2"),
        (f"{name}/gpu_hours", "gpu_hours", 4.0, "prj_2"),
    ]
    assert found.detail is not None
    assert found.detail["ended_until"] == "mark"


def test_the_jobs_of_a_project_that_is_attached_no_more_are_reported_as_before() -> None:
    """A record is stored once: with another project it would be other content under the same id."""
    job = {"id": "7", "account": "p-other", "started_at": NOW.timestamp() - 60, "ended_at": NOW.timestamp()}
    attached = Attachment(id="att_1", project_id="prj_2", account_name="p-other", status="active")
    before = looked(cluster(), [IDLE], ended=[job])
    before = InstanceView(
        instance=before.instance,
        manifest=before.manifest,
        members=before.members,
        tasks=before.tasks,
        now=NOW,
        attachments=[attached],
    )
    observed = watch(before)
    assert observed.detail is not None
    after = looked(view(member(HEAD), member(FIRST), adapter_detail=dict(observed.detail)), [IDLE], ended=[job])
    assert watch(after).usage == observed.usage
    assert [each.attached_project_id for each in observed.usage] == ["prj_2"]
