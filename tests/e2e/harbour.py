"""A harbour for tests of apps: a Mooring with a registry, machines with real agents, and the workload adapter.

Everything is asked for by `mooring …`, as a person does: the platform's admin installs an app, a tenant's admin lets a
project launch it, and somebody of the project launches, uses and stops it.
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
from tests.e2e.cloud import Machine
from tests.e2e.traces import eventually
from tests.e2e.workshop import Workshop, workshop

SKU = "slice"
OVER = ("succeeded", "failed", "cancelled")
GPUS = 8


@dataclass
class Harbour:
    """The workshop, its machines and its adapter."""

    shop: Workshop
    directory: Path
    machines: list[Machine] = field(default_factory=list)
    adapter: "subprocess.Popen[bytes] | None" = None
    installed: dict[str, set[str]] = field(default_factory=dict)  # the versions of each app

    @property
    def apps(self) -> Path:
        """What the platform reads `file:` places below."""
        return self.directory / "apps"

    def join(self, host: str) -> Machine:
        """A machine of this host, in a region of that name."""
        place = self.directory / f"machine-{len(self.machines)}"
        token = self.shop.did("nodes", "enrolment-tokens", "create", "--region", host, context="platform")["token"]
        machine = Machine.joined(place, (self.shop.mooring.url, token), host, GPUS)
        self.machines.append(machine)
        return machine

    def offer(self, hosts: list[str]) -> None:
        """Simulated GPUs of every machine."""
        regions = [word for host in hosts for word in ("--region", host)]
        self.shop.did(
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
        """The workload adapter, with its key."""
        command = [
            sys.executable,
            "-m",
            "mooring_workload",
            "--url",
            self.shop.mooring.url,
            "--key-file",
            str(self.directory / "adapter.key"),
        ]
        with (self.directory / "adapter.log").open("ab") as log:
            self.adapter = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def stop_adapter(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it."""
        if self.adapter is not None:
            self.adapter.send_signal(number)
            self.adapter.wait(timeout=120)
            self.adapter = None

    def pushed(self, app: str, image: ImageLayout) -> str:
        """An image in the platform's registry: where it lies, and its digest."""
        intent = self.shop.did("artifacts", "publish", "--name", app, "--platform", context="platform")

        async def send(pusher: RegistryPusher) -> None:
            for digest in image.parts:
                await pusher.blob(intent["repository"], image.blob(digest).read_bytes())
            await pusher.manifest_bytes(intent["repository"], image.manifest)

        asyncio.run(self.shop._pushing(intent["registry_token"], send))
        return f"{intent['location']}@{image.digest}"

    def install(self, app: str, images: dict[str, str] | None = None, version: str | None = None) -> None:
        """An app into the platform's catalog, and the project may launch it; once for each version."""
        key = key_at(self.directory / "adapter.key")
        self.install_bundle(bundle_of(app, images or {}, key, version))

    def install_bundle(self, bundle: dict[str, Any]) -> None:
        """The same, of a bundle that a test has made."""
        app, version = bundle["manifest"]["app"], bundle["manifest"]["version"]
        if version in self.installed.get(app, ()):
            return
        file = write_bundle(self.apps, bundle)
        self.shop.did("install", str(file), context="platform")
        self.shop.did("install", str(file), "--project", self.shop.project_id)
        if app not in self.installed:
            # An adapter looks for new accounts now and then; one that is just started has them at once.
            self.stop_adapter()
            self.start_adapter()
        self.installed.setdefault(app, set()).add(version)

    def launch(self, app: str, name: str, *words: str) -> dict[str, Any]:
        """Launch an instance and wait until it runs; a failure prints the logs of all parts."""
        wanted = ("--name", name, "--sku", SKU, "--gpu-count", "1", "--project", self.shop.project_id, "--wait", *words)
        ran = self.shop.run("instances", "launch", app, *wanted)
        assert ran.exit_code == 0, f"{ran.out[-3000:]}\n{ran.err[-2000:]}\n{self.said()}"
        found: dict[str, Any] = self.shop.did("instances", "get", name, "--project", self.shop.project_id)
        assert found["status"] == "running", found
        return found

    @property
    def project(self) -> tuple[str, str]:
        """Where it happens."""
        return "--project", self.shop.project_id

    def members(self, name: str) -> list[dict[str, Any]]:
        """The members that are there, in order."""
        listed = self.shop.did("instances", "members", "list", name, *self.project)
        return sorted((each for each in listed if each["status"] != "removed"), key=lambda each: int(each["ordinal"]))

    def changed(self, name: str, *words: str) -> dict[str, Any]:
        """A change of an instance to its good end."""
        return self.over(name, self.shop.did("instances", *words, *self.project)["id"])

    def over(self, name: str, operation_id: str) -> dict[str, Any]:
        """An operation at its good end."""
        words = ("operations", "get", name, operation_id, "--wait", "60", "--until", ",".join(OVER), *self.project)
        found: dict[str, Any] = eventually(
            lambda: self.shop.did("instances", *words), lambda seen: seen["status"] in OVER, self.said
        )
        assert found["status"] == "succeeded", f"{found}\n{self.said()}"
        return found

    def written(self, name: str) -> dict[str, Any]:
        """What an instance of one member has written once there is something: a program's output is taken along."""
        read: dict[str, Any] = eventually(
            lambda: self.shop.did("logs", name, "--offset", "0", *self.project), lambda seen: seen["text"], self.said
        )
        return read

    def stopped(self, name: str) -> list[dict[str, Any]]:
        """Stop an instance; the proof of each member."""
        ran = self.shop.run("instances", "stop", name, "--project", self.shop.project_id, "--wait", "--yes")
        assert ran.exit_code == 0, f"{ran.out[-3000:]}\n{ran.err[-2000:]}\n{self.said()}"
        lines = [json.loads(line) for line in ran.out.splitlines()]
        return [each for each in lines if each.get("kind") == "proof" or "receipt_id" in each]

    def receipt(self, receipt_id: str) -> dict[str, Any]:
        """What a node saw when it looked."""
        found: dict[str, Any] = self.shop.did("receipts", "get", receipt_id, "--project", self.shop.project_id)
        return found

    def entered(self, name: str) -> "Visitor":
        """A browser session that has followed a link to the endpoint of this name."""
        listed = self.shop.did("endpoints", "list", "--project", self.shop.project_id)
        (found,) = (each for each in listed if each["name"] == name)
        link = self.shop.did("endpoints", "open", found["id"], "--project", self.shop.project_id)["url"]
        visitor = Visitor(f"http://127.0.0.1:{self.shop.mooring.relay_port}", found["origin"].split("/")[2])
        visitor.cookie = visitor.ask("GET", "/" + link.split("/", 3)[3]).headers["set-cookie"].partition(";")[0]
        return visitor

    def said(self) -> str:
        """What adapter and agents said last."""
        adapters = [each.read_text(errors="replace")[-4000:] for each in sorted(self.directory.glob("*.log"))]
        return "\n".join([*adapters, *(each.said()[-2000:] for each in self.machines)])


@dataclass
class Visitor:
    """As much of a browser as a test needs."""

    relay: str
    host: str
    cookie: str = ""

    def ask(self, method: str, path: str, content: bytes = b"", **headers: str) -> httpx.Response:
        """A request to the endpoint's own name."""
        sent = {"Host": self.host, **headers}
        if self.cookie:
            sent["Cookie"] = self.cookie
        return httpx.request(method, self.relay + path, headers=sent, content=content, timeout=120)


@contextmanager
def harbour(directory: Path, hosts: list[str], **settings: str) -> Iterator[Harbour]:
    """A harbour with a machine of each of these hosts."""
    apps = directory / "apps"
    apps.mkdir()
    with workshop(directory, MOORING_SOURCE_FILE_DIRECTORY=str(apps), **settings) as shop:
        shop.is_quick = True
        made = Harbour(shop, directory)
        try:
            shop.settle("harbour")
            for host in hosts:
                made.join(host)
            made.offer(hosts)
            yield made
        finally:
            made.stop_adapter()
            for machine in made.machines:
                machine.stop(signal.SIGKILL)
                machine.clear()
