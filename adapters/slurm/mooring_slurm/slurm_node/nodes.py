"""Verbs for nodes: wait for one, run a job on it, check that it is quiet, drain, resume, delete; and look at all."""

from __future__ import annotations

import os
import re
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from .job_completions import ended_since, fitted
from .parsing import (
    OVER,
    WAITING,
    Job,
    Node,
    is_busy,
    is_drained,
    jobs_of,
    nodes_of,
    release_of,
)
from .slurm_commands import Deadline, SlurmCommands, VerbFailed, code_of, sentence_of

OWN = "mooring:"
PROOF = "mooring-proof"
ONE_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
REASON_LENGTH_MAX = 300
PROOF_MINUTES = 1
DAEMON_SECONDS = 15.0
"""How long a slurmd may be down, while it restarts repeatedly, before its node is given up."""
AT_ONCE_SECONDS = 1
GONE_SECONDS = 30.0
JOBS_MAX = 200
NODES_BYTES, JOBS_BYTES = 30_000, 12_000
NOT_YET = frozenset({"not_found", "partition_down", "controller_down", "slurm_refused", "account_refused"})
"""Temporary failures of a test job: the node is about to register, or the partition about to open."""
TAKEN = frozenset({"ALLOCATED", "MIXED"})
Answer = dict[str, Any]


def node_named(slurm: SlurmCommands, name: str, jobs: list[Job] | None = None) -> Node | None:
    """A node in Slurm; None if there is no such node."""
    done = slurm.say("scontrol", "--oneliner", "--detail", "show", "node", name)
    if done.returncode != 0:
        if code_of(done.stdout + done.stderr) == "not_found":
            return None
        raise VerbFailed(code_of(done.stderr), f"scontrol: {sentence_of(done)}")
    return next(iter(nodes_of(done.stdout, jobs or ())), None)


def existing(slurm: SlurmCommands, name: str) -> Node:
    """A node that must exist."""
    found = node_named(slurm, name)
    if found is None:
        raise VerbFailed("not_found", f"Slurm has no node {name}")
    return found


def all_jobs(slurm: SlurmCommands) -> list[Job]:
    """All jobs in the controller's memory."""
    return jobs_of(slurm.ask("squeue", "--json"))


def await_node(slurm: SlurmCommands, name: str, seconds: float) -> Answer:
    """Wait until a node is registered and answers."""
    deadline = Deadline(seconds)
    slurm.await_controller(deadline)
    seen: list[Node | None] = [None]

    def look() -> Node | None:
        seen[0] = node_named(slurm, name)
        return seen[0] if seen[0] is not None and seen[0]["responding"] else None

    return {"node": deadline.wait(look, lambda: f"{name} {_described(seen[0])}")}


def prove(slurm: SlurmCommands, name: str | None, count: int, seconds: float) -> Answer:
    """Run a test job from submission to end, and to its record in the accounting if there is one.

    It waits for everything that does not exist yet. Jobs of others on the node also count as proof. The test job never
    stays in the queue: it starts at once, or is tried again.
    """
    deadline = Deadline(seconds)
    slurm.await_controller(deadline)
    words = ["srun", f"--job-name={PROOF}", f"--time={PROOF_MINUTES}", f"--immediate={AT_ONCE_SECONDS}", "--mem=1"]
    words += ["--chdir=/tmp", "--ntasks-per-node=1", "--cpus-per-task=1"]
    words += [f"--nodelist={name}", "--nodes=1"] if name else [f"--nodes={count}"]
    last_error = [""]
    daemon = DaemonWatch(slurm, name) if name else None

    def attempt() -> Answer | None:
        done = slurm.say(*words, "sh", "-c", 'echo "$SLURM_JOB_ID $SLURMD_NODENAME"')
        if done.returncode == 0:
            ran = [line.split() for line in done.stdout.splitlines()]
            return {"job": ran[0][0], "how": "proof", "nodes": sorted(each[1] for each in ran), "accounted": None}
        last_error[0] = sentence_of(done)
        if code_of(done.stderr) not in NOT_YET:
            raise VerbFailed(code_of(done.stderr), f"srun: {last_error[0]}")
        if daemon is not None:
            daemon.look(time.monotonic())
        return _others(slurm, name) if name else None

    answer = deadline.wait(attempt, lambda: f"no job ran: {last_error[0]}; {_where(slurm, name)}")
    if answer["how"] == "proof" and slurm.accounts:
        answer["accounted"] = _accounted(slurm, answer["job"], deadline)
    return answer


class DaemonWatch:
    """Watches the slurmd on this machine: whether it stays up, or ends whenever it is started."""

    def __init__(self, slurm: SlurmCommands, node: str) -> None:
        self._words = {b"-N", node.encode(), slurm.conf.encode()}
        self._node = node
        self._pid = 0
        self._up_at: float | None = None

    def look(self, now: float) -> None:
        """Fail if no slurmd was up for a while; a process that is seen twice in a row is up.

        The time starts at the first look, however long the first test job took.
        """
        pid = next((each for each in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_it(each)), 0)
        if self._up_at is None or (pid and pid == self._pid):
            self._up_at = now
        self._pid = pid
        if now - self._up_at > DAEMON_SECONDS:
            raise VerbFailed("daemon_down", f"the slurmd of {self._node} does not stay up")

    def _is_it(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:  # it has ended
            return False
        return words[0].rpartition(b"/")[2] == b"slurmd" and self._words <= set(words)


def _others(slurm: SlurmCommands, name: str) -> Answer | None:
    """Use another running job as proof; if jobs are private, use the node's state."""
    answer = {"how": "other", "nodes": [name], "accounted": None}
    if running := slurm.say("squeue", "-h", "-t", "RUNNING", "-w", name, "-o", "%A").stdout.split():
        return {"job": running[0], **answer}
    node = node_named(slurm, name) if slurm.setting("PrivateData") else None
    if node is None or not node["responding"] or "COMPLETING" in node["state"]:
        return None
    return answer if TAKEN & set(node["state"]) else None


def _accounted(slurm: SlurmCommands, job_id: str, deadline: Deadline) -> bool:
    def look() -> bool | None:
        done = slurm.say("sacct", "-n", "-P", "-X", "-j", job_id, "-o", "State")
        return True if done.stdout.strip() == "COMPLETED" else None

    return deadline.wait(look, lambda: f"job {job_id} ran, but is not in the accounting")


def _where(slurm: SlurmCommands, name: str | None) -> str:
    if name:
        return f"{name} {_described(node_named(slurm, name))}"
    nodes = nodes_of(slurm.say("scontrol", "--oneliner", "--detail", "show", "node").stdout)
    return "; ".join(f"{each['name']} {_described(each)}" for each in nodes[:20]) or "there are no nodes"


def _described(node: Node | None) -> str:
    if node is None:
        return "is not registered"
    why = f" ({node['reason']})" if node.get("reason") else ""
    return f"is {'+'.join(node['state'])}{why}"


def quiet(slurm: SlurmCommands, name: str, seconds: float) -> Answer:
    """Wait until a node is drained and has no jobs; fails when the time is over."""
    deadline = Deadline(seconds)
    while True:
        node = existing(slurm, name)
        if is_drained(node):
            return {"quiet": True, "node": node}
        if deadline.is_over:
            jobs = _jobs_on(slurm, name)
            held = f"jobs {', '.join(job['id'] for job in jobs)}" if jobs else "no listed job"
            detail = f"{name} {_described(node)}; held by {held}"
            raise VerbFailed("not_quiet", detail, quiet=False, node=node, jobs=jobs)
        time.sleep(0.1)


def _jobs_on(slurm: SlurmCommands, name: str) -> list[Job]:
    return [
        job
        for job in all_jobs(slurm)
        if name in job.get("nodes", ()) and job["state"] not in OVER and job["state"] not in WAITING
    ][:50]


def drain(slurm: SlurmCommands, name: str, owner: str, reason: str) -> Answer:
    """Drain a node in the owner's name; a drain of another owner is not changed."""
    node = existing(slurm, name)
    full_reason = f"{OWN}{owner}: {' '.join(reason.split())}"[:REASON_LENGTH_MAX]
    if "DRAIN" in node["state"]:
        foreign = _foreign(node, owner)
        if foreign is not None or node.get("reason") == full_reason:
            return {"node": node, "changed": False, "foreign": foreign}
    slurm.ask("scontrol", "update", f"nodename={name}", "state=drain", f"reason={full_reason}")
    return {"node": existing(slurm, name), "changed": True, "foreign": None}


def resume(slurm: SlurmCommands, name: str, owner: str) -> Answer:
    """Resume a node if it was drained in the owner's name."""
    node = existing(slurm, name)
    if "DRAIN" not in node["state"]:
        return {"node": node, "changed": False, "foreign": None}
    if (foreign := _foreign(node, owner)) is not None:
        return {"node": node, "changed": False, "foreign": foreign}
    slurm.ask("scontrol", "update", f"nodename={name}", "state=resume")
    return {"node": existing(slurm, name), "changed": True, "foreign": None}


def _foreign(node: Node, owner: str) -> str | None:
    """Another owner's reason for a drain; None if the drain is the owner's."""
    reason = str(node.get("reason", ""))
    return None if reason.startswith(f"{OWN}{owner}:") else reason or "no reason given"


def delete(slurm: SlurmCommands, name: str, owner: str, gone: bool) -> Answer:
    """Delete a node; one with jobs only if its machine is gone, which ends the jobs."""
    node = node_named(slurm, name)
    if node is None:
        return {"deleted": False, "jobs": []}
    ended: list[str] = []
    if gone:
        ended = [job["id"] for job in _jobs_on(slurm, name)]
        slurm.ask("scontrol", "update", f"nodename={name}", "state=down", f"reason={OWN}{owner}: gone")
    elif is_busy(node):
        jobs = _jobs_on(slurm, name)
        raise VerbFailed("busy", f"jobs run on {name}: {', '.join(job['id'] for job in jobs)}", jobs=jobs)

    def look() -> bool | None:
        done = slurm.say("scontrol", "delete", f"nodename={name}")
        if done.returncode == 0 or code_of(done.stderr + done.stdout) == "not_found":
            return True
        if not gone:
            raise VerbFailed("busy", f"scontrol: {sentence_of(done)}", jobs=_jobs_on(slurm, name))
        return None

    Deadline(GONE_SECONDS).wait(look, lambda: f"cannot delete {name}: it {_described(node_named(slurm, name))}")
    return {"deleted": True, "jobs": ended}


def look(slurm: SlurmCommands, ended_after: str | None, nodes_after: str | None) -> Answer:
    """A snapshot of the cluster, bounded in size; `ended_until` is where the next look continues."""
    now = int(time.time())
    text = slurm.ask("squeue", "--json")
    jobs = jobs_of(text)
    nodes = nodes_of(slurm.ask("scontrol", "--oneliner", "--detail", "show", "node"), jobs)
    partitions = slurm.ask("sinfo", "-h", "-o", "%R|%a").splitlines()
    shown, more_nodes = fitted([each for each in nodes if each["name"] > (nodes_after or "")], 1_000, NODES_BYTES)
    alive = sorted((job for job in jobs if job["state"] not in OVER), key=_running_first)
    listed, more_jobs = fitted(alive, JOBS_MAX, JOBS_BYTES)
    ended, until, more_ended = ended_since(slurm, jobs, ended_after, now)
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job["state"]] = counts.get(job["state"], 0) + 1
    return {
        "version": release_of(text),
        "controller": "up",
        "nodes": shown,
        "nodes_after": shown[-1]["name"] if more_nodes and shown else None,
        "jobs": listed,
        "job_counts": counts,
        "partitions": [dict(zip(("name", "state"), each.split("|", 1), strict=False)) for each in partitions],
        "ended": ended,
        "ended_until": until,
        "truncated": more_nodes or more_jobs or more_ended,
    }


def _running_first(job: Job) -> tuple[bool, int]:
    return job["state"] in WAITING, int(job["id"])


def _name(given: Namespace) -> str:
    """Validate the name of one node: Slurm would also accept lists and ALL."""
    if not given.node or not ONE_NODE.fullmatch(given.node) or given.node.lower() == "all":
        raise VerbFailed("usage", "--node must name exactly one node")
    return str(given.node)


VERBS: Mapping[str, Callable[[SlurmCommands, Namespace], Answer]] = {
    "await-node": lambda slurm, given: await_node(slurm, _name(given), given.seconds or 60.0),
    "prove": lambda slurm, given: prove(
        slurm, _name(given) if given.node else None, given.nodes, given.seconds or 60.0
    ),
    "quiet": lambda slurm, given: quiet(slurm, _name(given), given.seconds or 0.0),
    "look": lambda slurm, given: look(slurm, given.ended_after, given.nodes_after),
    "drain": lambda slurm, given: drain(slurm, _name(given), given.owner, given.reason),
    "resume": lambda slurm, given: resume(slurm, _name(given), given.owner),
    "delete": lambda slurm, given: delete(slurm, _name(given), given.owner, given.gone),
}
