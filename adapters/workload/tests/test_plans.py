"""What the adapter does for each kind of operation: a view in, steps out."""

from typing import Any

from adapters.workload.tests.plan_driver import Outcome, PlanDriver, member, well
from mooring_adapter.steps import RunTask
from mooring_workload.catalog import manifest_of
from mooring_workload.plans import PLANS
from tests.support.rows import every_row

DIGEST = f"sha256:{'ab' * 32}"


GREETED = {"changed": ["/greeting"], "input": {"greeting": "good evening"}}


def failing(prefix: str, **failure: Any) -> Any:
    """A node on which the steps that begin so fail."""

    def node(step: str, task: RunTask) -> Outcome:
        return {"status": "failed", **failure} if step.startswith(prefix) else well(step, task)

    return node


def statuses(driver: PlanDriver, member_id: str) -> list[str]:
    return [each["status"] for each in driver.reported if each["id"] == member_id and "status" in each]


@every_row("host", ["namespace", "process"])
def test_deploy_brings_each_member_up_and_says_where_it_is_reached(host: str) -> None:
    driver = PlanDriver("deploy", [member(0, host=host), member(1, host=host)]).run()
    assert driver.finished.outcome == "succeeded"
    assert statuses(driver, "mem_0") == ["joining", "ready"]
    assert [each["name"] for each in driver.endpoints] == ["web", "web-1"]
    assert driver.endpoints[0]["task_id"] == driver.tasks["start/mem_0"].id
    assert driver.steps.index("start/mem_1") < driver.steps.index("probe/1/mem_0"), "members come up side by side"


def test_a_secret_is_made_before_the_program_that_needs_it() -> None:
    driver = PlanDriver("deploy", [member(0)], app="jupyter").run()
    assert driver.finished.outcome == "succeeded"
    assert driver.secrets == {"access-token": "app_access"}


def test_an_image_that_cannot_be_pulled_is_reported_as_that() -> None:
    node = failing("start/", failure_code="image_pull_failed", failure_detail="no route", last_lines=["dial: no route"])
    driver = PlanDriver("deploy", [member(0)], app="jupyter").run(node)
    failure = driver.finished.failure
    assert (driver.finished.outcome, failure.code, failure.last_lines) == (
        "failed",
        "image_pull_failed",
        ("dial: no route",),
    )
    assert statuses(driver, "mem_0") == ["joining", "failed"]


def test_a_program_that_ends_at_once_is_reported_with_its_exit_code_and_last_lines_after_one_round() -> None:
    def node(step: str, task: RunTask) -> Outcome:
        if step.startswith("inspect/"):
            result = {"state": "exited", "exit_code": 3, "last_lines": ["no such module"]}
            return {"status": "succeeded", "result": result}
        return failing("probe/", failure_code="probe_failed")(step, task)  # type: ignore[no-any-return]

    driver = PlanDriver("deploy", [member(0)]).run(node)
    failure = driver.finished.failure
    assert (failure.code, failure.last_lines) == ("runtime_error", ("no such module",))
    assert "exit code 3" in failure.detail
    assert [each for each in driver.steps if each.startswith("probe/")] == ["probe/1/mem_0"]


def test_a_program_that_runs_and_never_serves_is_a_bootstrap_timeout_when_its_time_is_over() -> None:
    driver = PlanDriver("deploy", [member(0)]).run(
        failing("probe/", failure_code="probe_failed", failure_detail="refused")
    )
    assert (driver.finished.outcome, driver.finished.failure.code) == ("failed", "bootstrap_timeout")
    assert len([each for each in driver.steps if each.startswith("probe/")]) == 6, "12 failures of 5 s, in rounds of 10"


def test_what_a_restarted_node_cut_off_is_done_again() -> None:
    def node(step: str, task: RunTask) -> Outcome:
        if step == "start/mem_0":
            return {"status": "failed", "failure_code": "interrupted"}
        return well(step, task)

    driver = PlanDriver("deploy", [member(0)]).run(node)
    assert driver.finished.outcome == "succeeded"
    assert "start/mem_0/2" in driver.steps
    assert driver.endpoints[0]["task_id"] == driver.tasks["start/mem_0/2"].id


def test_what_cannot_run_there_is_reported_before_anything_is_begun() -> None:
    driver = PlanDriver("deploy", [member(0, host="process")], app="jupyter").run()
    assert (driver.finished.outcome, driver.finished.failure.code) == ("failed", "config_refused")
    assert 'host "process"' in driver.finished.failure.detail
    assert driver.steps == []


def test_members_that_would_share_a_port_in_one_sandbox_are_refused() -> None:
    first = member(0)
    driver = PlanDriver("deploy", [first, member(1, allocation=first.allocation)]).run()
    assert driver.finished.failure.code == "config_refused"
    assert "web-0, web-1" in driver.finished.failure.detail


def test_a_deploy_succeeds_with_as_many_members_as_the_app_needs() -> None:
    driver = PlanDriver("deploy", [member(0), member(1)]).run(failing("start/mem_1", failure_code="host_error"))
    assert (driver.finished.outcome, driver.finished.evidence["failed"]) == ("succeeded", ["mem_1"])
    assert statuses(driver, "mem_1") == ["joining", "failed"]


def test_a_member_whose_node_is_lost_fails_an_add() -> None:
    driver = PlanDriver("add", [member(0, status="failed", failure_code="node_lost")]).run()
    assert (driver.finished.outcome, driver.finished.failure.code) == ("failed", "node_lost")


def test_drained_is_what_was_seen_to_have_ended() -> None:
    def node(step: str, task: RunTask) -> Outcome:
        return {"status": "succeeded", "result": {"state": "exited" if step.startswith("inspect") else "running"}}

    driver = PlanDriver("drain", [member(0, status="draining")]).run(node)
    assert driver.finished.outcome == "succeeded"
    assert statuses(driver, "mem_0") == ["drained"]


@every_row("seen", [{"status": "succeeded", "result": {"state": "running"}}, {"status": "expired"}])
def test_what_still_runs_or_is_not_known_is_never_drained(seen: Outcome) -> None:
    driver = PlanDriver("drain", [member(0, status="draining")])
    driver.run(lambda step, task: seen if step.startswith("inspect") else well(step, task))
    assert (driver.finished.outcome, driver.finished.failure.code) == ("failed", "not_quiet")
    assert statuses(driver, "mem_0") == []


@every_row("kind", ["remove", "decommission"])
def test_the_end_is_asked_for_gently_and_never_depends_on_the_answer(kind: str) -> None:
    members = [member(0, status="ready"), member(1)]
    driver = PlanDriver(kind, members).run(failing("stop/", failure_code="host_error"))
    assert driver.finished.outcome == "succeeded"
    assert {each.split("/")[1] for each in driver.steps} == {"mem_0"}, "what was never started is not stopped"
    assert driver.arguments["stop/mem_0"].arguments["grace_seconds"] == 5


@every_row("surge", [True, False])
def test_replace_surges_where_it_is_asked_to(surge: bool) -> None:
    members = [member(0, status="ready"), member(1, replaces_id="mem_0")]
    driver = PlanDriver("replace", members, request={"surge": surge}).run()
    assert driver.finished.outcome == "succeeded"
    first, second = ("start/mem_1", "stop/mem_0") if surge else ("stop/mem_0", "start/mem_1")
    assert driver.steps.index(first) < driver.steps.index(second)


def test_endpoints_follow_the_members() -> None:
    members = [member(0, status="ready"), member(1, status="ready"), member(2, replaces_id="mem_0")]
    known = [
        {"name": f"web{end}", "member_id": each, "protocol": "http"} for each, end in (("mem_0", ""), ("mem_1", "-1"))
    ]
    replaced = PlanDriver("replace", members, member_ids=["mem_0", "mem_2"], endpoints=known).run()
    assert [(each["name"], each["member_id"]) for each in replaced.endpoints] == [("web-1", "mem_1"), ("web", "mem_2")]
    removed = PlanDriver("remove", members[:2], member_ids=["mem_1"], endpoints=known).run()
    assert [(each["name"], each["member_id"]) for each in removed.endpoints] == [("web", "mem_0")]
    left = [member(0, status="removed"), member(1, status="ready")]
    restarted = PlanDriver("restart", left, member_ids=[], endpoints=known).run()
    assert [(each["name"], each["member_id"]) for each in restarted.endpoints] == [("web", "mem_1")]


@every_row(("strategy", "together"), [("in_place", True), ("rolling", False)])
def test_upgrade_takes_each_member_to_the_target_in_the_order_of_its_strategy(strategy: str, together: bool) -> None:
    target = manifest_of("hello", {"image": DIGEST}, version="1.1.0")
    target["lifecycle"]["upgrade"]["strategy"] = strategy
    members = [member(0, status="ready"), member(1, status="ready")]
    driver = PlanDriver("upgrade", members, target=target).run()
    assert driver.finished.outcome == "succeeded"
    assert {each.version for each in driver.members.values()} == {"1.1.0"}
    assert {each.status for each in driver.members.values()} == {"ready"}
    assert (driver.steps.index("stop/mem_1") < driver.steps.index("start/mem_0")) == together
    assert driver.arguments["start/mem_0"].type == "container.launch"


def test_an_upgrade_that_fails_half_way_says_which_member_is_new_and_goes_no_further() -> None:
    target = manifest_of("hello", version="1.1.0")
    members = [member(0, status="ready"), member(1, status="ready"), member(2, status="ready")]
    driver = PlanDriver("upgrade", members, target=target).run(failing("start/mem_1", failure_code="image_pull_failed"))
    assert (driver.finished.outcome, driver.finished.failure.code) == ("failed", "image_pull_failed")
    versions = {each.id: (each.version, each.status) for each in driver.members.values()}
    assert versions == {"mem_0": ("1.1.0", "ready"), "mem_1": ("1.0.0", "failed"), "mem_2": ("1.0.0", "ready")}
    assert "stop/mem_2" not in driver.steps
    again = PlanDriver("upgrade", list(driver.members.values()), target=target).run()
    assert again.finished.outcome == "succeeded"
    assert "start/mem_0" not in again.steps, "what is there already is left alone"


def test_restart_starts_the_same_program_again() -> None:
    container = PlanDriver("restart", [member(0, status="ready")], app="jupyter").run()
    assert container.steps == ["restart/mem_0", "probe/1/mem_0"]
    service = PlanDriver("restart", [member(0, status="ready")]).run()
    assert service.steps == ["stop/mem_0", "start/mem_0", "probe/1/mem_0"]
    assert container.finished.outcome == service.finished.outcome == "succeeded"
    assert statuses(service, "mem_0") == ["degraded", "ready"]


@every_row("kind", ["repair", "reconcile"])
def test_repair_restarts_only_members_that_do_not_serve(kind: str) -> None:
    members = [member(0, status="ready", health="healthy"), member(1, status="failed", failure_code="runtime_error")]
    driver = PlanDriver(kind, members).run(failing("examine/mem_1", failure_code="probe_failed"))
    assert driver.finished.outcome == "succeeded"
    assert not any(each.endswith("/mem_0") for each in driver.steps if not each.startswith("examine"))
    assert statuses(driver, "mem_1") == ["joining", "ready"]


def test_there_is_no_control_plane_to_repair() -> None:
    driver = PlanDriver("repair", [member(0, status="ready")], request={"scope": "control_plane"}).run()
    assert driver.finished.failure.code == "config_refused"


def begun(kind: str) -> PlanDriver:
    """An operation of this kind on two members."""
    status = {"deploy": "requested", "add": "requested", "drain": "draining"}.get(kind, "ready")
    second = member(1, replaces_id="mem_0") if kind == "replace" else member(1, status=status)
    members, target = [member(0, status=status), second], manifest_of("hello", version="1.1.0")
    return PlanDriver(kind, members, target=target, request=GREETED if kind == "configure" else {})


def quiet(step: str, task: RunTask) -> Outcome:
    """A node on which what is stopped has ended."""
    return {"status": "succeeded", "result": {"state": "exited" if step.startswith("inspect") else "running"}}


@every_row("part", ["report", "tasks"])
@every_row("kind", sorted(PLANS))
def test_a_crash_in_any_round_leads_to_the_same_end(kind: str, part: str) -> None:
    whole = begun(kind).run(quiet)
    assert whole.finished.outcome == "succeeded"
    for number in range(50):
        again = begun(kind).run(quiet, crash_round=number, kept=part)
        assert again.finished.outcome == "succeeded", number
        assert set(again.steps) == set(whole.steps)
        assert again.members == whole.members
        assert sorted(each["name"] for each in again.endpoints) == sorted(each["name"] for each in whole.endpoints)
        if not again.crashed:
            assert number > 1, "there is a round to crash in"
            return
    raise AssertionError("an operation of two members takes fewer rounds")


# Configuration


def test_a_change_restarts_the_members_one_after_the_other_with_the_new_value() -> None:
    driver = PlanDriver("configure", [member(0, status="ready"), member(1, status="ready")], request=GREETED).run()
    assert (driver.finished.outcome, driver.finished.evidence["applied_by"]) == ("succeeded", "restart")
    assert driver.steps.index("probe/1/mem_0") < driver.steps.index("stop/mem_1"), "one works while the other changes"
    for each in ("mem_0", "mem_1"):
        assert "good evening" in str(driver.arguments[f"start/{each}"].arguments)
        assert statuses(driver, each) == ["degraded", "ready"]


def test_a_change_that_no_program_reads_restarts_nothing() -> None:
    request = {"changed": ["/drain_seconds"], "input": {"drain_seconds": 5}}
    driver = PlanDriver("configure", [member(0, status="ready")], request=request).run()
    assert (driver.finished.outcome, driver.finished.evidence["applied_by"], driver.steps) == (
        "succeeded",
        "nothing",
        [],
    )


def test_a_value_that_is_stored_as_a_secret_is_refused_before_anything_stops() -> None:
    manifest = manifest_of("hello")
    manifest["config_schema"]["properties"]["greeting"]["writeOnly"] = True
    driver = PlanDriver("configure", [member(0, status="ready")], manifest=manifest, request=GREETED).run()
    assert (driver.finished.outcome, driver.finished.failure.code, driver.steps) == ("failed", "config_refused", [])
    assert "greeting" in driver.finished.failure.detail


def test_a_reconcile_takes_back_what_a_failed_change_left() -> None:
    changed = PlanDriver("configure", [member(0, status="ready")], request=GREETED).run()
    (detail,) = [each["detail"] for each in changed.reported if each.get("status") == "ready"]
    left = member(0, status="ready", health="healthy", adapter_detail=detail)
    driver = PlanDriver("reconcile", [left], config={"greeting": "hello"}).run()
    assert driver.finished.outcome == "succeeded"
    assert "hello" in str(driver.arguments["start/mem_0"].arguments)
    stays = PlanDriver("reconcile", [left], config={"greeting": "good evening"}).run()
    assert "start/mem_0" not in stays.steps
