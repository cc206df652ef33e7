"""How members come up: the controller beside its workers, each in as few rounds as there can be.

A worker is ready when a job ran on it from its submission to its end, as the tenant's user; the job is in the member's
detail. A controller without workers is ready when it answers. What fails is told in the words of the program on the
node; `broken` says so, and the plan leaves out the rest of that member.
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
"""The look at the controller before members are added: nodes that bear their names already."""
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
"""The steps by which a member comes up, in the order in which their failures tell most."""
PROVED: Final = ("job", "how", "nodes", "accounted")
ATTACHED_UID: Final = 20_000
ATTACHED_UIDS: Final = 40_000
SEEN_TO: Final[Mapping[str, Any]] = {"on_failure": OnFailure.GO_ON}
"""What a failure of these tasks means is said by the plan, which sees it."""


def controller_up(cluster: ClusterMembers, member: Member, *, anew: bool = False, join: bool = True) -> list[Step]:
    """From nothing to a controller that takes jobs; `anew` ends what is there first."""
    key = member.id
    steps: list[Step] = [ReportMember(step=f"join/{key}", member_id=key, status="joining")] if join else []
    begun: tuple[str, ...] = (f"join/{key}",) if join else ()
    if anew:
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
    """The controller answers, and with accounting every account is known to it before a partition opens."""
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


def attached(view: InstanceView) -> list[tuple[str, str]]:
    """The accounts of the projects that are attached, with the projects' ids, the oldest attachment first."""
    found = sorted(view.attachments, key=lambda each: each.id)
    return [(each.account_name, each.project_id) for each in found if each.account_name and each.status != "requested"]


def uids(cluster: ClusterMembers, *more: tuple[str, str]) -> list[dict[str, Any]]:
    """The users of every sandbox, with numbers that are the same in each and stay so while others come and go.

    A project has its number for good: one that is attached again has the same account's name, and its user is there.
    """
    numbered = cluster.config.uids()
    taken = {each["uid"] for each in numbered}
    for name, identity in dict.fromkeys((*attached(cluster.view), *more)):
        number = ATTACHED_UID + zlib.crc32(identity.encode()) % ATTACHED_UIDS
        while number in taken:
            number += 1
        taken.add(number)
        numbered.append({"name": name, "uid": number})
    return numbered


def users(cluster: ClusterMembers, member: Member, after: tuple[str, ...] | None, **more: Any) -> list[Step]:
    """Users beside the one that every sandbox has."""
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
    anew: bool = False,
    gated: str | None = None,
) -> list[Step]:
    """From nothing to a worker on which a job ran; its daemon waits for `behind`, the proof for `gated`."""
    key = member.id
    steps: list[Step] = [ReportMember(step=f"join/{key}", member_id=key, status="joining")]
    begun = (f"join/{key}",)
    if anew:
        steps.append(stop(member, f"quit/{key}", SLURMD, kill="owner", grace_seconds=10))
        begun = (f"quit/{key}",)
    waits = (f"files/{key}", f"munge/{key}", f"start/{key}")
    steps += [
        files(cluster, member, f"files/{key}", after=begun, **SEEN_TO),
        munged(member, f"munge/{key}", after=begun, **SEEN_TO),
        slurmd(cluster, member, f"start/{key}", after=(*begun, *behind), **SEEN_TO),
        *users(cluster, member, waits, **SEEN_TO),
    ]
    waits = (*waits, *_users_step(cluster, member), *(() if gated is None else (gated,)))
    return [*steps, prove(cluster, member, f"prove/{key}", after=waits, **SEEN_TO)]


def prove(cluster: ClusterMembers, member: Member, step: str, **more: Any) -> RunTask:
    """A job from its submission to its end on this node, as the tenant's user."""
    words = ("prove", "--node", member.name, "--seconds", str(PROOF_SECONDS))
    return ask(member, step, *words, user=cluster.config.user, seconds=PROOF_SECONDS, **more)


def await_node(member: Member, step: str, **more: Any) -> RunTask:
    """The node is there again and answers; its jobs are not touched."""
    words = ("await-node", "--node", member.name, "--seconds", str(NODE_SECONDS))
    return ask(member, step, *words, seconds=NODE_SECONDS, **more)


def worker_ready(cluster: ClusterMembers, member: Member, operation: Operation, version: str) -> ReportMember:
    """It does its part: a job ran there."""
    proof = answered(cluster.view, operation, f"prove/{member.id}")
    return ReportMember(
        step=f"ready/{member.id}",
        member_id=member.id,
        status="ready",
        health="healthy",
        version=version,
        health_detail="a job ran on it from end to end",
        after=(f"prove/{member.id}",),
        detail={"node": member.name, "proof": {name: proof[name] for name in PROVED if name in proof}},
    )


def controller_ready(cluster: ClusterMembers, member: Member, operation: Operation, version: str) -> ReportMember:
    """It takes jobs."""
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
    """Where people use the cluster natively: a shell beside the controller, as the tenant's user."""
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
    """It does not come up."""
    return ReportMember(step=f"failed/{member.id}", member_id=member.id, status="failed", failure=failure, after=())


def broken(view: InstanceView, operation: Operation, member: Member) -> Failure | None:
    """Why a member does not come up in this operation, if it does not."""
    if failures.is_lost(member):
        return failures.of_member(member)
    for verb in VERBS:
        task = ended(view, operation, f"{verb}/{member.id}")
        if task is not None and task.failed:
            return failure_of(task, member)
    return None


def misses_controller(view: InstanceView, operation: Operation, member: Member) -> bool:
    """Whether a worker could not be proven only because no controller answered it."""
    return code_of(ended(view, operation, f"prove/{member.id}")) == "controller_down"


def stale_nodes(cluster: ClusterMembers, operation: Operation, new: Sequence[Member]) -> list[Step]:
    """What Slurm still has under the names of new members, since others were torn down by force: it is deleted."""
    steps: list[Step] = [ask(cluster.controller, KNOWN, "look")]
    seen = answered(cluster.view, operation, KNOWN)
    names = {str(each.get("name")) for each in seen.get("nodes", ())}
    for member in new:
        if member.name in names or seen.get("truncated") or seen.get("nodes_after"):
            words = ("delete", "--node", member.name, "--gone", "--owner", OWNER)
            steps.append(ask(cluster.controller, f"forget/{member.id}", *words))
    return steps


def behind_stale(steps: Sequence[Step], member: Member) -> tuple[str, ...]:
    """What a new worker's daemon waits for, so that its node is its own."""
    return tuple(each.step for each in steps if each.step in (KNOWN, f"forget/{member.id}"))


def is_controller(member: Member) -> bool:
    """Whether it is the one that the others ask."""
    return member.component_key == CONTROLLER
