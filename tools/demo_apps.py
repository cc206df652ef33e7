"""The apps of the demo: `hello` is launched and its page is read, a cluster of `echo` grows and shrinks.

Both are installed from a bundle with `mooring install`, and operated by adapters that only have an account of the
project: the workload adapter that `mooring up` runs next to this machine's node, and echo's own, which the demo
starts. At the end each member has a receipt, and the operation reports the GPU-seconds.
"""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mooring.gateways.registry.registry_push import RegistryPusher
from mooring.gateways.signing.cosign_keys import new_signing_key
from mooring.gateways.signing.cosign_sign import sign_as_tag
from mooring_agent.containers.podman import Podman
from mooring_sdk import Client, MooringError, models
from mooring_workload.bundle import BUNDLE_VERSION, bundle_of, key_at, public_half, write_bundle
from mooring_workload.image import BuildFailed, ImageLayout
from tools.app_images import image_of
from tools.demo_nodes import SKU, BrowserSession, TenantProject, visit
from tools.demo_output import DemoFailed, heading, show_fact, undisturbed
from tools.demo_registry import pushing

ROOT = Path(__file__).resolve().parent.parent
ECHO = ROOT / "adapters" / "echo"
WAIT_SECONDS_MAX = 180.0
STEP_SECONDS = 10
LOOK_SECONDS = 0.1
OVER = {"succeeded", "failed", "cancelled"}


@dataclass(frozen=True)
class DemoContext:
    """The address of Mooring, and the two callers: the platform's admin, and the tenant's admin in a project."""

    url: str
    admin: str
    token: str
    work: TenantProject

    @property
    def apps(self) -> Path:
        """The directory of bundles and their files, which the platform reads."""
        return self.work.directory / "data" / "apps"

    def mooring(self, token: str, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run the CLI with this token, without a terminal."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
        environment |= {
            "MOORING_URL": self.url,
            "MOORING_TOKEN": token,
            "MOORING_CONFIG_DIR": str(self.work.directory / "contexts"),
        }
        command = [sys.executable, "-m", "mooring_cli", *words]
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS_MAX,
            check=False,
        )


def containers_are_missing() -> str:
    """Why this machine cannot run containers; empty if it can."""
    return "" if Podman.on_this_machine() else "containers need root, podman, runc and conmon"


def show_apps(demo: DemoContext) -> None:
    """An app from a bundle, and a cluster."""
    work, apps = demo.work, demo.apps
    heading("An app is installed from a bundle, and the project may launch it")
    install_app(demo, _first_bundle(apps / "hello.json"))
    with launched(work, "hello", "greeter") as instance:
        read_its_page(work, instance)
    echo = echo_bundle(apps, work.directory)
    heading("A cluster of three roles, operated by its own adapter")
    install_app(demo, echo)
    with (
        adapter(demo.url, work.directory, "echo"),
        launched(work, "echo", "chorus", {"seed": 1, "worker": 1, "gate": 1}) as instance,
    ):
        grow_and_shrink(work, instance)


def _first_bundle(path: Path) -> Path:
    """The bundle that `mooring up` writes for the first app."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not path.exists():
        if time.monotonic() > deadline:
            raise DemoFailed(f"the workload adapter did not write {path.name}")
        time.sleep(LOOK_SECONDS)
    return path


def install_app(demo: DemoContext, bundle: Path) -> None:
    """Install it into the platform's catalog as its admin, and entitle the project as the tenant's admin."""
    work = demo.work
    for token, words in ((demo.admin, []), (demo.token, ["--project", work.project.id])):
        ran = demo.mooring(token, "install", str(bundle), *words)
        if ran.returncode != 0:
            raise DemoFailed(f"the app of {bundle.name} cannot be installed: {ran.stderr.strip()}")
    about = json.loads(bundle.read_text(encoding="utf-8"))
    show_fact(
        "app", f"{about['app']['slug']} {about['manifest']['version']}, {len(about['artifacts'])} artifact by digest"
    )
    show_fact("its adapter", f"has an account of the project with {', '.join(about['manifest']['required_actions'])}")


def echo_bundle(apps: Path, directory: Path) -> Path:
    """The bundle of echo: its manifest, its script, and the key of its adapter."""
    manifest = json.loads((ECHO / "manifest.json").read_text(encoding="utf-8"))
    script = (ECHO / "mooring_echo" / "echo_node.py").read_bytes()
    digest = f"sha256:{hashlib.sha256(script).hexdigest()}"
    if manifest["artifacts"]["script"] != digest:
        raise DemoFailed("the digest of echo's script is not the one in its manifest")
    name = f"echo-{digest[7:19]}.py"
    (apps / name).write_bytes(script)
    bundle = {
        "bundle": BUNDLE_VERSION,
        "app": {"slug": "echo", "display_name": "Echo", "category": "example"},
        "adapter_key": public_half(key_at(directory / "echo.key")),
        "artifacts": {"script": {"kind": "blob", "location": f"file:{name}"}},
        "manifest": manifest,
    }
    path = apps / "echo.json"
    path.write_text(json.dumps(bundle), encoding="utf-8")
    return path


def show_jupyter(demo: DemoContext) -> None:
    """JupyterLab in a container, entered with a token that only the platform shows."""
    heading("JupyterLab, in a container, from an image that the node verifies")
    try:
        image = image_of("jupyter")
    except BuildFailed as failed:
        show_fact("left out", f"its image cannot be built here: {failed}")
        return
    show_fact("image", f"{image.digest[:19]}…, built from this machine's Python")
    work = demo.work
    with Client(demo.url, token=demo.admin) as admin:
        intent = admin.publish_platform_artifact(name="jupyter")
        key = new_signing_key()
        asyncio.run(push_layout(intent, image))
        asyncio.run(pushing(intent, lambda pusher: sign_as_tag(pusher, intent.repository, image.digest, key)))
        admin.add_platform_signer_key(name="apps", public_key_pem=key.trusted("").pem)
    own = key_at(work.directory / "data" / "adapter" / "workload.key")
    bundle = write_bundle(demo.apps, bundle_of("jupyter", {"image": f"{intent.location}@{image.digest}"}, own))
    install_app(demo, bundle)
    with Client(demo.url, token=demo.admin) as admin:
        for artifact in admin.iter_platform_artifacts(digest=image.digest):
            show_fact("its signature", f"{admin.verify_platform_artifact(artifact.id).trust}: this tenant requires one")
    with launched(work, "jupyter", "lab") as instance:
        enter_the_lab(work, instance)


async def push_layout(intent: models.Publish, image: ImageLayout) -> None:
    """Push an image from a directory."""

    async def send(pusher: RegistryPusher) -> None:
        for digest in image.parts:
            await pusher.blob(intent.repository, image.blob(digest).read_bytes())
        await pusher.manifest_bytes(intent.repository, image.manifest)

    await pushing(intent, send)


def enter_the_lab(work: TenantProject, instance: models.Instance) -> None:
    """Refused without the token, allowed with it."""
    client, project = work.client, work.project
    found = _endpoint(work, instance)
    entry = BrowserSession(client.open_endpoint(project.id, found.id).url, str(found.origin))
    without = entry.ask("/api/kernels")
    show_fact("without its token", f"the app answers {without.status_code}")
    secret = client.reveal_instance_secret(project.id, instance.id, "access-token")
    inside = entry.ask("/lab", {"Authorization": f"token {secret.value}"})
    show_fact("with its token", f"{inside.status_code}, {len(inside.content)} bytes of JupyterLab")
    if without.status_code != 403 or inside.status_code != 200:
        raise DemoFailed("the token has no effect")


@contextmanager
def adapter(url: str, directory: Path, app: str) -> Iterator[None]:
    """Run an app's own adapter as a program, and stop it at the end."""
    command = [sys.executable, "-m", f"mooring_{app}", "--url", url, "--key-file", str(directory / f"{app}.key")]
    # If the demo is killed, its adapter ends too. Ctrl-C reaches only the demo: stopping an app needs its adapter.
    setpriv = shutil.which("setpriv")
    begin = [setpriv, "--pdeathsig", "TERM"] if setpriv else []
    with (directory / f"{app}.log").open("wb") as log:
        process = subprocess.Popen(
            [*begin, *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL, process_group=0
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def launched(
    work: TenantProject, app: str, name: str, topology: dict[str, int] | None = None
) -> Iterator[models.Instance]:
    """An instance with its own capacity; at the end it is stopped with proof, whatever happens."""
    client, project = work.client, work.project
    where = models.Placement(sku=SKU, gpu_count=1)
    plan = client.plan_instance(project.id, app=app, name=name, placement=where, topology=topology)
    show_fact("the plan", f"version {plan.version.version if plan.version else 'none'}; {_hindrances(plan)}")
    asked = client.create_instance(project.id, app=app, name=name, placement=where, topology=topology)
    show_fact("launched", f"{asked.name} ({asked.id}), correlation {asked.correlation_id}")
    try:
        running = _instance(work, asked.id, {"running", "failed"})
        if running.status != "running":
            raise DemoFailed(f"{name} failed: {running.failure_code} {running.failure_detail} {running.last_lines}")
        show_fact("running", _roles(running))
        yield running
    except BaseException:
        try:
            _stop(work, asked.id)
        except (MooringError, DemoFailed) as also:
            show_fact("not stopped", f"{also}; the rest is removed after Mooring has stopped")
        raise
    _stop(work, asked.id)


def _hindrances(plan: models.Plan) -> str:
    found = "; ".join(each.detail for each in plan.hindrances)
    return f"blocked by: {found}" if found else "nothing blocks it"


def _roles(instance: models.Instance) -> str:
    return ", ".join(f"{each.component_key} {each.healthy}/{each.desired} healthy" for each in instance.members_summary)


def read_its_page(work: TenantProject, instance: models.Instance) -> None:
    """Read the app's page through the platform."""
    found = _endpoint(work, instance)
    page = visit(work.client.open_endpoint(work.project.id, found.id).url, str(found.origin))
    line = next((line.strip() for line in page.splitlines() if "Hello" in line), "")
    if not line:
        raise DemoFailed(f"the page has no greeting: {page[:200]!r}")
    show_fact("its page", f"read at {found.origin}: {line}")


def _endpoint(work: TenantProject, instance: models.Instance) -> models.Endpoint:
    for each in work.client.iter_endpoints(work.project.id):
        if each.instance_id == instance.id and each.origin is not None:
            return each
    raise DemoFailed(f"{instance.name} has no address for browsers")


def grow_and_shrink(work: TenantProject, instance: models.Instance) -> None:
    """One worker, three workers, one worker."""
    client, project = work.client, work.project
    added = client.add_members(project.id, instance.id, component="worker", count=2)
    done(work, instance.id, added, "two more workers")
    workers = [each for each in client.iter_members(project.id, instance.id) if each.component_key == "worker"]
    going = sorted((each for each in workers if each.status == "ready"), key=lambda each: each.ordinal)[1:]
    for each in going:
        removed = client.remove_member(project.id, instance.id, each.id)
        done(work, instance.id, removed, f"{each.name} drained and gone")


def done(work: TenantProject, instance_id: str, operation: models.Operation, what: str) -> models.Operation:
    """Wait for an operation to succeed, and show the members."""
    seen = over(work, instance_id, operation, what)
    if seen.status != "succeeded":
        raise DemoFailed(f"{what}: {seen.status}, {seen.failure_code} {seen.failure_detail} {seen.last_lines}")
    steps = ", ".join(dict.fromkeys(each.name.partition("/")[0] for each in seen.steps))
    show_fact(what, f"{_roles(work.client.get_instance(work.project.id, instance_id))}  [{steps}]")
    return seen


def over(work: TenantProject, instance_id: str, operation: models.Operation, what: str) -> models.Operation:
    """Wait for an operation to end, in any way."""
    deadline, seen = time.monotonic() + WAIT_SECONDS_MAX, operation
    while seen.status not in OVER:
        if time.monotonic() > deadline:
            raise DemoFailed(f"{what}: the operation is {seen.status}, {seen.blocker or 'with no blocker'}")
        seen = work.client.get_operation(
            work.project.id, instance_id, operation.id, wait=STEP_SECONDS, until=",".join(sorted(OVER))
        )
    return seen


def _instance(work: TenantProject, instance_id: str, wanted: set[str]) -> models.Instance:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        seen = work.client.get_instance(work.project.id, instance_id, wait=STEP_SECONDS, until=",".join(sorted(wanted)))
        if seen.status in wanted:
            return seen
        if time.monotonic() > deadline:
            why = work.client.explain_instance(work.project.id, instance_id)
            raise DemoFailed(f"{seen.name} is {seen.status} after {WAIT_SECONDS_MAX:.0f} s: {why.next}")


@undisturbed()
def _stop(work: TenantProject, instance_id: str) -> None:
    client, project = work.client, work.project
    asked = client.stop_instance(project.id, instance_id)
    stopped = _instance(work, instance_id, {"stopped"})
    show_fact("stopped", f"{stopped.name}, known by {stopped.teardown_proof}")
    for each in client.iter_closing_records(project.id, instance_id):
        show_fact("receipt", f"{each.member_name}: {(each.receipt or {}).get('receipt_id', each.kind)}")
    evidence = client.get_operation(project.id, instance_id, asked.id).evidence or {}
    show_fact("GPU-seconds", str(evidence.get("gpu_seconds", "unknown")))
    if stopped.teardown_proof != "receipts":
        raise DemoFailed(f"{stopped.name} is not proven gone")
