"""Slurm in the demo: a cluster of real Slurm in sandboxes of this machine, from its launch to its last receipt.

Debian's own slurmctld, slurmd and munged run in the project's allocations, operated by an adapter that the demo
starts; the GPUs are simulated: they are scheduled and separated, but compute nothing. A job runs on two workers with
`srun`, a third worker joins, is drained while a job runs there, and is removed. The output is what was observed,
mostly Slurm's own.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from mooring_adapter.bundle import key_at
from mooring_sdk import models
from mooring_slurm.bundle import write_version
from tools.debian_packages import PackagesMissing, install
from tools.demo_apps import LOOK_SECONDS, WAIT_SECONDS_MAX, DemoContext, adapter, done, install_app, launched, over
from tools.demo_nodes import SKU, do
from tools.demo_output import DemoFailed, heading, show_fact

APP: Final = "slurm"
CLUSTER: Final = "hpc"
PACKAGES: Final = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS: Final = ("slurmctld", "slurmd", "srun", "munged")
DRAIN_SECONDS: Final = 300
GO: Final = "/tmp/demo-job-may-end"
END: Final = "ended by itself"
JOB: Final = f"""#!/bin/sh
#SBATCH --nodelist={{node}}
echo "begun on $SLURMD_NODENAME with GPU $CUDA_VISIBLE_DEVICES"
sleep 2  # Slurm counts in seconds: a shorter job may show no usage
while [ ! -e {GO} ]; do sleep 0.1; done
echo {END}
"""


def slurm_is_missing() -> str:
    """Why Slurm cannot run here, after its packages were installed if possible; empty if it can."""
    if os.geteuid() != 0:
        return "Slurm's sandboxes need root"
    reason = ""
    if _missing():
        try:
            install(PACKAGES)
        except PackagesMissing as error:
            reason = f"; {error}"
    if absent := _missing():
        return f"{', '.join(absent)} cannot be found: as root, apt-get install {' '.join(PACKAGES)}{reason}"
    return ""


def _missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


def show_slurm(demo: DemoContext) -> None:
    """The whole life of a cluster; afterwards each of its members has a receipt."""
    heading("A cluster of real Slurm, with simulated GPUs")
    version = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, timeout=30, check=True).stdout
    show_fact("Slurm", f"{version.strip()}, this machine's own programs, in sandboxes")
    install_app(demo, write_version(demo.apps, key_at(demo.work.directory / f"{APP}.key")))
    with (
        adapter(demo.url, demo.work.directory, APP),
        launched(demo.work, APP, CLUSTER, {"controller": 1, "worker": 2}) as instance,
    ):
        life = ClusterLife(demo, instance)
        life.run_on_both()
        third = life.grow()
        life.drain_under_a_job(third)
        life.remove(third)
    life.show_the_end()


class ClusterLife:
    """The steps of the demo with a running cluster, and what Slurm says about it."""

    def __init__(self, demo: DemoContext, instance: models.Instance) -> None:
        self.demo, self.work = demo, demo.work
        self.client, self.project_id = demo.work.client, demo.work.project.id
        self.id, self.name = instance.id, instance.name
        self.known = {each.name for each in self.members()}

    def run_on_both(self) -> None:
        """A job on both workers, with Slurm's own command, as the tenant's user."""
        boxes = {str(self._allocation(each).name): each.name for each in self.workers()}
        lines = self._connect("srun", "-N2", "hostname")
        show_fact("mooring connect", f"{self.name} -- srun -N2 hostname")
        for line in lines:
            show_fact("it says", f"{line}, the sandbox of {boxes.get(line, 'nobody')}")
        if sorted(lines) != sorted(boxes):
            raise DemoFailed(f"srun ran on {lines}, and the workers are on {boxes}")

    def grow(self) -> models.Member:
        """A third worker, in its own allocation."""
        before = {each.id for each in self.workers()}
        where = models.Placement(sku=SKU, gpu_count=1)
        added = self.client.add_members(self.project_id, self.id, component="worker", count=1, placement=where)
        done(self.work, self.id, added, "a third worker")
        (third,) = (each for each in self.workers() if each.id not in before)
        self.known.add(third.name)
        return third

    def drain_under_a_job(self, worker: models.Member) -> None:
        """A drain ends no job: it waits until the job has ended by itself."""
        script = JOB.format(node=worker.name)
        job = str(self._act("queue.submit", script=script, name="long", gpus=1, key="demo")["job_id"])
        self._until_it_runs(worker, job)
        show_fact("a job", f"{job} runs on {worker.name}, with one GPU")
        asked = self.client.drain_member(
            self.project_id, self.id, worker.id, timeout_seconds=DRAIN_SECONDS, reason="the demo shows it"
        )
        self._see_it_wait(worker, asked, job)
        self._let_go(worker)
        done(self.work, self.id, asked, "drained")
        self._see_it_drained(worker, job)

    def remove(self, worker: models.Member) -> None:
        """Its node is removed from Slurm, its sandbox from the machine."""
        done(self.work, self.id, self.client.remove_member(self.project_id, self.id, worker.id), "removed")
        nodes = sorted(self._ask("sinfo -h -N -o %N"))
        show_fact("Slurm's nodes", ", ".join(nodes))
        if nodes != sorted(each.name for each in self.workers()) or worker.name in nodes:
            raise DemoFailed(f"{worker.name} was removed, and Slurm has {', '.join(nodes)}")

    def show_the_end(self) -> None:
        """Every member is proven gone, and the usage of its jobs is shown."""
        records = list(self.client.iter_closing_records(self.project_id, self.id))
        proven = {each.member_name for each in records if each.receipt}
        if proven != self.known:
            raise DemoFailed(f"receipts are there of {sorted(proven)}, and members were {sorted(self.known)}")
        show_fact("receipts", f"{len(proven)}, one of each member that the cluster ever had")
        used = list(self.client.iter_usage_records(self.project_id, self.id))
        hours = {unit: [each for each in used if each.unit == unit] for unit in ("job_hours", "gpu_hours")}
        if not all(hours.values()) or not all(each.covered_by_allocation for each in used):
            raise DemoFailed(f"the jobs' hours are missing: {used}")
        for unit, found in hours.items():
            show_fact(unit.replace("_", "-"), f"{_summed(found)}; the allocation pays for it already")

    # Observations ----------------------------------------------------------------------------------------------------

    def members(self) -> Sequence[models.Member]:
        found = self.client.iter_members(self.project_id, self.id)
        return [each for each in found if each.status != "removed"]

    def workers(self) -> Sequence[models.Member]:
        return [each for each in self.members() if each.component_key == "worker"]

    def _see_it_wait(self, worker: models.Member, asked: models.Operation, job: str) -> None:
        deadline, seen = time.monotonic() + WAIT_SECONDS_MAX, asked
        while not any(each.name.startswith("quiet/") for each in seen.steps):
            if time.monotonic() > deadline or seen.finished_at is not None:
                raise DemoFailed(f"the drain does not see the job: it is {seen.status}, {seen.failure_detail}")
            seen = self.client.get_operation(self.project_id, self.id, asked.id, wait=5, changed_from=seen.etag)
        node, reason, held = self._look(worker, job)
        now = self.client.get_operation(self.project_id, self.id, asked.id)
        show_fact("the drain waits", f"it is {now.status}: Slurm has {worker.name} {node}, held by job {held}")
        show_fact("its owner", f"is in the reason: {reason}")
        if (node, held, now.status) != ("draining", f"{job} long of app RUNNING", "running"):
            raise DemoFailed(f"the drain does not wait for job {job}: {now.status} {now.failure_detail}")

    def _let_go(self, worker: models.Member) -> None:
        asked = {"argv": ["touch", GO], "user": "app", "directory": "/tmp"}
        do(self.work, self._allocation(worker), "process.run", asked)

    def _see_it_drained(self, worker: models.Member, job: str) -> None:
        node, _, seen = self._look(worker, job)
        wrote = str(self._act("queue.output", job_id=job, stream="out", offset=0)["text"]).splitlines()
        show_fact("Slurm has", f"{worker.name} {node}, job {seen}")
        show_fact("the job wrote", "; ".join(wrote))
        if (node, seen) != ("drained", f"{job} long of app COMPLETED"):
            raise DemoFailed(f"{worker.name} is not drained, or job {job} did not end by itself")
        if wrote != [f"begun on {worker.name} with GPU 0", END]:
            raise DemoFailed(f"job {job} had no GPU, or ran on another node")

    def _until_it_runs(self, worker: models.Member, job: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not (seen := self._look(worker, job)[2]).endswith(" RUNNING"):
            if time.monotonic() > deadline:
                raise DemoFailed(f"job {seen}, and does not run")
            time.sleep(LOOK_SECONDS)

    def _look(self, worker: models.Member, job: str) -> tuple[str, str, str]:
        """The state of a node, with the reason, and of a job, from Slurm itself."""
        nodes = f"sinfo -h -N -n {worker.name} -o '%T %E'"
        shown, seen = self._ask(f"{nodes}; squeue -h -t all -j {job} -o '%i %j of %u %T'")
        node, _, reason = shown.partition(" ")
        return node, reason, seen

    def _ask(self, command: str) -> list[str]:
        """The output of commands next to the controller, as the tenant's user."""
        (head,) = (each for each in self.members() if each.component_key == "controller")
        asked = {"argv": ["sh", "-c", command], "user": "app", "directory": "/tmp"}
        return list(do(self.work, self._allocation(head), "process.run", asked).last_lines)

    def _allocation(self, member: models.Member) -> models.Allocation:
        return self.client.get_allocation(self.project_id, member.allocation_id or "")

    def _act(self, action: str, **given: Any) -> Mapping[str, Any]:
        made = self.client.start_instance_action(self.project_id, self.id, action, input=given, wait=10)
        seen = over(self.work, self.id, made, action)
        if seen.status != "succeeded":
            raise DemoFailed(f"{action}: {seen.failure_code} {seen.failure_detail}")
        return seen.output or {}

    def _connect(self, *argv: str) -> list[str]:
        words = ("connect", self.name, "--project", self.project_id, "--", *argv)
        ran = self.demo.mooring(self.demo.token, *words)
        if ran.returncode != 0:
            raise DemoFailed(f"{' '.join(argv)} exited with {ran.returncode}: {ran.stderr.strip()}")
        return ran.stdout.splitlines()


def _summed(records: Sequence[models.UsageRecord]) -> str:
    hours = sum((Decimal(each.quantity) for each in records), Decimal(0)).quantize(Decimal("0.0001"))
    return f"{hours:f} of {len(records)} job{'s' if len(records) > 1 else ''}"
