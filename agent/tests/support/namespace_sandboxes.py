"""What tests of the namespace host share: specifications, running programs inside, and checking what is left."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from mooring_agent.hosts.contract import Device, Isolation, Network, Owner, Peer, ProcessSpec, SandboxSpec
from mooring_agent.hosts.namespace import NamespaceHost, namespace_processes, nft_tables, uid_ranges
from mooring_agent.hosts.namespace.sandbox_records import UIDS

SUBNET = "10.77.0.0/24"
TIMEOUT_SECONDS = 120.0


def spec_of(
    allocation_id: str,
    network: str = "one",
    *,
    number: int = 5,
    isolation: Isolation = "user_namespace",
    peers: Sequence[Peer] = (),
    machine_network: bool = False,
) -> SandboxSpec:
    """A sandbox with one simulated GPU; the number is used in its address and its name."""
    address = "" if machine_network else f"10.77.0.{number}"
    return SandboxSpec(
        allocation_id=allocation_id,
        tenant_id="ten_1",
        project_id="prj_1",
        hostname=f"host{number}",
        cpus=1.0,
        memory_bytes=512 * 1024 * 1024,
        pids=200,
        devices=(Device(0, simulated=True),),
        network=Network(network, address, "" if machine_network else SUBNET, machine_network),
        peers=tuple(peers),
        isolation=isolation,
    )


class Inside:
    """Runs programs of one owner and reads what they wrote."""

    def __init__(self, host: NamespaceHost, owner: Owner) -> None:
        self.host = host
        self.owner = owner
        self._count = 0

    async def run(self, *argv: str, user: str = "root", stdin: bytes = b"") -> tuple[int, str]:
        """Run a program; returns its exit code and output."""
        self._count += 1
        key = f"run-{self._count}-{hashlib.sha256(repr(argv).encode()).hexdigest()[:8]}"
        process = ProcessSpec(argv, user=user, stdin=stdin)
        code = await self.host.run(self.owner, key, process, TIMEOUT_SECONDS)
        return code, await self.log(key)

    async def python(self, source: str, *arguments: str, user: str = "root") -> str:
        """Run a Python program, which must succeed; returns its output."""
        code, text = await self.run("python3", "-I", "-S", "-", *arguments, user=user, stdin=source.encode())
        assert code == 0, text
        return text

    async def log(self, key: str) -> str:
        """The output under a key."""
        return b"".join([part async for part in self.host.read_log(self.owner, key, 0)]).decode()


def left_of(host: NamespaceHost) -> list[str]:
    """Everything that this host created and that still exists, according to the kernel's own tables."""
    store = host.store
    found = [f"directory {each}" for each in store.sandboxes.iterdir()]
    own = {first for first, holder in uid_ranges.allocated(store.registry).items() if str(store.state) in holder}
    found += [f"range {first}" for first in own]
    for each in namespace_processes.survey():
        cgroup = _read(f"/proc/{each.pid}/cgroup")
        if f"mooring-{store.label}" in cgroup or each.uid // UIDS * UIDS in own:
            found.append(f"process {each.pid} {each.name}")
        if str(store.state) in _read(f"/proc/{each.pid}/mountinfo"):
            found.append(f"mount in the view of {each.pid} {each.name}")
    for parent in set(host.machine.hierarchies.parents.values()):
        found += [f"group {each}" for each in parent.glob(f"mooring-{store.label}")]
    tables = nft_tables.list_tables(host.machine.network.namespace)
    found += [f"table {each}" for each in tables if store.label in each]
    return found


def namespaces_of(host: NamespaceHost, allocation_id: str) -> set[tuple[str, int]]:
    """The namespaces of a sandbox and of all its owners."""
    inits = [host.store.load_init(owner) for owner in host.store.owners(allocation_id)]
    own = set(namespace_processes.own_namespaces().items())
    return {item for init in inits if init is not None for item in init.namespaces.items()} - own


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def parsed(text: str) -> dict[str, str]:
    """The last line of an output, as JSON."""
    outcome: dict[str, str] = json.loads(text.strip().splitlines()[-1])
    return outcome
