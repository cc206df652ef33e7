"""The apps' part of the demo: `hello` is launched and its page is read, a cluster of `echo` grows and shrinks.

Both are installed as anybody would do it, from a bundle with `mooring install`, and are operated by adapters that have
an account of the project and nothing else: the workload adapter that `mooring up` runs beside this machine's node, and
echo's own, which the demo starts. At the end each member has a receipt, and the operation says how many GPU-seconds
were used.
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
from mooring_agent.podman import Podman
from mooring_sdk import Client, MooringError, models
from mooring_workload.bundle import BUNDLE_VERSION, bundle_of, key_at, public_half, write_bundle
from mooring_workload.image import BuildFailed, ImageLayout
from tools.app_images import image_of
from tools.demo_nodes import SKU, Berth, Entry, visit
from tools.demo_registry import pushing
from tools.demo_telling import DemoFailed, heading, tell, undisturbed

ROOT = Path(__file__).resolve().parent.parent
ECHO = ROOT / "adapters" / "echo"
WAIT_SECONDS_MAX = 180.0
STEP_SECONDS = 10
LOOK_SECONDS = 0.1
OVER = {"succeeded", "failed", "cancelled"}


@dataclass(frozen=True)
class Stage:
    """Where Mooring is, and who asks: the platform's admin, and the tenant's at work in a project."""

    url: str
    admin: str
    token: str
    berth: Berth

    @property
    def apps(self) -> Path:
        """Where bundles lie: what they bring along, the platform reads there."""
        return self.berth.directory / "data-apps"

    def mooring(self, token: str, *words: str) -> "subprocess.CompletedProcess[str]":
        """The command line of whoever has this token, in a pipeline."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
        environment |= {
            "MOORING_URL": self.url,
            "MOORING_TOKEN": token,
            "MOORING_CONFIG_DIR": str(self.berth.directory / "contexts"),
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
    """Why this machine runs no containers; empty if it does."""
    return "" if Podman.on_this_machine() else "containers need root, podman, runc and conmon"


def show_apps(stage: Stage) -> None:
    """An app from a bundle, and a cluster."""
    berth, apps = stage.berth, stage.apps
    heading("An app comes into the catalog from a bundle, and the project may launch it")
    install_app(stage, _first_bundle(apps / "hello.json"))
    with launched(berth, "hello", "greeter") as instance:
        read_its_page(berth, instance)
    echo = echo_bundle(apps, berth.directory)
    heading("A cluster of three roles, operated by an adapter of its own")
    install_app(stage, echo)
    with (
        adapter(stage.url, berth.directory, "echo"),
        launched(berth, "echo", "chorus", {"seed": 1, "worker": 1, "gate": 1}) as instance,
    ):
        grow_and_shrink(berth, instance)


def _first_bundle(path: Path) -> Path:
    """The bundle that `mooring up` leaves for the first app."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not path.exists():
        if time.monotonic() > deadline:
            raise DemoFailed(f"the workload adapter did not write {path.name}")
        time.sleep(LOOK_SECONDS)
    return path


def install_app(stage: Stage, bundle: Path) -> None:
    """Into the platform's catalog, as its admin; for the project, as the tenant's."""
    berth = stage.berth
    for token, words in ((stage.admin, []), (stage.token, ["--project", berth.project.id])):
        ran = stage.mooring(token, "install", str(bundle), *words)
        if ran.returncode != 0:
            raise DemoFailed(f"the app of {bundle.name} cannot be installed: {ran.stderr.strip()}")
    about = json.loads(bundle.read_text(encoding="utf-8"))
    tell("app", f"{about['app']['slug']} {about['manifest']['version']}, {len(about['artifacts'])} artifact by digest")
    tell("its adapter", f"has an account of the project with {', '.join(about['manifest']['required_actions'])}")


def echo_bundle(apps: Path, directory: Path) -> Path:
    """What `mooring install` needs of echo: its manifest, its script, and the key of its adapter."""
    manifest = json.loads((ECHO / "manifest.json").read_text(encoding="utf-8"))
    script = (ECHO / "mooring_echo" / "echo_node.py").read_bytes()
    digest = f"sha256:{hashlib.sha256(script).hexdigest()}"
    if manifest["artifacts"]["script"] != digest:
        raise DemoFailed("echo's manifest names another script than the one that is there")
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


def show_jupyter(stage: Stage) -> None:
    """JupyterLab in a container, entered with a token that only the platform tells."""
    heading("JupyterLab, in a container, from an image that the node verifies")
    try:
        image = image_of("jupyter")
    except BuildFailed as failed:
        tell("left out", f"its image could not be made here: {failed}")
        return
    tell("image", f"{image.digest[:19]}…, made from this machine's Python")
    berth = stage.berth
    with Client(stage.url, token=stage.admin) as admin:
        intent = admin.publish_platform_artifact(name="jupyter")
        key = new_signing_key()
        asyncio.run(push_layout(intent, image))
        asyncio.run(pushing(intent, lambda pusher: sign_as_tag(pusher, intent.repository, image.digest, key)))
        admin.add_platform_signer_key(name="apps", public_key_pem=key.trusted("").pem)
    own = key_at(berth.directory / "data-adapter" / "workload.key")
    bundle = write_bundle(stage.apps, bundle_of("jupyter", {"image": f"{intent.location}@{image.digest}"}, own))
    install_app(stage, bundle)
    with Client(stage.url, token=stage.admin) as admin:
        for artifact in admin.iter_platform_artifacts(digest=image.digest):
            tell("its signature", f"{admin.verify_platform_artifact(artifact.id).trust}: this tenant asks for one")
    with launched(berth, "jupyter", "lab") as instance:
        enter_the_lab(berth, instance)


async def push_layout(intent: models.Publish, image: ImageLayout) -> None:
    """Push an image that lies in a directory."""

    async def send(pusher: RegistryPusher) -> None:
        for digest in image.parts:
            await pusher.blob(intent.repository, image.blob(digest).read_bytes())
        await pusher.manifest_bytes(intent.repository, image.manifest)

    await pushing(intent, send)


def enter_the_lab(berth: Berth, instance: models.Instance) -> None:
    """Refused without the token, let in with it."""
    client, project = berth.client, berth.project
    found = _endpoint(berth, instance)
    entry = Entry(client.open_endpoint(project.id, found.id).url, str(found.origin))
    without = entry.ask("/api/kernels")
    tell("without its token", f"the app answers {without.status_code}")
    secret = client.reveal_instance_secret(project.id, instance.id, "access-token")
    inside = entry.ask("/lab", {"Authorization": f"token {secret.value}"})
    tell("with its token", f"{inside.status_code}, {len(inside.content)} bytes of JupyterLab")
    if without.status_code != 403 or inside.status_code != 200:
        raise DemoFailed("the token makes no difference")


@contextmanager
def adapter(url: str, directory: Path, app: str) -> Iterator[None]:
    """An app's own adapter as a program of its own, ended at the end."""
    command = [sys.executable, "-m", f"mooring_{app}", "--url", url, "--key-file", str(directory / f"{app}.key")]
    # A demo that is killed takes its adapter along. Ctrl-C reaches the demo alone: stopping an app needs its adapter.
    keeper = shutil.which("setpriv")
    begin = [keeper, "--pdeathsig", "TERM"] if keeper else []
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
def launched(berth: Berth, app: str, name: str, topology: dict[str, int] | None = None) -> Iterator[models.Instance]:
    """An instance in capacity of its own, stopped with proof at the end, however that comes."""
    client, project = berth.client, berth.project
    where = models.Placement(sku=SKU, gpu_count=1)
    plan = client.plan_instance(project.id, app=app, name=name, placement=where, topology=topology)
    tell("the plan", f"version {plan.version.version if plan.version else 'none'}; {_hindrances(plan)}")
    asked = client.create_instance(project.id, app=app, name=name, placement=where, topology=topology)
    tell("launched", f"{asked.name} ({asked.id}), correlation {asked.correlation_id}")
    try:
        running = _instance(berth, asked.id, {"running", "failed"})
        if running.status != "running":
            raise DemoFailed(f"{name} failed: {running.failure_code} {running.failure_detail} {running.last_lines}")
        tell("running", _roles(running))
        yield running
    except BaseException:
        try:
            _stop(berth, asked.id)
        except (MooringError, DemoFailed) as also:
            tell("not stopped", f"{also}; what is left is removed when Mooring has stopped")
        raise
    _stop(berth, asked.id)


def _hindrances(plan: models.Plan) -> str:
    found = "; ".join(each.detail for each in plan.hindrances)
    return f"in the way: {found}" if found else "nothing stands in the way"


def _roles(instance: models.Instance) -> str:
    return ", ".join(f"{each.component_key} {each.healthy}/{each.desired} healthy" for each in instance.members_summary)


def read_its_page(berth: Berth, instance: models.Instance) -> None:
    """The app's page, through the platform."""
    found = _endpoint(berth, instance)
    page = visit(berth.client.open_endpoint(berth.project.id, found.id).url, str(found.origin))
    line = next((line.strip() for line in page.splitlines() if "Hello" in line), "")
    if not line:
        raise DemoFailed(f"the page does not greet: {page[:200]!r}")
    tell("its page", f"read at {found.origin}: {line}")


def _endpoint(berth: Berth, instance: models.Instance) -> models.Endpoint:
    for each in berth.client.iter_endpoints(berth.project.id):
        if each.instance_id == instance.id and each.origin is not None:
            return each
    raise DemoFailed(f"{instance.name} has no address for browsers")


def grow_and_shrink(berth: Berth, instance: models.Instance) -> None:
    """One worker, three workers, one worker."""
    client, project = berth.client, berth.project
    added = client.add_members(project.id, instance.id, component="worker", count=2)
    done(berth, instance.id, added, "two workers more")
    workers = [each for each in client.iter_members(project.id, instance.id) if each.component_key == "worker"]
    going = sorted((each for each in workers if each.status == "ready"), key=lambda each: each.ordinal)[1:]
    for each in going:
        removed = client.remove_member(project.id, instance.id, each.id)
        done(berth, instance.id, removed, f"{each.name} drained and gone")


def done(berth: Berth, instance_id: str, operation: models.Operation, what: str) -> models.Operation:
    """An operation to its good end, and how the members stand then."""
    seen = over(berth, instance_id, operation, what)
    if seen.status != "succeeded":
        raise DemoFailed(f"{what}: {seen.status}, {seen.failure_code} {seen.failure_detail} {seen.last_lines}")
    steps = ", ".join(dict.fromkeys(each.name.partition("/")[0] for each in seen.steps))
    tell(what, f"{_roles(berth.client.get_instance(berth.project.id, instance_id))}  [{steps}]")
    return seen


def over(berth: Berth, instance_id: str, operation: models.Operation, what: str) -> models.Operation:
    """An operation at its end, whichever that is."""
    deadline, seen = time.monotonic() + WAIT_SECONDS_MAX, operation
    while seen.status not in OVER:
        if time.monotonic() > deadline:
            raise DemoFailed(f"{what}: the operation is {seen.status}, {seen.blocker or 'with no blocker'}")
        seen = berth.client.get_operation(
            berth.project.id, instance_id, operation.id, wait=STEP_SECONDS, until=",".join(sorted(OVER))
        )
    return seen


def _instance(berth: Berth, instance_id: str, wanted: set[str]) -> models.Instance:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        seen = berth.client.get_instance(
            berth.project.id, instance_id, wait=STEP_SECONDS, until=",".join(sorted(wanted))
        )
        if seen.status in wanted:
            return seen
        if time.monotonic() > deadline:
            why = berth.client.explain_instance(berth.project.id, instance_id)
            raise DemoFailed(f"{seen.name} is {seen.status} after {WAIT_SECONDS_MAX:.0f} s: {why.next}")


@undisturbed()
def _stop(berth: Berth, instance_id: str) -> None:
    client, project = berth.client, berth.project
    asked = client.stop_instance(project.id, instance_id)
    stopped = _instance(berth, instance_id, {"stopped"})
    tell("stopped", f"{stopped.name}, known by {stopped.teardown_proof}")
    for each in client.iter_closing_records(project.id, instance_id):
        tell("receipt", f"{each.member_name}: {(each.receipt or {}).get('receipt_id', each.kind)}")
    evidence = client.get_operation(project.id, instance_id, asked.id).evidence or {}
    tell("GPU-seconds", str(evidence.get("gpu_seconds", "not told")))
    if stopped.teardown_proof != "receipts":
        raise DemoFailed(f"{stopped.name} is not proven gone")
