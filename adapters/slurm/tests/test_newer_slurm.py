"""Answers of Slurm later than 22.05, in the forms that its documentation has: they were written here, not recorded.

Only 22.05 was run with this adapter. The forms are those of the data parsers v0.0.39 (23.02) and v0.0.40 (23.11) on.
"""

import json
from typing import Any

from mooring_slurm.slurm_node.parsing import OVER, job_of, jobs_of, release_of
from tests.support.rows import every_row


def number(value: int | None, *, infinite: bool = False) -> dict[str, Any]:
    """A number, as later versions write it."""
    return {"set": value is not None and not infinite, "infinite": infinite, "number": value or 0}


def exit_code(code: int, signal: int = 0) -> dict[str, Any]:
    """How something ended, as 23.11 writes it."""
    status = ["SIGNALED"] if signal else ["ERROR"] if code else ["SUCCESS"]
    reported = {"id": number(signal or None), "name": "Killed" if signal else ""}
    return {"status": status, "return_code": number(code), "signal": reported}


def newer(**fields: Any) -> dict[str, Any]:
    """A job, as 23.11 writes it."""
    return {
        "account": "project",
        "array_job_id": number(0),
        "array_task_id": number(None),
        "array_task_string": "",
        "batch_host": "hpc-worker-0",
        "comment": "mooring:key-1",
        "cpus": number(2),
        "end_time": number(1_794_814_160),
        "exit_code": exit_code(0),
        "gres_detail": [],
        "job_id": 7,
        "job_state": ["COMPLETED"],
        "name": "train",
        "node_count": number(2),
        "nodes": "hpc-worker-[0-1]",
        "partition": "main",
        "restart_cnt": 0,
        "sockets_per_node": number(None),
        "start_time": number(1_794_814_153),
        "state_reason": "None",
        "submit_time": number(1_794_814_150),
        "tasks": number(2),
        "tres_alloc_str": "",
        "tres_per_node": "gres/gpu:sim:1",
        "user_name": "app",
        **fields,
    }


def test_a_job_in_the_newer_form_as_documented_and_not_recorded_is_read_as_the_older_one() -> None:
    (job,) = jobs_of(json.dumps({"jobs": [newer()]}))
    assert job == {
        "id": "7",
        "name": "train",
        "user": "app",
        "account": "project",
        "partition": "main",
        "state": "COMPLETED",
        "nodes": ["hpc-worker-0", "hpc-worker-1"],
        "batch_host": "hpc-worker-0",
        "gpus": 2,
        "cpus": 2,
        "restarts": 0,
        "submitted_at": "2026-11-16T07:29:10Z",
        "started_at": "2026-11-16T07:29:13Z",
        "ended_at": "2026-11-16T07:29:20Z",
        "exit_code": 0,
        "key": "key-1",
    }


@every_row(
    ("reported", "code"),
    [
        (0, 0),  # 22.05, recorded: what `wait` gives
        (3 << 8, 3),
        (9, 137),
        ({"status": "ERROR", "return_code": 3}, 3),  # 23.02, by its documentation
        ({"status": "SIGNALED", "return_code": 0, "signal": {"signal_id": 9, "name": "SIGKILL"}}, 137),
        (exit_code(3), 3),  # 23.11, by its documentation
        (exit_code(0), 0),
        (exit_code(0, signal=15), 143),
        (exit_code(200), 200),
    ],
)
def test_an_exit_code_is_read_in_the_older_form_and_in_the_newer_ones_as_documented(
    reported: object, code: int
) -> None:
    assert job_of({"job_id": 1, "job_state": "FAILED", "exit_code": reported})["exit_code"] == code


@every_row(
    ("reported", "state"),
    [
        ("RUNNING", "RUNNING"),
        (["RUNNING"], "RUNNING"),
        (["COMPLETED", "COMPLETING"], "COMPLETING"),
        (["PENDING", "REQUEUED"], "REQUEUED"),
        (["PENDING", "REQUEUE_HOLD"], "REQUEUE_HOLD"),
        (["RUNNING", "CONFIGURING"], "CONFIGURING"),
        ([], "UNKNOWN"),
        (None, "UNKNOWN"),
    ],
)
def test_a_state_that_is_a_list_as_documented_is_the_one_word_that_slurms_commands_show(
    reported: Any, state: str
) -> None:
    job = job_of(newer(job_state=reported))
    assert job["state"] == state
    assert ("ended_at" in job) == (state in OVER), "one that is being cleaned up after is not over"


def test_what_is_not_set_or_has_no_end_in_the_newer_form_as_documented_is_left_out() -> None:
    waits = newer(
        job_state=["PENDING"],
        nodes="",
        start_time=number(0),
        end_time=number(None, infinite=True),
        batch_host="",
        state_reason="Resources",
        comment={"job": "mooring:key-2", "administrator": ""},
    )
    job = job_of(waits)
    assert {"started_at", "ended_at", "exit_code", "nodes", "batch_host", "array"}.isdisjoint(job)
    assert (job["why"], job["key"]) == ("Resources", "key-2")


def test_an_array_in_the_newer_form_as_documented_is_reported_by_its_tasks() -> None:
    assert job_of(newer(array_job_id=number(6), array_task_id=number(0)))["array"] == "6_0"
    waits = newer(array_job_id=number(6), array_task_id=number(None), array_task_string="0-3%2", job_state=["PENDING"])
    assert job_of(waits)["array"] == "6_[0-3%2]"


@every_row(
    ("meta", "release"),
    [
        ({"Slurm": {"version": {"major": 22, "micro": 8, "minor": 5}, "release": "22.05.8"}}, "22.05.8"),
        ({"slurm": {"version": {"major": "23", "micro": "4", "minor": "11"}, "release": "23.11.4"}}, "23.11.4"),
        ({}, None),
    ],
)
def test_the_version_is_read_in_the_older_form_and_in_the_newer_one_as_documented(meta: Any, release: str) -> None:
    assert release_of(json.dumps({"meta": meta, "jobs": []})) == release
