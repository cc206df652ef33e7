"""Which host an agent uses."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mooring_agent.control_plane.addresses import LOOPBACK
from mooring_agent.hosts.contract import Host
from mooring_agent.hosts.namespace import NamespaceHost
from mooring_agent.hosts.namespace.sandbox_disk import DISK_BYTES
from mooring_agent.hosts.process import ProcessHost

REQUIRED_PROGRAMS: Final[Mapping[str, Mapping[str, str]]] = {
    "namespace": {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
}
"""The programs without which a host can make no sandbox, and their Debian packages."""
PROBE_SECONDS: Final = 30.0


def check_host_requirements(kind: str) -> None:
    """Say now what would else be the end of every sandbox: that this machine cannot have such a host."""
    if kind == "namespace" and os.geteuid() != 0:
        raise ValueError("the namespace host needs root; `--host process` does not, and isolates nothing")
    if missing := {
        name: package for name, package in REQUIRED_PROGRAMS.get(kind, {}).items() if shutil.which(name) is None
    }:
        raise ValueError(
            f"the {kind} host needs {', '.join(missing)}: apt-get install {' '.join(sorted(set(missing.values())))}"
        )
    if kind == "namespace":
        _try_namespaces()


def _try_namespaces() -> None:
    """Root of a container is often not allowed to make what a sandbox is made of."""
    probe = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "/bin/true"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS,
    )  # fmt: skip
    if probe.returncode != 0:
        raise ValueError(
            f"this machine lets root make no namespaces ({probe.stderr.strip()[:200]}): perhaps it is a container; "
            "`--host process` isolates nothing, and works there"
        )


def create_host(
    kind: str, directory: Path, node_id: str, *, disk_bytes: int = DISK_BYTES, address: str = LOOPBACK
) -> Host:
    """The host of this kind below the agent's state directory.

    `disk_bytes` bounds what each sandbox writes; `address` is where other machines reach this one.
    """
    if kind == "namespace":
        return NamespaceHost(directory / "host", node_id, disk_bytes=disk_bytes, address=address)
    if kind == "process":
        return ProcessHost(directory / "host", node_id)
    raise ValueError(f"there is no host {kind!r}")
