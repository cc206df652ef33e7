"""A registry on loopback for the demo, and the developer's tools: build, push and sign.

The registry is Debian's docker-registry with its own configuration, on a free port, with its data in the demo's
directory. It accepts only tokens that Mooring signs. It ends with the demo.
"""

import gzip
import io
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from mooring.core.kernel.address import Reach, read_networks
from mooring.gateways.egress import EgressClient
from mooring.gateways.registry.image_manifest import OCI_CONFIG, OCI_LAYER_GZIP, OCI_MANIFEST, digest_of
from mooring.gateways.registry.registry_client import RegistryClient, RegistryPlace
from mooring.gateways.registry.registry_push import RegistryPusher
from mooring_sdk import models
from tools.debian_packages import PackagesMissing, install

PROGRAM: Final = "docker-registry"
START_SECONDS_MAX: Final = 180.0
LISTENING: Final = re.compile(r"listening on 127\.0\.0\.1:[0-9]+")
SCRIPT: Final = b"#!/bin/sh\necho hello\n"

Result = TypeVar("Result")


class RegistryFailed(Exception):
    """The registry does not start; the message says why."""


def registry_program() -> tuple[str | None, str]:
    """The path of the registry program, installed first if possible; otherwise none and the reason."""
    reason = ""
    if shutil.which(PROGRAM) is None and os.geteuid() == 0:
        try:
            install([PROGRAM])
        except PackagesMissing as error:
            reason = f"; {error}"
    found = shutil.which(PROGRAM)
    return found, "" if found else f"{PROGRAM} is not installed: as root, apt-get install {PROGRAM}{reason}"


@contextmanager
def running_registry(program: str, directory: Path, address: str, auth: dict[str, str]) -> Iterator[None]:
    """Run a registry that trusts `auth`, at this address; stopped and deleted afterwards."""
    directory.mkdir()
    bundle, config, log = directory / "bundle.pem", directory / "config.yml", directory / "log"
    bundle.write_text(auth["certificate"], encoding="utf-8")
    token = {name: auth[name] for name in ("realm", "service", "issuer")} | {"rootcertbundle": str(bundle)}
    settings = {
        "version": "0.1",
        "log": {"level": "info", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(directory / "data")}},
        "http": {"addr": address},
        "auth": {"token": token},
    }
    config.write_bytes(msgspec.json.encode(settings))  # JSON is YAML
    # If the demo is killed, its registry ends too.
    setpriv = shutil.which("setpriv")
    begin = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*begin, program, "serve", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"PATH": "/usr/bin:/bin"},
        )
    try:
        _wait_until_it_listens(process, log)
        yield
    finally:
        process.kill()
        process.wait()


def _wait_until_it_listens(process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not LISTENING.search(said := log.read_text(encoding="utf-8", errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RegistryFailed(f"the registry did not start: {said}")
        time.sleep(0.02)


@dataclass(frozen=True)
class DemoImage:
    """An image: its manifest and its blobs."""

    manifest: bytes
    blobs: tuple[bytes, ...]

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)


def small_image() -> DemoImage:
    """An image with one program in one layer, made with tar, gzip and JSON."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo("bin/hello")
        entry.size, entry.mode = len(SCRIPT), 0o755
        tar.addfile(entry, io.BytesIO(SCRIPT))
    layer = gzip.compress(packed.getvalue(), mtime=0)
    about = {
        "os": "linux",
        "architecture": "amd64",
        "config": {"Entrypoint": ["/bin/hello"]},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(packed.getvalue())]},
    }
    config = msgspec.json.encode(about)
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": OCI_CONFIG, "digest": digest_of(config), "size": len(config)},
        "layers": [{"mediaType": OCI_LAYER_GZIP, "digest": digest_of(layer), "size": len(layer)}],
    }
    return DemoImage(msgspec.json.encode(manifest), (layer, config))


@dataclass(frozen=True)
class PublishToken:
    """The token that publishing returned."""

    fixed: str

    def token(self, repository: str, actions: Sequence[str]) -> str:
        """The same for every challenge; it is valid for one repository."""
        return self.fixed


async def pushing(intent: models.Publish, send: Callable[[RegistryPusher], Awaitable[Result]]) -> Result:
    """Do something at the registry with the token of `publish`."""
    dialer = EgressClient(Reach(allowed=read_networks("127.0.0.0/8"), own_allowed=True))
    try:
        place = RegistryPlace(f"http://{intent.registry}", credentials=PublishToken(intent.registry_token))
        return await send(RegistryPusher(RegistryClient(place, dialer)))
    finally:
        await dialer.close()


async def push(intent: models.Publish, image: DemoImage) -> None:
    """Push an image, as any developer's tool would."""

    async def send(pusher: RegistryPusher) -> None:
        for content in image.blobs:
            await pusher.blob(intent.repository, content)
        await pusher.manifest_bytes(intent.repository, image.manifest)

    await pushing(intent, send)
