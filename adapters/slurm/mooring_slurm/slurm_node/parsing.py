"""Parses Slurm's output into plain values. Jobs are read from JSON, because their names may contain anything.

Slurm keeps no device list of an ended job: its GPUs are derived from the request, or exact if jobs are accounted.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Job = dict[str, Any]
Node = dict[str, Any]

OVER = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
STATE_FLAGS = (
    "COMPLETING",
    "CONFIGURING",
    "RESIZING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "STOPPED",
    "REVOKED",
    "SIGNALING",
    "STAGE_OUT",
)
"""State flags, in the order in which Slurm's own commands show one of them instead of the base state."""
BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
USABLE = frozenset({"IDLE", "MIXED", "ALLOCATED"})
NODES_MAX = 2_000
TASKS_MAX = 4_000
FAILED_MAX = 20
NO_VALUE = 4_294_967_294
COMMENT = "mooring:"

WHY = {
    "None": "It is about to start.",
    "Priority": "Other jobs are before it in the queue.",
    "Resources": "It waits for free cores, memory or GPUs.",
    "ReqNodeNotAvail": "A requested node is drained or down.",
    "PartitionDown": "Its partition does not start jobs at the moment.",
    "PartitionInactive": "Its partition takes no jobs at the moment.",
    "PartitionNodeLimit": "It requests more nodes than there are.",
    "PartitionConfig": "It requests more than its partition has.",
    "PartitionTimeLimit": "It requests more time than its partition allows.",
    "BadConstraints": "No node has what it requests.",
    "Dependency": "It waits for another job.",
    "BeginTime": "Its start time has not come yet.",
    "JobHeldUser": "Its user holds it.",
    "JobHeldAdmin": "An administrator holds it.",
    "JobArrayTaskLimit": "Its array already runs as many tasks as it allows at a time.",
    "AssocGrpSubmitJobsLimit": "Its account takes no new jobs.",
    "InvalidAccount": "Its account was removed while it was pending: cancel it and submit it again.",
    "launch failed requeued held": "A node could not start it; it is held.",
}
"""The most common reasons of Slurm, as sentences."""


def release_of(text: str) -> str | None:
    """The version of Slurm: 22.05 and 23.02 have it in `Slurm`, later ones in `slurm`."""
    meta = json.loads(text).get("meta") or {}
    found = meta.get("slurm") or meta.get("Slurm") or {}
    return str(found["release"]) if found.get("release") else None


def jobs_of(text: str) -> list[Job]:
    """The jobs of `squeue --json`: pending, running and recently ended."""
    return [job_of(each) for each in json.loads(text).get("jobs", [])]


def job_of(raw: Mapping[str, Any]) -> Job:
    """One job; unknown fields are left out."""
    state = _state(raw.get("job_state"))
    nodes = sorted(names_of(raw.get("nodes") or ""))
    waits, over = state in WAITING, state in OVER
    job: Job = {
        "id": str(_whole(raw.get("job_id"))),
        "array": _array(raw),
        "name": raw.get("name"),
        "user": raw.get("user_name"),
        "account": raw.get("account"),
        "partition": raw.get("partition"),
        "state": state,
        "nodes": nodes,
        "batch_host": raw.get("batch_host"),
        "submitted_at": moment(raw.get("submit_time")),
        "started_at": moment(raw.get("start_time")) if nodes and not waits else None,
        "ended_at": moment(raw.get("end_time")) if over else None,
        "exit_code": _exit_code(raw.get("exit_code")) if over else None,
        "gpus": gpus_of(raw),
        "cpus": _whole(raw.get("cpus")),
        "restarts": _whole(raw.get("restart_cnt")),
        "key": _key(raw.get("comment")),
    }
    if waits:
        job["why"] = reason = str(raw.get("state_reason") or "None")
        job["why_text"] = WHY.get(reason, f"Slurm says: {reason}.")
    return {name: value for name, value in job.items() if value not in (None, "", [])}


def gpus_of(raw: Mapping[str, Any]) -> int:
    """The number of GPUs that a job has, had, or requests, on all its nodes together."""
    if found := re.search(r"(?:^|,)gres/gpu=(\d+)", str(raw.get("tres_alloc_str") or "")):
        return int(found[1])
    if held := [each for each in raw.get("gres_detail") or [] if each]:
        return sum(_devices(each) for each in held)
    if per_job := _devices(raw.get("tres_per_job")):
        return per_job
    nodes = max(_whole(raw.get("node_count")), 1)
    if per_node := _devices(raw.get("tres_per_node")):
        return per_node * nodes
    if per_socket := _devices(raw.get("tres_per_socket")):
        return per_socket * max(_whole(raw.get("sockets_per_node")), 1) * nodes
    return _devices(raw.get("tres_per_task")) * max(_whole(raw.get("tasks")), 1)


def nodes_of(text: str, jobs: Iterable[Job] = ()) -> list[Node]:
    """The nodes of `scontrol --oneliner --detail show node`."""
    counts: dict[str, int] = {}
    for job in jobs:
        if job["state"] not in OVER and job["state"] not in WAITING:
            for name in job.get("nodes", ()):
                counts[name] = counts.get(name, 0) + 1
    return [_node(line, counts) for line in text.splitlines() if line.startswith("NodeName=")]


def _node(line: str, jobs: Mapping[str, int]) -> Node:
    head, _, tail = line.partition(" Reason=")
    values = dict(part.split("=", 1) for part in head.split() if "=" in part)
    state = values.get("State", "UNKNOWN").replace("*", "+NOT_RESPONDING").split("+")
    reason = re.fullmatch(r"(.*?)(?: \[([^\s@\]]+)@[^\]]*\])?\s*(?:Comment=.*)?", tail.strip())
    name = values["NodeName"]
    node: Node = {
        "name": name,
        "state": list(dict.fromkeys(state)),
        "reason": reason[1] if reason else tail.strip(),
        "reason_by": reason[2] if reason else None,
        "jobs": jobs.get(name, 0),
        "cpus": _whole(values.get("CPUTot")),
        "cpus_used": _whole(values.get("CPUAlloc")),
        "gpus": _devices(values.get("Gres")),
        "gpus_used": min(_devices(values.get("GresUsed")), _devices(values.get("Gres"))),
        "version": values.get("Version"),
        "address": values.get("NodeAddr"),
        "responding": "NOT_RESPONDING" not in state and not {"DOWN", "UNKNOWN", "FUTURE"} & set(state),
    }
    return {key: value for key, value in node.items() if value not in (None, "")}


def is_drained(node: Node) -> bool:
    """Whether it is drained and has no jobs."""
    return "DRAIN" in node["state"] and not is_busy(node)


def is_busy(node: Node) -> bool:
    """Whether jobs run on it, or are being cleaned up."""
    return bool(BUSY & set(node["state"])) or node.get("cpus_used", 0) > 0


def is_usable(node: Node) -> bool:
    """Whether it is registered, answers, and takes jobs."""
    return node["responding"] and bool(USABLE & set(node["state"])) and "DRAIN" not in node["state"]


def names_of(listed: str) -> list[str]:
    """The names in Slurm's list notation: `a-[0-1,7],b` is a-0, a-1, a-7 and b."""
    found: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", listed):
        found += _spread(part)
        if len(found) > NODES_MAX:
            return found[:NODES_MAX]
    return found


def _spread(part: str) -> list[str]:
    opened = re.match(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if opened is None:
        return [part]
    head, inside, tail = opened.groups()
    rest = _spread(tail)
    return [f"{head}{number}{end}" for number in _numbers(inside) for end in rest][:NODES_MAX]


def _numbers(inside: str) -> Iterator[str]:
    for piece in inside.split(","):
        first, _, last = piece.partition("-")
        if not last:
            yield first
            continue
        for number in range(int(first), min(int(last), int(first) + NODES_MAX) + 1):
            yield str(number).zfill(len(first))


def moment(value: object) -> str | None:
    """A time in seconds, as ISO 8601; None if it is not set."""
    seconds = _whole(value)
    if not 0 < seconds < NO_VALUE:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def is_named(job: Job, wanted: str) -> bool:
    """Whether a job matches a number, or a task of an array."""
    array = str(job.get("array", ""))
    number, _, task = wanted.partition("_")
    if wanted in (job["id"], array):
        return True
    return array.startswith(f"{number}_") and (not task or int(task) in tasks_in(job))


def tasks_in(job: Job) -> list[int]:
    """The task numbers of a record: the pending tasks of an array are one record, such as `6_[0-3,7%2]`."""
    listed = str(job.get("array", "")).partition("_")[2].strip("[]").partition("%")[0]
    found: list[int] = []
    for first, last, step in re.findall(r"(\d+)(?:-(\d+)(?::(\d+))?)?", listed):
        numbers = range(int(first), int(last or first) + 1, max(int(step or 1), 1))
        found += numbers[: TASKS_MAX - len(found)]
    return found


def array_of(tasks: Iterable[Job]) -> dict[str, Any]:
    """The summary of an array; failed tasks are listed, the lowest numbers first."""
    states: dict[str, int] = {}
    failed: list[Job] = []
    for each in tasks:
        states[each["state"]] = states.get(each["state"], 0) + max(len(tasks_in(each)), 1)
        if each["state"] in OVER and each["state"] != "COMPLETED":
            failed.append({name: each[name] for name in ("array", "state", "exit_code") if name in each})
    return {
        "task_count": sum(states.values()),
        "over_count": sum(count for state, count in states.items() if state in OVER),
        "states": states,
        "failed": failed[:FAILED_MAX],
        "failed_count": len(failed),
    }


def _array(raw: Mapping[str, Any]) -> str | None:
    parent, task = _whole(raw.get("array_job_id")), raw.get("array_task_id")
    if not parent:
        return None
    if task is not None and not (isinstance(task, dict) and not task.get("set")):
        return f"{parent}_{_whole(task)}"
    return f"{parent}_[{raw.get('array_task_string') or ''}]"


def _exit_code(value: object) -> int:
    """The exit code as a shell shows it: the code, or 128 plus the signal.

    Slurm 22.05 has the status of `wait` in one number; later versions separate the code and the signal.
    """
    if isinstance(value, dict):
        signal = value.get("signal")
        number = _whole(signal.get("id", signal.get("signal_id"))) if isinstance(signal, dict) else 0
        return 128 + number if number else _whole(value.get("return_code"))
    status = _whole(value)
    return 128 + (status & 127) if status & 127 else status >> 8


def _key(comment: object) -> str | None:
    text = str((comment.get("job") if isinstance(comment, dict) else comment) or "")
    return text[len(COMMENT) :] if text.startswith(COMMENT) else None


def _devices(listed: object) -> int:
    """The GPUs in a list such as `gres:gpu:a100:2(IDX:0-1),gres:other:1`."""
    count = 0
    for each in re.sub(r"\([^)]*\)", "", str(listed or "")).split(","):
        words = each.replace("=", ":").removeprefix("gres:").removeprefix("gres/").split(":")
        if words[0] == "gpu":
            count += int(words[-1]) if words[-1].isdigit() else 1
    return count


def _state(value: object) -> str:
    """A job's state: later versions list a base state and flags, of which a flag takes precedence."""
    states = [str(each) for each in value] if isinstance(value, list) else [str(value)] if value else []
    return next((each for each in STATE_FLAGS if each in states), states[0] if states else "UNKNOWN")


def _whole(value: object) -> int:
    """A number in any version's notation; 0 if it is not set."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else 0
    try:
        return int(float(str(value)))
    except ValueError:
        return 0
