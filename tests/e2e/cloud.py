"""A small cloud for tests that span its parts: a Mooring, a tenant with two projects, and machines with real agents.

Several agents may live on the test's machine, each with a state directory of its own. They are programs of their
own, killed and started as a test likes; at the end each sandbox is destroyed by the platform, or by the fixture if
a test has failed.
"""

import asyncio
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mooring_agent.containers.podman import Podman
from mooring_agent.hosts.select import create_host
from mooring_sdk import Client, ClientSettings, models
from tests.e2e.running import FIRST_ADMIN, PASSWORD, Mooring, running

PATIENT = ClientSettings(timeout_seconds=90, deadline_seconds=300)
SECONDS_MAX = 240.0


@dataclass
class Machine:
    """A machine: an agent's state directory, and its process while it runs."""

    directory: Path
    host: str
    node_id: str
    gpus: int
    process: "subprocess.Popen[bytes] | None" = None
    way: tuple[str, ...] = ()  # before a command, it runs on another machine

    @classmethod
    def joined(
        cls, place: Path, platform: tuple[str, str], host: str, gpus: int, way: tuple[str, ...] = ()
    ) -> "Machine":
        """A machine that has joined a platform, by its address and a one-time token, with its agent running."""
        place.mkdir(mode=0o700)
        url, token = platform
        command = [
            *way,
            sys.executable,
            "-m",
            "mooring_agent",
            "enrol",
            "--state-dir",
            str(place),
            "--host",
            host,
            "--url",
            url,
            "--name",
            place.name,
        ]
        enrolled = subprocess.run(command, input=token, text=True, capture_output=True, check=False)
        assert enrolled.returncode == 0, enrolled.stderr
        machine = cls(place, host, enrolled.stdout.split()[2], gpus, way=way)
        machine.start()
        return machine

    def start(self) -> None:
        """Start its agent."""
        command = [
            *self.way,
            sys.executable,
            "-m",
            "mooring_agent",
            "run",
            "--state-dir",
            str(self.directory),
            "--host",
            self.host,
            "--simulated-gpus",
            str(self.gpus),
        ]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End its agent; what runs in sandboxes goes on."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(timeout=180)
            self.process = None

    def clear(self) -> None:
        """Take away what a failed test left standing; after one that passed there is nothing."""
        asyncio.run(create_host(self.host, self.directory, self.node_id).sweep([]))
        shutil.rmtree(Podman(self.directory / "containers").run, ignore_errors=True)

    def said(self) -> str:
        """The agent's log."""
        return (self.directory / "log").read_text(errors="replace")


@dataclass
class Cloud:
    """The cloud, with a client for each who acts in it."""

    mooring: Mooring
    admin: Client
    tenant_admin: Client
    tenant: Any
    projects: list[Any]
    directory: Path
    token: str  # of the tenant's admin, for the command line
    machines: list[Machine] = field(default_factory=list)

    @contextmanager
    def member(self, role: str, project: Any) -> Iterator[Client]:
        """Somebody with this role in a project."""
        email = (
            f"{role.replace('_', '-')}-{len(list(self.tenant_admin.iter_tenant_users(self.tenant.id)))}@harbour.test"
        )
        made = self.tenant_admin.create_tenant_user(self.tenant.id, email=email, display_name=role)
        self.tenant_admin.create_project_membership(project.id, user_id=made.id, role=role)
        with Client(self.mooring.url, settings=PATIENT) as door:
            entered = door.sign_in(
                email=email, tenant="harbour", one_time_code=made.one_time_code, new_password=PASSWORD
            )
        with Client(self.mooring.url, token=entered.token, settings=PATIENT) as client:
            yield client

    def join(self, host: str, gpus: int = 4) -> Machine:
        """A machine that joins, with its agent running."""
        place = self.directory / f"machine-{len(self.machines)}"
        token = self.admin.create_enrolment_token(region="here").token
        machine = Machine.joined(place, (self.mooring.url, token), host, gpus)
        self.machines.append(machine)
        return machine

    def offer(self, shape: str = "gpu_slice") -> None:
        """Let simulated GPUs be had."""
        self.admin.create_sku(
            slug=shape.replace("_", "-"),
            display_name=f"Simulated {shape}",
            shape=shape,
            gpu_model="simulated",
            regions=["here"],
            allowed_gpu_counts=[1, 2, 4],
            price_minor_per_gpu_hour=100,
            currency="EUR",
        )

    def allocate(self, project: Any, gpus: int = 1, shape: str = "gpu_slice") -> Any:
        """An active allocation."""
        asked = self.tenant_admin.create_allocation(
            project.id, sku=shape.replace("_", "-"), shape=shape, gpu_count=gpus, name="box"
        )
        return self.until(lambda seen: seen.status == "active", project, asked.id)

    def until(self, wanted: Any, project: Any, allocation_id: str) -> Any:
        """The allocation once it is as wanted; a failure says how it stands instead."""
        end = time.monotonic() + SECONDS_MAX
        seen = self.tenant_admin.get_allocation(project.id, allocation_id)
        while not wanted(seen):
            output = self.machines[-1].said()[-3000:] if self.machines else ""
            assert time.monotonic() < end, f"{seen}\n{output}"
            seen = self.tenant_admin.get_allocation(project.id, allocation_id, wait=10, changed_from=seen.etag)
        return seen

    def do(self, project: Any, allocation: Any, type: str, arguments: dict[str, Any], **other: Any) -> Any:
        """A task to its end."""
        made = self.tenant_admin.create_allocation_task(
            project.id, allocation.id, type=type, arguments=arguments, **other
        )
        return self.ended(project, made.id)

    def ended(self, project: Any, task_id: str) -> Any:
        """A task once it has ended."""
        end = time.monotonic() + SECONDS_MAX
        seen = self.tenant_admin.get_task(project.id, task_id)
        while seen.finished_at is None:
            assert time.monotonic() < end, f"{seen}\n{self.machines[-1].said()[-3000:]}"
            seen = self.tenant_admin.get_task(project.id, task_id, wait=10, changed_from=seen.etag)
        return seen


@contextmanager
def cloud() -> Iterator[Cloud]:
    """A cloud of the test's own, without machines."""
    with running() as mooring, Client(mooring.url, settings=PATIENT) as door:
        first = door.sign_in(email=FIRST_ADMIN, one_time_code=mooring.code, new_password=PASSWORD)
        with Client(mooring.url, token=first.token, settings=PATIENT) as admin:
            tenant = admin.create_tenant(
                slug="harbour",
                display_name="Harbour",
                first_admin=models.FirstAdminBody(email="ada@harbour.test", display_name="Ada"),
            )
            entered = door.sign_in(
                email="ada@harbour.test",
                tenant="harbour",
                one_time_code=tenant.one_time_code,
                new_password=PASSWORD,
            )
            with Client(mooring.url, token=entered.token, settings=PATIENT) as ada:
                projects = [
                    ada.create_project(tenant.id, slug=slug, display_name=slug) for slug in ("vision", "speech")
                ]
                made = Cloud(mooring, admin, ada, tenant, projects, mooring.directory, entered.token)
                try:
                    yield made
                finally:
                    for machine in made.machines:
                        machine.stop(signal.SIGKILL)
                        machine.clear()
