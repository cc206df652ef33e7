"""The members of a cluster, and the tasks of one member: its files, its daemons, and calls of its node program.

Every replica builds a member's tasks from the same values. Daemons may be started in any order: each waits for the
files and the socket that it needs, so that a member starts in one round.
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
"""The owner of drains in Slurm that the platform itself makes for a member's operation."""
OPERATOR: Final = "operator"
"""The owner of drains that a person requested by `node.operate`."""
GONE: Final = frozenset({"removing", "removed"})
UP: Final = frozenset({"ready", "degraded", "draining", "drained"})
OUTPUT_BYTES: Final = 65_536
ANSWER_SECONDS: Final = 60
"""How long a call of the node program may take, in addition to the time that it waits on purpose."""
SAVE_SECONDS: Final = 30
"""How long slurmctld may take to save its state."""
WAIT_FOR: Final = (
    'k=$0; while [ "$k" -gt 0 ]; do n=0; until [ -e "$1" ]; do n=$((n+1)); '
    '[ "$n" -lt 6000 ] || { echo "timed out waiting for $1" >&2; exit 1; }; sleep 0.02; done; '
    'shift; k=$((k-1)); done; exec "$@"'
)
"""Starts a daemon when its files exist: `sh -c WAIT_FOR <number of files> <file>… <program> <argument>…`."""
NATIVE: Final = "/etc/slurm"
"""Where Slurm's own commands look for their configuration, so that people and jobs need no setting."""


class OperationRefused(Exception):
    """The operation cannot be done in the current state; it fails with a code and a sentence."""

    def __init__(self, code: str, detail: str, last_lines: tuple[str, ...] = (), **evidence: Any) -> None:
        super().__init__(detail)
        self.failure = Failure(code, detail, last_lines)
        self.evidence = evidence

    def plan(self, *before: Step) -> Plan:
        """The plan that fails the operation."""
        return Plan((*before, Finish(outcome="failed", failure=self.failure, evidence=self.evidence)))


@dataclass(frozen=True, slots=True)
class ClusterMembers:
    """A cluster in the records: its settings, its controller, and its workers except those being removed."""

    view: InstanceView
    config: LaunchConfig
    controller: Member
    workers: tuple[Member, ...]
    settings: config_files.ClusterSettings

    @property
    def version(self) -> str:
        """The version of the instance."""
        return self.view.instance.pin.version

    def worker(self, member: Member) -> config_files.WorkerResources:
        """The resources that a worker offers."""
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
        """Whether all members run in one allocation."""
        places = {place_of(each) for each in (self.controller, *self.workers)}
        return "single_node" if len(places) == 1 and self.workers else "multi_allocation"


def cluster_of(view: InstanceView, controller: Member | None = None) -> ClusterMembers:
    """The cluster; raises `OperationRefused` if its configuration is invalid or it has no controller."""
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
    """The controller; during a replacement, the one that works."""
    found = [each for each in view.of(CONTROLLER) if each.status not in GONE]
    return next((each for each in found if each.status in UP), found[0] if found else None)


def workers_of(view: InstanceView) -> list[Member]:
    """The workers that are not being removed."""
    return [each for each in view.of(WORKER) if each.status not in GONE]


def place_of(member: Member) -> str:
    """The id of a member's allocation."""
    return "" if member.allocation is None else member.allocation.id


def is_reached(member: Member) -> bool:
    """Whether tasks can run on its node."""
    allocation = member.allocation
    return not failures.is_lost(member) and allocation is not None and allocation.node_reachable


def refuse_crowd(workers: Sequence[Member]) -> None:
    """Refuse two workers in one allocation: both would offer its cores and its GPUs."""
    seen: dict[str, Member] = {}
    replaced = {each.replaces_id for each in workers}
    for member in workers:
        if member.id in replaced or member.status == "failed" or not place_of(member):
            continue
        other = seen.setdefault(place_of(member), member)
        if other is not member:
            raise OperationRefused(
                "config_refused",
                f"{other.name} and {member.name} are in one allocation, and each would offer all of it; "
                "give every worker its own allocation",
            )


def need_controller(cluster: ClusterMembers) -> None:
    """Refuse an operation that needs the controller if there is none that works."""
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
    """Run a verb of a member's node program; `seconds` is how long the program itself waits.

    Takes also `answer_seconds`, `user`, `stdin` (a value, sent as JSON), and all fields of a `RunTask`.
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
    """Write all files of a member. slurm.conf is the last one: if it exists, the others do."""
    home, config = MemberHome(member.name), cluster.config
    is_controller = member.component_key == CONTROLLER
    written: list[dict[str, Any]] = [{"path": ROOT, "mode": "0755", "directory": True}]
    for directory, mode in modes(config.accounting, is_controller):
        written.append({"path": home.below(directory) if directory else home.path, "mode": mode, "directory": True})
    written.append({"path": home.program, "mode": "0755", "artifact": PROGRAM_ROLE})
    texts = [("cgroup.conf", config_files.cgroup_conf(), "0644")]
    if is_controller:
        texts.append(("job_over", config_files.job_over(home), "0755"))
    if is_controller and config.accounting:
        texts.append(("slurmdbd.conf", config_files.slurmdbd_conf(cluster.settings, home), "0600"))
        texts.append(("mariadb.conf", config_files.mariadb_conf(home), "0600"))
    worker = None if is_controller else cluster.worker(member)
    if worker is not None:
        texts.append(("gres.conf", config_files.gres_conf(worker, config.gpu_type), "0644"))
    whole = config_files.slurm_conf(cluster.settings, home)
    if is_controller or place_of(member) != place_of(cluster.controller):
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
    """Start its munged when the key exists."""
    home = MemberHome(member.name)
    return _start(member, step, daemons.munged(home), (home.munge_key,), more)


def slurmctld(cluster: ClusterMembers, member: Member, step: str, **more: Any) -> RunTask:
    """Start the controller's daemon when munged answers and, with accounting, its associations exist."""
    home = MemberHome(member.name)
    needed = (home.munge_socket, home.slurm_conf, *((home.below("state", "associations"),) * cluster.config.accounting))
    return _start(member, step, daemons.slurmctld(home), needed, more)


def slurmd(cluster: ClusterMembers, member: Member, step: str, **more: Any) -> RunTask:
    """Start a worker's daemon when munged answers."""
    home = MemberHome(member.name)
    daemon = daemons.slurmd(home, cluster.worker(member), cluster.config.gpu_type)
    return _start(member, step, daemon, (home.munge_socket, home.slurm_conf), more)


def slurmdbd(member: Member, step: str, **more: Any) -> RunTask:
    """Start the accounting daemon when munged and the database answer."""
    home = MemberHome(member.name)
    return _start(member, step, daemons.slurmdbd(home), (home.munge_socket, home.database_socket), more)


def mariadbd(member: Member, step: str, **more: Any) -> RunTask:
    """Start the accounting database when its file exists."""
    home = MemberHome(member.name)
    return _start(member, step, daemons.mariadbd(home), (home.slurm_conf,), more)


def stop(member: Member, step: str, service: str, **more: Any) -> RunTask:
    """Stop a daemon, or with `kill="owner"` all processes of its member; no process is not an error."""
    arguments = {
        "name": service,
        "kill": more.pop("kill", "main"),
        "grace_seconds": more.pop("grace_seconds", SAVE_SECONDS),
    }
    more.setdefault("on_failure", OnFailure.GO_ON)
    return RunTask(step=step, member_id=member.id, type="service.stop", arguments=arguments, **more)


def inspect(member: Member, step: str, service: str, **more: Any) -> RunTask:
    """Read the state of a daemon."""
    more.setdefault("on_failure", OnFailure.GO_ON)
    return RunTask(step=step, member_id=member.id, type="service.inspect", arguments={"name": service}, **more)


def main_service(member: Member) -> str:
    """The main daemon of a member."""
    return SLURMCTLD if member.component_key == CONTROLLER else SLURMD


def services(member: Member) -> tuple[str, ...]:
    """The daemons of a member."""
    return (MUNGED, main_service(member))


def _start(
    member: Member, step: str, daemon: daemons.DaemonSpec, needed: Sequence[str], more: dict[str, Any]
) -> RunTask:
    arguments = daemon.arguments()
    arguments["argv"] = ["sh", "-c", WAIT_FOR, str(len(needed)), *needed, *daemon.argv]
    return RunTask(step=step, member_id=member.id, type="service.start", arguments=arguments, attempts=ATTEMPTS, **more)
