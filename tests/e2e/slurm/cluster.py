"""A site for tests with real Slurm: a Mooring process, machines with real agents, tenants, and the Slurm adapter.

Everything goes through the public API with the SDK, as a tenant's admin uses it; Slurm's own commands run in a
member's sandbox as ordinary tasks. GPUs are simulated: they are scheduled and isolated, and compute nothing.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mooring_sdk import Client, models
from tests.e2e.agent_platform import PATIENT, AgentMachine
from tests.e2e.mooring_process import FIRST_ADMIN, PASSWORD, MooringProcess, running_mooring
from tests.support.waiting import until_sync

Seen = TypeVar("Seen")
REASON = "a test of real Slurm asks for it"
SKU = "simulated"
REGION = "here"
APP = "slurm"
OVER = "succeeded,failed,cancelled"
SECONDS_MAX = 120.0
VERSIONS = ("1.0.0", "1.1.0")
SETTINGS = {"MOORING_ADAPTER_LEASE_SECONDS": "3", "MOORING_TOKEN_CACHE_SECONDS": "0"}


@dataclass
class SlurmTenant:
    """A tenant with a project and its admin."""

    slug: str
    tenant_id: str
    project_id: str
    client: Client
    token: str


@dataclass(frozen=True)
class SandboxOutput:
    """Exit code and output of a command in a sandbox."""

    exit_code: int
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass
class SlurmSite:
    """The platform with its machines, tenants and adapters."""

    mooring: MooringProcess
    admin: Client
    directory: Path
    app_id: str = ""
    machines: list[AgentMachine] = field(default_factory=list)
    adapters: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    number: int = 0

    @property
    def key_file(self) -> Path:
        return self.directory / "slurm.key"

    # Who is there ----------------------------------------------------------------------------------------------------

    def join(self, gpus: int = 8, region: str = REGION, command_prefix: tuple[str, ...] = ()) -> AgentMachine:
        """Enrol a machine and start its agent; `command_prefix` runs a command there."""
        place = self.directory / f"machine-{len(self.machines)}"
        token = self.admin.create_enrolment_token(region=region).token
        machine = AgentMachine.joined(
            place, "namespace", gpus, url=self.mooring.url, token=token, command_prefix=command_prefix
        )
        self.machines.append(machine)
        return machine

    def tenant(self, slug: str) -> SlurmTenant:
        """A tenant that may launch the app."""
        first = models.FirstAdminBody(email=f"ada@{slug}.test", display_name="Ada")
        made = self.admin.create_tenant(slug=slug, display_name=slug, first_admin=first)
        with Client(self.mooring.url, settings=PATIENT) as door:
            entered = door.sign_in(
                email=first.email, tenant=slug, one_time_code=made.one_time_code, new_password=PASSWORD
            )
        client = Client(self.mooring.url, token=entered.token, settings=PATIENT)
        project = client.create_project(made.id, slug="vision", display_name="Vision")
        self.entitle(client, project.id)
        return SlurmTenant(slug, made.id, project.id, client, entered.token)

    def entitle(self, client: Client, project_id: str) -> None:
        """Let a project launch the app."""
        agreed = self.bundle(VERSIONS[0])["manifest"]["required_actions"]
        client.create_entitlement(project_id, app_id=self.app_id, reason=REASON, agreed_actions=agreed)

    # The app and its adapter -----------------------------------------------------------------------------------------

    def bundle(self, version: str) -> dict[str, Any]:
        """The bundle of a version, as the adapter's own command writes it, into the platform's directory of blobs."""
        place = self.directory / "apps" / version
        file = place / f"{APP}.json"
        if not file.exists():
            words = ["bundle", str(place), "--key-file", str(self.key_file), "--version", version]
            done = subprocess.run(
                [sys.executable, "-m", "mooring_slurm", *words], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            for each in place.iterdir():
                if each != file:
                    (place.parent / each.name).write_bytes(each.read_bytes())
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found

    def offer(self) -> None:
        """Add every version of the app to the platform's catalog, and create the SKU."""
        bundles = [self.bundle(each) for each in VERSIONS]
        about = bundles[0]["app"]
        app = self.admin.create_platform_app(
            slug=about["slug"], display_name=about["display_name"], category=about["category"]
        )
        self.app_id = app.id
        self.admin.set_platform_app_adapter_key(app.id, public_key=bundles[0]["adapter_key"])
        places = {
            (bundle["manifest"]["artifacts"][role], place["location"], place["kind"])
            for bundle in bundles
            for role, place in bundle["artifacts"].items()
        }
        for number, (digest, location, kind) in enumerate(sorted(places)):
            self.admin.create_platform_artifact_source(name=f"{APP}-{number}", pattern=location)
            artifact = self.admin.register_platform_artifact(kind=kind, location=location, digest=digest)
            for move in ("stage", "canary", "activate"):
                self.admin.promote_platform_artifact(artifact.id, move=move, reason=REASON)
        for bundle in bundles:
            version = self.admin.create_platform_version(app.id, manifest=bundle["manifest"])
            for move in ("stage", "canary", "activate"):
                share = 100.0 if move == "canary" else None
                self.admin.promote_platform_version(
                    app.id, version.id, move=move, reason=REASON, canary_percentage=share
                )
        self.admin.create_sku(
            slug=SKU,
            display_name="Simulated",
            shape="gpu_slice",
            gpu_model="simulated",
            regions=[REGION],
            allowed_gpu_counts=[1, 2, 4],
            price_minor_per_gpu_hour=0,
            currency="EUR",
        )

    def start_adapter(self) -> "subprocess.Popen[bytes]":
        """Start one replica of the Slurm adapter."""
        command = [
            sys.executable,
            "-m",
            "mooring_slurm",
            "--url",
            self.mooring.url,
            "--key-file",
            str(self.key_file),
        ]
        with (self.directory / "adapter.log").open("ab") as log:
            started = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.adapters.append(started)
        return started

    def kill_adapters(self, number: signal.Signals = signal.SIGKILL) -> None:
        for each in self.adapters:
            each.send_signal(number)
            each.wait(timeout=60)
        self.adapters = []

    # Clusters --------------------------------------------------------------------------------------------------------

    def launch(
        self,
        tenant: SlurmTenant,
        name: str,
        workers: int = 2,
        *,
        config: dict[str, Any] | None = None,
        placement: models.Placement | None = None,
        scope: str | None = None,
    ) -> models.Instance:
        """Launch a cluster and wait until it runs; a failure prints the logs of all parts."""
        made = tenant.client.create_instance(
            tenant.project_id,
            app=APP,
            version=VERSIONS[0],
            name=name,
            config=config or {},
            topology={"controller": 1, "worker": workers},
            placement=placement or models.Placement(sku=SKU, gpu_count=2),
            control_plane_scope=scope,
        )
        return self.running(tenant, made.id)

    def running(self, tenant: SlurmTenant, instance_id: str) -> models.Instance:
        """Wait until the instance runs."""
        return self.instance_until(tenant, instance_id, "running", "running,failed,stopped")

    def instance_until(self, tenant: SlurmTenant, instance_id: str, wanted: str, until: str) -> models.Instance:
        """Wait until the instance has reached a state."""
        seen = self.patiently(
            lambda wait: tenant.client.get_instance(tenant.project_id, instance_id, wait=wait, until=until),
            lambda each: each.status in until.split(","),
        )
        assert seen.status == wanted, f"{seen}\n{self.said()}"
        return seen

    def members(self, tenant: SlurmTenant, instance_id: str, component: str = "worker") -> list[models.Member]:
        """The members of a component that are not removed, by ordinal."""
        found = tenant.client.iter_members(tenant.project_id, instance_id, limit=100)
        here = [each for each in found if each.component_key == component and each.status != "removed"]
        return sorted(here, key=lambda each: each.ordinal)

    def over(
        self, tenant: SlurmTenant, instance_id: str, operation_id: str, wanted: str = "succeeded"
    ) -> models.Operation:
        """Wait until an operation has ended."""
        seen = self.patiently(
            lambda wait: tenant.client.get_operation(
                tenant.project_id, instance_id, operation_id, wait=wait, until=OVER
            ),
            lambda each: each.status in OVER.split(","),
        )
        assert seen.status == wanted, f"{seen.blocker} {seen.failure_detail} {seen.last_lines}\n{seen}\n{self.said()}"
        return seen

    def act(self, tenant: SlurmTenant, instance_id: str, action: str, **given: Any) -> dict[str, Any]:
        """Run an action of the app, which has to succeed; its output."""
        made = tenant.client.start_instance_action(tenant.project_id, instance_id, action, input=given)
        return dict(self.over(tenant, instance_id, made.id).output or {})

    def stop(self, tenant: SlurmTenant, instance_id: str) -> models.Instance:
        """Stop the cluster; check the receipts of every member and that its allocations are released."""
        found = tenant.client.iter_members(tenant.project_id, instance_id, limit=100)
        places = {each.allocation_id for each in found if each.allocation_id is not None and each.owns_allocation}
        tenant.client.stop_instance(tenant.project_id, instance_id)
        over = self.instance_until(tenant, instance_id, "stopped", "stopped")
        assert over.teardown_proof == "receipts", over
        for each in places:
            self.released(tenant, each)
        return over

    def active(self, tenant: SlurmTenant, allocation_id: str) -> None:
        """Create an allocation and wait until it is active."""
        seen = self.patiently(
            lambda wait: tenant.client.get_allocation(
                tenant.project_id, allocation_id, wait=wait, until="active,failed"
            ),
            lambda each: each.status in ("active", "failed"),
        )
        assert seen.status == "active", f"{seen}\n{self.said()}"

    def released(self, tenant: SlurmTenant, allocation_id: str) -> None:
        """Wait until an allocation is released, with a receipt without leftovers."""
        until = "released,release_failed"
        seen = self.patiently(
            lambda wait: tenant.client.get_allocation(tenant.project_id, allocation_id, wait=wait, until=until),
            lambda each: each.status in until.split(","),
        )
        assert (seen.status, seen.teardown_proof) == ("released", "receipts"), f"{seen}\n{self.said()}"

    # Inside of a sandbox ---------------------------------------------------------------------------------------------

    def inside(
        self, tenant: SlurmTenant, member: models.Member, *argv: str, user: str = "app", label: str = "test"
    ) -> SandboxOutput:
        """Run a command in the sandbox of a member, as a logged-in user there."""
        assert member.allocation_id is not None
        made = tenant.client.create_allocation_task(
            tenant.project_id,
            member.allocation_id,
            type="process.run",
            label=label,
            arguments={"argv": list(argv), "user": user, "directory": "/tmp", "timeout_seconds": 120},
        )
        seen = self.ended(tenant, made.id)
        exit_code = 0 if seen.status == "succeeded" else seen.exit_code
        assert exit_code is not None, f"{seen}\n{self.said()}"
        return SandboxOutput(exit_code, list(seen.last_lines or []))

    def do(self, tenant: SlurmTenant, allocation_id: str, type: str, **arguments: Any) -> None:
        """Run a task that has to succeed."""
        made = tenant.client.create_allocation_task(
            tenant.project_id, allocation_id, type=type, label="test", arguments=arguments
        )
        seen = self.ended(tenant, made.id)
        assert seen.status == "succeeded", f"{seen}\n{self.said()}"

    def ended(self, tenant: SlurmTenant, task_id: str) -> models.Task:
        """Wait until a task has ended."""
        return self.patiently(
            lambda wait: tenant.client.get_task(
                tenant.project_id, task_id, wait=wait, until="succeeded,failed,cancelled,expired"
            ),
            lambda each: each.finished_at is not None,
        )

    def slurm(
        self, tenant: SlurmTenant, instance_id: str, *argv: str, user: str = "app", label: str = "test"
    ) -> SandboxOutput:
        """Run a Slurm command at the controller."""
        (controller,) = self.members(tenant, instance_id, "controller")
        return self.inside(tenant, controller, *argv, user=user, label=label)

    def patiently(self, ask: Callable[[float], Seen], is_over: Callable[[Seen], bool]) -> Seen:
        """Long-poll until the condition holds; after the timeout, the last value."""
        seen: list[Seen] = []

        def holds() -> bool:
            seen[:] = [ask(20)]
            return is_over(seen[0])

        with suppress(AssertionError):  # the caller says what is wrong
            until_sync(holds, SECONDS_MAX)
        return seen[0]

    def until(self, look: Callable[[], Any], what: str) -> Any:
        """Poll Slurm until the condition holds."""
        found = self.patiently(lambda _: look(), bool)
        assert found, f"{what} did not come about\n{self.said()}"
        return found

    def said(self) -> str:
        """The last log lines of the adapters and agents."""
        log = self.directory / "adapter.log"
        adapter = log.read_text(errors="replace")[-4000:] if log.exists() else "no adapter was started"
        return "\n".join([adapter, *(each.said()[-2000:] for each in self.machines)])


@contextmanager
def site(directory: Path, gpus: Sequence[int] = (8,), **settings: str) -> Iterator[SlurmSite]:
    """Start a site with machines of so many GPUs each, the app in the catalog, and one adapter."""
    directory.chmod(0o711)  # the machines' sandboxes pass through
    apps = directory / "apps"
    apps.mkdir()
    with running_mooring(MOORING_SOURCE_FILE_DIRECTORY=str(apps), **SETTINGS, **settings) as mooring:
        with Client(mooring.url, settings=PATIENT) as door:
            entered = door.sign_in(email=FIRST_ADMIN, one_time_code=mooring.code, new_password=PASSWORD)
        with Client(mooring.url, token=entered.token, settings=PATIENT) as admin:
            made = SlurmSite(mooring, admin, directory)
            try:
                for count in gpus:
                    made.join(count)
                made.offer()
                made.start_adapter()
                yield made
            finally:
                made.kill_adapters()
                for machine in made.machines:
                    machine.stop(signal.SIGKILL)
                    machine.clear()


def is_root() -> bool:
    """Whether this account can have sandboxes."""
    return os.geteuid() == 0
