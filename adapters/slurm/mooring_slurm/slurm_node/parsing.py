"""What Slurm says, as plain values; pure. Jobs are read from JSON, since people name jobs as they like.

Of a job that is over Slurm keeps no list of its devices: its GPUs are told from what it had asked for, and exactly
where jobs are accounted.
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
BESIDE = (
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
"""States that stand beside a base state, in the order in which Slurm's own commands show one of them instead of it."""
BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
USABLE = frozenset({"IDLE", "MIXED", "ALLOCATED"})
NODES_MAX = 2_000
TASKS_MAX = 4_000
FAILED_MAX = 20
NO_VALUE = 4_294_967_294
COMMENT = "mooring:"

WHY = {
    "None": "It is about to start.",
    "Priority": "Others are before it in the queue.",
    "Resources": "It waits until enough cores, memory or GPUs are free.",
    "ReqNodeNotAvail": "A node that it asks for is drained or down.",
    "PartitionDown": "Its partition does not start jobs now.",
    "PartitionInactive": "Its partition takes no jobs now.",
    "PartitionNodeLimit": "It asks for more nodes than there are.",
    "PartitionConfig": "It asks for more than its partition has.",
    "PartitionTimeLimit": "It asks for a longer time than its partition allows.",
    "BadConstraints": "No node has what it asks for.",
    "Dependency": "It waits for another job.",
    "BeginTime": "Its time to start has not come.",
    "JobHeldUser": "Its user holds it back.",
    "JobHeldAdmin": "An administrator holds it back.",
    "JobArrayTaskLimit": "As many tasks of its array run as it allows at a time.",
    "AssocGrpSubmitJobsLimit": "Its account takes no new work.",
    "InvalidAccount": "Its account was removed while it waited: cancel it and submit it again.",
    "launch failed requeued held": "A node could not start it; it is held back.",
}
"""Slurm's reasons that its users meet most, as sentences."""


def release_of(text: str) -> str | None:
    """The version of Slurm that answered: 22.05 and 23.02 write it below `Slurm`, later ones below `slurm`."""
    meta = json.loads(text).get("meta") or {}
    found = meta.get("slurm") or meta.get("Slurm") or {}
    return str(found["release"]) if found.get("release") else None


def jobs_of(text: str) -> list[Job]:
    """The jobs that `squeue --json` knows: those that wait, run, and ended of late."""
    return [job_of(each) for each in json.loads(text).get("jobs", [])]


def job_of(raw: Mapping[str, Any]) -> Job:
    """One job; what is not known is left out."""
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
    """How many GPUs a job has, had, or asks for, of all its nodes together."""
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
    """The nodes that `scontrol --oneliner --detail show node` tells."""
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
    """Whether it takes no new jobs and has none."""
    return "DRAIN" in node["state"] and not is_busy(node)


def is_busy(node: Node) -> bool:
    """Whether jobs run there, or are being cleaned up after."""
    return bool(BUSY & set(node["state"])) or node.get("cpus_used", 0) > 0


def is_usable(node: Node) -> bool:
    """Whether it is registered, answers, and takes jobs."""
    return node["responding"] and bool(USABLE & set(node["state"])) and "DRAIN" not in node["state"]


def names_of(listed: str) -> list[str]:
    """The names in a list as Slurm writes it: `a-[0-1,7],b` is a-0, a-1, a-7 and b."""
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
    """A time in seconds as people and the platform read it."""
    seconds = _whole(value)
    if not 0 < seconds < NO_VALUE:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def is_named(job: Job, wanted: str) -> bool:
    """Whether a job is the one that is meant: by its number, or as a task of its array."""
    array = str(job.get("array", ""))
    number, _, task = wanted.partition("_")
    if wanted in (job["id"], array):
        return True
    return array.startswith(f"{number}_") and (not task or int(task) in tasks_in(job))


def tasks_in(job: Job) -> list[int]:
    """The numbers of the tasks that a record is: those of an array that wait are one record, such as `6_[0-3,7%2]`."""
    listed = str(job.get("array", "")).partition("_")[2].strip("[]").partition("%")[0]
    found: list[int] = []
    for first, last, step in re.findall(r"(\d+)(?:-(\d+)(?::(\d+))?)?", listed):
        numbers = range(int(first), int(last or first) + 1, max(int(step or 1), 1))
        found += numbers[: TASKS_MAX - len(found)]
    return found


def array_of(tasks: Iterable[Job]) -> dict[str, Any]:
    """How an array stands as a whole; tasks that ended without success are named, those of the lowest numbers first."""
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
    """As a shell tells it: the code, or 128 and the signal.

    Slurm 22.05 tells what `wait` gave, in one number; later ones tell the code and the signal apart.
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
    """One word for a job's state: later versions tell its base and what is beside it, which comes first here."""
    told = [str(each) for each in value] if isinstance(value, list) else [str(value)] if value else []
    return next((each for each in BESIDE if each in told), told[0] if told else "UNKNOWN")


def _whole(value: object) -> int:
    """A number, however a version of Slurm writes it; what is not set is 0."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else 0
    try:
        return int(float(str(value)))
    except ValueError:
        return 0
