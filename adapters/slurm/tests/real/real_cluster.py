"""A real cluster in two sandboxes of the namespace host: what the real tests drive, without the platform.

Everything is started as the platform's tasks would: files, services and programs of an owner. GPUs are simulated
devices: they are scheduled and handed out for real, and compute nothing.
"""

import json
import os
from dataclasses import dataclass, field, replace
from typing import Any

from agent.tests.support.namespace_sandboxes import Inside, spec_of
from mooring_agent.hosts.contract import Device, FileSpec, Owner, ProcessSpec, RestartPolicy
from mooring_agent.hosts.namespace import NamespaceHost
from mooring_slurm import config_files, daemons, layout
from mooring_slurm.catalog import program
from mooring_slurm.config_files import ClusterSettings, WorkerResources
from mooring_slurm.daemons import DaemonSpec
from mooring_slurm.launch_config import LaunchConfig
from mooring_slurm.layout import MemberHome

CONTROLLER = "hpc-controller-0"
INSTANCE = "ins_one"
MEMORY_MIB = 512


@dataclass(frozen=True)
class RealMember:
    """One member in a sandbox; its name is also the name of its node."""

    name: str
    allocation_id: str
    worker: WorkerResources | None = None

    @property
    def home(self) -> MemberHome:
        return MemberHome(self.name)

    @property
    def owner(self) -> Owner:
        return Owner(self.allocation_id, self.name)


@dataclass
class RealCluster:
    """A cluster and the means to drive it."""

    host: NamespaceHost
    config: LaunchConfig
    key: bytes = field(default_factory=lambda: os.urandom(64))
    _inside: dict[str, Inside] = field(default_factory=dict)

    @property
    def cluster(self) -> ClusterSettings:
        """What all members have in common."""
        return ClusterSettings(
            name=config_files.cluster_name(INSTANCE),
            controller_host="host5",
            controller_address="10.77.0.5",
            controller_port=layout.controller_port(INSTANCE),
            database_port=layout.database_port(INSTANCE),
            worker_port=layout.worker_port(INSTANCE),
            config=self.config,
            is_shared=self.config.accounting,  # with accounting its users may be of several projects
        )

    async def sandbox(self, allocation_id: str, number: int, gpus: int = 2) -> None:
        """An allocation with simulated GPUs."""
        spec = spec_of(allocation_id, number=number)
        devices = tuple(Device(index, simulated=True) for index in range(gpus))
        await self.host.create(replace(spec, pids=2_000, memory_bytes=2 * 1024**3, devices=devices))

    async def files(self, member: RealMember) -> None:
        """The directories and files of a member."""
        home, worker, config = member.home, member.worker, self.config
        wanted = [FileSpec(layout.ROOT, directory=True, mode=0o755)]
        for name, mode in layout.modes(config.accounting, worker is None):
            path = home.below(name) if name else home.path
            wanted.append(FileSpec(path, directory=True, mode=int(mode, 8)))
        wanted += [
            FileSpec(home.munge_key, self.key, 0o600),
            FileSpec(home.program, program(), 0o644),
            FileSpec(home.below("etc", "cgroup.conf"), config_files.cgroup_conf().encode()),
        ]
        if worker is not None:
            gres = config_files.gres_conf(worker, config.gpu_type)
            wanted.append(FileSpec(home.below("etc", "gres.conf"), gres.encode()))
        else:
            wanted.append(FileSpec(home.job_over, config_files.job_over(home).encode(), 0o755))
        if worker is None and config.accounting:
            wanted += [
                FileSpec(home.slurmdbd_conf, config_files.slurmdbd_conf(self.cluster, home).encode(), 0o600),
                FileSpec(home.below("etc", "mariadb.conf"), config_files.mariadb_conf(home).encode()),
            ]
        wanted.append(FileSpec(home.slurm_conf, config_files.slurm_conf(self.cluster, home).encode()))
        await self.host.write_files(member.owner, wanted)

    async def start(self, member: RealMember, daemon: DaemonSpec) -> None:
        """One service."""
        process = ProcessSpec(daemon.argv, environment=daemon.environment)
        await self.host.start_service(member.owner, daemon.name, process, RestartPolicy("on_failure", 0.2, 50))

    async def stop(self, member: RealMember, name: str, grace_seconds: float = 10.0) -> bool:
        """Stop the main process of a service; its children continue."""
        return await self.host.stop_service(member.owner, name, "main", grace_seconds)

    async def controller(self) -> RealMember:
        """Start a controller, up to its gate."""
        member = RealMember(CONTROLLER, "alc_1")
        await self.files(member)
        await self.start(member, daemons.munged(member.home))
        if self.config.accounting:
            await self.start(member, daemons.mariadbd(member.home))
            await self.start(member, _behind(member.home.database_socket, daemons.slurmdbd(member.home)))
            ready = member.home.below("state", "associations")
            await self.start(member, _behind(ready, daemons.slurmctld(member.home)))
        else:
            await self.start(member, daemons.slurmctld(member.home))
        return member

    async def users(self, member: RealMember) -> None:
        """The users of the configuration, in the sandbox of a member."""
        await self.done(member, "users", stdin={"users": self.config.uids()})

    async def hammer(self, *argv: str) -> tuple[int, str]:
        """One of Slurm's commands in the controller's sandbox, from a member that is there from the beginning."""
        return await self.slurm(RealMember(CONTROLLER, "alc_1"), *argv)

    async def gate(self, member: RealMember) -> dict[str, Any]:
        """Let the controller accept jobs."""
        code, answer = await self.node(member, "gate", "--seconds", "60", stdin=self.gate_input())
        assert code == 0, answer
        return answer

    def gate_input(self) -> dict[str, Any]:
        """The input of the gate."""
        return {
            "cluster": self.cluster.name,
            "partitions": [each.name for each in self.config.partitions],
            "users": list(self.config.users),
            "accounting": self.config.accounting,
            "accounts": [],
        }

    def worker_of(self, name: str, allocation_id: str, gpus: tuple[int, ...] = (0, 1)) -> RealMember:
        """A worker that does not exist yet."""
        return RealMember(name, allocation_id, WorkerResources(name, 2, MEMORY_MIB, gpus))

    async def worker(self, member: RealMember) -> RealMember:
        """Start a worker; the caller waits until it is registered."""
        assert member.worker is not None
        await self.files(member)
        await self.start(member, daemons.munged(member.home))
        await self.start(member, daemons.slurmd(member.home, member.worker, self.config.gpu_type))
        await self.users(member)
        return member

    async def node(
        self, member: RealMember, *words: str, stdin: object = None, user: str = "root"
    ) -> tuple[int, dict[str, Any]]:
        """The node program with a verb: its exit code and its answer."""
        given = b"" if stdin is None else json.dumps(stdin).encode()
        code, text = await self.inside(member).run(*member.home.argv(*words), user=user, stdin=given)
        for line in text.splitlines():
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return code, answer
        raise AssertionError(f"exit {code}: {text}")

    async def done(self, member: RealMember, *words: str, stdin: object = None, user: str = "root") -> dict[str, Any]:
        """The same, which must succeed."""
        code, answer = await self.node(member, *words, stdin=stdin, user=user)
        assert code == 0, answer
        return answer

    async def slurm(self, member: RealMember, *argv: str, user: str = "app", stdin: bytes = b"") -> tuple[int, str]:
        """One of Slurm's own commands, as its users run it."""
        command = ("env", f"SLURM_CONF={member.home.slurm_conf}", *argv)
        return await self.inside(member).run(*command, user=user, stdin=stdin)

    def inside(self, member: RealMember) -> Inside:
        """Where programs of a member run."""
        return self._inside.setdefault(member.name, Inside(self.host, member.owner))


def _behind(path: str, daemon: DaemonSpec) -> DaemonSpec:
    """A service that starts when a file exists."""
    script = 'until test -e "$0"; do sleep 0.02; done; exec "$@"'
    return DaemonSpec(daemon.name, ("sh", "-c", script, path, *daemon.argv), daemon.environment)
