"""A full platform for tests of apps: Mooring with a registry, machines with real agents, and the workload adapter.

Everything goes through `mooring …`, as users do it: the platform's admin installs an app, a tenant's admin entitles a
project, and a member of the project launches, uses and stops it.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from mooring.gateways.registry.registry_push import RegistryPusher
from mooring_workload.bundle import bundle_of, key_at, write_bundle
from mooring_workload.image import ImageLayout
from tests.e2e.agent_platform import AgentMachine
from tests.e2e.leftovers import eventually
from tests.e2e.registry_platform import RegistryPlatform, running_registry_platform

SKU = "slice"
OVER = ("succeeded", "failed", "cancelled")
GPUS = 8


@dataclass
class FullPlatform:
    """The platform with a registry, its machines and its adapter."""

    platform: RegistryPlatform
    directory: Path
    machines: list[AgentMachine] = field(default_factory=list)
    adapter: "subprocess.Popen[bytes] | None" = None
    installed: dict[str, set[str]] = field(default_factory=dict)  # the versions of each app

    @property
    def apps(self) -> Path:
        """The directory below which the platform reads `file:` sources."""
        return self.directory / "apps"

    def join(self, host: str) -> AgentMachine:
        """Enrol a machine with this host, in a region of the same name."""
        place = self.directory / f"machine-{len(self.machines)}"
        token = self.platform.did("nodes", "enrolment-tokens", "create", "--region", host, context="platform")["token"]
        machine = AgentMachine.joined(place, host, GPUS, url=self.platform.mooring.url, token=token)
        self.machines.append(machine)
        return machine

    def offer(self, hosts: list[str]) -> None:
        """Create a SKU of the simulated GPUs of every machine."""
        regions = [word for host in hosts for word in ("--region", host)]
        self.platform.did(
            "skus",
            "create",
            "--slug",
            SKU,
            "--display-name",
            "Simulated",
            "--shape",
            "gpu_slice",
            "--gpu-model",
            "simulated",
            *regions,
            "--allowed-gpu-counts",
            "[1, 2]",
            "--price-minor-per-gpu-hour",
            "0",
            "--currency",
            "EUR",
            context="platform",
        )

    def start_adapter(self) -> None:
        """Start the workload adapter with its key."""
        command = [
            sys.executable,
            "-m",
            "mooring_workload",
            "--url",
            self.platform.mooring.url,
            "--key-file",
            str(self.directory / "adapter.key"),
        ]
        with (self.directory / "adapter.log").open("ab") as log:
            self.adapter = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def stop_adapter(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.adapter is not None:
            self.adapter.send_signal(number)
            self.adapter.wait(timeout=120)
            self.adapter = None

    def pushed(self, app: str, image: ImageLayout) -> str:
        """Push an image to the platform's registry; its location with the digest."""
        intent = self.platform.did("artifacts", "publish", "--name", app, "--platform", context="platform")

        async def send(pusher: RegistryPusher) -> None:
            for digest in image.parts:
                await pusher.blob(intent["repository"], image.blob(digest).read_bytes())
            await pusher.manifest_bytes(intent["repository"], image.manifest)

        asyncio.run(self.platform._pushing(intent["registry_token"], send))
        return f"{intent['location']}@{image.digest}"

    def install(self, app: str, images: dict[str, str] | None = None, version: str | None = None) -> None:
        """Install an app into the platform's catalog and entitle the project, once for each version."""
        key = key_at(self.directory / "adapter.key")
        self.install_bundle(bundle_of(app, images or {}, key, version))

    def install_bundle(self, bundle: dict[str, Any]) -> None:
        """Install a bundle that a test has made."""
        app, version = bundle["manifest"]["app"], bundle["manifest"]["version"]
        if version in self.installed.get(app, ()):
            return
        file = write_bundle(self.apps, bundle)
        self.platform.did("install", str(file), context="platform")
        self.platform.did("install", str(file), "--project", self.platform.project_id)
        if app not in self.installed:
            # An adapter polls for new accounts; one that has just started has them at once.
            self.stop_adapter()
            self.start_adapter()
        self.installed.setdefault(app, set()).add(version)

    def launch(self, app: str, name: str, *words: str) -> dict[str, Any]:
        """Launch an instance and wait until it runs; a failure prints the logs of all parts."""
        wanted = (
            "--name",
            name,
            "--sku",
            SKU,
            "--gpu-count",
            "1",
            "--project",
            self.platform.project_id,
            "--wait",
            *words,
        )
        ran = self.platform.run("instances", "launch", app, *wanted)
        assert ran.exit_code == 0, f"{ran.out[-3000:]}\n{ran.err[-2000:]}\n{self.said()}"
        found: dict[str, Any] = self.platform.did("instances", "get", name, "--project", self.platform.project_id)
        assert found["status"] == "running", found
        return found

    @property
    def project(self) -> tuple[str, str]:
        return "--project", self.platform.project_id

    def members(self, name: str) -> list[dict[str, Any]]:
        """The members that are not removed, by ordinal."""
        listed = self.platform.did("instances", "members", "list", name, *self.project)
        return sorted((each for each in listed if each["status"] != "removed"), key=lambda each: int(each["ordinal"]))

    def changed(self, name: str, *words: str) -> dict[str, Any]:
        """Start an operation on an instance and wait until it has succeeded."""
        return self.over(name, self.platform.did("instances", *words, *self.project)["id"])

    def over(self, name: str, operation_id: str) -> dict[str, Any]:
        """Wait until an operation has succeeded."""
        words = ("operations", "get", name, operation_id, "--wait", "60", "--until", ",".join(OVER), *self.project)
        found: dict[str, Any] = eventually(
            lambda: self.platform.did("instances", *words), lambda seen: seen["status"] in OVER, self.said
        )
        assert found["status"] == "succeeded", f"{found}\n{self.said()}"
        return found

    def written(self, name: str) -> dict[str, Any]:
        """Wait for the first output of an instance with one member."""
        read: dict[str, Any] = eventually(
            lambda: self.platform.did("logs", name, "--offset", "0", *self.project),
            lambda seen: seen["text"],
            self.said,
        )
        return read

    def stopped(self, name: str) -> list[dict[str, Any]]:
        """Stop an instance; the teardown proof of each member."""
        ran = self.platform.run("instances", "stop", name, "--project", self.platform.project_id, "--wait", "--yes")
        assert ran.exit_code == 0, f"{ran.out[-3000:]}\n{ran.err[-2000:]}\n{self.said()}"
        lines = [json.loads(line) for line in ran.out.splitlines()]
        return [each for each in lines if each.get("kind") == "proof" or "receipt_id" in each]

    def receipt(self, receipt_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.platform.did("receipts", "get", receipt_id, "--project", self.platform.project_id)
        return found

    def entered(self, name: str) -> "EndpointVisitor":
        """A browser session that has followed a link to the endpoint of this name."""
        listed = self.platform.did("endpoints", "list", "--project", self.platform.project_id)
        (found,) = (each for each in listed if each["name"] == name)
        link = self.platform.did("endpoints", "open", found["id"], "--project", self.platform.project_id)["url"]
        visitor = EndpointVisitor(f"http://127.0.0.1:{self.platform.mooring.relay_port}", found["origin"].split("/")[2])
        visitor.cookie = visitor.ask("GET", "/" + link.split("/", 3)[3]).headers["set-cookie"].partition(";")[0]
        return visitor

    def said(self) -> str:
        """The last log lines of the adapter and the agents."""
        adapters = [each.read_text(errors="replace")[-4000:] for each in sorted(self.directory.glob("*.log"))]
        return "\n".join([*adapters, *(each.said()[-2000:] for each in self.machines)])


@dataclass
class EndpointVisitor:
    """A minimal browser: it keeps one cookie and sends the endpoint's host name."""

    relay: str
    host: str
    cookie: str = ""

    def ask(self, method: str, path: str, content: bytes = b"", **headers: str) -> httpx.Response:
        """Send a request with the endpoint's host name."""
        sent = {"Host": self.host, **headers}
        if self.cookie:
            sent["Cookie"] = self.cookie
        return httpx.request(method, self.relay + path, headers=sent, content=content, timeout=120)


@contextmanager
def running_full_platform(directory: Path, hosts: list[str], **settings: str) -> Iterator[FullPlatform]:
    """Start a full platform with one machine of each of these hosts."""
    apps = directory / "apps"
    apps.mkdir()
    with running_registry_platform(directory, MOORING_SOURCE_FILE_DIRECTORY=str(apps), **settings) as platform:
        platform.is_quick = True
        made = FullPlatform(platform, directory)
        try:
            platform.settle("harbour")
            for host in hosts:
                made.join(host)
            made.offer(hosts)
            yield made
        finally:
            made.stop_adapter()
            for machine in made.machines:
                machine.stop(signal.SIGKILL)
                machine.clear()
