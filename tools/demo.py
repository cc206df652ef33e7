"""What `make demo` shows: Mooring from nothing to an audited, denied request, through its public API alone.

Where there is a registry to be had, it goes on: an image is made, pushed, signed and promoted until a project may
launch it as an app, and a policy refuses it with an explanation (`demo_catalog`). Then this machine is a node: an
allocation is placed on it, programs run in its sandbox, and a receipt proves that nothing is left (`demo_nodes`). At
last apps are launched into capacity of their own, scaled, stopped and proven gone (`demo_apps`); one of them is a
cluster of real Slurm (`demo_slurm`).

It starts `mooring up` on a database of its own in a temporary directory and on a free port, so that it touches
nothing and can be run as often as one likes. Everything that it does then carries one correlation id, by which it
finds its own traces in the audit trail and in the event stream. At the end all of it is stopped and removed; when
anything fails, the cause is printed and the exit code is not 0.
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
from mooring_agent.hosts.namespace.unmaking import unmount_below
from mooring_sdk import Client, ClientSettings, MooringError, ServiceAccountCredentials, errors, models
from tools.demo_apps import Stage, containers_are_missing, show_apps, show_jupyter
from tools.demo_catalog import Shelf, show_catalog
from tools.demo_nodes import Berth, nodes_are_missing, offer, remains, show_nodes, show_the_node
from tools.demo_registry import RegistryFailed, registry_program, running_registry
from tools.demo_slurm import show_slurm, slurm_is_missing
from tools.demo_telling import DemoFailed, heading, tell, undisturbed
from tools.ports import LOOPBACK, free_port

START_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 180.0
DEMO_SECONDS_MAX = 400
LISTENS = re.compile(r"Mooring listens on (\S+)")
FIRST_ADMIN = re.compile(r"First admin: ([^;\s]+)")
LOG_LINES_SHOWN = 15
EXPECTED = (
    DemoFailed, RegistryFailed, MooringError, Refusal, OSError, httpx.HTTPError, subprocess.SubprocessError,
)  # fmt: skip
"""By which the demo may fail: the cause is told in a line."""


@dataclass(frozen=True)
class Started:
    """A running Mooring, and how to sign in for the first time."""

    url: str
    email: str
    code: str


@dataclass(frozen=True)
class Beside:
    """Where the demo has its files, and the registry that it can start, if there is one."""

    directory: Path
    registry_address: str
    registry_program: str | None
    no_registry_because: str
    no_node_because: str
    jupyter: bool = False  # whether the demo goes as far as an app of 80 MB
    slurm: bool = True  # whether it is wanted; where it cannot be, that is told
    no_slurm_because: str = ""

    @property
    def node_state(self) -> Path:
        """Where the agent of this machine keeps what it knows: `mooring up` puts it beside the data."""
        return self.directory / "data-node"


@contextmanager
def mooring_up(beside: Beside) -> Iterator[Started]:
    """Mooring as `mooring up` starts it, stopped at the end."""
    directory = beside.directory
    code_file = directory / "first-admin-code"
    # What the person has set for a Mooring of his own must not steer this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
    environment["MOORING_FIRST_ADMIN_CODE_FILE"] = str(code_file)
    if beside.registry_program is not None:
        environment["MOORING_REGISTRY_URL"] = f"http://{beside.registry_address}"
    command = [sys.executable, "-m", "mooring_cli", "up", "--data-dir", str(directory / "data"), "--port", "0"]
    command += ["--no-node"] if beside.no_node_because else ["--node", "--simulated-gpus", "8"]
    # A demo that is killed takes Mooring along. Ctrl-C reaches the demo alone, which has something to give back first.
    keeper = shutil.which("setpriv")
    begin = [keeper, "--pdeathsig", "TERM"] if keeper else []
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*begin, *command], env=environment, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0
        )
    try:
        yield started(process, code_file, directory / "log")
    except BaseException:
        with undisturbed(), suppress(DemoFailed):  # the first failure is the one to tell
            stop(process)
        raise
    stop(process)


def started(process: "subprocess.Popen[str]", code_file: Path, log: Path) -> Started:
    """Wait until it says where it listens and is ready."""
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
            raise DemoFailed(f"Mooring ended while it started, with exit code {process.wait()}\n{tail(log)}")
        if found := LISTENS.search(line):
            url = found[1]
        if found := FIRST_ADMIN.search(line):
            email = found[1]
    with Client(url) as client:
        client.get_readiness()
    return Started(url, email, code_file.read_text(encoding="utf-8").strip())


def pump(process: "subprocess.Popen[str]", lines: "Queue[str | None]") -> None:
    """Hand on what the process prints, so that nobody waits for it longer than he wants."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def stop(process: "subprocess.Popen[str]") -> None:
    """End it gracefully, and insist when that takes too long."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise DemoFailed(f"Mooring did not stop within {STOP_SECONDS_MAX:.0f} s and was killed") from None
    if process.returncode:
        raise DemoFailed(f"Mooring ended with exit code {process.returncode}")


def tail(log: Path) -> str:
    """The last lines of the log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:])


def sign_in(place: Started, settings: ClientSettings, who: tuple[str, str, str | None]) -> str:
    """Turn a one-time code into a password, as on a first sign-in; a session token."""
    email, code, tenant = who
    with Client(place.url, settings=settings) as client:
        signed_in = client.sign_in(
            email=email, tenant=tenant, one_time_code=code, new_password=secrets.token_urlsafe(24)
        )
    return signed_in.token


def make_tenant(place: Started, settings: ClientSettings, token: str) -> models.TenantCreated:
    """As the first admin of the platform: a tenant with an admin of its own."""
    heading("The platform's first admin makes a tenant")
    tell("signed in", f"{place.email}, with the one-time code of the first start")
    with Client(place.url, token=token, settings=settings) as client:
        tenant = client.create_tenant(
            slug="harbour",
            display_name="Harbour Labs",
            first_admin=models.FirstAdminBody(email="ada@harbour.test", display_name="Ada"),
        )
    tell("tenant", f"{tenant.slug} ({tenant.id})")
    tell("its first admin", f"{tenant.first_admin.email}, with a one-time code that was told once")
    return tenant


def make_project(client: Client, tenant: models.TenantCreated) -> models.Project:
    """As the tenant's admin: a project."""
    heading("The tenant's admin makes a project and a service account")
    tell("signed in", tenant.first_admin.email)
    project = client.create_project(tenant.id, slug="vision", display_name="Vision")
    tell("project", f"{project.slug} ({project.id})")
    return project


def make_service_account(client: Client, project: models.Project) -> ServiceAccountCredentials:
    """A service account that may read its project, with a key whose private half never leaves this process."""
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode("ascii")
    account = client.create_service_account(
        project.id, name="robot", actions=["project.read", "event.read"], public_key=public
    )
    keys = client.list_service_account_keys(project.id, account.id).items
    tell("service account", f"{account.name} ({account.id})")
    tell("it may", ", ".join(account.actions))
    tell("its key", f"{keys[0].id}, Ed25519; the server has the public half only")
    return ServiceAccountCredentials(account.id, keys[0].id, key)


def use_service_account(
    place: Started, settings: ClientSettings, credentials: ServiceAccountCredentials, project: models.Project
) -> None:
    """As the service account: a signed assertion for a token, one read that is allowed, one write that is not."""
    heading("The service account signs an assertion, reads, and is refused a write")
    with Client(place.url, credentials=credentials, settings=settings) as robot:
        read = robot.get_project(project.id)
        tell("allowed", f"project.read gave {read.display_name!r}")
        try:
            robot.update_project(project.id, display_name="Taken over")
        except errors.PermissionDenied as refused:
            tell("denied", f"{refused.status} {refused.code}: {refused.detail}")
            tell("what to do", refused.remedy)
        else:
            raise DemoFailed("the service account could change the project, which is not on its list")


def show_audit(client: Client, tenant_id: str, correlation_id: str) -> None:
    """The audit trail of all that, denials included."""
    heading(f"The audit trail of {correlation_id}")
    rows = list(client.iter_tenant_audit(tenant_id, correlation_id=correlation_id))
    for row in reversed(rows):
        print(f"   {row.occurred_at:%H:%M:%S}  {row.outcome:<7} {row.action:<24} {row.actor_kind} {row.actor_id}")
    if not any(row.outcome == "denied" for row in rows):
        raise DemoFailed("the denied request is not in the audit trail")


def show_events(client: Client, tenant_id: str, correlation_id: str) -> None:
    """The same from the event stream (server-sent events), from its beginning to the service account's token."""
    heading("The event stream of the same")
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


def show(place: Started, beside: Beside, began: float) -> None:
    """The whole story."""
    tell("address", place.url)
    tell("ready after", f"{time.monotonic() - began:.1f} s")
    correlation_id = f"demo-{secrets.token_hex(4)}"
    tell("correlation id", f"{correlation_id}, on everything that follows")
    settings = ClientSettings(
        correlation_id=correlation_id, user_agent="mooring-demo", timeout_seconds=90, deadline_seconds=180
    )
    admin = sign_in(place, settings, (place.email, place.code, None))
    tenant = make_tenant(place, settings, admin)
    token = sign_in(place, settings, (tenant.first_admin.email, tenant.one_time_code, tenant.slug))
    with Client(place.url, token=token, settings=settings) as client:
        project = make_project(client, tenant)
        credentials = make_service_account(client, project)
        use_service_account(place, settings, credentials, project)
        show_audit(client, tenant.id, correlation_id)
        show_events(client, tenant.id, correlation_id)
        show_the_machine(place, beside, admin)
        berth = Berth(client, project, beside.directory)
        with registry(place, beside, admin) as there_is_one:
            if there_is_one:
                show_catalog(Shelf(client, tenant.id, project))
            show_the_nodes(beside, berth)
            stage = Stage(place.url, admin, token, berth)
            if not beside.no_node_because:
                show_apps(stage)
                if beside.jupyter and there_is_one:
                    show_jupyter(stage)
            if beside.slurm:
                show_the_cluster(beside, stage)


def show_the_machine(place: Started, beside: Beside, admin: str) -> None:
    """This machine as a node, and what is sold of it: without capacity no app may be launched."""
    if not beside.no_node_because:
        with Client(place.url, token=admin) as client:
            show_the_node(client, beside.directory / "log")
            offer(client)


def show_the_nodes(beside: Beside, berth: Berth) -> None:
    """The nodes' part, on this machine; or why it is none."""
    if beside.no_node_because:
        heading("Left out: allocations and their sandboxes")
        print(f"   This part needs a node, and this machine is none: {beside.no_node_because}")
        return
    show_nodes(berth)


def show_the_cluster(beside: Beside, stage: Stage) -> None:
    """Slurm's part; or why there is none."""
    if reason := beside.no_slurm_because or beside.no_node_because:
        heading("Left out: a cluster of Slurm")
        print(f"   This part needs real Slurm in sandboxes, and {reason}")
        return
    show_slurm(stage)


@contextmanager
def registry(place: Started, beside: Beside, admin: str) -> Iterator[bool]:
    """A registry that trusts what Mooring signs; or why there is none."""
    if beside.registry_program is None:
        heading("Left out: apps and their images")
        print(f"   This part needs a registry, and {beside.no_registry_because}")
        yield False
        return
    heading("A registry starts, on loopback, as the platform's own")
    with Client(place.url, token=admin) as client:
        about = client.get_registry()
    auth = {
        "realm": f"{place.url}/api/v1/registry/token",
        "service": about.service,
        "issuer": about.issuer,
        "certificate": about.certificate,
    }
    directory = beside.directory / "registry"
    with running_registry(beside.registry_program, directory, beside.registry_address, auth):
        tell("program", beside.registry_program)
        tell("address", f"{about.url}; it takes only tokens that this Mooring signs")
        yield True


def bound() -> None:
    """Nothing here waits for ever, and whoever ends the demo ends all of it."""

    def too_late(number: int, frame: object) -> None:
        raise DemoFailed(f"the demo took longer than {DEMO_SECONDS_MAX} s")

    def told_to_stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, too_late)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told_to_stop)
    signal.alarm(DEMO_SECONDS_MAX)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit code."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # whoever reads it from a pipe sees it happen, too
    parser = argparse.ArgumentParser(prog="make demo", description="Show what Mooring does, and leave nothing behind.")
    parser.add_argument("--no-jupyter", action="store_true", help="leave out the app that takes a minute to build")
    parser.add_argument("--no-slurm", action="store_true", help="leave out the cluster of real Slurm")
    given = parser.parse_args(arguments)
    program, missing = registry_program()  # may install something, which has a time of its own
    no_slurm_because = "" if given.no_slurm else slurm_is_missing()  # so may this
    began = time.monotonic()
    bound()
    directory = Path(tempfile.mkdtemp(prefix="mooring-demo-"))
    jupyter = not given.no_jupyter and not containers_are_missing()
    beside = Beside(
        directory,
        f"{LOOPBACK}:{free_port()}",
        program,
        missing,
        nodes_are_missing(),
        jupyter=jupyter,
        slurm=not given.no_slurm,
        no_slurm_because=no_slurm_because,
    )
    # As root the embedded database runs as another account, which must be able to pass through.
    directory.chmod(0o711)
    heading("Mooring starts, on a database of its own")
    try:
        with leaving_nothing(beside), mooring_up(beside) as place:
            show(place, beside, began)
        heading("Done")
        print("   `make up` starts Mooring and stays: the API reference is then at http://127.0.0.1:7420/docs,")
        print("   and .venv/bin/mooring is the command; `mooring login` is the first thing to say to it.")
    except EXPECTED as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nthe demo was interrupted; everything that it had started is gone", file=sys.stderr)
        return 130
    return 0


def remove(directory: Path) -> None:
    """Remove all of it. A database that was killed with its Mooring may still write for a moment.

    podman keeps its store mounted while it works: one that was ended with its agent leaves the mount behind.
    """
    deadline = time.monotonic() + STOP_SECONDS_MAX
    shutil.rmtree(directory, ignore_errors=True)
    while directory.exists():
        with suppress(OSError):  # what cannot be unmounted cannot be removed, and is told as that
            unmount_below(directory)
        time.sleep(0.1)
        shutil.rmtree(directory, ignore_errors=time.monotonic() < deadline)


@contextmanager
def leaving_nothing(beside: Beside) -> Iterator[None]:
    """Afterwards nothing of the demo is on the machine, however it ended; what should not have been left is told."""
    fared_well = False
    try:
        yield
        fared_well = True
    finally:
        with undisturbed():
            left = remains(beside.node_state)
            remove(beside.directory)
            for each in left:
                print(f"   removed at last: {each}", file=sys.stderr)
        if left and fared_well:
            raise DemoFailed("something was left on the machine when everything had been given back")


if __name__ == "__main__":
    sys.exit(main())
