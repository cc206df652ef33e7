"""Choosing the host of an agent, and checking that the machine supports it."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mooring_agent.control_plane.addresses import LOOPBACK
from mooring_agent.hosts.contract import Host
from mooring_agent.hosts.namespace import NamespaceHost
from mooring_agent.hosts.namespace.io_budget import IoBudget
from mooring_agent.hosts.namespace.machine_network import MachineNetwork
from mooring_agent.hosts.namespace.sandbox_disk import DISK_BYTES
from mooring_agent.hosts.process import ProcessHost
from mooring_agent.sandbox_init.spawner import INIT_PROGRAM
from mooring_agent.supervisor.log_room import RESERVE_BYTES

REQUIRED_PROGRAMS: Final[Mapping[str, Mapping[str, str]]] = {
    "namespace": {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
}
"""The programs that each host needs, and their Debian packages."""
PROBE_SECONDS: Final = 30.0


def check_host_requirements(kind: str) -> None:
    """Raise now, with a remedy, if this machine cannot run the host; otherwise every sandbox would fail."""
    if kind == "namespace" and os.geteuid() != 0:
        raise ValueError("the namespace host needs root; `--host process` does not, but isolates nothing")
    if missing := {
        name: package for name, package in REQUIRED_PROGRAMS.get(kind, {}).items() if shutil.which(name) is None
    }:
        raise ValueError(
            f"the {kind} host needs {', '.join(missing)}: apt-get install {' '.join(sorted(set(missing.values())))}"
        )
    if kind == "namespace":
        if not INIT_PROGRAM.exists():
            raise ValueError(
                f"the namespace host needs {INIT_PROGRAM.name}, which this installation lacks: in a clone run "
                "`apt-get install gcc libc6-dev` and `make set-up`; otherwise install a wheel built for this machine"
            )
        _try_namespaces()


def _try_namespaces() -> None:
    """Root of a container often has no right to create namespaces."""
    probe = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "/bin/true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PROBE_SECONDS,
    )
    if probe.returncode != 0:
        raise ValueError(
            f"root cannot create namespaces on this machine ({probe.stderr.strip()[:200]}): it may be a container; "
            "`--host process` works there, but isolates nothing"
        )


def create_host(
    kind: str,
    directory: Path,
    node_id: str,
    *,
    disk_bytes: int = DISK_BYTES,
    reserve_bytes: int = RESERVE_BYTES,
    address: str = LOOPBACK,
    machine_network: MachineNetwork | None = None,
    io: IoBudget | None = None,
    added_usr: tuple[str, ...] = (),
) -> Host:
    """Create the host of this kind below the agent's state directory.

    `disk_bytes` limits what each sandbox writes, and logs leave `reserve_bytes` free; `address` is where other machines
    reach this one; `machine_network` is how a sandbox that has the whole machine reaches them; `io` is what each
    sandbox may read and write per second; `added_usr` is what sandboxes see of /usr besides the list.
    """
    if kind == "namespace":
        return NamespaceHost(
            directory / "host",
            node_id,
            disk_bytes=disk_bytes,
            reserve_bytes=reserve_bytes,
            address=address,
            machine_network=machine_network,
            io=io,
            added_usr=added_usr,
        )
    if kind == "process":
        return ProcessHost(directory / "host", node_id)
    raise ValueError(f"unknown host {kind!r}")
