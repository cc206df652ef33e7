"""A simulated Slurm: a small state machine that answers as the node program would; nothing runs.

    python -m mooring_slurm.simulated_slurm      reads one task per line, prints one outcome per line

It is the `stand_in` of the conformance suite, and serves the tests that kill the adapter at every step. A job ends
after it was read once, unless its script contains `#simulated: hold`. Every answer has `"simulated": true`.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

HOLD: Final = "#simulated: hold"
VERSION: Final = "22.05.8"
BEGAN_AT: Final = 1_700_000_000
OPEN: Final = frozenset({"PENDING", "RUNNING"})
MARK: Final = "at:simulated:"
"""The prefix of marks, which are opaque to the caller."""
WAITS: Final = "It waits for free cores, memory or GPUs."
ATTEMPT: Final = ("id", "account", "state", "started_at", "ended_at", "gpus")
JOBS_MAX: Final = 200


class SimulatedFailure(Exception):
    """A failure of the node program, with its code and further fields."""

    def __init__(self, code: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.code, self.detail, self.more = code, detail, more


@dataclass(slots=True)
class SimulatedSlurmNode:
    name: str
    drained: bool = False
    down: bool = False
    reason: str | None = None
    responding: bool = True


@dataclass(slots=True)
class SimulatedJob:
    id: str
    key: str
    name: str
    user: str
    account: str
    node: str | None
    script: str
    state: str = "RUNNING"
    looks: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it is pending or running."""
        return self.state in OPEN


@dataclass(slots=True)
class SimulatedCluster:
    services: set[tuple[str, str]] = field(default_factory=set)  # member, service
    controllers: set[str] = field(default_factory=set)
    nodes: dict[str, SimulatedSlurmNode] = field(default_factory=dict)
    jobs: dict[str, SimulatedJob] = field(default_factory=dict)
    accounts: dict[str, bool] = field(default_factory=dict)  # by account: whether it takes jobs
    registering: set[str] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)  # jobs in the order in which they were seen to have ended
    number: int = 0

    def start(self, member: str, component: str, service: str) -> None:
        self.services.add((member, service))
        if service == "slurmctld":
            self.controllers.add(member)
        elif service == "slurmd" and component == "worker":
            self.registering.add(member)

    def stop(self, member: str, service: str, whole: bool) -> None:
        """Stop a daemon, or all daemons of a member."""
        self.services = {each for each in self.services if each[0] != member or not (whole or each[1] == service)}
        self.registering -= {member}

    def forget(self, member: str) -> None:
        self.stop(member, "", whole=True)

    def answer(self, verb: str, options: Mapping[str, str], given: Mapping[str, Any], user: str) -> dict[str, Any]:
        """The answer of the node program to a verb."""
        if verb in BESIDE:
            return BESIDE[verb](given)
        if not any((name, "slurmctld") in self.services for name in self.controllers):
            raise SimulatedFailure("controller_down", "slurmctld does not answer")
        self._register()
        found = VERBS.get(verb)
        if found is None:
            raise SimulatedFailure("usage", f"there is no verb {verb!r}")
        return found(self, options, {**given, "user": user})

    def _register(self) -> None:
        for name in sorted(self.registering):
            node = self.nodes.setdefault(name, SimulatedSlurmNode(name))
            node.responding, node.down = True, False
        self.registering.clear()
        for node in self.nodes.values():
            node.responding = (node.name, "slurmd") in self.services

    # Verbs -----------------------------------------------------------------------------------------------------------

    def gate(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        self.accounts |= {str(each): True for each in given.get("accounts", ())}
        return {"version": VERSION, "accounting": bool(given.get("accounting"))}

    def look(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        begun = int((options.get("ended-after") or MARK).removeprefix(MARK) or 0)
        over = [each for each in self.jobs.values() if not each.is_open and each.node and each.id not in self.ended]
        self.ended += [each.id for each in over]
        alive = [self.job(each) for each in self.jobs.values() if each.is_open]
        return {
            "version": VERSION,
            "controller": "up",
            "nodes": [self.node(each) for each in self.nodes],
            "nodes_after": None,
            "jobs": alive,
            "job_counts": self._counts(self.jobs.values()),
            "partitions": [{"name": "main", "state": "up"}],
            "ended": [self.attempt(self.jobs[each]) for each in self.ended[begun:]],
            "ended_until": f"{MARK}{len(self.ended)}",
            "truncated": False,
        }

    def drain(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        node = self._node(options)
        if node.drained and not (node.reason or "").startswith(f"mooring:{options['owner']}:"):
            return {"node": self.node(node.name), "changed": False, "foreign": node.reason}
        changed = not node.drained
        node.drained, node.reason = True, f"mooring:{options['owner']}: {options['reason']}"
        return {"node": self.node(node.name), "changed": changed, "foreign": None}

    def resume(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        node = self._node(options)
        ours = (node.reason or "").startswith(f"mooring:{options['owner']}:")
        foreign = node.reason if node.drained and not ours else None
        changed = node.drained and ours
        if changed:
            node.drained, node.reason = False, None
        return {"node": self.node(node.name), "changed": changed, "foreign": foreign}

    def delete(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        name = options["node"]
        if name not in self.nodes:
            return {"deleted": False, "jobs": []}
        busy = self._busy(name)
        if busy and "gone" not in options:
            raise SimulatedFailure("busy", f"{name} runs jobs", jobs=[self.job(each) for each in busy])
        for job in busy:
            job.state = "NODE_FAIL"
        del self.nodes[name]
        return {"deleted": True, "jobs": [each.id for each in busy]}

    def prove(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        node = self.await_node(options, given)["node"]
        if "DRAIN" in node["state"]:
            raise SimulatedFailure("timed_out", f"no job ran: {node['name']} is drained: {node.get('reason')}")
        self.number += 1
        proof = SimulatedJob(str(self.number), "", "proof", str(given.get("user")), "", node["name"], "", "COMPLETED")
        self.jobs[proof.id] = proof
        return {"job": proof.id, "how": "proof", "nodes": [node["name"]], "accounted": None}

    def await_node(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        node = self.nodes.get(options["node"])
        if node is None or not node.responding:
            raise SimulatedFailure("timed_out", f"{options['node']} is not registered")
        return {"node": self.node(node.name)}

    def quiet(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        node = self._node(options)
        busy = self._busy(node.name)
        if not node.drained or busy:
            held = [self.job(each) for each in busy]
            raise SimulatedFailure(
                "not_quiet", f"{node.name} is not quiet", quiet=False, node=self.node(node.name), jobs=held
            )
        return {"quiet": True, "node": self.node(node.name)}

    def submit(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        account = str(given.get("account") or "")
        if account and not self.accounts.get(account):
            raise SimulatedFailure("closed", f"the account {account} takes no jobs")
        known = next((each for each in self.jobs.values() if each.key and each.key == given.get("key")), None)
        if known is not None:
            return {"job_id": known.id, "repeated": True}
        self.number += 1
        free = next((each.name for each in self.nodes.values() if each.responding and not each.drained), None)
        job = SimulatedJob(
            str(self.number),
            str(given.get("key", "")),
            str(given.get("name") or "job"),
            str(given.get("user")),
            account,
            free,
            str(given.get("script", "")),
            "RUNNING" if free else "PENDING",
        )
        self.jobs[job.id] = job
        return {"job_id": job.id, "repeated": False}

    def read_jobs(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        wanted = [each for each in self.jobs.values() if options.get("account", each.account) == each.account]
        for name in ("user", "state"):
            wanted = [each for each in wanted if options.get(name, getattr(each, name)) == getattr(each, name)]
        shown, most = [self.job(each) for each in wanted], int(options.get("limit") or JOBS_MAX)
        return {"jobs": shown[:most], "job_counts": self._counts(wanted), "truncated": len(shown) > most}

    def read_job(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        return {"job": self._seen([self._job(options)])[0]}

    def cancel(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        job = self._job(options)
        job.state = "CANCELLED" if job.is_open else job.state
        return {"job": self.job(job)}

    def output(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        job = self._job(options)
        text = f"simulated output of {job.id}\n"
        return {"text": text, "offset": len(text), "end": not job.is_open, "size": len(text)}

    def account_add(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        self.accounts[str(given["account"])] = True
        return {"account": given["account"], "user": given["user"]}

    def account_close(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        account = str(given["account"])
        self.accounts[account] = False
        left = [each for each in self.jobs.values() if each.account == account and each.is_open]
        for job in left if "cancel" in options else ():
            job.state = "CANCELLED"
        return {"jobs": [each.id for each in left if each.is_open]}

    def account_remove(self, options: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        account = str(given["account"])
        left = [each.id for each in self.jobs.values() if each.account == account and each.is_open]
        if left:
            raise SimulatedFailure("busy", f"jobs of {account} are there: {', '.join(left)}", jobs=left)
        return {"removed": self.accounts.pop(account, None) is not None}

    # Answers ----------------------------------------------------------------------------------------------------

    def node(self, name: str) -> dict[str, Any]:
        """A node in the node program's answers; unknown fields are left out."""
        node, busy = self.nodes[name], self._busy(name)
        state = ["DOWN" if node.down or not node.responding else "ALLOCATED" if busy else "IDLE"]
        state += ["DRAIN"] * node.drained + ["NOT_RESPONDING"] * (not node.responding)
        return _known(
            {
                "name": name,
                "state": state,
                "reason": node.reason,
                "reason_by": "root" if node.reason else None,
                "jobs": len(busy),
                "cpus": 2,
                "cpus_used": len(busy),
                "gpus": 0,
                "gpus_used": 0,
                "version": VERSION,
                "address": "10.99.0.1",
                "responding": node.responding,
            }
        )

    def job(self, job: SimulatedJob) -> dict[str, Any]:
        """A job in the node program's answers; unknown fields are left out."""
        waits = job.state == "PENDING"
        return _known(
            {
                "id": job.id,
                "name": job.name,
                "user": job.user,
                "account": job.account,
                "partition": "main",
                "state": job.state,
                "why": "Resources" if waits else None,
                "why_text": WAITS if waits else None,
                "nodes": [job.node] if job.node else [],
                "batch_host": job.node,
                "submitted_at": moment(BEGAN_AT),
                "started_at": moment(BEGAN_AT + int(job.id) - 1) if job.node else None,
                "ended_at": None if job.is_open or not job.node else moment(BEGAN_AT + int(job.id)),
                "exit_code": None if job.is_open else 0,
                "gpus": 0,
                "cpus": 1,
                "restarts": 0,
                "key": job.key,
            }
        )

    def attempt(self, job: SimulatedJob) -> dict[str, Any]:
        """An ended attempt in the node program's answers."""
        shown = self.job(job)
        return {name: shown[name] for name in ATTEMPT if name in shown}

    def _counts(self, jobs: Iterable[SimulatedJob]) -> dict[str, int]:
        """The number of jobs in each state; counting reads the jobs."""
        counts: dict[str, int] = {}
        for shown in self._seen(jobs):
            counts[shown["state"]] = counts.get(shown["state"], 0) + 1
        return counts

    def _seen(self, jobs: Iterable[SimulatedJob]) -> list[dict[str, Any]]:
        shown = []
        for job in jobs:
            shown.append(self.job(job))
            job.looks += 1
            if job.state == "RUNNING" and HOLD not in job.script:
                job.state = "COMPLETED"
        return shown

    def _busy(self, name: str) -> list[SimulatedJob]:
        return [each for each in self.jobs.values() if each.node == name and each.state == "RUNNING"]

    def _node(self, options: Mapping[str, str]) -> SimulatedSlurmNode:
        if options["node"] not in self.nodes:
            raise SimulatedFailure("not_found", f"there is no node {options['node']}")
        return self.nodes[options["node"]]

    def _job(self, options: Mapping[str, str]) -> SimulatedJob:
        job = self.jobs.get(options["job"])
        if job is None or options.get("account", job.account) != job.account:
            raise SimulatedFailure("not_found", f"there is no job {options['job']}")
        return job


def moment(seconds: int) -> str:
    """A time in the node program's answers."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, "", [])}


BESIDE: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "users": lambda given: {"made": [each["name"] for each in given.get("users", ())]},
    "user-end": lambda given: {"user": given["user"]},
    "database": lambda given: {"database": "up"},
}
"""Verbs that run on a member without its controller."""

Verb = Callable[[SimulatedCluster, Mapping[str, str], Mapping[str, Any]], dict[str, Any]]
VERBS: Final[Mapping[str, Verb]] = {
    "gate": SimulatedCluster.gate,
    "look": SimulatedCluster.look,
    "drain": SimulatedCluster.drain,
    "resume": SimulatedCluster.resume,
    "delete": SimulatedCluster.delete,
    "prove": SimulatedCluster.prove,
    "await-node": SimulatedCluster.await_node,
    "quiet": SimulatedCluster.quiet,
    "submit": SimulatedCluster.submit,
    "jobs": SimulatedCluster.read_jobs,
    "job": SimulatedCluster.read_job,
    "cancel": SimulatedCluster.cancel,
    "output": SimulatedCluster.output,
    "account-add": SimulatedCluster.account_add,
    "account-close": SimulatedCluster.account_close,
    "account-remove": SimulatedCluster.account_remove,
}


@dataclass(slots=True)
class SimulatedSlurm:
    """The clusters of all instances."""

    clusters: dict[str, SimulatedCluster] = field(default_factory=dict)

    def answer(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """The outcome of a task; empty for the usual one."""
        cluster = self.clusters.setdefault(str(task["instance_id"]), SimulatedCluster())
        member, arguments = task["member"], task["arguments"]
        if task["type"] == "service.start":
            cluster.start(member["name"], member["component_key"], arguments["name"])
        elif task["type"] == "service.stop":
            cluster.stop(member["name"], arguments["name"], whole=arguments.get("kill") == "owner")
        elif task["type"] in ("process.run", "probe.exec"):
            return self._run_verb(cluster, arguments)
        return {}

    def _run_verb(self, cluster: SimulatedCluster, arguments: Mapping[str, Any]) -> dict[str, Any]:
        argv = [str(each) for each in arguments["argv"]]
        if "--home" not in argv:
            return {}
        verb, options = read_words(argv[argv.index("--home") + 2 :])
        given = json.loads(arguments.get("stdin") or "{}")
        try:
            answer = cluster.answer(verb, options, given, str(arguments.get("user", "root")))
        except SimulatedFailure as failed:
            answer = {"error": {"code": failed.code, "detail": failed.detail}, "simulated": True, **failed.more}
            result = {"exit_code": 1, "output": f"{json.dumps(answer)}\n"}
            detail = f"simulated: {verb} ended with 1"
            return {
                "result": result,
                "failure_code": "exited",
                "failure_detail": detail,
                "exit_code": 1,
                "last_lines": [failed.detail],
            }
        return {"result": {"exit_code": 0, "output": f"{json.dumps({**answer, 'simulated': True})}\n"}, "exit_code": 0}


def read_words(words: list[str]) -> tuple[str, dict[str, str]]:
    """Parse a verb and its options; a flag has an empty value."""
    verb, *rest = words
    options: dict[str, str] = {}
    while rest:
        name, said, value = rest.pop(0).removeprefix("--").partition("=")
        options[name] = value if said else rest.pop(0) if rest and not rest[0].startswith("--") else ""
    return verb, options


def main() -> None:
    """Answer until the input ends."""
    slurm = SimulatedSlurm()
    for line in sys.stdin:
        print(json.dumps(slurm.answer(json.loads(line)["task"])), flush=True)


if __name__ == "__main__":
    main()
