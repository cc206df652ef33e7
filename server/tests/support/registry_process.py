"""Debian's docker-registry on loopback, with a configuration of the test's own and a directory that goes with it.

The packaged configuration listens on every address and is not used. The registry takes a free port by itself and says
in its log which. It ends with the test run, however that ends. The program reads `REGISTRY_…` variables as settings,
so it gets an environment of its own.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.certificates import KeyFiles
from tests.support.waiting import until_sync
from tools.ports import LOOPBACK

PROGRAM = "docker-registry"
START_SECONDS_MAX = 120.0
LISTENING = re.compile(r"listening on ([0-9.]+:[0-9]+)")


@dataclass(frozen=True)
class RunningRegistry:
    """A registry that answers."""

    authority: str
    directory: Path

    @property
    def url(self) -> str:
        return f"http://{self.authority}"

    def file_of(self, digest: str) -> Path:
        """Where the registry keeps a blob or a manifest: for those who want to spoil it."""
        algorithm, _, encoded = digest.partition(":")
        place = self.directory / "data/docker/registry/v2/blobs" / algorithm / encoded[:2] / encoded / "data"
        assert place.is_file()
        return place


@contextmanager
def running_registry(
    directory: Path,
    auth: Mapping[str, Any] | None = None,
    port: int = 0,
    tls: KeyFiles | None = None,
    *,
    address: str = LOOPBACK,
    command_prefix: tuple[str, ...] = (),
) -> Iterator[RunningRegistry]:
    """Start a registry that keeps its data below a directory, on a port of its own choice, and end it afterwards.

    The prefix is what runs it elsewhere, such as in a network namespace.
    """
    program, keeper = shutil.which(PROGRAM), shutil.which("setpriv")
    if program is None or keeper is None:
        pytest.skip(f"{PROGRAM} is not installed; as root: apt-get install docker-registry")
    settings: dict[str, Any] = {
        "version": "0.1",
        "log": {"level": "info", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(directory / "data")}},
        "http": {"addr": f"{address}:{port}"},
    }
    if auth is not None:
        settings["auth"] = dict(auth)
    if tls is not None:
        settings["http"]["tls"] = {"certificate": str(tls.certificate), "key": str(tls.key)}
    config, log = directory / "config.yml", directory / "log"
    config.write_bytes(msgspec.json.encode(settings))  # JSON is YAML
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command_prefix, keeper, "--pdeathsig", "KILL", program, "serve", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"PATH": "/usr/bin:/bin"},
        )
    try:
        yield RunningRegistry(_address(process, log), directory)
    finally:
        process.kill()
        process.wait()


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    def said() -> str:
        return log.read_text(encoding="utf-8", errors="replace")

    until_sync(
        lambda: process.poll() is not None or LISTENING.search(said()),
        START_SECONDS_MAX,
        what=lambda: f"the start of the registry: {said()}",
    )
    found = LISTENING.search(said())
    if found is None:
        raise RuntimeError(f"the registry did not start: {said()}")
    return found[1]
