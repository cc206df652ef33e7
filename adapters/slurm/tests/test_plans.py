"""The plans of a cluster: state in, steps out."""

import json
from typing import Any

import msgspec

from adapters.slurm.tests.sample_views import (
    BUSY,
    FIRST,
    HEAD,
    NOW,
    QUIET,
    SECOND,
    UNHEARD,
    begun,
    end_of,
    member,
    named,
    operation,
    task,
    view,
)
from mooring_adapter import (
    Attachment,
    Blocked,
    Finish,
    Operation,
    Pin,
    ReportMember,
    Task,
    next_actions,
)
from mooring_slurm.actions import ACTIONS
from mooring_slurm.bring_up import gate
from mooring_slurm.members import cluster_of
from mooring_slurm.plans import cancel, plan
from tests.support.rows import every_row

# Coming up -----------------------------------------------------------------------------------------------------------


def test_the_controller_and_its_workers_come_up_side_by_side_in_one_round() -> None:
    under = operation("deploy")
    here = view(member(HEAD, "joining"), member(FIRST, "joining"))
    found = next_actions(plan(here, under), here, under)
    assert [each.name for each in found.secrets] == ["munge"]
    assert found.secrets[0].purpose == "cluster_key"
    assert [each.name for each in found.tasks] == [
        "files/head",
        "munge/head",
        "start/head",
        "files/one",
        "munge/one",
        "start/one",
    ]


def test_a_worker_is_ready_only_when_a_job_ran_there_as_the_tenants_user() -> None:
    here = view(member(HEAD), member(FIRST, "joining"))
    found = plan(here, operation("add", FIRST))
    proof = named(found, "prove/one")
    assert proof.arguments["user"] == "app"
    assert proof.arguments["argv"][-5:] == ["prove", "--node", "c-one", "--seconds", "120"]
    ready = next(each for each in found.steps if isinstance(each, ReportMember) and each.step == "ready/one")
    assert ready.after == ("prove/one",)


def test_the_key_is_granted_and_never_written_out() -> None:
    written = named(plan(view(member(HEAD), member(FIRST, "joining")), operation("add", FIRST)), "files/one")
    key = next(each for each in written.arguments["files"] if each["path"].endswith("munge.key"))
    assert key == {"path": "/srv/slurm/c-one/key/munge.key", "mode": "0600", "secret": "munge"}
    assert written.arguments["files"][-1]["path"] == "/srv/slurm/c-one/etc/slurm.conf"
    assert {"path": "/srv/slurm/c-one/bin", "mode": "0755", "directory": True} in written.arguments["files"]


def test_two_workers_in_one_allocation_are_refused() -> None:
    here = view(
        member(HEAD, "requested"), member(FIRST, "requested", place="a"), member(SECOND, "requested", place="a")
    )
    failure = end_of(plan(here, operation("deploy"))).failure
    assert failure is not None
    assert (failure.code, "its own allocation" in failure.detail) == ("config_refused", True)


def test_a_cluster_of_a_tenant_needs_accounting() -> None:
    here = view(member(HEAD, "requested"), control_plane_scope="tenant")
    failure = end_of(plan(here, operation("deploy"))).failure
    assert failure is not None
    assert failure.code == "config_refused"


def test_a_worker_that_does_not_come_up_fails_alone_and_says_why_in_the_programs_words() -> None:
    error = {"error": {"code": "not_registered", "detail": "c-one did not register within 120 s"}}
    tasks = (task("prove/one", error, "failed", exit_code=1, failure_code="exited"), task("prove/two", {"job": "1"}))
    here = view(member(HEAD), member(FIRST, "joining"), member(SECOND, "joining"), tasks=(*tasks, UNHEARD))
    found = plan(here, operation("add", FIRST, SECOND))
    reported = next(each for each in found.steps if isinstance(each, ReportMember) and each.step == "failed/one")
    assert reported.failure is not None
    assert (reported.failure.code, reported.failure.detail) == ("unhealthy", "c-one did not register within 120 s")
    assert any(each.step == "ready/two" for each in found.steps)
    assert end_of(found).outcome == "failed"


def test_a_deployment_goes_on_without_a_worker_that_failed_and_not_without_all() -> None:
    bad = task("prove/one", {"error": {"code": "not_registered", "detail": "no"}}, "failed")
    tasks = (bad, UNHEARD)
    here = view(member(HEAD, "joining"), member(FIRST, "joining"), member(SECOND, "joining"), tasks=tasks)
    assert end_of(plan(here, operation("deploy"))).outcome == "succeeded"
    here = view(member(HEAD, "joining"), member(FIRST, "joining"), tasks=tasks)
    assert end_of(plan(here, operation("deploy"))).outcome == "failed"


def test_a_node_that_still_bears_the_name_of_a_new_worker_is_deleted_first() -> None:
    known = task("known", {"nodes": [{"name": "c-one", "state": ["DOWN"]}]})
    found = plan(view(member(HEAD), member(FIRST, "joining"), tasks=(known,)), operation("add", FIRST))
    assert named(found, "forget/one").arguments["argv"][-6:] == [
        "delete",
        "--node",
        "c-one",
        "--gone",
        "--owner",
        "member",
    ]
    assert "forget/one" in (named(found, "start/one").after or ())


@every_row("kind", ["add", "upgrade", "restart"])
def test_nothing_is_begun_without_a_controller(kind: str) -> None:
    lost = member(HEAD, "failed", failure_code="node_lost")
    failure = end_of(plan(view(lost, member(FIRST)), operation(kind, FIRST))).failure
    assert failure is not None
    assert (failure.code, "replace it first" in failure.detail) == ("unhealthy", True)


# Going ---------------------------------------------------------------------------------------------------------------


def test_a_worker_that_found_no_controller_waits_for_what_the_controllers_own_steps_say() -> None:
    down = {"error": {"code": "controller_down", "detail": "slurmctld does not answer"}}
    asked = task("prove/one", down, "failed", member_id=FIRST)
    here = view(member(HEAD, "joining"), member(FIRST, "joining"), tasks=(asked,))
    steps = plan(here, operation("deploy", HEAD, FIRST)).steps
    assert not [each for each in steps if isinstance(each, Finish) or each.step in ("ready/one", "failed/one")]
    opened = task("gate/head", {"version": "22.05"}, member_id=HEAD)
    over = view(member(HEAD, "joining"), member(FIRST, "joining"), tasks=(asked, opened, UNHEARD))
    end = end_of(plan(over, operation("deploy", HEAD, FIRST)))
    assert end.outcome == "failed"
    assert "slurmctld does not answer" in (end.failure.detail if end.failure else "")


def test_the_reason_of_a_drain_has_its_owner_and_what_the_caller_said() -> None:
    words = named(plan(view(member(HEAD), member(FIRST, "draining")), operation("drain", FIRST)), "cordon/one")
    assert words.arguments["argv"][-6:] == ["drain", "--node", "c-one", "--owner", "member", "--reason=drain op"]
    held = msgspec.structs.replace(member(FIRST, "draining"), holds=[{"owner": "usr_1", "reason": "new memory"}])
    said = named(plan(view(member(HEAD), held), operation("drain", FIRST)), "cordon/one")
    assert said.arguments["argv"][-1] == "--reason=drain op: new memory"


def test_what_cannot_be_asked_is_never_called_drained() -> None:
    here = view(member(HEAD), member(FIRST, "draining", node_reachable=False))
    first = plan(here, operation("drain", FIRST)).steps[0]
    assert isinstance(first, Blocked)
    assert first.code == "node_unreachable"
    silent = task("quiet/one/1", None, "failed", failure_code="host_error", member_id=FIRST)
    here = view(member(HEAD), member(FIRST, "draining"), tasks=(task("cordon/one"), silent))
    found = plan(here, operation("drain", FIRST))
    assert not any(isinstance(each, Finish) for each in found.steps)


def test_a_worker_leaves_slurm_before_its_daemon_ends() -> None:
    quiet = task("quiet/one/1", QUIET, member_id=FIRST)
    here = view(member(HEAD), member(FIRST, "draining"), tasks=(task("cordon/one"), quiet))
    found = plan(here, operation("remove", FIRST))
    assert [each.step for each in found.steps] == [
        "cordon/one",
        "quiet/one/1",
        "drained/one",
        "delete/one",
        "stop/one",
        "finish",
    ]
    assert "--gone" not in named(found, "delete/one").arguments["argv"]
    assert named(found, "stop/one").after == ("delete/one",)


def test_a_node_whose_machine_is_gone_is_deleted_by_the_controller() -> None:
    lost = member(FIRST, "failed", failure_code="node_lost", node_reachable=False)
    found = plan(view(member(HEAD), lost), operation("remove", FIRST))
    assert [each.step for each in found.steps] == ["delete/one", "finish"]
    deleted = named(found, "delete/one")
    assert (deleted.member_id, "--gone" in deleted.arguments["argv"]) == (HEAD, True)


def test_a_worker_that_slurm_does_not_reach_either_is_not_waited_for() -> None:
    dead = {"quiet": False, "node": {"name": "c-one", "state": ["DOWN", "NOT_RESPONDING"], "responding": False}}
    looked = task("quiet/one/1", dead, "failed", member_id=HEAD)
    here = view(member(HEAD), member(FIRST, "draining"), tasks=(task("cordon/one"), looked))
    found = plan(here, operation("remove", FIRST))
    assert "--gone" in named(found, "delete/one").arguments["argv"]


def test_a_worker_that_slurm_does_not_know_is_still_removed() -> None:
    unknown = task("cordon/one", {"error": {"code": "not_found", "detail": "there is no node c-one"}}, "failed")
    found = plan(view(member(HEAD), member(FIRST, "draining"), tasks=(unknown,)), operation("remove", FIRST))
    assert [each.step for each in found.steps] == ["delete/one", "stop/one", "finish"]


def test_a_remove_whose_time_is_over_tells_which_jobs_it_cuts_off() -> None:
    busy = task("quiet/one/1", BUSY, "failed", member_id=FIRST)
    here = view(member(HEAD), member(FIRST, "draining"), tasks=(task("cordon/one"), busy))
    end = end_of(plan(here, operation("remove", FIRST, phase_deadline_at=NOW)))
    assert end.outcome == "succeeded"
    assert end.evidence["left"][0]["cut_off_jobs"] == ["42"]


def test_with_a_surge_the_old_one_stays_until_a_job_ran_on_the_new_one() -> None:
    new = member(SECOND, "joining", replaces_id=FIRST)
    under = operation("replace", FIRST, SECOND, request={"surge": True})
    here = view(member(HEAD), member(FIRST), new)
    assert begun(plan(here, under), here, under) == ["known", "files/two", "munge/two"]
    found = plan(here, under)
    names = [each.step for each in found.steps]
    assert names.index("arrived") < names.index("cordon/one")


def test_without_a_surge_the_new_one_begins_when_the_old_one_has_left() -> None:
    new = member(SECOND, "joining", replaces_id=FIRST, place=FIRST)
    under = operation("replace", FIRST, SECOND, request={"surge": False})
    here = view(member(HEAD), member(FIRST, "draining"), new)
    assert begun(plan(here, under), here, under) == ["cordon/one"]


def test_a_controller_with_a_queue_is_not_replaced() -> None:
    new = member("head2", "joining", replaces_id=HEAD, component_key="controller")
    queue = task("queue/head", {"job_counts": {"PENDING": 3}, "nodes": []})
    here = view(member(HEAD), new, member(FIRST), tasks=(queue,))
    failure = end_of(plan(here, operation("replace", HEAD, "head2", request={"surge": True}))).failure
    assert failure is not None
    assert (failure.code, "3 jobs" in failure.detail) == ("not_quiet", True)


# Changing ------------------------------------------------------------------------------------------------------------


def test_an_upgrade_takes_the_controller_first_and_then_one_worker_after_the_other() -> None:
    under = operation("upgrade", target_pin=Pin(version="1.1.0"))
    found = plan(view(member(HEAD), member(FIRST), member(SECOND)), under)
    names = [each.step for each in found.steps]
    assert names.index("gate/head") < names.index("stop/one") < names.index("changed/one") < names.index("stop/two")
    assert named(found, "stop/one").arguments["kill"] == "main"
    assert [each.version for each in found.steps if isinstance(each, ReportMember)] == ["1.1.0"] * 3


def test_an_upgrade_tells_which_jobs_ran_before_and_how_they_are_after() -> None:
    under = operation("upgrade", target_pin=Pin(version="1.1.0"))
    looks = (
        task("before/head", {"jobs": [{"id": "7", "state": "RUNNING"}, {"id": "8", "state": "PENDING"}]}),
        task("after/head", {"jobs": [{"id": "7", "state": "RUNNING"}]}),
    )
    end = end_of(plan(view(member(HEAD), member(FIRST), tasks=looks), under))
    assert (end.evidence["jobs_before"], end.evidence["jobs_after"]) == (["7"], {"7": "RUNNING"})


def test_a_cancelled_upgrade_starts_what_it_had_stopped() -> None:
    under = Operation(id="op", kind="upgrade", status="cancelling", begun=True)
    here = view(member(HEAD), member(FIRST), tasks=(task("stop/head"),))
    assert [each.step for each in cancel(here, under).steps] == ["again/head", "undone", "cancelled"]


def test_a_cancelled_drain_lets_jobs_in_again() -> None:
    under = Operation(id="op", kind="drain", status="cancelling", begun=True, member_ids=[FIRST])
    here = view(member(HEAD), member(FIRST, "draining"), tasks=(task("cordon/one"),))
    found = cancel(here, under)
    assert [each.step for each in found.steps] == ["uncordon/one", "undone", "cancelled"]
    assert named(found, "uncordon/one").arguments["argv"][-5:] == ["resume", "--node", "c-one", "--owner", "member"]


# Repair --------------------------------------------------------------------------------------------------------------


def test_a_reconcile_shows_three_views_and_leaves_somebody_elses_drain_alone() -> None:
    look = {
        "version": "22.05.8",
        "nodes": [
            {"name": "c-one", "state": ["IDLE", "DRAIN"], "reason": "disk is being swapped", "reason_by": "root"},
        ],
    }
    found = plan(view(member(HEAD), member(FIRST), tasks=(task("look/head", look),)), operation("reconcile"))
    assert [each.step for each in found.steps] == ["look/head", "finish"]
    evidence = end_of(found).evidence
    assert evidence["platform"] == {"c-head": "ready", "c-one": "ready"}
    assert evidence["adapter"] == {"c-one": "takes jobs"}
    assert evidence["slurm"]["nodes"] == {"c-one": "IDLE+DRAIN, disk is being swapped"}
    assert [each["difference"] for each in evidence["differences"]] == ["foreign_drain"]


def test_a_reconcile_clears_what_is_the_platforms_own() -> None:
    look = {
        "nodes": [
            {"name": "c-one", "state": ["IDLE", "DRAIN"], "reason": "mooring:member: drain op_0"},
            {"name": "stranger", "state": ["DOWN", "NOT_RESPONDING"]},
            {"name": "guest", "state": ["IDLE"], "responding": True},
        ]
    }
    found = plan(view(member(HEAD), member(FIRST), tasks=(task("look/head", look),)), operation("reconcile"))
    steps = [each.step for each in found.steps]
    assert steps[:3] == ["look/head", "uncordon/one", "forget/stranger"]
    assert "forget/guest" not in steps, "somebody works there"


def test_a_reconcile_without_a_controller_fails_and_says_so() -> None:
    here = view(member(HEAD, node_reachable=False), member(FIRST))
    end = end_of(plan(here, operation("reconcile")))
    assert end.failure is not None
    assert (end.failure.code, end.evidence["slurm"]) == ("unhealthy", None)
    assert end.evidence["differences"][0]["difference"] == "controller_unreachable"


def test_a_repair_starts_what_is_down_and_proves_it() -> None:
    running, absent = {"state": "running"}, {"state": "failed"}
    tasks = [
        Task(id=f"i{number}", operation_id="op", step=step, status="succeeded", result=state)
        for number, (step, state) in enumerate(
            {
                "inspect/munged/head": running,
                "inspect/slurmctld/head": running,
                "inspect/munged/one": running,
                "inspect/slurmd/one": absent,
            }.items()
        )
    ]
    look = task("look/head", {"nodes": [{"name": "c-one", "state": ["DOWN"], "responding": False}]})
    here = view(member(HEAD), member(FIRST, "degraded"), tasks=(*tasks, look))
    names = [each.step for each in plan(here, operation("repair", request={"scope": "whole_runtime"})).steps]
    assert "start/slurmctld/head" not in names
    assert names.index("start/slurmd/one") < names.index("node/one") < names.index("prove/one")


# Projects that are attached, and actions -----------------------------------------------------------------------------

ATTACHED = {"attachment": {"id": "att_1", "project_id": "prj_2", "account_name": "p-other"}}


def test_a_detach_waits_for_the_jobs_of_the_project_and_names_them_when_its_time_is_over() -> None:
    left = task("close/1", {"jobs": ["9"]})
    here = view(member(HEAD), tasks=(left,), config={"accounting": True})
    found = plan(here, operation("detach", request=ATTACHED))
    assert [each.step for each in found.steps] == ["pause", "close/2"]
    late = operation("detach", request=ATTACHED, deadline_at=NOW)
    failure = end_of(plan(here, late)).failure
    assert failure is not None
    assert (failure.code, "9" in failure.detail) == ("not_quiet", True)
    here = view(member(HEAD), tasks=(task("close/1", {"jobs": []}),), config={"accounting": True})
    assert named(plan(here, operation("detach", request=ATTACHED)), "account").arguments["argv"][-1] == "account-remove"


def test_what_a_detached_projects_user_still_runs_is_ended_before_its_account_goes() -> None:
    tasks = (task("close/1", {"jobs": []}),)
    here = view(member(HEAD), member(FIRST), tasks=tasks, config={"accounting": True})
    found = plan(here, operation("detach", request=ATTACHED))
    assert [each.step for each in found.steps][1:4] == ["end/one", "ended", "account"]
    asked = named(found, "end/one")
    assert (asked.member_id, asked.arguments["argv"][-1]) == (FIRST, "user-end")
    assert json.loads(asked.arguments["stdin"]) == {"user": "p-other"}


def test_a_project_that_is_attached_again_has_the_user_that_it_had() -> None:
    here = view(member(HEAD), config={"accounting": True})

    def numbers(attachment_id: str) -> list[dict[str, Any]]:
        request = {"attachment": {**ATTACHED["attachment"], "id": attachment_id}}
        asked = named(plan(here, operation("attach", request=request)), "users/head")
        return json.loads(asked.arguments["stdin"])["users"]  # type: ignore[no-any-return]

    assert numbers("att_1") == numbers("att_2")
    assert [each["name"] for each in numbers("att_1")] == ["app", "p-other"]


def test_a_gate_lets_the_projects_in_that_are_attached_and_none_that_is_being_detached() -> None:
    attachments = [
        Attachment(id=f"att_{status}", project_id="prj", account_name=f"p-{status}", status=status)
        for status in ("requested", "active", "detaching")
    ]
    here = view(member(HEAD, "joining"), config={"accounting": True})
    cluster = cluster_of(msgspec.structs.replace(here, attachments=attachments))
    asked = gate(cluster, cluster.controller, "gate")
    assert json.loads(asked.arguments["stdin"])["accounts"] == ["p-active"]


def act(name: str, given: dict[str, Any], **more: Any) -> Operation:
    return operation("action", request={"action": name, "input": given, **more})


def test_a_job_is_submitted_as_the_tenants_user_under_the_clients_key() -> None:
    under = act("queue.submit", {"script": "#!/bin/sh\n", "key": "mine"})
    asked = named(ACTIONS["queue.submit"](view(member(HEAD)), under), "act")
    assert asked.arguments["user"] == "app"
    assert json.loads(asked.arguments["stdin"]) == {"script": "#!/bin/sh\n", "key": "mine"}
    under = act("queue.submit", {"script": "#!/bin/sh\n"})
    asked = named(ACTIONS["queue.submit"](view(member(HEAD)), under), "act")
    assert json.loads(asked.arguments["stdin"])["key"] == "op"


def test_an_attached_project_acts_under_its_own_account_and_operates_no_node() -> None:
    under = act("queue.submit", {"script": "#!/bin/sh\n", "key": "mine", "user": "app"}, **ATTACHED)
    asked = named(ACTIONS["queue.submit"](view(member(HEAD)), under), "act")
    assert asked.arguments["user"] == "p-other"
    reported = json.loads(asked.arguments["stdin"])
    assert (reported["account"], reported["key"]) == ("p-other", "att_1:mine")
    asked = named(ACTIONS["queue.read"](view(member(HEAD)), act("queue.read", {}, **ATTACHED)), "act")
    assert asked.arguments["argv"][-3:] == ["jobs", "--account", "p-other"]
    refused = ACTIONS["node.operate"](view(member(HEAD)), act("node.operate", {"name": "c", "do": "drain"}, **ATTACHED))
    failure = end_of(refused).failure
    assert failure is not None
    assert failure.code == "permission_denied"


def test_a_refusal_of_slurm_is_reported_in_its_words() -> None:
    error = {"error": {"code": "partition_refused", "detail": "sbatch: error: invalid partition specified: gold"}}
    here = view(member(HEAD), tasks=(task("act", error, "failed", exit_code=1),))
    failure = end_of(ACTIONS["queue.submit"](here, act("queue.submit", {"script": "#!"}))).failure
    assert failure is not None
    assert (failure.code, failure.detail) == ("config_refused", "sbatch: error: invalid partition specified: gold")


def test_the_output_of_a_job_is_read_where_its_script_ran_as_its_user() -> None:
    job = task("job", {"job": {"id": "3", "state": "RUNNING", "batch_host": "c-one", "user": "ada"}})
    asked = named(
        ACTIONS["queue.output"](view(member(HEAD), member(FIRST), tasks=(job,)), act("queue.output", {"job_id": "3"})),
        "act",
    )
    assert (asked.member_id, asked.arguments["user"]) == (FIRST, "ada")


ARRAY = {
    "job": {"id": "3", "state": "PENDING", "array": "3_[1-2]", "user": "ada"},
    "tasks": [{"id": "4", "state": "FAILED", "array": "3_0"}, {"id": "3", "state": "PENDING", "array": "3_[1-2]"}],
    "array": {"task_count": 3, "over_count": 1, "states": {"FAILED": 1, "PENDING": 2}, "failed": [{"array": "3_0"}]},
    "truncated": False,
}


def test_an_array_is_read_with_its_tasks_where_the_version_of_the_instance_knows_them() -> None:
    here = view(member(HEAD), tasks=(task("act", ARRAY),))
    reported = end_of(ACTIONS["queue.read"](here, act("queue.read", {"job_id": "3"}))).output
    assert reported == {"jobs": [ARRAY["job"]], **{name: ARRAY[name] for name in ("tasks", "array", "truncated")}}
    older = json.loads(json.dumps(here.manifest))
    reading = next(each for each in older["actions"] if each["name"] == "queue.read")
    for name in ("tasks", "array"):
        del reading["output_schema"]["properties"][name]
    before = ACTIONS["queue.read"](msgspec.structs.replace(here, manifest=older), act("queue.read", {"job_id": "3"}))
    assert end_of(before).output == {"jobs": [ARRAY["job"]], "truncated": False}


def test_the_queue_is_read_of_one_user_in_one_state_and_not_longer_than_asked() -> None:
    under = act("queue.read", {"user": "ada", "state": "PENDING", "limit": 5})
    asked = named(ACTIONS["queue.read"](view(member(HEAD)), under), "act")
    assert asked.arguments["argv"][-7:] == ["jobs", "--user", "ada", "--state", "PENDING", "--limit", "5"]


def test_the_output_of_an_array_is_refused_with_the_names_of_its_tasks_unless_it_has_one() -> None:
    under = act("queue.output", {"job_id": "3"})
    here = view(member(HEAD), member(FIRST), tasks=(task("job", ARRAY),))
    failure = end_of(ACTIONS["queue.output"](here, under)).failure
    assert failure is not None
    assert (failure.code, "JOB_TASK; there are 3_0, 3_[1-2]" in failure.detail) == ("config_refused", True)
    one = {"job": {"id": "3", "array": "3_0", "state": "RUNNING", "batch_host": "c-one"}, "array": {"task_count": 1}}
    here = view(member(HEAD), member(FIRST), tasks=(task("job", one),))
    assert named(ACTIONS["queue.output"](here, under), "act").member_id == FIRST


def test_an_unknown_controller_is_a_clear_failure_of_an_action() -> None:
    here = view(member(HEAD, node_reachable=False))
    failure = end_of(ACTIONS["queue.read"](here, act("queue.read", {}))).failure
    assert failure is not None
    assert failure.code == "unhealthy"
