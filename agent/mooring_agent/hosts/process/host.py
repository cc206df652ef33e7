"""The process host; the package's docstring says what it promises."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, TypeVar

from mooring_agent.control_plane.addresses import LOOPBACK
from mooring_agent.hosts.contract import (
    ByteStream,
    CommandStream,
    FileSpec,
    HostFailure,
    HostKind,
    LogPart,
    LogRequest,
    Owner,
    Peer,
    ProcessSpec,
    RestartPolicy,
    SandboxFacts,
    SandboxSpec,
    ServiceState,
    Stray,
    TeardownReport,
)
from mooring_agent.hosts.log_parts import read_service_log
from mooring_agent.hosts.process import create, destroy, dial
from mooring_agent.hosts.process.create import Creation
from mooring_agent.hosts.process.owner_files import OwnedFiles
from mooring_agent.hosts.process.sandbox_directory import SANDBOX_VARIABLE, ProcessSandboxRecord, SandboxDirectory
from mooring_agent.hosts.streams import SocketStream, stream_of
from mooring_agent.kernel import proc
from mooring_agent.supervisor import segmented_log
from mooring_agent.supervisor.launcher import ensure_supervisor
from mooring_agent.supervisor.output_capture import read_capture
from mooring_agent.supervisor.program_runner import is_name
from mooring_agent.supervisor.supervisor_client import (
    ProgramSpec,
    ProgramState,
    SupervisorClient,
    SupervisorGone,
    SupervisorRefusal,
)

LAST_LINES: Final = 50
_NOT_ENFORCED: Final = "not enforced: the process host has no control groups of its own"

Response = TypeVar("Response")


class ProcessHost:
    """Sandboxes without isolation below one directory, for one project at a time."""

    kind: HostKind = "process"

    def __init__(self, directory: Path, node_id: str) -> None:
        self._sandboxes = directory / "sandboxes"
        self._node_id = node_id
        self._create_lock = asyncio.Lock()
        self._start_lock = asyncio.Lock()
        self._locks: dict[str, asyncio.Lock] = {}
        self.create_steps = create.STEPS
        self.destroy_steps = destroy.STEPS
        self._sandboxes.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def recover(self) -> Sequence[str]:
        """After a start of the agent: find the sandboxes and restart supervisors that are gone."""
        found = []
        for sandbox, record in self._records():
            if record.phase == "ready":
                await self._ensure_supervisor(sandbox)
                found.append(sandbox.allocation_id)
        return found

    async def create(self, spec: SandboxSpec) -> SandboxFacts:
        """Create the sandbox, or return the state of an existing one."""
        sandbox = self._sandbox(spec.allocation_id)
        async with self._create_lock:
            self._check_capacity(spec)
            record = sandbox.read() or sandbox.begin(spec)
        async with self._lock(spec.allocation_id):
            work = Creation(sandbox, spec, record, self._ensure_supervisor)
            for step in self.create_steps:
                await step(work)
        limits = dict.fromkeys(("cpus", "memory", "pids"), _NOT_ENFORCED)
        return SandboxFacts("none", LOOPBACK, limits)

    async def set_peers(self, allocation_id: str, peers: Sequence[Peer]) -> None:
        """Write the names to etc/hosts below the root; programs here still use the machine's resolver."""
        await self.write_files(Owner(allocation_id), [create.hosts_file(peers)])

    async def write_files(self, owner: Owner, files: Sequence[FileSpec]) -> int:
        """Write files below the sandbox's root and record their owner; returns how many."""
        async with self._lock(owner.allocation_id):
            sandbox = self._require_sandbox(owner)
            return await asyncio.to_thread(OwnedFiles(sandbox).write, owner.label, files)

    async def run(self, owner: Owner, key: str, process: ProcessSpec, timeout_seconds: float) -> int:
        """Run a program to its end under `key` and return its exit code; a known key is re-attached to."""
        sandbox = self._require_sandbox(owner)
        client = await self._ensure_supervisor(sandbox)
        state = await _ask(client.start_run(owner.label, key, _program_spec(sandbox, process), timeout_seconds))
        if state.state != "ended":
            state = await _ask(client.wait_run(owner.label, key))
        return _exit_code(state, timeout_seconds)

    async def find_run(self, owner: Owner, key: str) -> Literal["running", "ended", "absent"]:
        """Whether a program that was started under `key` still exists."""
        client = await self._ensure_supervisor(self._require_sandbox(owner))
        state = await _ask(client.find_run(owner.label, key))
        if state is None or state.reason == "lost":
            return "absent"
        return "ended" if state.state == "ended" else "running"

    async def cancel_run(self, owner: Owner, key: str) -> None:
        """Kill that program and what it started."""
        client = await self._ensure_supervisor(self._require_sandbox(owner))
        if left := await _ask(client.cancel_run(owner.label, key)):
            raise HostFailure("host_error", f"{len(left)} processes could not be killed")

    async def start_service(
        self, owner: Owner, name: str, process: ProcessSpec, restart: RestartPolicy
    ) -> ServiceState:
        """Start a supervised program, or return the state of the one with this name."""
        sandbox = self._require_sandbox(owner)
        client = await self._ensure_supervisor(sandbox)
        policy = {"policy": restart.policy, "backoff_seconds": restart.backoff_seconds, "limit": restart.limit}
        state = await _ask(client.start_service(owner.label, name, _program_spec(sandbox, process), policy))
        return _service_state(name, state, ())

    async def stop_service(self, owner: Owner, name: str, kill: Literal["main", "owner"], grace_seconds: float) -> bool:
        """Stop the main process, or everything that the owner runs; returns whether it was running."""
        client = await self._ensure_supervisor(self._require_sandbox(owner))
        if kill == "main":
            return await _ask(client.stop_service(owner.label, name, grace_seconds))
        ran, left = await _ask(client.kill(owner.label, grace_seconds))
        if left:
            raise HostFailure("host_error", f"{len(left)} processes could not be killed")
        return name in ran

    async def inspect_service(self, owner: Owner, name: str) -> ServiceState:
        sandbox = self._require_sandbox(owner)
        client = await self._ensure_supervisor(sandbox)
        state = await _ask(client.inspect(owner.label, name))
        if state is None:
            return ServiceState(name, "absent")
        return _service_state(
            name, state, await asyncio.to_thread(segmented_log.last_lines, sandbox.log(owner, name), LAST_LINES)
        )

    async def read_log(self, owner: Owner, key: str, offset: int) -> AsyncIterator[bytes]:
        """The output of a run or service, from an offset to its current end."""
        for piece in segmented_log.read_log(self._require_sandbox(owner).log(owner, key), offset):
            yield piece
            await asyncio.sleep(0)

    async def read_log_part(self, owner: Owner, key: str, request: LogRequest) -> LogPart | None:
        """A bounded part of a log; none if there is no log with this key."""
        return await asyncio.to_thread(read_service_log, self._require_sandbox(owner).log(owner, key), request)

    async def read_output(self, owner: Owner, key: str) -> tuple[bytes, bool] | None:
        """The captured standard output of a run."""
        return await asyncio.to_thread(read_capture, self._require_sandbox(owner).log(owner, key))

    async def dial(self, allocation_id: str, port: int) -> ByteStream:
        """Connect to a port on which a process of the sandbox listens, and nowhere else."""
        scope = await destroy.scope_of(self._require_sandbox(Owner(allocation_id)), None)
        return SocketStream(await dial.dial(scope, port))

    async def open_command(self, owner: Owner, process: ProcessSpec, columns: int, rows: int) -> CommandStream:
        """Start an interactive command with a terminal of this size."""
        sandbox = self._require_sandbox(owner)
        client = await self._ensure_supervisor(sandbox)
        return stream_of(await _ask(client.open_command(owner.label, _program_spec(sandbox, process), columns, rows)))

    async def open_piped(self, owner: Owner, process: ProcessSpec) -> CommandStream:
        """Start a command without a terminal."""
        sandbox = self._require_sandbox(owner)
        client = await self._ensure_supervisor(sandbox)
        return stream_of(await _ask(client.open_piped(owner.label, _program_spec(sandbox, process))))

    async def close_owner(self, owner: Owner) -> TeardownReport:
        """Kill and remove everything of one owner, then inspect; other owners are not affected."""
        async with self._lock(owner.allocation_id):
            return await destroy.close_owner(self._require_sandbox(owner), owner.label)

    async def destroy(self, allocation_id: str) -> TeardownReport:
        """Kill and remove everything of the allocation, then inspect; nothing is found if it is already gone."""
        async with self._lock(allocation_id):
            found = await destroy.destroy(self._sandbox(allocation_id), self.destroy_steps)
        self._locks.pop(allocation_id, None)
        return found

    async def sweep(self, known: Collection[str]) -> Sequence[Stray]:
        """Compare the machine with the allocations that the platform knows; reap what is ours and unknown."""
        async with self._create_lock:
            return await destroy.sweep(self._sandboxes, self._node_id, known, self.destroy)

    def _sandbox(self, allocation_id: str) -> SandboxDirectory:
        if not is_name(allocation_id):
            raise HostFailure("path_refused", "not an allocation id")
        return SandboxDirectory(self._sandboxes / allocation_id, self._node_id)

    def _require_sandbox(self, owner: Owner) -> SandboxDirectory:
        sandbox = self._sandbox(owner.allocation_id)
        record = sandbox.read()
        if record is None or record.phase != "ready":
            raise HostFailure("not_found", f"{owner.allocation_id} has no sandbox here")
        if owner.label and not is_name(owner.label):
            raise HostFailure("path_refused", "not an owner label")
        return sandbox

    def _records(self) -> list[tuple[SandboxDirectory, ProcessSandboxRecord]]:
        sandboxes = [
            SandboxDirectory(path, self._node_id) for path in sorted(self._sandboxes.iterdir()) if is_name(path.name)
        ]
        return [(each, record) for each in sandboxes if (record := each.read()) is not None]

    def _check_capacity(self, spec: SandboxSpec) -> None:
        """Without isolation, only sandboxes of one project may exist side by side."""
        for sandbox, record in self._records():
            if record.project_id != spec.project_id:
                raise HostFailure(
                    "capacity", "the process host has no isolation and accepts only one project at a time"
                )
            if sandbox.allocation_id == spec.allocation_id and record.phase == "destroying":
                raise HostFailure("refused", f"{spec.allocation_id} is being destroyed")

    async def _ensure_supervisor(self, sandbox: SandboxDirectory) -> SupervisorClient:
        """A client of the sandbox's supervisor. Restarts a supervisor that is gone; the programs it ran are lost."""
        client = SupervisorClient(sandbox.supervisor)
        try:
            await client.status()
        except SupervisorGone:
            # One at a time: a second start would take the socket away from the first.
            async with self._start_lock:
                await self._start_supervisor(sandbox)
        except SupervisorRefusal as refusal:
            raise HostFailure("host_error", "the sandbox's supervisor does not respond") from refusal
        return client

    async def _start_supervisor(self, sandbox: SandboxDirectory) -> None:
        record = sandbox.read()
        if record is None:
            raise HostFailure("not_found", f"{sandbox.allocation_id} has no sandbox here")
        origin = proc.namespaces(os.getpid()) | proc.cgroups(os.getpid())
        sandbox.write(replace(record, origin=tuple(sorted(origin))))
        try:
            await ensure_supervisor(sandbox.supervisor, sandbox.root, sandbox.title, {SANDBOX_VARIABLE: sandbox.mark})
        except (SupervisorGone, OSError) as error:
            raise HostFailure("host_error", "the sandbox's supervisor could not be started") from error

    def _lock(self, allocation_id: str) -> asyncio.Lock:
        return self._locks.setdefault(allocation_id, asyncio.Lock())


async def _ask(request: Awaitable[Response]) -> Response:
    """A supervisor's response; its refusal becomes a host failure."""
    try:
        return await request
    except SupervisorRefusal as refusal:
        raise HostFailure(refusal.code, refusal.detail) from refusal
    except SupervisorGone as error:
        raise HostFailure("interrupted", "the sandbox's supervisor ended") from error


def _program_spec(sandbox: SandboxDirectory, process: ProcessSpec) -> ProgramSpec:
    environment = sandbox.environment(process.environment)
    user, directory = process.user, process.directory
    return ProgramSpec(process.argv, environment, user, directory, process.stdin, process.output_bytes)


def _exit_code(state: ProgramState, timeout_seconds: float) -> int:
    if state.reason == "exited" and state.exit_code is not None:
        return state.exit_code
    details = {
        "timed_out": f"it did not end within {timeout_seconds:g} seconds",
        "cancelled": "it was cancelled",
        "lost": "it is gone, and its exit code is unknown",
    }
    code = "interrupted" if state.reason == "lost" else state.reason or "host_error"
    raise HostFailure(code, details.get(state.reason or "", "it could not be started"), state.exit_code)


def _service_state(name: str, state: ProgramState, lines: tuple[str, ...]) -> ServiceState:
    service_state: Literal["running", "backing_off", "exited", "failed"]
    match state.state:
        case "running" | "starting":
            service_state = "running"
        case "backing_off":
            service_state = "backing_off"
        case "exited" | "ended":
            service_state = "exited"
        case "failed":
            service_state = "failed"
    return ServiceState(name, service_state, state.pid, state.started_at, state.restarts, state.exit_code, lines)
