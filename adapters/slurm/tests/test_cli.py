"""`mooring slurm` against a double of the platform: its requests and its output."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from cli.tests.support.fake_platform import (
    PROJECT,
    CannedResponse,
    FakeCliPlatform,
    RecordedRequest,
    page,
    problem,
    serving,
)
from mooring_cli.main import mooring
from mooring_slurm import cli
from mooring_slurm.cli_cluster import JobTimeType, MemoryType
from tests.support.rows import every_row

Run = Callable[..., Result]
INSTANCE = "ins_01c1"
AT = f"/api/v1/projects/{PROJECT}/app-instances"
ONE = f"{AT}/{INSTANCE}"
ATTACHED = f"/api/v1/projects/{PROJECT}/attachments"
SCRIPT = "#!/bin/sh\nhostname\n"


@pytest.fixture
def platform() -> Iterator[FakeCliPlatform]:
    """A platform with one cluster."""
    with serving() as double:
        double.on("GET", AT, page({"id": INSTANCE, "name": "c1", "status": "running"}))
        double.on("GET", ATTACHED, page({"id": "att_1", "instance_name": "shared", "status": "active"}))
        yield double


@pytest.fixture
def run(platform: FakeCliPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in the test's process."""
    monkeypatch.setattr(cli, "FOLLOW_SECONDS", 0.0)
    given = {"MOORING_URL": platform.url, "MOORING_TOKEN": "mrgp_x", "MOORING_PROJECT": PROJECT, "HOME": str(tmp_path)}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(mooring, ["slurm", *arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


def operation(status: str = "succeeded", **fields: Any) -> dict[str, Any]:
    """An action's operation."""
    empty = {"output": None, "failure_code": None, "failure_detail": None, "cancel_reason": None}
    return {"id": "op_1", "status": status, **empty, **fields}


def answers(platform: FakeCliPlatform, action: str, *outputs: dict[str, Any], place: str = ONE) -> None:
    """The answers of the cluster to an action, in order; the last one is repeated."""
    left = list(outputs)

    def answer(asked: RecordedRequest) -> CannedResponse:
        return CannedResponse(body=operation(output=left.pop(0) if len(left) > 1 else left[0]))

    platform.on("POST", f"{place}/actions/{action}", answer)


def asked(platform: FakeCliPlatform, action: str) -> list[dict[str, Any]]:
    """The inputs of an action, in order."""
    return [each.body["input"] for each in platform.of("POST") if each.path.endswith(f"/actions/{action}")]


def job(number: str = "7", state: str = "PENDING", **fields: Any) -> dict[str, Any]:
    """A job in the app's answer."""
    return {"id": number, "name": "train", "user": "app", "state": state, **fields}


# Jobs ----------------------------------------------------------------------------------------------------------------


def test_a_script_is_submitted_with_what_was_asked_for(run: Run, platform: FakeCliPlatform, tmp_path: Path) -> None:
    answers(platform, "queue.submit", {"job_id": "7", "repeated": False})
    (tmp_path / "job.sh").write_text(SCRIPT)
    options = ("--nodes", "2", "--gpus", "1", "--memory", "4G", "--time", "1:30:00", "--array", "0-3", "--key", "k1")
    result = run("submit", "c1", str(tmp_path / "job.sh"), "--name", "train", *options)
    assert (result.stdout, result.exit_code) == ("Submitted batch job 7\n", 0)
    assert asked(platform, "queue.submit") == [
        {
            "script": SCRIPT,
            "name": "train",
            "nodes": 2,
            "gpus": 1,
            "memory_mib": 4096,
            "minutes": 90,
            "array": "0-3",
            "key": "k1",
        }
    ]


def test_a_script_comes_from_stdin_too_and_a_repetition_is_reported(run: Run, platform: FakeCliPlatform) -> None:
    answers(platform, "queue.submit", {"job_id": "7", "repeated": True})
    result = run("submit", "c1", "-", "--key", "k1", stdin=SCRIPT)
    assert "already submitted" in result.stderr
    shown = run("submit", "c1", "-", "--key", "k1", "-o", "json", stdin=SCRIPT)
    assert json.loads(shown.stdout) == {"id": "7", "job_id": "7", "repeated": True}


@pytest.mark.parametrize("text", ["hostname\n", "", "#!/bin/sh\n" + "x" * 50_000])
def test_an_invalid_script_is_not_sent(run: Run, platform: FakeCliPlatform, text: str) -> None:
    result = run("submit", "c1", "-", stdin=text)
    assert (result.exit_code, asked(platform, "queue.submit")) == (1, [])


def test_submit_waits_for_the_end_and_ends_with_the_jobs_exit_code(run: Run, platform: FakeCliPlatform) -> None:
    answers(platform, "queue.submit", {"job_id": "7", "repeated": False})
    answers(
        platform,
        "queue.read",
        {"jobs": [job(why_text="it waits for room")]},
        {"jobs": [job(state="RUNNING")]},
        {"jobs": [job(state="FAILED", exit_code=3)]},
    )
    result = run("submit", "c1", "-", "--wait", stdin=SCRIPT)
    assert result.exit_code == 3
    assert "it waits for room" in result.stderr
    assert "Job 7 is FAILED." in result.stderr


@pytest.mark.parametrize(("state", "code"), [("COMPLETED", 0), ("CANCELLED by 1000", 1), ("TIMEOUT", 1)])
def test_a_job_that_did_not_complete_is_no_success(run: Run, platform: FakeCliPlatform, state: str, code: int) -> None:
    answers(platform, "queue.read", {"jobs": [job(state=state, exit_code=0)]})
    assert run("job", "c1", "7", "--wait").exit_code == code


def of_array(over: int, *failed: dict[str, Any], count: int = 3) -> dict[str, Any]:
    """The app's answer about an array, so far."""
    tasks = [job(str(9 + each), "RUNNING", array=f"7_{each}") for each in range(count)]
    whole = {"task_count": count, "over_count": over, "states": {}, "failed": list(failed), "failed_count": len(failed)}
    return {"jobs": [job("7", "COMPLETED", exit_code=0, array="7_2")], "tasks": tasks, "array": whole}


FAILED_TASK = {"array": "7_1", "state": "FAILED", "exit_code": 5}


def test_submit_waits_for_all_tasks_of_an_array_and_fails_with_the_first_that_failed(
    run: Run, platform: FakeCliPlatform
) -> None:
    answers(platform, "queue.submit", {"job_id": "7", "repeated": False})
    forgotten = of_array(3)  # Slurm forgets what ended long ago; the waiting command has seen it
    answers(platform, "queue.read", of_array(0), of_array(1), of_array(2, FAILED_TASK), forgotten)
    result = run("submit", "c1", "-", "--array", "0-2", "--wait", stdin=SCRIPT)
    assert result.exit_code == 5
    for said in ("0 of 3 tasks over", "1 of 3 tasks over", "2 of 3 tasks over, 1 failed"):
        assert f"Job 7 has {said}." in result.stderr
    assert "Job 7 has 3 of 3 tasks over; the first failure is 7_1, FAILED." in result.stderr
    assert asked(platform, "queue.read") == [{"job_id": "7"}] * 4


@pytest.mark.parametrize(
    ("failed", "code"),
    [((), 0), (({"array": "7_0", "state": "CANCELLED", "exit_code": 0}, FAILED_TASK), 1), ((FAILED_TASK,), 5)],
)
def test_an_array_that_is_over_has_the_code_of_its_first_task_that_failed(
    run: Run, platform: FakeCliPlatform, failed: tuple[dict[str, Any], ...], code: int
) -> None:
    answers(platform, "queue.read", of_array(3, *failed))
    assert run("job", "c1", "7", "--wait").exit_code == code
    shown = json.loads(run("job", "c1", "7", "--wait", "-o", "json").stdout)
    assert (shown["id"], shown["task_count"], len(shown["tasks"])) == ("7", 3, 3)


def test_an_array_is_shown_by_its_tasks_and_how_far_it_is(run: Run, platform: FakeCliPlatform) -> None:
    answers(platform, "queue.read", of_array(1))
    result = run("job", "c1", "7")
    assert [line.split()[1] for line in result.stdout.splitlines()] == ["ARRAY", "7_0", "7_1", "7_2"]
    assert "Job 7: 1 of 3 tasks over." in result.stderr
    shown = json.loads(run("job", "c1", "7", "-o", "json").stdout)
    assert [each["array"] for each in shown["tasks"]] == ["7_0", "7_1", "7_2"]


def test_the_output_of_an_array_is_refused_at_once_also_where_it_is_followed(
    run: Run, platform: FakeCliPlatform
) -> None:
    waiting = of_array(0)
    waiting["jobs"][0]["state"] = "PENDING"
    answers(platform, "queue.read", waiting)
    refused = operation("failed", failure_code="config_refused", failure_detail="job 7 is an array of 3 tasks")
    platform.on("POST", f"{ONE}/actions/queue.output", CannedResponse(body=refused))
    result = run("output", "c1", "7", "--follow")
    assert (result.exit_code, "an array of 3 tasks" in result.stderr) == (1, True)


def test_the_queue_of_one_user_in_one_state_is_asked_for(run: Run, platform: FakeCliPlatform) -> None:
    answers(platform, "queue.read", {"jobs": [job()]})
    run("queue", "c1", "--user", "ada", "--state", "pending", "--limit", "5")
    assert asked(platform, "queue.read") == [{"user": "ada", "state": "PENDING", "limit": 5}]
    assert run("queue", "c1", "--job", "7", "--user", "ada").exit_code == 1


def test_the_queue_says_why_jobs_wait_and_that_it_is_empty(run: Run, platform: FakeCliPlatform) -> None:
    rows = [job(why_text="it waits for room", gpus=1), job("8", "RUNNING", nodes=["w-0", "w-1"])]
    answers(platform, "queue.read", {"jobs": rows, "truncated": True})
    result = run("queue", "c1")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["ID", "NAME", "USER", "STATE", "NODES", "GPUS", "WHY", "TEXT"]
    assert "it waits for room" in lines[1]
    assert "w-0, w-1" in lines[2]
    assert "There are more" in result.stderr
    assert json.loads(run("queue", "c1", "-o", "json").stdout) == rows
    answers(platform, "queue.read", {"jobs": []})
    assert "mooring slurm submit c1" in run("queue", "c1").stderr


def test_a_missing_job_is_reported(run: Run, platform: FakeCliPlatform) -> None:
    answers(platform, "queue.read", {"jobs": []})
    result = run("job", "c1", "7")
    assert (result.exit_code, "does not know job 7" in result.stderr) == (1, True)


def test_output_is_read_piece_by_piece_as_it_was_written(run: Run, platform: FakeCliPlatform) -> None:
    pieces = [
        {"text": "one\x1b[31m\n", "offset": 9, "end": False, "size": 13},
        {"text": "two\n", "offset": 13, "end": False, "size": 13},
    ]
    answers(platform, "queue.output", *pieces)
    assert run("output", "c1", "7", "--stderr").stdout == "one\x1b[31m\ntwo\n"
    assert asked(platform, "queue.output") == [
        {"job_id": "7", "stream": "err", "offset": 0},
        {"job_id": "7", "stream": "err", "offset": 9},
    ]


def test_output_is_followed_to_the_end_of_the_job(run: Run, platform: FakeCliPlatform) -> None:
    pieces = [
        {"text": "", "offset": 0, "end": False, "size": 0},
        {"text": "one\n", "offset": 4, "end": False, "size": 4},
        {"text": "", "offset": 4, "end": True, "size": 4},
    ]
    answers(platform, "queue.output", *pieces)
    states = [job(state="PENDING", why="Resources"), job(state="PENDING", why="Resources"), job(state="RUNNING")]
    answers(platform, "queue.read", *({"jobs": [each]} for each in states))
    followed = run("output", "c1", "7", "--follow")
    assert followed.stdout == "one\n"
    assert followed.stderr.count("Job 7 is PENDING Resources") == 1
    assert len(asked(platform, "queue.read")) == 3
    answers(platform, "queue.output", pieces[0])
    assert "nothing yet" in run("output", "c1", "7").stderr
    assert json.loads(run("output", "c1", "7", "-o", "json").stdout) == {"id": "7", "stream": "out", "text": ""}


def test_a_job_is_cancelled(run: Run, platform: FakeCliPlatform) -> None:
    answers(platform, "queue.cancel", {"job": job(state="CANCELLED")})
    assert "Job 7 is CANCELLED." in run("cancel", "c1", "7").stderr
    assert asked(platform, "queue.cancel") == [{"job_id": "7"}]


# Nodes ---------------------------------------------------------------------------------------------------------------


def test_nodes_are_shown_with_what_is_in_use(run: Run, platform: FakeCliPlatform) -> None:
    node = {"name": "w-0", "state": ["MIXED", "DRAIN"], "reason": "x", "cpus": 4, "cpus_used": 1, "gpus": 2}
    answers(platform, "node.read", {"nodes": [node]})
    shown = run("nodes", "c1").stdout.splitlines()[1].split()
    assert shown[:6] == ["w-0", "MIXED+DRAIN", "x", "-", "1/4", "0/2"]
    answers(platform, "node.read", {"nodes": []})
    assert "mooring instances members add c1 --component worker" in run("nodes", "c1").stderr


def test_a_node_is_drained_with_a_reason_and_somebody_elses_drain_stays(run: Run, platform: FakeCliPlatform) -> None:
    node = {"name": "w-0", "state": ["IDLE", "DRAIN"]}
    answers(platform, "node.operate", {"node": node, "changed": True})
    assert "w-0 is IDLE+DRAIN." in run("drain", "c1", "w-0", "--reason", "new disk").stderr
    answers(platform, "node.operate", {"node": node, "changed": False, "foreign": "the tenant's own"})
    assert "drained by somebody else: the tenant's own" in run("resume", "c1", "w-0").stderr
    assert asked(platform, "node.operate") == [
        {"name": "w-0", "do": "drain", "reason": "new disk"},
        {"name": "w-0", "do": "resume"},
    ]
    assert run("drain", "c1", "w-0").exit_code == 1  # a reason is required


# Places --------------------------------------------------------------------------------------------------------------


def test_an_attached_project_acts_by_its_attachment(run: Run, platform: FakeCliPlatform) -> None:
    answers(platform, "queue.read", {"jobs": [job()]}, place=f"{ATTACHED}/att_1")
    for name in ("att_1", "shared"):
        assert "train" in run("job", "--attachment", name, "7").stdout
    assert asked(platform, "queue.read") == [{"job_id": "7"}] * 2
    assert run("queue", "--attachment", "other").exit_code == 4


def test_an_action_that_takes_long_is_waited_for_and_one_that_fails_says_why(
    run: Run, platform: FakeCliPlatform
) -> None:
    platform.on("POST", f"{ONE}/actions/node.read", CannedResponse(202, operation("running")))
    failed = operation("failed", failure_code="unhealthy", failure_detail="the controller c-0 cannot be asked")
    platform.on("GET", f"{ONE}/operations/op_1", CannedResponse(body=failed))
    result = run("nodes", "c1")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        1,
        "error: the controller c-0 cannot be asked (unhealthy)",
    )


def test_what_the_platform_refuses_is_shown_unchanged(run: Run, platform: FakeCliPlatform) -> None:
    denied = problem(403, "permission_denied", "scheduler.queue.read is not allowed to this caller here")
    platform.on("POST", f"{ONE}/actions/queue.read", denied)
    result = run("queue", "c1")
    assert (result.exit_code, "scheduler.queue.read" in result.stderr) == (3, True)
    assert run("queue", "other").exit_code == 4


@pytest.mark.parametrize("words", [(), ("c1",), ("c1", "7", "8"), ("--attachment", "att_1")])
def test_words_that_are_missing_or_too_many_are_refused(run: Run, words: tuple[str, ...]) -> None:
    assert run("cancel", *words).exit_code == 1


def test_run_and_shell_ask_for_a_command_at_the_clusters_terminal(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("POST", f"{ONE}/exec", problem(409, "conflict", "c1 has no place where commands run"))
    assert run("run", "c1", "--", "-N2", "hostname").exit_code == 5
    assert run("shell", "c1").exit_code == 5
    bodies = [each.body for each in platform.of("POST")]
    assert [each["argv"] for each in bodies] == [["srun", "-N2", "hostname"], []]
    assert [each["terminal"] for each in bodies] == [False, False]  # there is no terminal at both ends here


# Values --------------------------------------------------------------------------------------------------------------


@every_row(
    ("text", "minutes"),
    [("30", 30), ("0:30", 1), ("1:30", 2), ("1:30:00", 90), ("0:00:01", 1), ("2-12", 3_600), ("1-0:30:00", 1_470)],
)
def test_a_time_is_read_as_slurms_users_write_it(text: str, minutes: int) -> None:
    assert JobTimeType().convert(text, None, None) == minutes


@every_row(("text", "mib"), [("500", 500), ("500M", 500), ("4G", 4_096), ("4GiB", 4_096), ("1T", 1 << 20)])
def test_memory_is_read_as_slurms_users_write_it(text: str, mib: int) -> None:
    assert MemoryType().convert(text, None, None) == mib


@every_row("text", ["", "x", "1:2:3:4", "-5", "0", "0:00"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        JobTimeType().convert(text, None, None)


def test_the_command_itself_has_no_such_word() -> None:
    root = Path(cli.__file__).parents[3]
    found = subprocess.run(
        ["grep", "-rliw", "slurm", "--include=*.py", str(root / "cli" / "mooring_cli")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
    program = "import sys; from mooring_cli import main; main.plugins = lambda: {}; main.mooring.main(['slurm'])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, "No such command 'slurm'" in ran.stderr) == (1, True)
