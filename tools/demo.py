"""`make demo`: Mooring from nothing to an audited, denied request, using only its public API.

If a registry is available, it continues: an image is built, pushed, signed and promoted until a project may launch it
as an app, and a policy refuses it with an explanation (`demo_catalog`). Then this machine becomes a node: an
allocation is placed on it, programs run in its sandbox, and a receipt proves that nothing is left (`demo_nodes`).
Then apps are launched, scaled, stopped and proven gone (`demo_apps`); one of them is a cluster of real Slurm
(`demo_slurm`). At last it shows what all of it cost, and proves the ledger (`demo_money`).

It starts `mooring up` with its own database in a temporary directory and on a free port, so that it changes nothing
else and can be run any number of times. All its requests carry one correlation id, by which it finds its own entries
in the audit trail and in the event stream. At the end everything is stopped and removed; if anything fails, the cause
is printed and the exit code is not 0.
"""

import argparse
import base64
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from queue import Empty, Queue

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring.core.kernel.errors import Refusal
from mooring_agent.hosts.namespace.destroy import unmount_below
from mooring_sdk import Client, ClientSettings, MooringError, ServiceAccountCredentials, errors, models
from tools.demo_apps import DemoContext, containers_are_missing, show_apps, show_jupyter
from tools.demo_catalog import TenantCatalog, show_catalog
from tools.demo_money import show_money
from tools.demo_nodes import TenantProject, nodes_are_missing, offer, remains, show_nodes, show_the_node
from tools.demo_output import DemoFailed, heading, show_fact, undisturbed
from tools.demo_registry import RegistryFailed, registry_program, running_registry
from tools.demo_slurm import show_slurm, slurm_is_missing
from tools.ports import LOOPBACK, free_port

START_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 180.0
DEMO_SECONDS_MAX = 400
LISTENS = re.compile(r"Mooring listens on (\S+)")
FIRST_ADMIN = re.compile(r"First admin: ([^;\s]+)")
LOG_LINES_SHOWN = 15
EXPECTED = (
    DemoFailed,
    RegistryFailed,
    MooringError,
    Refusal,
    OSError,
    httpx.HTTPError,
    subprocess.SubprocessError,
)
"""Expected errors: the cause is printed in one line."""


@dataclass(frozen=True)
class Started:
    """A running Mooring, and how to sign in for the first time."""

    url: str
    email: str
    code: str


@dataclass(frozen=True)
class DemoSetup:
    """The directories of the demo, and the registry that it can start, if there is one."""

    directory: Path
    registry_address: str
    registry_program: str | None
    no_registry_because: str
    no_node_because: str
    jupyter: bool = False  # whether to include an app of 80 MB
    slurm: bool = True  # whether it is wanted; if it is not possible, the demo says so
    no_slurm_because: str = ""

    @property
    def node_state(self) -> Path:
        """The state directory of this machine's agent: `mooring up` puts it next to the data."""
        return self.directory / "data" / "node"


@contextmanager
def mooring_up(setup: DemoSetup) -> Iterator[Started]:
    """Run `mooring up`, and stop it at the end."""
    directory = setup.directory
    code_file = directory / "first-admin-code"
    # The user's own Mooring settings must not affect this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
    environment["MOORING_FIRST_ADMIN_CODE_FILE"] = str(code_file)
    if setup.registry_program is not None:
        environment["MOORING_REGISTRY_URL"] = f"http://{setup.registry_address}"
    command = [sys.executable, "-m", "mooring_cli", "up", "--data-dir", str(directory / "data"), "--port", "0"]
    command += ["--no-node"] if setup.no_node_because else ["--node", "--simulated-gpus", "8"]
    # If the demo is killed, Mooring ends too. Ctrl-C reaches only the demo, which has to clean up first.
    setpriv = shutil.which("setpriv")
    begin = [setpriv, "--pdeathsig", "TERM"] if setpriv else []
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*begin, *command], env=environment, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0
        )
    try:
        yield started(process, code_file, directory / "log")
    except BaseException:
        with undisturbed(), suppress(DemoFailed):  # report only the first failure
            stop(process)
        raise
    stop(process)


def started(process: "subprocess.Popen[str]", code_file: Path, log: Path) -> Started:
    """Wait until it prints its address and is ready."""
    lines: Queue[str | None] = Queue()
    threading.Thread(target=pump, args=(process, lines), daemon=True).start()
    deadline = time.monotonic() + START_SECONDS_MAX
    url = email = ""
    while not (url and email):
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            raise DemoFailed(f"Mooring did not start within {START_SECONDS_MAX:.0f} s\n{tail(log)}") from None
        if line is None:
            raise DemoFailed(f"Mooring exited during its start, with code {process.wait()}\n{tail(log)}")
        if found := LISTENS.search(line):
            url = found[1]
        if found := FIRST_ADMIN.search(line):
            email = found[1]
    with Client(url) as client:
        client.get_readiness()
    return Started(url, email, code_file.read_text(encoding="utf-8").strip())


def pump(process: "subprocess.Popen[str]", lines: "Queue[str | None]") -> None:
    """Pass on the output of the process, so that nobody has to wait for it."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def stop(process: "subprocess.Popen[str]") -> None:
    """Stop it gracefully, and kill it when that takes too long."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise DemoFailed(f"Mooring did not stop within {STOP_SECONDS_MAX:.0f} s and was killed") from None
    if process.returncode:
        raise DemoFailed(f"Mooring exited with code {process.returncode}")


def tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:])


def sign_in(place: Started, settings: ClientSettings, *, email: str, code: str, tenant: str | None) -> str:
    """Sign in for the first time with a one-time code; returns a session token."""
    with Client(place.url, settings=settings) as client:
        signed_in = client.sign_in(
            email=email, tenant=tenant, one_time_code=code, new_password=secrets.token_urlsafe(24)
        )
    return signed_in.token


def make_tenant(place: Started, settings: ClientSettings, token: str) -> models.TenantCreated:
    """As the platform's first admin: create a tenant with its own admin."""
    heading("The platform's first admin creates a tenant")
    show_fact("signed in", f"{place.email}, with the one-time code of the first start")
    with Client(place.url, token=token, settings=settings) as client:
        tenant = client.create_tenant(
            slug="harbour",
            display_name="Harbour Labs",
            first_admin=models.FirstAdminBody(email="ada@harbour.test", display_name="Ada"),
        )
    show_fact("tenant", f"{tenant.slug} ({tenant.id})")
    show_fact("its first admin", f"{tenant.first_admin.email}, with a one-time code that is shown only once")
    return tenant


def make_project(client: Client, tenant: models.TenantCreated) -> models.Project:
    """As the tenant's admin: create a project."""
    heading("The tenant's admin creates a project and a service account")
    show_fact("signed in", tenant.first_admin.email)
    project = client.create_project(tenant.id, slug="vision", display_name="Vision")
    show_fact("project", f"{project.slug} ({project.id})")
    return project


def make_service_account(client: Client, project: models.Project) -> ServiceAccountCredentials:
    """A service account that may read its project; the private half of its key never leaves this process."""
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode("ascii")
    account = client.create_service_account(
        project.id, name="robot", actions=["project.read", "event.read"], public_key=public
    )
    keys = client.list_service_account_keys(project.id, account.id).items
    show_fact("service account", f"{account.name} ({account.id})")
    show_fact("it may", ", ".join(account.actions))
    show_fact("its key", f"{keys[0].id}, Ed25519; the server has only the public half")
    return ServiceAccountCredentials(account.id, keys[0].id, key)


def use_service_account(
    place: Started, settings: ClientSettings, credentials: ServiceAccountCredentials, project: models.Project
) -> None:
    """As the service account: sign an assertion for a token, do a read that is allowed and a write that is not."""
    heading("The service account signs an assertion, reads, and is refused a write")
    with Client(place.url, credentials=credentials, settings=settings) as robot:
        read = robot.get_project(project.id)
        show_fact("allowed", f"project.read gave {read.display_name!r}")
        try:
            robot.update_project(project.id, display_name="Taken over")
        except errors.PermissionDenied as refused:
            show_fact("denied", f"{refused.status} {refused.code}: {refused.detail}")
            show_fact("what to do", refused.remedy)
        else:
            raise DemoFailed("the service account could change the project, which it may not")


def show_audit(client: Client, tenant_id: str, correlation_id: str) -> None:
    """The audit trail of everything so far, denials included."""
    heading(f"The audit trail of {correlation_id}")
    rows = list(client.iter_tenant_audit(tenant_id, correlation_id=correlation_id))
    for row in reversed(rows):
        print(f"   {row.occurred_at:%H:%M:%S}  {row.outcome:<7} {row.action:<24} {row.actor_kind} {row.actor_id}")
    if not any(row.outcome == "denied" for row in rows):
        raise DemoFailed("the denied request is not in the audit trail")


def show_events(client: Client, tenant_id: str, correlation_id: str) -> None:
    """The same from the event stream (server-sent events), from the beginning to the service account's token."""
    heading("The event stream of the same requests")
    stream = client.follow_events(tenant_id=tenant_id, cursor="beginning", correlation_id=correlation_id)
    seen = []
    for event in stream:
        print(f"   {event.occurred_at:%H:%M:%S}  {event.type:<38} {event.subject_id}")
        seen.append(event.type)
        if event.type == "identity.token.issued" and event.actor_kind == "service_account":
            break
    stream.close()
    if missing := {"identity.project.created", "identity.service_account.created"}.difference(seen):
        raise DemoFailed(f"the event stream does not show {', '.join(sorted(missing))}")


def show(place: Started, setup: DemoSetup, began: float) -> None:
    """The whole demo."""
    show_fact("address", place.url)
    show_fact("ready after", f"{time.monotonic() - began:.1f} s")
    correlation_id = f"demo-{secrets.token_hex(4)}"
    show_fact("correlation id", f"{correlation_id}, on all requests from here on")
    settings = ClientSettings(
        correlation_id=correlation_id, user_agent="mooring-demo", timeout_seconds=90, deadline_seconds=180
    )
    admin = sign_in(place, settings, email=place.email, code=place.code, tenant=None)
    tenant = make_tenant(place, settings, admin)
    email, code = tenant.first_admin.email, tenant.one_time_code
    token = sign_in(place, settings, email=email, code=code, tenant=tenant.slug)
    with Client(place.url, token=token, settings=settings) as client:
        project = make_project(client, tenant)
        credentials = make_service_account(client, project)
        use_service_account(place, settings, credentials, project)
        show_audit(client, tenant.id, correlation_id)
        show_events(client, tenant.id, correlation_id)
        show_the_machine(place, setup, admin)
        work = TenantProject(client, project, setup.directory)
        with registry(place, setup, admin) as there_is_one:
            if there_is_one:
                allow_the_image_adapter(place, admin)
                show_catalog(TenantCatalog(client, tenant.id, project))
            show_the_nodes(setup, work)
            stage = DemoContext(place.url, admin, token, work)
            if not setup.no_node_because:
                show_apps(stage)
                if setup.jupyter and there_is_one:
                    show_jupyter(stage)
            if setup.slurm:
                show_the_cluster(setup, stage)
            if not setup.no_node_because:
                show_money(stage)


def allow_the_image_adapter(place: Started, admin: str) -> None:
    """Give the platform's adapter for images its key; it gets into a project when an admin there agrees."""
    public = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    with Client(place.url, token=admin) as client:
        client.set_workload_adapter_key(public_key=base64.b64encode(public).decode())


def show_the_machine(place: Started, setup: DemoSetup, admin: str) -> None:
    """This machine as a node, and its SKU: without capacity no app can be launched."""
    if not setup.no_node_because:
        with Client(place.url, token=admin) as client:
            show_the_node(client, setup.directory / "log")
            offer(client)


def show_the_nodes(setup: DemoSetup, work: TenantProject) -> None:
    """The part about nodes, or why it is left out."""
    if setup.no_node_because:
        heading("Left out: allocations and their sandboxes")
        print(f"   This part needs a node, and this machine cannot be one: {setup.no_node_because}")
        return
    show_nodes(work)


def show_the_cluster(setup: DemoSetup, stage: DemoContext) -> None:
    """The part about Slurm, or why it is left out."""
    if reason := setup.no_slurm_because or setup.no_node_because:
        heading("Left out: a cluster of Slurm")
        print(f"   This part needs real Slurm in sandboxes, and {reason}")
        return
    show_slurm(stage)


@contextmanager
def registry(place: Started, setup: DemoSetup, admin: str) -> Iterator[bool]:
    """A registry that trusts the tokens of Mooring, or why there is none."""
    if setup.registry_program is None:
        heading("Left out: apps and their images")
        print(f"   This part needs a registry, and {setup.no_registry_because}")
        yield False
        return
    heading("The platform's own registry starts, on loopback")
    with Client(place.url, token=admin) as client:
        about = client.get_registry()
    auth = {
        "realm": f"{place.url}/api/v1/registry/token",
        "service": about.service,
        "issuer": about.issuer,
        "certificate": about.certificate,
    }
    directory = setup.directory / "registry"
    with running_registry(setup.registry_program, directory, setup.registry_address, auth):
        show_fact("program", setup.registry_program)
        show_fact("address", f"{about.url}; it accepts only tokens that this Mooring signs")
        yield True


def bound() -> None:
    """Limit the time of the demo, and let signals end all of it."""

    def too_late(number: int, frame: object) -> None:
        raise DemoFailed(f"the demo took longer than {DEMO_SECONDS_MAX} s")

    def stop_signal(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, too_late)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_signal)
    signal.alarm(DEMO_SECONDS_MAX)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit code."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # show progress when the output is a pipe, too
    parser = argparse.ArgumentParser(prog="make demo", description="Show what Mooring does, and leave nothing behind.")
    parser.add_argument("--no-jupyter", action="store_true", help="skip the app that takes a minute to build")
    parser.add_argument("--no-slurm", action="store_true", help="skip the cluster of real Slurm")
    given = parser.parse_args(arguments)
    program, missing = registry_program()  # may install packages, which has its own timeout
    no_slurm_because = "" if given.no_slurm else slurm_is_missing()  # this too
    began = time.monotonic()
    bound()
    directory = Path(tempfile.mkdtemp(prefix="mooring-demo-"))
    jupyter = not given.no_jupyter and not containers_are_missing()
    setup = DemoSetup(
        directory,
        f"{LOOPBACK}:{free_port()}",
        program,
        missing,
        nodes_are_missing(),
        jupyter=jupyter,
        slurm=not given.no_slurm,
        no_slurm_because=no_slurm_because,
    )
    # As root the embedded database runs as another account, which must be able to enter the directory.
    directory.chmod(0o711)
    heading("Mooring starts, with its own database")
    try:
        with leaving_nothing(setup), mooring_up(setup) as place:
            show(place, setup, began)
        heading("Done")
        print(
            "   `make up` starts Mooring and keeps it running: the API reference is then at http://127.0.0.1:7420/docs,"
        )
        print("   and .venv/bin/mooring is the command; start with `mooring launch hello --open`.")
    except EXPECTED as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nthe demo was interrupted; everything that it started was removed", file=sys.stderr)
        return 130
    return 0


def remove(directory: Path) -> None:
    """Remove everything. A database that was killed with its Mooring may still write for a moment.

    podman keeps its store mounted while it works: if it is killed with its agent, the mount stays behind.
    """
    deadline = time.monotonic() + STOP_SECONDS_MAX
    shutil.rmtree(directory, ignore_errors=True)
    while directory.exists():
        with suppress(OSError):  # if it cannot be unmounted, removing it fails and is reported
            unmount_below(directory)
        time.sleep(0.1)
        shutil.rmtree(directory, ignore_errors=time.monotonic() < deadline)


@contextmanager
def leaving_nothing(setup: DemoSetup) -> Iterator[None]:
    """Make sure that nothing of the demo is left on the machine, however it ended, and report what was."""
    fared_well = False
    try:
        yield
        fared_well = True
    finally:
        with undisturbed():
            left = remains(setup.node_state)
            remove(setup.directory)
            for each in left:
                print(f"   left behind, removed now: {each}", file=sys.stderr)
        if left and fared_well:
            raise DemoFailed("something was left on the machine after everything was stopped")


if __name__ == "__main__":
    sys.exit(main())
