"""A platform with real agents: a Mooring process, a tenant with two projects, and machines.

Several agents may run on the test's machine, each with its own state directory. They are separate processes that a
test kills and restarts; at the end the platform destroys each sandbox, or the fixture does if a test has failed.
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
from tests.e2e.mooring_process import FIRST_ADMIN, PASSWORD, MooringProcess, running_mooring

PATIENT = ClientSettings(timeout_seconds=90, deadline_seconds=300)
SECONDS_MAX = 240.0


@dataclass
class AgentMachine:
    """The state directory of an agent, and its process while it runs."""

    directory: Path
    host: str
    node_id: str
    gpus: int
    process: "subprocess.Popen[bytes] | None" = None
    command_prefix: tuple[str, ...] = ()  # runs a command on another machine

    @classmethod
    def joined(
        cls, place: Path, host: str, gpus: int, *, url: str, token: str, command_prefix: tuple[str, ...] = ()
    ) -> "AgentMachine":
        """Enrol a machine at the platform of this URL with a one-time token, and start its agent."""
        place.mkdir(mode=0o700)
        command = [
            *command_prefix,
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
        machine = cls(place, host, enrolled.stdout.split()[2], gpus, command_prefix=command_prefix)
        machine.start()
        return machine

    def start(self) -> None:
        command = [
            *self.command_prefix,
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
        """Stop the agent; the programs in its sandboxes keep running."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(timeout=180)
            self.process = None

    def clear(self) -> None:
        """Remove what a failed test left behind; a passed test leaves nothing."""
        asyncio.run(create_host(self.host, self.directory, self.node_id).sweep([]))
        shutil.rmtree(Podman(self.directory / "containers").run, ignore_errors=True)

    def said(self) -> str:
        return (self.directory / "log").read_text(errors="replace")


@dataclass
class AgentPlatform:
    """The platform, with a client for each of its users."""

    mooring: MooringProcess
    admin: Client
    tenant_admin: Client
    tenant: Any
    projects: list[Any]
    directory: Path
    token: str  # of the tenant's admin, for the command line
    machines: list[AgentMachine] = field(default_factory=list)

    @contextmanager
    def member(self, role: str, project: Any) -> Iterator[Client]:
        """A client signed in as a new user with this role in the project."""
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

    def join(self, host: str, gpus: int = 4) -> AgentMachine:
        """Enrol another machine and start its agent."""
        place = self.directory / f"machine-{len(self.machines)}"
        token = self.admin.create_enrolment_token(region="here").token
        machine = AgentMachine.joined(place, host, gpus, url=self.mooring.url, token=token)
        self.machines.append(machine)
        return machine

    def offer(self, shape: str = "gpu_slice") -> None:
        """Create a SKU of simulated GPUs."""
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
        """Create an allocation and wait until it is active."""
        asked = self.tenant_admin.create_allocation(
            project.id, sku=shape.replace("_", "-"), shape=shape, gpu_count=gpus, name="box"
        )
        return self.until(lambda seen: seen.status == "active", project, asked.id)

    def until(self, wanted: Any, project: Any, allocation_id: str) -> Any:
        """Wait until the allocation is as wanted; a timeout prints its last state."""
        end = time.monotonic() + SECONDS_MAX
        seen = self.tenant_admin.get_allocation(project.id, allocation_id)
        while not wanted(seen):
            output = self.machines[-1].said()[-3000:] if self.machines else ""
            assert time.monotonic() < end, f"{seen}\n{output}"
            seen = self.tenant_admin.get_allocation(project.id, allocation_id, wait=10, changed_from=seen.etag)
        return seen

    def do(self, project: Any, allocation: Any, type: str, arguments: dict[str, Any], **other: Any) -> Any:
        """Create a task and wait until it has ended."""
        made = self.tenant_admin.create_allocation_task(
            project.id, allocation.id, type=type, arguments=arguments, **other
        )
        return self.ended(project, made.id)

    def ended(self, project: Any, task_id: str) -> Any:
        """Wait until a task has ended."""
        end = time.monotonic() + SECONDS_MAX
        seen = self.tenant_admin.get_task(project.id, task_id)
        while seen.finished_at is None:
            assert time.monotonic() < end, f"{seen}\n{self.machines[-1].said()[-3000:]}"
            seen = self.tenant_admin.get_task(project.id, task_id, wait=10, changed_from=seen.etag)
        return seen


@contextmanager
def running_agent_platform(**settings: str) -> Iterator[AgentPlatform]:
    """Start a platform with these settings and without machines; remove it at the end."""
    with running_mooring(**settings) as mooring, Client(mooring.url, settings=PATIENT) as door:
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
                made = AgentPlatform(mooring, admin, ada, tenant, projects, mooring.directory, entered.token)
                try:
                    yield made
                finally:
                    for machine in made.machines:
                        machine.stop(signal.SIGKILL)
                        machine.clear()
