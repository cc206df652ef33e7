"""Spawning the init of a sandbox or of an owner in it, and finding it again later."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

import mooring_agent
from mooring_agent.hosts.contract import Device, HostFailure, Owner
from mooring_agent.hosts.namespace import (
    apparmor,
    io_budget,
    kernel_tables,
    namespace_processes,
    root_filesystem,
    sandbox_disk,
    visible_usr,
)
from mooring_agent.hosts.namespace.sandbox_records import UIDS, InitProcess, SandboxRecord, SandboxStore, sandbox_owner
from mooring_agent.sandbox_init.spawner import PROJECT_DESCRIPTOR
from mooring_agent.supervisor.supervisor_client import SOCKET_NAME

T = TypeVar("T")

SIMULATED_MAJOR: Final = 241  # a number for local use: no driver answers behind it
_SPAWN_SECONDS: Final = 120.0
_TRIES_MAX: Final = 5
_SHARED_DEVICES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_BOOTSTRAP: Final = (
    "import sys; sys.path.insert(0, {0!r}); from mooring_agent.sandbox_init.{1}_spawner import main; main()"
)


class NetworkHolder(NamedTuple):
    """The init that holds a project's network open; its start tells it from a later process with its number."""

    pid: int
    start: int

    @property
    def path(self) -> str:
        return f"/proc/{self.pid}/fd/{PROJECT_DESCRIPTOR}"


def ensure_sandbox_init(
    store: SandboxStore, record: SandboxRecord, io_limits: Sequence[tuple[str, str]] = ()
) -> InitProcess:
    """The init of a sandbox: the living one, or a new one, with these I/O limits for the disk that it gets.

    The member whose network is to be joined may end while the spawner starts; then another member's is used, or a new
    network is created.
    """
    owner = sandbox_owner(record.spec.allocation_id)
    for _ in range(_TRIES_MAX):
        if (found := find_living(store, owner)) is not None:
            return found
        holder = find_project_network(store, record.spec.network.name)
        plan = sandbox_plan(store, record, holder) | {"io_limits": list(io_limits)}
        try:
            return _spawn_init(store, owner, "sandbox", plan)
        except HostFailure:
            if holder is None or find_project_network(store, record.spec.network.name) == holder:
                raise
    raise HostFailure("interrupted", "the other members of the project ended while the sandbox was created")


def sandbox_plan(store: SandboxStore, record: SandboxRecord, holder: NetworkHolder | None) -> dict[str, Any]:
    """The input of the sandbox spawner; without a holder it makes a new network for the project."""
    spec = record.spec
    return {
        **_shared_plan(store, record, sandbox_owner(spec.allocation_id)),
        "root": str(store.root(spec.allocation_id)),
        "disk": _disk_plan(store, record),
        "uids": UIDS,
        "io_device": io_budget.device_of(store.state),
        "io_limits": [],
        "usr": asdict(visible_usr.find(store.added_usr)),
        "binds": root_filesystem.binds(),
        "devices": devices(spec.devices),
        "shared_memory_bytes": max(1 << 20, spec.memory_bytes // 2),
        "network": "routed" if record.is_routed else "shared" if record.shares_network else "project",
        "project_network": holder._asdict() if holder is not None else None,
        "hostname": spec.hostname,
    }


def _disk_plan(store: SandboxStore, record: SandboxRecord) -> dict[str, str] | None:
    """The sandbox's disk and the programs that mount and fill it; none if it has no disk of its own."""
    if not record.has_disk:
        return None
    image = store.disk(record.spec.allocation_id)
    return {
        "image": str(image),
        "place": str(image.with_suffix("")),
        "options": sandbox_disk.OPTIONS,
        "mount": sandbox_disk.find_program("mount"),
        "copy": sandbox_disk.find_program("cp"),
    }


def ensure_owner_init(store: SandboxStore, record: SandboxRecord, owner: Owner) -> InitProcess:
    """The init of an owner, with a supervisor at its socket: the living one, or a new one."""
    sandbox = find_living(store, sandbox_owner(owner.allocation_id))
    if sandbox is None:
        raise HostFailure("not_found", f"the sandbox of {owner.allocation_id} is not running")
    found = find_living(store, owner)
    if found is not None:
        return found
    return _spawn_init(store, owner, "owner", owner_plan(store, record, owner, sandbox))


def owner_plan(store: SandboxStore, record: SandboxRecord, owner: Owner, sandbox: InitProcess) -> dict[str, Any]:
    """The input of the owner spawner."""
    data = store.owner(owner) / "data"
    if data.exists() and data.stat().st_uid != os.geteuid():
        # Written by an init of an older agent, which was inside the sandbox: nothing in it can be trusted.
        root_filesystem.remove(data)
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        **_shared_plan(store, record, owner),
        "data": str(data),
        "sandbox_pid": sandbox.pid,
        "sandbox_start": sandbox.start,
        "socket": SOCKET_NAME,
        "label": owner.label,
        "apparmor": apparmor.load().profile,
        "reserve_bytes": store.reserve_bytes,
    }


def find_living(store: SandboxStore, owner: Owner) -> InitProcess | None:
    """The recorded init, if it is alive."""
    init = store.load_init(owner)
    return init if init is not None and namespace_processes.is_alive(init) else None


def find_project_network(store: SandboxStore, name: str) -> NetworkHolder | None:
    """Who holds a project's network namespace open; the init of each member does.

    An init that was killed no longer holds it, but exists until the last process of its sandbox is gone.
    """
    for allocation_id in store.allocations():
        record = store.load(allocation_id)
        if record is None or record.spec.network.machine or record.spec.network.name != name:
            continue
        init = find_living(store, sandbox_owner(allocation_id))
        if init is not None and os.path.exists((holder := NetworkHolder(init.pid, init.start)).path):
            return holder
    return None


def run_in_project_network(store: SandboxStore, name: str, action: Callable[[str], T], otherwise: T) -> T:
    """Run an action in a project's network; returns `otherwise` if the network is gone with its last member.

    Sandboxes end concurrently, so the member by which it is entered may end meanwhile; then another one is used.
    """
    while (holder := find_project_network(store, name)) is not None:
        try:
            return action(holder.path)
        except (FileNotFoundError, ProcessLookupError):
            if os.path.exists(holder.path):
                raise
    return otherwise


def wait_for_spawn(directory: Path) -> None:
    """If an agent that was killed left a spawn in progress here, wait until it is over."""
    try:
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def devices(wanted: tuple[Device, ...]) -> list[dict[str, Any]]:
    """The device nodes of a sandbox's GPUs; the shared nodes are added if one of them is real."""
    nodes: list[dict[str, Any]] = []
    for device in wanted:
        name = f"nvidia{device.index}"
        if device.simulated:
            nodes.append({"name": name, "source": "", "major": SIMULATED_MAJOR, "minor": device.index})
        elif os.path.exists(f"/dev/{name}"):
            nodes.append({"name": name, "source": f"/dev/{name}"})
        else:
            raise HostFailure("not_found", f"this machine has no /dev/{name}")
    if any(not device.simulated for device in wanted):
        nodes += [
            {"name": name, "source": f"/dev/{name}"} for name in _SHARED_DEVICES if os.path.exists(f"/dev/{name}")
        ]
    return nodes


def device_rules(nodes: list[dict[str, Any]]) -> tuple[str, ...]:
    """The same devices as rules of a devices control group."""
    rules = []
    for node in nodes:
        number = os.stat(node["source"]).st_rdev if node["source"] else os.makedev(node["major"], node["minor"])
        rules.append(f"c {os.major(number)}:{os.minor(number)} rwm")
    return tuple(rules)


def _shared_plan(store: SandboxStore, record: SandboxRecord, owner: Owner) -> dict[str, Any]:
    directory = store.owner(owner)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    rlimits = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": kernel_tables.open_files(record.spec.pids)}
    if not record.limits.get("pids", "").startswith("cgroup"):
        rlimits["RLIMIT_NPROC"] = record.spec.pids
    return {
        "directory": str(directory),
        "first_uid": record.first_uid,
        "cgroups": [f"{group}/cgroup.procs" for group in record.cgroups if os.path.isdir(group)],
        "rlimits": rlimits,
    }


def _spawn_init(store: SandboxStore, owner: Owner, module: str, plan: dict[str, Any]) -> InitProcess:
    directory = store.owner(owner)
    wait_for_spawn(directory)
    found = find_living(store, owner)
    if found is not None:
        return found
    (directory / "killed").unlink(missing_ok=True)
    code = _BOOTSTRAP.format(str(Path(mooring_agent.__file__).parents[1]), module)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", code],
            input=json.dumps(plan).encode(),
            capture_output=True,
            timeout=_SPAWN_SECONDS,
            check=False,
            start_new_session=True,
            env={},
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise HostFailure("host_error", f"the sandbox could not be created: {problem}") from problem
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        message = done.stderr.decode(errors="replace").strip()[-500:]
        answer = {"problem": message or f"its spawner ended with {done.returncode}"}
    if "problem" in answer:
        raise HostFailure("host_error", f"the sandbox could not be created: {answer['problem']}")
    return msgspec.convert(answer, InitProcess)
