"""From nothing to the first `srun`: a cluster that the platform launches, beside the same cluster booted by hand.

`python -m bench.slurm`, and a part of `python -m bench` where real Slurm can run (as root, with its packages). One
warm machine: its agent runs, Slurm's programs are installed. Both sides create new sandboxes in every round, with
one controller and two workers, and end with the output of `srun -N2 hostname` as the tenant's user. By hand means: the
same sandboxes with the same limits, the same files and the same daemons, by a program that does one thing after the
other (sandboxes, files, munged, Slurm's daemons, the wait for two idle nodes, srun) and each of them for all three
members side by side, without platform, adapter, signatures or proof. The two take turns in being first. Then a worker
is added through the platform until a job has run on it. The GPUs are simulated.
"""

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Latency, latency_of
from mooring_agent.hosts.contract import (
    Device,
    FileSpec,
    Network,
    Owner,
    ProcessSpec,
    RestartPolicy,
    SandboxSpec,
)
from mooring_agent.hosts.namespace import NamespaceHost
from mooring_sdk import models
from mooring_slurm import config_files, daemons
from mooring_slurm.launch_config import LaunchConfig
from mooring_slurm.layout import MemberHome, modes
from tests.e2e.slurm.cluster import SKU, SlurmSite, SlurmTenant, site

GOAL = 2.0
SUBNET = "10.78.0.0/24"
PROGRAMS = ("slurmctld", "slurmd", "srun", "munged")
GPUS = 8
"""Of the machine: a controller and three workers take all of it, so that each has a quarter of its cores."""
READY = 'n=0; until scontrol ping 2>/dev/null | grep -q UP && [ "$(sinfo -h -t idle -o %D)" = 2 ]; do sleep 0.02; done'


@dataclass(frozen=True)
class SlurmEffort:
    """How often."""

    rounds: int = 10


QUICK = SlurmEffort(rounds=1)


@dataclass(frozen=True)
class SandboxShare:
    """The limits of a sandbox, as the platform sends them to the node."""

    cpus: float
    memory_bytes: int
    pids: int


@dataclass(frozen=True)
class SlurmResult:
    """What was measured: each in milliseconds, and the median of the rounds' ratios; `each_ms` is every round's two."""

    rounds: int
    each_ms: list[tuple[float, float]]
    platform: Latency
    by_hand: Latency
    ratio: float
    added: Latency


def is_missing() -> str:
    """Why it cannot run here, if it cannot."""
    if os.geteuid() != 0:
        return "sandboxes with real Slurm need root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(absent)} cannot be found; `make test` as root on Debian installs them" if absent else ""


class ManualCluster:
    """The same cluster in the same kind of sandboxes, without a platform."""

    def __init__(self, directory: Path, number: int, share: SandboxShare) -> None:
        self.share = share
        self.host = NamespaceHost(directory / "host", f"nod_bench{number}")
        self.names = ("controller-0", "worker-0", "worker-1")
        self.config = LaunchConfig()
        self.cluster = config_files.ClusterSettings(
            name="byhand",
            controller_host="box-0",
            controller_address="10.78.0.10",
            controller_port=21_000,
            database_port=21_001,
            worker_port=21_002,
            config=self.config,
        )

    async def boot(self) -> str:
        """From nothing to the output of the first srun."""
        key = os.urandom(64)
        await asyncio.gather(*(self._sandbox(number) for number in range(3)))
        await asyncio.gather(*(self._member(number, key) for number in range(3)))
        owner = self._owner(0)
        environment = {"SLURM_CONF": MemberHome(self.names[0]).slurm_conf}
        ready = ProcessSpec(("sh", "-c", READY), environment, "root", "/")
        if await self.host.run(owner, "ready", ready, 60.0) != 0:
            raise RuntimeError("by hand: the cluster did not come up")
        process = ProcessSpec(("srun", "-N2", "hostname"), environment, "app", "/tmp")
        code = await self.host.run(owner, "srun", process, 60.0)
        said = b"".join([part async for part in self.host.read_log(owner, "srun", 0)]).decode()
        if code != 0:
            raise RuntimeError(f"by hand: srun ended with {code}: {said}")
        return said

    async def end(self) -> None:
        """Destroy it."""
        for allocation_id in self.host.store.allocations():
            look = await self.host.destroy(allocation_id)
            if not look.clean:
                raise RuntimeError(f"by hand: {look.remaining}")

    def _owner(self, number: int) -> Owner:
        return Owner(f"alc_bench{number}", self.names[number])

    async def _sandbox(self, number: int) -> None:
        spec = SandboxSpec(
            allocation_id=f"alc_bench{number}",
            tenant_id="ten_bench",
            project_id="prj_bench",
            hostname=f"box-{number}",
            cpus=self.share.cpus,
            memory_bytes=self.share.memory_bytes,
            pids=self.share.pids,
            devices=(Device(2 * number, simulated=True), Device(2 * number + 1, simulated=True)),
            network=Network("bench", f"10.78.0.{10 + number}", SUBNET),
        )
        await self.host.create(spec)

    async def _member(self, number: int, key: bytes) -> None:
        home, owner = MemberHome(self.names[number]), self._owner(number)
        is_controller = number == 0
        worker = config_files.WorkerResources(home.name, 1, 1_024, (2 * number, 2 * number + 1))
        files = [FileSpec("/srv/slurm", directory=True, mode=0o755)]
        files += [
            FileSpec(home.below(part) if part else home.path, directory=True, mode=int(mode, 8))
            for part, mode in modes(accounting=False, controller=is_controller)
        ]
        files += [
            FileSpec(home.munge_key, key, 0o600),
            FileSpec(home.slurm_conf, config_files.slurm_conf(self.cluster, home).encode(), 0o644),
            FileSpec(home.below("etc", "cgroup.conf"), config_files.cgroup_conf().encode(), 0o644),
        ]
        if not is_controller:
            text = config_files.gres_conf(worker, self.config.gpu_type)
            files.append(FileSpec(home.below("etc", "gres.conf"), text.encode(), 0o644))
        await self.host.write_files(owner, files)
        await self._start(owner, daemons.munged(home))
        wait = f'until [ -S "{home.munge_socket}" ]; do sleep 0.02; done'
        await self.host.run(owner, "munge", ProcessSpec(("sh", "-c", wait)), 60.0)
        last = daemons.slurmctld(home) if is_controller else daemons.slurmd(home, worker, self.config.gpu_type)
        await self._start(owner, last)

    async def _start(self, owner: Owner, daemon: daemons.DaemonSpec) -> None:
        process = ProcessSpec(daemon.argv, daemon.environment)
        await self.host.start_service(owner, daemon.name, process, RestartPolicy("on_failure"))


def measure(effort: SlurmEffort) -> SlurmResult:
    """Start its own site, measure, and stop it."""
    with tempfile.TemporaryDirectory(prefix="mooring-bench-") as name, site(Path(name), gpus=(GPUS,)) as place:
        tenant = place.tenant("harbour")
        launch_time(place, tenant, "warm-up")
        share = share_of(tenant)
        platform, by_hand, added = [], [], []
        for number in range(effort.rounds):
            hand_first = number % 2 == 0
            if hand_first:
                by_hand.append(hand_time(Path(name) / f"hand-{number}", number, share))
            took, grown = launch_time(place, tenant, f"round-{number}")
            platform.append(took)
            added.append(grown)
            if not hand_first:
                by_hand.append(hand_time(Path(name) / f"hand-{number}", number, share))
    ratios = [one / other for one, other in zip(platform, by_hand, strict=True)]
    return SlurmResult(
        rounds=effort.rounds,
        each_ms=[(one * 1000, other * 1000) for one, other in zip(platform, by_hand, strict=True)],
        platform=latency_of([each * 1000 for each in platform]),
        by_hand=latency_of([each * 1000 for each in by_hand]),
        ratio=statistics.median(ratios),
        added=latency_of([each * 1000 for each in added]),
    )


def share_of(tenant: SlurmTenant) -> SandboxShare:
    """What the platform gave to each member of the cluster that it launched."""
    made = [each for each in tenant.client.iter_tasks(tenant.project_id, limit=200) if each.type == "sandbox.create"]
    shares = {
        SandboxShare(**{name: each.arguments[name] for name in ("cpus", "memory_bytes", "pids")}) for each in made
    }
    (share,) = shares  # they are alike
    return share


def hand_time(directory: Path, number: int, share: SandboxShare) -> float:
    """The time by hand, in seconds."""
    directory.mkdir(mode=0o711)
    made = ManualCluster(directory, number, share)

    async def run() -> float:
        try:
            begun = time.perf_counter()
            await made.boot()
            return time.perf_counter() - begun
        finally:
            await made.end()

    return asyncio.run(run())


def launch_time(place: SlurmSite, tenant: SlurmTenant, name: str) -> tuple[float, float]:
    """The time through the platform, in seconds: to the first srun, and from an add to a job on the new worker."""
    begun = time.perf_counter()
    cluster = place.launch(tenant, name, workers=2).id
    (controller,) = place.members(tenant, cluster, "controller")
    where = controller.id  # where a login leads to as well
    first = place.inside(tenant, controller, "srun", "-N2", "hostname", label=where)
    took = time.perf_counter() - begun
    begun = time.perf_counter()
    added = tenant.client.add_members(
        tenant.project_id, cluster, component="worker", count=1, placement=models.Placement(sku=SKU, gpu_count=2)
    )
    place.over(tenant, cluster, added.id)
    newest = place.members(tenant, cluster)[-1]
    second = place.inside(tenant, controller, "srun", "-w", newest.name, "hostname", label=where)
    grown = time.perf_counter() - begun
    if first.exit_code != 0 or second.exit_code != 0:
        raise RuntimeError(f"srun failed: {first.text} {second.text}")
    place.stop(tenant, cluster)
    return took, grown


def lines_of(found: SlurmResult) -> Iterator[str]:
    """The report, line by line."""
    platform, hand, added = found.platform, found.by_hand, found.added
    yield (
        f"Real Slurm with simulated GPUs, one controller and two workers, {found.rounds} rounds: zero to first srun "
        f"p50 {platform.p50_ms / 1000:.2f} s, p99 {platform.p99_ms / 1000:.2f} s through the platform"
    )
    yield (
        f"  the same cluster booted by hand, same run: p50 {hand.p50_ms / 1000:.2f} s, p99 {hand.p99_ms / 1000:.2f} s"
        f"   ratio {found.ratio:.2f}   goal {GOAL:.0f}"
    )
    rounds = ", ".join(f"{one / 1000:.2f} / {other / 1000:.2f}" for one, other in found.each_ms)
    yield f"  each round in s, platform / by hand: {rounds}"
    yield f"  one worker more to a job on it: p50 {added.p50_ms / 1000:.2f} s, p99 {added.p99_ms / 1000:.2f} s"


def main(arguments: list[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.slurm", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round: shows that it runs, not how fast it is")
    parser.add_argument("--rounds", type=int, default=SlurmEffort().rounds, help="how often")
    options = parser.parse_args(arguments)
    if why := is_missing():
        print(f"left out: {why}", file=sys.stderr)
        return 2
    found = measure(QUICK if options.quick else SlurmEffort(options.rounds))
    print("\n".join(lines_of(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
