"""How members start: the controller in parallel with its workers, each in as few rounds as possible.

A worker is ready when a job of the tenant's user has run on it from submission to end; the member's detail names the
job. A controller without workers is ready when it answers. Failures are reported with the node program's own message:
`start_failure` finds them, and the plan skips the remaining steps of that member.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mooring_adapter import (
    Failure,
    InstanceView,
    Member,
    OnFailure,
    Operation,
    ReportEndpoint,
    ReportMember,
    RunTask,
    Step,
    failures,
)
from mooring_slurm.layout import MUNGED, SLURMCTLD, SLURMD, MemberHome
from mooring_slurm.members import (
    CONTROLLER,
    OWNER,
    ClusterMembers,
    ask,
    files,
    mariadbd,
    munged,
    slurmctld,
    slurmd,
    slurmdbd,
    stop,
)
from mooring_slurm.responses import answered, code_of, ended, failure_of

GATE_SECONDS: Final = 120
PROOF_SECONDS: Final = 120
NODE_SECONDS: Final = 120
KNOWN: Final = "known"
"""The step that looks for nodes with the names of new members before they are added."""
VERBS: Final = (
    "files",
    "munge",
    "mariadb",
    "accounts",
    "start",
    "users",
    "gate",
    "node",
    "prove",
)
"""The steps that start a member, in the order in which their failures are most informative."""
PROVED: Final = ("job", "how", "nodes", "accounted")
ATTACHED_UID: Final = 20_000
ATTACHED_UIDS: Final = 40_000
EXAMINED: Final[Mapping[str, Any]] = {"on_failure": OnFailure.GO_ON}
"""The plan examines the failures of these tasks itself."""


def controller_up(cluster: ClusterMembers, member: Member, *, rebuild: bool = False, join: bool = True) -> list[Step]:
    """Start a controller until it takes jobs; `rebuild` stops an existing one first."""
    key = member.id
    steps: list[Step] = [ReportMember(step=f"join/{key}", member_id=key, status="joining")] if join else []
    begun: tuple[str, ...] = (f"join/{key}",) if join else ()
    if rebuild:
        steps += [
            stop(member, f"stop/{key}", SLURMCTLD),
            stop(member, f"quit/{key}", MUNGED, kill="owner", grace_seconds=10),
        ]
        begun = (f"quit/{key}",)
    steps += [
        files(cluster, member, f"files/{key}", after=begun or None),
        munged(member, f"munge/{key}", after=begun or None),
    ]
    waits = [f"files/{key}", f"munge/{key}", f"start/{key}"]
    if cluster.config.accounting:
        steps += [mariadbd(member, f"mariadb/{key}", after=begun or None)]
        steps += [slurmdbd(member, f"accounts/{key}", after=begun or None)]
        waits += [f"mariadb/{key}", f"accounts/{key}"]
    steps.append(slurmctld(cluster, member, f"start/{key}", after=begun or None))
    steps += users(cluster, member, tuple(waits))
    return [*steps, gate(cluster, member, f"gate/{key}", after=(*waits, *_users_step(cluster, member)))]


def gate(cluster: ClusterMembers, member: Member, step: str, **more: Any) -> RunTask:
    """Wait until the controller answers; with accounting it has to know every account before a partition opens."""
    config = cluster.config
    given = {
        "cluster": cluster.settings.name,
        "partitions": [each.name for each in config.partitions],
        "users": list(config.users),
        "accounting": config.accounting,
        "accounts": [each.account_name for each in cluster.view.attachments if each.status == "active"],
    }
    words = ("gate", "--seconds", str(GATE_SECONDS))
    return ask(member, step, *words, stdin=given, seconds=GATE_SECONDS, **more)


def attached(view: InstanceView) -> dict[str, str]:
    """The project ids of the attached projects by account name, the oldest attachment first."""
    found = sorted(view.attachments, key=lambda each: each.id)
    return {each.account_name: each.project_id for each in found if each.account_name and each.status != "requested"}


def uids(cluster: ClusterMembers, new: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The users of every sandbox, with user ids that are the same everywhere and do not change when others come and go.

    A project keeps its user id: if it is attached again, it has the same account name, and its user still exists.
    `new` are accounts that are being attached, with their projects.
    """
    numbered = cluster.config.uids()
    taken = {each["uid"] for each in numbered}
    for name, project_id in {**attached(cluster.view), **(new or {})}.items():
        number = ATTACHED_UID + zlib.crc32(project_id.encode()) % ATTACHED_UIDS
        while number in taken:
            number += 1
        taken.add(number)
        numbered.append({"name": name, "uid": number})
    return numbered


def users(cluster: ClusterMembers, member: Member, after: tuple[str, ...] | None, **more: Any) -> list[Step]:
    """Create the users other than the one that every sandbox has."""
    if not _users_step(cluster, member):
        return []
    return [ask(member, f"users/{member.id}", "users", stdin={"users": uids(cluster)}, after=after, **more)]


def _users_step(cluster: ClusterMembers, member: Member) -> tuple[str, ...]:
    return (f"users/{member.id}",) if [each["name"] for each in uids(cluster)] != ["app"] else ()


def worker_up(
    cluster: ClusterMembers,
    member: Member,
    *,
    behind: tuple[str, ...] = (),
    rebuild: bool = False,
    gated: str | None = None,
) -> list[Step]:
    """Start a worker and run a job on it; its daemon waits for `behind`, the job for `gated`."""
    key = member.id
    steps: list[Step] = [ReportMember(step=f"join/{key}", member_id=key, status="joining")]
    begun = (f"join/{key}",)
    if rebuild:
        steps.append(stop(member, f"quit/{key}", SLURMD, kill="owner", grace_seconds=10))
        begun = (f"quit/{key}",)
    waits = (f"files/{key}", f"munge/{key}", f"start/{key}")
    steps += [
        files(cluster, member, f"files/{key}", after=begun, **EXAMINED),
        munged(member, f"munge/{key}", after=begun, **EXAMINED),
        slurmd(cluster, member, f"start/{key}", after=(*begun, *behind), **EXAMINED),
        *users(cluster, member, waits, **EXAMINED),
    ]
    waits = (*waits, *_users_step(cluster, member), *(() if gated is None else (gated,)))
    return [*steps, prove(cluster, member, f"prove/{key}", after=waits, **EXAMINED)]


def prove(cluster: ClusterMembers, member: Member, step: str, **more: Any) -> RunTask:
    """Run a job on this node from submission to end, as the tenant's user."""
    words = ("prove", "--node", member.name, "--seconds", str(PROOF_SECONDS))
    return ask(member, step, *words, user=cluster.config.user, seconds=PROOF_SECONDS, **more)


def await_node(member: Member, step: str, **more: Any) -> RunTask:
    """Wait until the node is registered and answers; its jobs are not touched."""
    words = ("await-node", "--node", member.name, "--seconds", str(NODE_SECONDS))
    return ask(member, step, *words, seconds=NODE_SECONDS, **more)


def worker_ready(cluster: ClusterMembers, member: Member, operation: Operation, version: str) -> ReportMember:
    """Report the worker as ready: a job ran on it."""
    proof = answered(cluster.view, operation, f"prove/{member.id}")
    return ReportMember(
        step=f"ready/{member.id}",
        member_id=member.id,
        status="ready",
        health="healthy",
        version=version,
        health_detail="a job ran on it from submission to end",
        after=(f"prove/{member.id}",),
        detail={"node": member.name, "proof": {name: proof[name] for name in PROVED if name in proof}},
    )


def controller_ready(cluster: ClusterMembers, member: Member, operation: Operation, version: str) -> ReportMember:
    """Report the controller as ready: it takes jobs."""
    opened = answered(cluster.view, operation, f"gate/{member.id}")
    detail = "it takes jobs" if cluster.workers else "it takes jobs; there are no workers"
    return ReportMember(
        step=f"ready/{member.id}",
        member_id=member.id,
        status="ready",
        health="healthy",
        health_detail=detail,
        version=version,
        detail={name: opened[name] for name in ("version", "accounting") if name in opened},
    )


def login(cluster: ClusterMembers, member: Member) -> ReportEndpoint:
    """The terminal endpoint: a shell beside the controller, as the tenant's user."""
    user = cluster.config.user
    return ReportEndpoint(
        step="login",
        name="login",
        member_id=member.id,
        protocol="terminal",
        user=user,
        directory=f"/home/{user}",
        environment={"SLURM_CONF": MemberHome(member.name).slurm_conf},
        title="A shell beside the controller",
    )


def failed(member: Member, failure: Failure) -> ReportMember:
    return ReportMember(step=f"failed/{member.id}", member_id=member.id, status="failed", failure=failure, after=())


def start_failure(view: InstanceView, operation: Operation, member: Member) -> Failure | None:
    """Why a member failed to start in this operation, if it did."""
    if failures.is_lost(member):
        return failures.of_member(member)
    for verb in VERBS:
        task = ended(view, operation, f"{verb}/{member.id}")
        if task is not None and task.failed:
            return failure_of(task, member)
    return None


def misses_controller(view: InstanceView, operation: Operation, member: Member) -> bool:
    """Whether a worker's test job failed only because the controller did not answer."""
    return code_of(ended(view, operation, f"prove/{member.id}")) == "controller_down"


def stale_nodes(cluster: ClusterMembers, operation: Operation, new: Sequence[Member]) -> list[Step]:
    """Delete nodes with the names of new members, which forced removals left in Slurm."""
    steps: list[Step] = [ask(cluster.controller, KNOWN, "look")]
    seen = answered(cluster.view, operation, KNOWN)
    names = {str(each.get("name")) for each in seen.get("nodes", ())}
    for member in new:
        if member.name in names or seen.get("truncated") or seen.get("nodes_after"):
            words = ("delete", "--node", member.name, "--gone", "--owner", OWNER)
            steps.append(ask(cluster.controller, f"forget/{member.id}", *words))
    return steps


def behind_stale(steps: Sequence[Step], member: Member) -> tuple[str, ...]:
    """The steps that a new worker's daemon waits for, so that no old node has its name."""
    return tuple(each.step for each in steps if each.step in (KNOWN, f"forget/{member.id}"))


def is_controller(member: Member) -> bool:
    return member.component_key == CONTROLLER
