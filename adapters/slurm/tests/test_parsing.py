"""Recorded output of real Slurm (`recorded/`), parsed into plain values."""

import json
from pathlib import Path

from mooring_slurm.slurm_node.job_completions import ended_jobs, fitted
from mooring_slurm.slurm_node.parsing import (
    gpus_of,
    is_busy,
    is_drained,
    is_named,
    is_usable,
    job_of,
    jobs_of,
    names_of,
    nodes_of,
    tasks_in,
)
from mooring_slurm.slurm_node.slurm_commands import code_of
from tests.support.rows import every_row

RECORDED = Path(__file__).parent / "recorded"


def read(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


@every_row("name", ["squeue_plain.json", "squeue_accounted.json"])
def test_jobs_are_reported_with_their_gpus_whether_accounted_or_not(name: str) -> None:
    jobs = jobs_of(read(name))
    assert [(each["id"], each["state"], each["gpus"]) for each in jobs] == [
        ("1", "COMPLETED", 0),
        ("3", "FAILED", 1),
        ("2", "FAILED", 1),
        ("4", "RUNNING", 2),
        ("5", "RUNNING", 2),
        ("6", "PENDING", 2),
        ("7", "PENDING", 1),
    ]


def test_a_job_named_like_a_line_of_slurm_is_nobody_elses() -> None:
    jobs = jobs_of(read("squeue_accounted.json"))
    odd = next(each for each in jobs if "UserId=root" in each["name"])
    assert (odd["user"], odd["account"]) == ("app", "project")


def test_an_array_is_reported_by_its_tasks() -> None:
    jobs = jobs_of(read("squeue_plain.json"))
    arrays = {each["id"]: each["array"] for each in jobs if "array" in each}
    assert arrays == {"3": "2_0", "2": "2_1", "6": "6_[0-3%2]"}
    assert [each["id"] for each in jobs if is_named(each, "2")] == ["3", "2"]
    assert [each["id"] for each in jobs if is_named(each, "2_0")] == ["3"]


@every_row(
    ("array", "tasks"),
    [
        ("6_2", [2]),
        ("6_[0-3%2]", [0, 1, 2, 3]),
        ("6_[1,3,8-9]", [1, 3, 8, 9]),
        ("6_[0-8:4%1]", [0, 4, 8]),
        ("6_[]", []),
        ("", []),
    ],
)
def test_the_tasks_of_a_record(array: str, tasks: list[int]) -> None:
    assert tasks_in({"id": "6", "array": array}) == tasks
    assert len(tasks_in({"id": "6", "array": "6_[0-99999999]"})) == 4_000


def test_what_has_not_happened_yet_is_left_out() -> None:
    jobs = {each["id"]: each for each in jobs_of(read("squeue_plain.json"))}
    assert {"started_at", "ended_at", "exit_code", "nodes"}.isdisjoint(jobs["6"])
    assert "ended_at" not in jobs["4"]
    assert (jobs["3"]["exit_code"], jobs["1"]["exit_code"]) == (3, 0)
    assert jobs["4"]["nodes"] == ["hpc-worker-0", "hpc-worker-1"]
    assert jobs["5"]["key"] == "key-1"


def test_why_a_job_waits_is_a_word_and_a_sentence() -> None:
    jobs = {each["id"]: each for each in jobs_of(read("squeue_plain.json"))}
    assert (jobs["6"]["why"], jobs["7"]["why"]) == ("Resources", "Priority")
    assert jobs["7"]["why_text"] == "Other jobs are before it in the queue."
    assert job_of({"job_id": 1, "job_state": "PENDING", "state_reason": "Odd"})["why_text"] == "Slurm says: Odd."


def test_nodes_are_reported_with_reason_and_whose_it_is() -> None:
    nodes = {each["name"]: each for each in nodes_of(read("nodes.txt"), jobs_of(read("squeue_plain.json")))}
    assert nodes["hpc-worker-1"]["state"] == ["ALLOCATED", "DYNAMIC_NORM"]
    own = nodes["hpc-worker-0"]
    assert (own["reason"], own["reason_by"], own["jobs"]) == ("mooring:member: to be removed", "root", 2)
    assert (own["gpus"], own["gpus_used"], own["cpus"], own["cpus_used"]) == (2, 2, 2, 2)
    assert nodes["hpc-worker-2"]["reason"] == "fan is broken [really]"
    assert (own["version"], own["address"]) == ("22.05.8", "10.77.0.5")


def test_a_node_is_quiet_only_when_it_is_drained_and_has_nothing() -> None:
    nodes = {each["name"]: each for each in nodes_of(read("nodes.txt"))}
    assert [name for name, each in nodes.items() if is_drained(each)] == ["hpc-worker-4"]
    assert is_busy(nodes["hpc-worker-0"])
    assert [name for name, each in nodes.items() if is_usable(each)] == ["hpc-worker-1"]
    assert [name for name, each in nodes.items() if not each["responding"]] == ["hpc-worker-3", "hpc-worker-4"]


@every_row(
    ("listed", "names"),
    [
        ("", []),
        ("a", ["a"]),
        ("a,b-1", ["a", "b-1"]),
        ("a-[0-2,7],b", ["a-0", "a-1", "a-2", "a-7", "b"]),
        ("a[08-10]", ["a08", "a09", "a10"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_lists_of_names_are_spread_out(listed: str, names: list[str]) -> None:
    assert names_of(listed) == names


def test_a_list_of_names_is_bounded() -> None:
    assert len(names_of("a[0-99999999]")) <= 2_001


@every_row(
    ("raw", "count"),
    [
        ({"tres_alloc_str": "cpu=1,gres/gpu=4,gres/gpu:a100=4", "tres_per_node": "gres:gpu:9"}, 4),
        ({"gres_detail": ["gpu:a100:2(IDX:0-1)", "gpu:a100:1(IDX:3)"]}, 3),
        ({"tres_per_job": "gres:gpu:a100:3", "node_count": 2}, 3),
        ({"tres_per_node": "gres:gpu", "node_count": 3}, 3),
        ({"tres_per_node": "gres:gpu:a100,gres:other:7", "node_count": {"set": True, "number": 2}}, 2),
        ({"tres_per_task": "gres:gpu:2", "tasks": 4}, 8),
        ({"tres_per_socket": "gres:gpu:1", "sockets_per_node": 2, "node_count": 2}, 4),
        ({}, 0),
    ],
)
def test_gpus_of_a_job(raw: dict[str, object], count: int) -> None:
    assert gpus_of(raw) == count


def test_refusals_have_codes() -> None:
    said = {**json.loads(read("refusals.json")), **json.loads(read("refusals_accounted.json"))}
    assert {name: code_of(text) for name, (code, text) in said.items() if code != 0} == {
        "sbatch --parsable -p nope --wrap true": "partition_refused",
        "sbatch --parsable -w nope --wrap true": "not_found",
        "scontrol show job 999": "not_found",
        "scontrol show node nope": "not_found",
        "scontrol delete nodename=nope": "not_found",
        "scontrol update nodename=nope state=drain reason=x": "not_found",
        "scontrol update nodename=hpc-worker-0 state=resume": "slurm_refused",
        "scontrol update nodename=hpc-worker-0 state=resume, not as root": "permission_denied",
        "squeue, without a controller": "controller_down",
        "sbatch --account=nope": "account_refused",
        "sacctmgr add twice": "slurm_refused",
    }


def over(number: int, ended_at: str) -> dict[str, object]:
    return {"id": str(number), "state": "COMPLETED", "started_at": "2026-01-01T00:00:00Z", "ended_at": ended_at}


def test_ended_jobs_go_on_from_a_mark_and_none_is_left_out() -> None:
    jobs = [over(number, "2026-01-01T00:00:10Z") for number in range(400)]
    seen: list[str] = []
    mark, more = None, True
    while more:
        shown, mark, more = ended_jobs(jobs, mark, 1_767_225_700)
        seen += [each["id"] for each in shown]
    assert seen == [str(number) for number in range(400)]
    shown, mark, _ = ended_jobs([*jobs, over(7_000, "2026-01-01T00:01:39Z")], mark, 1_767_225_800)
    assert [each["id"] for each in shown] == ["7000"]


def test_a_job_that_ends_in_the_moment_of_a_look_is_reported_by_the_next() -> None:
    _, mark, _ = ended_jobs([], None, 1_767_225_700)  # 2026-01-01T00:01:40Z
    shown, _, _ = ended_jobs([over(1, "2026-01-01T00:01:39Z")], mark, 1_767_225_701)
    assert [each["id"] for each in shown] == ["1"]


def test_a_list_is_cut_where_it_becomes_too_long() -> None:
    assert fitted([{"id": "1"}, {"id": "2"}], 10, 1_000) == ([{"id": "1"}, {"id": "2"}], False)
    assert fitted([{"id": "1"}, {"id": "2"}], 1, 1_000) == ([{"id": "1"}], True)
    assert fitted([{"id": "1"}, {"id": "2"}], 10, 20) == ([{"id": "1"}], True)
