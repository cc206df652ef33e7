"""One cluster out of the view, and the tasks of one member: its files, its daemons, and what its program is asked.

Every task of a member is made from the same values whoever plans it. Daemons may be started in any order once their
member joins: each waits for the files and the socket that it needs, so that a member comes up in one round.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mooring_adapter import Failure, Finish, InstanceView, Member, OnFailure, Plan, RunTask, Step, failures
from mooring_slurm import config_files, daemons
from mooring_slurm.launch_config import ConfigRefused, LaunchConfig, read_config
from mooring_slurm.layout import (
    MUNGED,
    PROGRAM_ROLE,
    ROOT,
    SLURMCTLD,
    SLURMD,
    MemberHome,
    controller_port,
    database_port,
    modes,
    worker_port,
)
from mooring_slurm.responses import ATTEMPTS

CONTROLLER: Final = "controller"
WORKER: Final = "worker"
SECRET: Final = "munge"
SECRET_PURPOSE: Final = "cluster_key"
OWNER: Final = "member"
"""Whose drains these are in Slurm: the platform's own, made for a member's operation."""
OPERATOR: Final = "operator"
"""Whose drains those are that a person asked for by `node.operate`."""
GONE: Final = frozenset({"removing", "removed"})
UP: Final = frozenset({"ready", "degraded", "draining", "drained"})
OUTPUT_BYTES: Final = 65_536
ANSWER_SECONDS: Final = 60
"""What a question to the program may take, beside the time that it is told to wait."""
SAVE_SECONDS: Final = 30
"""What slurmctld gets to save its state."""
WAIT_FOR: Final = (
    'k=$0; while [ "$k" -gt 0 ]; do n=0; until [ -e "$1" ]; do n=$((n+1)); '
    '[ "$n" -lt 6000 ] || { echo "it waited for $1 in vain" >&2; exit 1; }; sleep 0.02; done; '
    'shift; k=$((k-1)); done; exec "$@"'
)
"""A daemon behind what it needs: `sh -c WAIT_FOR <how many files> <file>… <program> <argument>…`."""
NATIVE: Final = "/etc/slurm"
"""Where Slurm's own commands look: people and jobs of a sandbox find the cluster without being told."""


class OperationRefused(Exception):
    """The operation cannot be done as things stand: it ends, with a code and a sentence."""

    def __init__(self, code: str, detail: str, last_lines: tuple[str, ...] = (), **evidence: Any) -> None:
        super().__init__(detail)
        self.failure = Failure(code, detail, last_lines)
        self.evidence = evidence

    def plan(self, *before: Step) -> Plan:
        """The end of the operation."""
        return Plan((*before, Finish(outcome="failed", failure=self.failure, evidence=self.evidence)))


@dataclass(frozen=True, slots=True)
class ClusterMembers:
    """A cluster as the records have it: what all share, its controller, and its workers but those on their way out."""

    view: InstanceView
    config: LaunchConfig
    controller: Member
    workers: tuple[Member, ...]
    settings: config_files.ClusterSettings

    @property
    def version(self) -> str:
        """The version that members run where no operation leads elsewhere."""
        return self.view.instance.pin.version

    def worker(self, member: Member) -> config_files.WorkerResources:
        """What a worker offers."""
        allocation = member.allocation
        facts: Mapping[str, Any] = {} if allocation is None else allocation.facts
        slots = [] if allocation is None else [each for each in allocation.slots if isinstance(each, Mapping)]
        whole = allocation is not None and allocation.shape == "baremetal"
        count = len(slots) if allocation is None else allocation.gpu_count or len(slots)
        cpus, memory = config_files.worker_share(facts, count, whole)
        return config_files.WorkerResources(
            name=member.name,
            cpus=self.config.cpus_per_worker or cpus,
            memory_mib=self.config.memory_mib_per_worker or memory,
            gpus=tuple(int(each["index"]) for each in slots if "index" in each),
        )

    @property
    def topology_mode(self) -> str:
        """Whether everything stands in one allocation."""
        places = {place_of(each) for each in (self.controller, *self.workers)}
        return "single_node" if len(places) == 1 and self.workers else "multi_allocation"


def cluster_of(view: InstanceView, controller: Member | None = None) -> ClusterMembers:
    """The cluster; `OperationRefused` where its configuration or its places cannot be run."""
    try:
        config = read_config(view.instance.config)
    except ConfigRefused as refused:
        raise OperationRefused("config_refused", str(refused)) from refused
    controller = controller or controller_of(view)
    if controller is None or controller.allocation is None:
        raise OperationRefused("unhealthy", "there is no controller with an allocation")
    settings = config_files.ClusterSettings(
        name=config_files.cluster_name(view.instance.id),
        controller_host=controller.allocation.name,
        controller_address=controller.allocation.address or "127.0.0.1",
        controller_port=controller_port(view.instance.id),
        database_port=database_port(view.instance.id),
        worker_port=worker_port(view.instance.id),
        config=config,
        is_shared=view.instance.control_plane_scope == "tenant",
    )
    return ClusterMembers(view, config, controller, tuple(workers_of(view)), settings)


def controller_of(view: InstanceView) -> Member | None:
    """The controller: where one is being replaced, the one that does its part."""
    found = [each for each in view.of(CONTROLLER) if each.status not in GONE]
    return next((each for each in found if each.status in UP), found[0] if found else None)


def workers_of(view: InstanceView) -> list[Member]:
    """The workers that are not on their way out."""
    return [each for each in view.of(WORKER) if each.status not in GONE]


def place_of(member: Member) -> str:
    """The allocation that a member stands in."""
    return "" if member.allocation is None else member.allocation.id


def is_reached(member: Member) -> bool:
    """Whether its node can be asked for anything."""
    allocation = member.allocation
    return not failures.is_lost(member) and allocation is not None and allocation.node_reachable


def refuse_crowd(workers: Sequence[Member]) -> None:
    """Two workers of one allocation would both offer its cores and its GPUs."""
    seen: dict[str, Member] = {}
    replaced = {each.replaces_id for each in workers}
    for member in workers:
        if member.id in replaced or member.status == "failed" or not place_of(member):
            continue
        other = seen.setdefault(place_of(member), member)
        if other is not member:
            raise OperationRefused(
                "config_refused",
                f"{other.name} and {member.name} stand in one allocation, and each would offer all of it; "
                "give every worker an allocation of its own",
            )


def need_controller(cluster: ClusterMembers) -> None:
    """What changes the cluster needs a controller that can be asked."""
    controller = cluster.controller
    if failures.is_lost(controller):
        raise OperationRefused(
            "unhealthy", f"the controller {controller.name} is lost with its machine: replace it first"
        )
    if controller.status not in UP:
        raise OperationRefused(
            "unhealthy", f"the controller {controller.name} is {controller.status}: repair the instance first"
        )


# Tasks ---------------------------------------------------------------------------------------------------------------


def ask(member: Member, step: str, *words: str, **more: Any) -> RunTask:
    """Ask the program of a member; `seconds` is the time that it is told to wait itself.

    `answer_seconds`, `user`, `stdin` (a value, sent as JSON) and whatever a `RunTask` takes may be given.
    """
    seconds = more.pop("seconds", 0)
    arguments: dict[str, Any] = {
        "argv": MemberHome(member.name).argv(*words),
        "directory": "/",
        "timeout_seconds": seconds + more.pop("answer_seconds", ANSWER_SECONDS),
        "output_bytes": OUTPUT_BYTES,
    }
    if (user := more.pop("user", None)) is not None:
        arguments["user"] = user
    if (stdin := more.pop("stdin", None)) is not None:
        arguments["stdin"] = json.dumps(stdin, sort_keys=True)
    more.setdefault("attempts", ATTEMPTS)
    return RunTask(step=step, member_id=member.id, type="process.run", arguments=arguments, **more)


def files(cluster: ClusterMembers, member: Member, step: str, **more: Any) -> RunTask:
    """Everything that a member reads. slurm.conf comes last: where it is, the others are."""
    home, config = MemberHome(member.name), cluster.config
    is_controller_member = member.component_key == CONTROLLER
    written: list[dict[str, Any]] = [{"path": ROOT, "mode": "0755", "directory": True}]
    for directory, mode in modes(config.accounting, is_controller_member):
        written.append({"path": home.below(directory) if directory else home.path, "mode": mode, "directory": True})
    written.append({"path": home.program, "mode": "0755", "artifact": PROGRAM_ROLE})
    texts = [("cgroup.conf", config_files.cgroup_conf(), "0644")]
    if is_controller_member:
        texts.append(("job_over", config_files.job_over(home), "0755"))
    if is_controller_member and config.accounting:
        texts.append(("slurmdbd.conf", config_files.slurmdbd_conf(cluster.settings, home), "0600"))
        texts.append(("mariadb.conf", config_files.mariadb_conf(home), "0600"))
    worker = None if is_controller_member else cluster.worker(member)
    if worker is not None:
        texts.append(("gres.conf", config_files.gres_conf(worker, config.gpu_type), "0644"))
    whole = config_files.slurm_conf(cluster.settings, home)
    if is_controller_member or place_of(member) != place_of(cluster.controller):
        written.append({"path": NATIVE, "mode": "0755", "directory": True})
        written.append({"path": f"{NATIVE}/slurm.conf", "mode": "0644", "content": whole})
    texts.append(("slurm.conf", whole, "0644"))
    written += [{"path": home.below("etc", name), "mode": mode, "content": text} for name, text, mode in texts]
    written.insert(-1, {"path": home.munge_key, "mode": "0600", "secret": SECRET})
    return RunTask(
        step=step,
        member_id=member.id,
        type="files.write",
        arguments={"files": written},
        grants=({"name": SECRET, "secret": SECRET},),
        attempts=ATTEMPTS,
        **more,
    )


def munged(member: Member, step: str, **more: Any) -> RunTask:
    """Its munged, when the key is there."""
    home = MemberHome(member.name)
    return _start(member, step, daemons.munged(home), (home.munge_key,), more)


def slurmctld(cluster: ClusterMembers, member: Member, step: str, **more: Any) -> RunTask:
    """The controller's daemon, when munged answers; with accounting, when its associations are there."""
    home = MemberHome(member.name)
    needed = (home.munge_socket, home.slurm_conf, *((home.below("state", "associations"),) * cluster.config.accounting))
    return _start(member, step, daemons.slurmctld(home), needed, more)


def slurmd(cluster: ClusterMembers, member: Member, step: str, **more: Any) -> RunTask:
    """A worker's daemon, when munged answers."""
    home = MemberHome(member.name)
    daemon = daemons.slurmd(home, cluster.worker(member), cluster.config.gpu_type)
    return _start(member, step, daemon, (home.munge_socket, home.slurm_conf), more)


def slurmdbd(member: Member, step: str, **more: Any) -> RunTask:
    """The accounting daemon, when munged and the database answer."""
    home = MemberHome(member.name)
    return _start(member, step, daemons.slurmdbd(home), (home.munge_socket, home.database_socket), more)


def mariadbd(member: Member, step: str, **more: Any) -> RunTask:
    """The accounting's database, when its file is there."""
    home = MemberHome(member.name)
    return _start(member, step, daemons.mariadbd(home), (home.slurm_conf,), more)


def stop(member: Member, step: str, service: str, **more: Any) -> RunTask:
    """The end of a daemon alone, or with `kill="owner"` of all that its member runs; nothing there is no trouble."""
    arguments = {
        "name": service,
        "kill": more.pop("kill", "main"),
        "grace_seconds": more.pop("grace_seconds", SAVE_SECONDS),
    }
    more.setdefault("on_failure", OnFailure.GO_ON)
    return RunTask(step=step, member_id=member.id, type="service.stop", arguments=arguments, **more)


def inspect(member: Member, step: str, service: str, **more: Any) -> RunTask:
    """How a daemon stands."""
    more.setdefault("on_failure", OnFailure.GO_ON)
    return RunTask(step=step, member_id=member.id, type="service.inspect", arguments={"name": service}, **more)


def main_service(member: Member) -> str:
    """The daemon that a member is there for."""
    return SLURMCTLD if member.component_key == CONTROLLER else SLURMD


def services(member: Member) -> tuple[str, ...]:
    """The daemons that every member of this kind has."""
    return (MUNGED, main_service(member))


def _start(
    member: Member, step: str, daemon: daemons.DaemonSpec, needed: Sequence[str], more: dict[str, Any]
) -> RunTask:
    arguments = daemon.arguments()
    arguments["argv"] = ["sh", "-c", WAIT_FOR, str(len(needed)), *needed, *daemon.argv]
    return RunTask(step=step, member_id=member.id, type="service.start", arguments=arguments, attempts=ATTEMPTS, **more)
