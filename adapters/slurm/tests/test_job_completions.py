"""The controller's file of ended attempts, which is read once, in order, in bounded pieces."""

import os
import subprocess
from pathlib import Path

import pytest

from mooring_slurm.config_files import job_over
from mooring_slurm.layout import MemberHome
from mooring_slurm.slurm_node.job_completions import attempt_of, ended_since
from mooring_slurm.slurm_node.parsing import Job
from mooring_slurm.slurm_node.slurm_commands import SlurmCommands
from tests.support.rows import every_row

RECORDED = "1 1794865899 1794865901 PENDING - 1 1 cpu=1,mem=64M,node=1,billing=1 N/A gres:gpu:1 N/A N/A"
"""Of real Slurm without accounting: the first attempt of a job that was requeued."""
NOW = 1_794_866_000


@pytest.fixture
def slurm(tmp_path: Path) -> SlurmCommands:
    """A controller that records ended attempts."""
    for name in ("etc", "log"):
        (tmp_path / name).mkdir()
    (tmp_path / "etc" / "slurm.conf").write_text("JobCompType=jobcomp/script\n", encoding="utf-8")
    return SlurmCommands(str(tmp_path))


def write(slurm: SlurmCommands, *lines: str) -> None:
    with open(slurm.below("log", "ended"), "a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


def line(number: int, start: int = 1_794_865_000, state: str = "COMPLETED") -> str:
    return f"{number} {start} {start + 10} {state} p-one 1 1 cpu=1,gres/gpu=2,node=1 N/A gres:gpu:9 N/A N/A"


def test_a_line_tells_one_attempt_with_its_gpus() -> None:
    assert attempt_of(RECORDED) == {
        "id": "1",
        "state": "PENDING",
        "started_at": "2026-11-16T21:51:39Z",
        "ended_at": "2026-11-16T21:51:41Z",
        "gpus": 1,
    }
    attempts = attempt_of(line(7))
    assert attempts is not None
    assert (attempts["account"], attempts["gpus"]) == ("p-one", 2)
    unasked = attempt_of("7 1794865000 1794865010 COMPLETED - ")  # the controller was just being stopped
    assert unasked is not None
    assert unasked["gpus"] == 0


@every_row("text", ["", "x", "7 1 2", "7 1 2 FAILED a/b", "7 1 2 FAILED"])
def test_a_malformed_line_is_ignored(text: str) -> None:
    assert attempt_of(text) is None


def test_each_attempt_is_reported_once_from_where_the_caller_left_off(slurm: SlurmCommands) -> None:
    write(slurm, line(1, 1_794_865_000, "PENDING"), line(1, 1_794_865_100))
    attempts, mark, more = ended_since(slurm, [], None, NOW)
    assert ([(each["id"], each["state"]) for each in attempts], more) == ([("1", "PENDING"), ("1", "COMPLETED")], False)
    assert ended_since(slurm, [], mark, NOW) == ([], mark, False)
    write(slurm, "what nobody wrote", line(2))
    with open(slurm.below("log", "ended"), "a", encoding="utf-8") as file:
        file.write(line(3)[:20])  # it is being written
    attempts, mark, _ = ended_since(slurm, [], mark, NOW)
    assert [each["id"] for each in attempts] == ["2"]
    write(slurm, line(3)[20:])
    assert [each["id"] for each in ended_since(slurm, [], mark, NOW)[0]] == ["3"]


def test_many_are_reported_in_pieces_that_fit_and_none_is_left_out(slurm: SlurmCommands) -> None:
    write(slurm, *(line(number) for number in range(3_000)))
    seen: list[str] = []
    mark, more, looks = None, True, 0
    while more:
        attempts, mark, more = ended_since(slurm, [], mark, NOW)
        seen += [each["id"] for each in attempts]
        looks += 1
    assert seen == [str(number) for number in range(3_000)]
    assert looks > 10


def test_another_controller_begins_another_file_which_is_read_from_its_beginning(slurm: SlurmCommands) -> None:
    write(slurm, *(line(number) for number in range(5)))
    _, mark, _ = ended_since(slurm, [], None, NOW)
    os.unlink(slurm.below("log", "ended"))
    attempts, mark, _ = ended_since(slurm, [], mark, NOW)
    assert attempts == []
    write(slurm, *(line(number, 1_794_865_500) for number in range(9)))
    assert [each["id"] for each in ended_since(slurm, [], mark, NOW)[0]] == [str(each) for each in range(9)]


def test_jobs_that_ended_before_there_was_a_file_are_reported_as_before_and_none_twice(slurm: SlurmCommands) -> None:
    def remembered(number: int, restarts: int) -> Job:
        return {
            "id": str(number),
            "state": "COMPLETED",
            "started_at": "2026-11-16T21:36:40Z",
            "restarts": restarts,
            "ended_at": "2026-11-16T21:36:50Z",
        }

    jobs = [remembered(1, 2), remembered(2, 1)]
    write(slurm, line(2, 1_794_865_000))
    attempts, mark, more = ended_since(slurm, jobs, "2026-11-16T20:00:00Z/0", NOW)
    assert ([each["id"] for each in attempts], more) == (["1"], True)
    attempts, _, more = ended_since(slurm, jobs, mark, NOW)
    assert ([(each["id"], each.get("restarts")) for each in attempts], more) == ([("2", None)], False)


def test_a_controller_that_writes_nothing_is_asked_what_it_remembers(slurm: SlurmCommands) -> None:
    Path(slurm.conf).write_text("JobCompType=jobcomp/none\n", encoding="utf-8")
    job = {"id": "1", "state": "FAILED", "started_at": "2026-11-16T21:36:40Z", "ended_at": "2026-11-16T21:36:50Z"}
    assert ended_since(slurm, [job], None, NOW)[0] == [job]


@pytest.mark.parametrize(
    ("given", "asked", "account"),
    [
        ({"ACCOUNT": "p-one"}, "7", "p-one"),
        ({"ACCOUNT": "", "ARRAYTASKID": "3", "ARRAYJOBID": "5"}, "5_3", "-"),
        ({"ACCOUNT": "a b\n9 1 2 FAILED", "JOBNAME": "x\n9 1 2 FAILED p-two"}, "7", "-"),
    ],
)
def test_what_runs_at_the_end_of_a_job_writes_one_line_whatever_its_user_named(
    slurm: SlurmCommands, tmp_path: Path, given: dict[str, str], asked: str, account: str
) -> None:
    script = job_over(MemberHome("hpc-controller-0")).replace("/srv/slurm/hpc-controller-0", str(tmp_path))
    squeue = tmp_path / "squeue"
    squeue.write_text(
        f"#!/bin/sh\necho \"$@\" > {tmp_path}/said\nprintf '%-20s' 1 1 'cpu=1,*' N/A gres:gpu:2 N/A N/A\necho\necho 2\n"
    )
    squeue.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "JOBID": "7",
        "START": "1794865000",
        "END": "1794865010",
        "JOBSTATE": "COMPLETED",
        "NODES": "hpc-worker-0",
        "ARRAYTASKID": "4294967294",
        **given,
    }
    for nodes in ("hpc-worker-0", ""):  # one that never ran is not written
        subprocess.run(["sh", "-c", script], env={**environment, "NODES": nodes}, check=True, cwd=tmp_path)
    written = Path(slurm.below("log", "ended")).read_text(encoding="utf-8")
    assert written == f"7 1794865000 1794865010 COMPLETED {account} 1 1 cpu=1,* N/A gres:gpu:2 N/A N/A\n"
    assert f"--jobs={asked} " in (tmp_path / "said").read_text(encoding="utf-8")
    assert os.stat(slurm.below("log", "ended")).st_mode & 0o077 == 0, "what others' accounts do is nobody's to read"
