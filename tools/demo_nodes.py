"""The nodes in the demo: an allocation is placed, programs run in its sandbox, and its end is proven.

The machine that runs the demo is the node. With root its sandboxes are isolated; without root they are plain
processes, and the demo says so. The GPUs are simulated: they are placed but compute nothing. The allocation is always
released before Mooring stops; afterwards the machine is searched once more, and what is found is removed and
reported.
"""

import asyncio
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from mooring_agent.control_plane.trust import read_identity
from mooring_agent.hosts.select import REQUIRED_PROGRAMS, create_host
from mooring_sdk import Client, MooringError, models
from tools.demo_output import DemoFailed, heading, show_fact, undisturbed
from tools.ports import free_port

HOST = "namespace" if os.geteuid() == 0 else "process"
REGION = "local"
SKU = "simulated-slice"
WAIT_SECONDS_MAX = 180.0
STEP_SECONDS = 10
LOOK_SECONDS = 0.1
PROGRAM = {
    "namespace": 'echo "hello from $(hostname), as pid $$"; echo "GPUs in /dev: $(ls /dev | grep -c "^nvidia[0-9]")"',
    "process": 'echo "hello from $(hostname), as pid $$"',
}
PAGE = "Hello from inside a sandbox.\n"


@dataclass(frozen=True)
class TenantProject:
    """The tenant's admin working in one project, and the directory of the demo."""

    client: Client
    project: models.Project
    directory: Path


def nodes_are_missing() -> str:
    """Why this machine cannot be a node; empty if it can."""
    missing = [name for name in REQUIRED_PROGRAMS.get(HOST, {}) if shutil.which(name) is None]
    return f"{' and '.join(missing)} cannot be found, and root needs them for sandboxes" if missing else ""


def show_nodes(work: TenantProject) -> None:
    """An allocation on this machine, and what runs in it."""
    with allocated(work) as allocation:
        run_a_program(work, allocation)
        serve_a_page(work, allocation)
    show_the_proof(work, allocation.id)


def show_the_node(admin: Client, log: Path) -> None:
    """This machine, which joined by itself."""
    heading("This machine is a node")
    node = _node(admin, log)
    detail = admin.get_node(node.id)
    show_fact("node", f"{node.name} ({node.id}), region {node.region}; it dials out and has no open port")
    isolated = "isolated in namespaces" if HOST == "namespace" else "NOT isolated: that needs root"
    show_fact("sandboxes", f"{isolated} (host {node.host})")
    simulated = all(each.simulated for each in detail.slots)
    show_fact(
        "GPUs", f"{len(detail.slots)}{', all simulated: they are placed but compute nothing' if simulated else ''}"
    )


def _node(admin: Client, log: Path) -> models.Node:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        for node in admin.iter_nodes(status="ready"):
            return node
        time.sleep(LOOK_SECONDS)
    shown = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line[:1] != "{"]
    raise DemoFailed("\n".join(["this machine did not join as a node", *shown]))


def offer(admin: Client) -> None:
    """The SKU that the platform's admin offers."""
    sku = admin.create_sku(
        slug=SKU,
        display_name="Simulated GPUs",
        shape="gpu_slice",
        gpu_model="simulated",
        regions=[REGION],
        allowed_gpu_counts=[1, 2, 4, 8],
        price_minor_per_gpu_hour=250,
        currency="EUR",
    )
    price = f"{sku.price_minor_per_gpu_hour / 100:.2f} {sku.currency} per GPU-hour"
    show_fact("offered as", f"{sku.slug}: {', '.join(map(str, sku.allowed_gpu_counts))} GPUs, {price}")


@contextmanager
def allocated(work: TenantProject) -> Iterator[models.Allocation]:
    """An allocation for the project; at the end it is released, whatever happens."""
    heading("A project requests two GPUs, and the platform places them")
    client, project = work.client, work.project
    asked = client.create_allocation(project.id, sku=SKU, shape="gpu_slice", gpu_count=2, name="box")
    show_fact("allocation", f"{asked.name} ({asked.id})")
    try:
        held = settled(work, asked.id, {"active", "failed", "released"})
        if held.status != "active":
            raise DemoFailed(f"the allocation is {held.status}: {held.failure_code} {held.failure_detail}")
        show_fact("placed on", f"{held.node_id}, slots {', '.join(str(each.index) for each in held.slots)}")
        show_fact("its sandbox", f"address {held.address}, isolation {held.isolation}")
        full = client.explain_allocation(project.id, sku=SKU, shape="gpu_slice", gpu_count=8)
        show_fact("eight more?", f"{'yes' if full.fits else 'no'}: {full.because}; {full.smallest_change}")
        yield held
    except BaseException:
        try:
            _give_back(work, asked.id)
        except (MooringError, DemoFailed) as also:
            show_fact("not given back", f"{also}; the rest is removed after Mooring has stopped")
        raise
    _give_back(work, asked.id)


@undisturbed()
def _give_back(work: TenantProject, allocation_id: str) -> None:
    heading("The allocation is released")
    work.client.release_allocation(work.project.id, allocation_id)
    over = settled(work, allocation_id, {"released", "release_failed"})
    show_fact("status", f"{over.status}; how that is known: {over.teardown_proof}")
    if over.status != "released":
        raise DemoFailed(f"the sandbox is not gone: {over.blocker}")


def settled(work: TenantProject, allocation_id: str, wanted: set[str]) -> models.Allocation:
    """Wait until the allocation has the wanted status."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        seen = work.client.get_allocation(
            work.project.id, allocation_id, wait=STEP_SECONDS, until=",".join(sorted(wanted))
        )
        if seen.status in wanted:
            return seen
        if time.monotonic() > deadline:
            raise DemoFailed(f"the allocation is {seen.status} after {WAIT_SECONDS_MAX:.0f} s: {seen.blocker}")


def run_a_program(work: TenantProject, allocation: models.Allocation) -> None:
    """Run a program in the sandbox, and show its output."""
    heading("A program runs in the sandbox")
    show_fact("task", "process.run, signed by the platform, verified by the node")
    ran = do(work, allocation, "process.run", {"argv": ["/bin/sh", "-c", PROGRAM[HOST]]})
    for line in ran.last_lines:
        show_fact("it says", line)


def do(work: TenantProject, allocation: models.Allocation, type: str, arguments: dict[str, Any]) -> models.Task:
    """Wait for a task to succeed."""
    made = work.client.create_allocation_task(work.project.id, allocation.id, type=type, arguments=arguments)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    seen = made
    while seen.finished_at is None and time.monotonic() < deadline:
        seen = work.client.get_task(work.project.id, made.id, wait=STEP_SECONDS, changed_from=seen.etag)
    if seen.status != "succeeded":
        raise DemoFailed(f"{type} is {seen.status}: {seen.failure_code} {seen.failure_detail} {seen.last_lines}")
    return seen


def serve_a_page(work: TenantProject, allocation: models.Allocation) -> None:
    """A web service that can only be reached through the platform."""
    heading("A web service is reached through the platform, with no port published")
    client, project = work.client, work.project
    port = free_port()
    do(work, allocation, "files.write", {"files": [{"path": "/tmp/site/index.html", "content": PAGE}]})
    serve = [shutil.which("python3", path="/usr/bin:/bin") or sys.executable, "-m", "http.server", str(port)]
    do(
        work,
        allocation,
        "service.start",
        {
            "name": "web",
            "argv": [*serve, "--bind", "127.0.0.1"],
            "directory": "/tmp/site",
            "endpoint": {"name": "web", "port": port, "protocol": "http"},
        },
    )
    do(work, allocation, "probe.http", {"port": port, "attempts": 1_000, "interval_seconds": 0.2})
    show_fact("service", f"web listens on 127.0.0.1:{port} of its sandbox")
    if HOST == "namespace":
        with socket.socket() as outside:
            outside.settimeout(STEP_SECONDS)
            if outside.connect_ex(("127.0.0.1", port)) == 0:
                raise DemoFailed(f"port {port} of the sandbox can be reached on the machine")
        show_fact("on the machine", f"nothing listens on port {port}")
    else:
        show_fact("on the machine", "it listens there as well: nothing is isolated without root")
    (endpoint,) = client.iter_endpoints(project.id)
    if endpoint.origin is None:
        raise DemoFailed("the page has no address for browsers")
    show_fact("its own origin", endpoint.origin)
    page = visit(client.open_endpoint(project.id, endpoint.id).url, endpoint.origin)
    show_fact("by a link", f"that works once: {page.strip()!r}")
    if page != PAGE:
        raise DemoFailed(f"the page is {page!r}")


class BrowserSession:
    """A session at the app's own origin, as a browser has it after following the link."""

    def __init__(self, link: str, origin: str) -> None:
        self._origin = origin
        with httpx.Client(timeout=WAIT_SECONDS_MAX) as browser:
            self._session = _asked(browser, link).headers.get("set-cookie", "").partition(";")[0]

    def ask(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        """Get a page of the app; every name below localhost is this machine."""
        with httpx.Client(timeout=WAIT_SECONDS_MAX) as browser:
            return _asked(browser, f"{self._origin}{path}", {**(headers or {}), "Cookie": self._session})


def visit(link: str, origin: str) -> str:
    """The page that a browser shows after following the link."""
    answer = BrowserSession(link, origin).ask("/")
    if answer.status_code != 200:
        raise DemoFailed(f"cannot read the page: {answer.status_code}")
    return answer.text


def _asked(browser: httpx.Client, url: str, headers: dict[str, str] | None = None) -> httpx.Response:
    target = httpx.URL(url)
    host = f"{target.host}:{target.port}"
    return browser.get(target.copy_with(host="127.0.0.1"), headers={**(headers or {}), "Host": host})


def show_the_proof(work: TenantProject, allocation_id: str) -> None:
    """The receipt, verified offline."""
    heading("The node's signed receipt, verified offline")
    over = work.client.get_allocation(work.project.id, allocation_id)
    if over.receipt_id is None:
        raise DemoFailed(f"there is no receipt; the proof is {over.teardown_proof}")
    bundle = msgspec.json.encode(work.client.export_receipt(work.project.id, over.receipt_id)).decode()
    code, said = _verified(work.directory / "receipt.json", bundle)
    for line in said.splitlines():
        print(f"   {line}")
    if code != 0:
        raise DemoFailed("the receipt could not be verified")
    code, said = _verified(work.directory / "forged.json", bundle.replace(over.node_id or "", "nod_of_somebody_else"))
    show_fact("with a forged node", said.strip().partition(": ")[2])
    if code == 0:
        raise DemoFailed("a forged receipt was accepted")


def _verified(path: Path, bundle: str) -> tuple[int, str]:
    """The output of `mooring receipts verify`, without a server and a context."""
    path.write_text(bundle, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
    command = [sys.executable, "-m", "mooring_cli", "receipts", "verify", "--require-clean", path.name]
    done = subprocess.run(
        command, cwd=path.parent, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, check=False
    )
    return done.returncode, done.stdout or done.stderr


def remains(state: Path, kind: str = HOST) -> list[str]:
    """What a node whose agent has ended still had on this machine; it is removed."""
    identity = read_identity(state) if state.exists() else None
    if identity is None:
        return []
    with (state / "lock").open("w") as lock:
        _wait_for(lock.fileno())  # an orphaned agent ends by itself, and holds the lock until then
        host = create_host(kind, state, identity.node_id)
        strays = asyncio.run(host.sweep([]))
    return [f"{each.resource.kind} {each.resource.name}" for each in strays if each.verdict == "reaped"]


def _wait_for(lock: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise DemoFailed("the agent of this machine does not end") from None
            time.sleep(LOOK_SECONDS)
        else:
            return
