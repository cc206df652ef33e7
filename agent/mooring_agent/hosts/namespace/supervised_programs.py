"""The part of the host that talks to supervisors: runs, services, commands, logs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, NoReturn

from mooring_agent.hosts.contract import (
    CommandStream,
    HostFailure,
    LogPart,
    LogRequest,
    Owner,
    ProcessSpec,
    RestartPolicy,
    ServiceState,
)
from mooring_agent.hosts.log_parts import read_service_log
from mooring_agent.hosts.namespace import init_process
from mooring_agent.hosts.namespace.sandbox_records import SandboxRecord, SandboxStore
from mooring_agent.hosts.streams import stream_of
from mooring_agent.supervisor import segmented_log
from mooring_agent.supervisor.output_capture import read_capture
from mooring_agent.supervisor.program_records import directory_of
from mooring_agent.supervisor.program_runner import is_name
from mooring_agent.supervisor.supervisor_client import (
    ProgramSpec,
    ProgramState,
    SupervisorClient,
    SupervisorGone,
    SupervisorRefusal,
)

LAST_LINES = 50


class SupervisedPrograms:
    """Requests to an owner's supervisor, which is spawned when the owner first starts something."""

    @property
    def store(self) -> SandboxStore:
        raise NotImplementedError

    def _record(self, allocation_id: str) -> SandboxRecord:
        raise NotImplementedError

    def _lock(self, allocation_id: str) -> asyncio.Lock:
        raise NotImplementedError

    async def _supervisor(self, owner: Owner) -> SupervisorClient:
        """The owner's supervisor, spawned if there is none."""
        async with self._lock(owner.allocation_id):
            record = self._record(owner.allocation_id)
            await asyncio.to_thread(init_process.ensure_owner_init, self.store, record, owner)
        return SupervisorClient(self.store.owner(owner))

    def _existing_supervisor(self, owner: Owner) -> SupervisorClient | None:
        """The owner's supervisor, if it is alive."""
        return SupervisorClient(self.store.owner(owner)) if init_process.find_living(self.store, owner) else None

    async def run(self, owner: Owner, key: str, process: ProcessSpec, timeout_seconds: float) -> int:
        """Run a program to its end under `key` and return its exit code; a known key is re-attached to."""
        try:
            client = await self._supervisor(owner)
            await client.start_run(owner.label, key, _program_spec(process), timeout_seconds)
            state = await client.wait_run(owner.label, key)
        except (SupervisorGone, SupervisorRefusal) as problem:
            _raise_host_failure(problem)
        if state.reason == "exited" and state.exit_code is not None:
            return state.exit_code
        code = {"lost": "interrupted"}.get(state.reason or "", state.reason or "host_error")
        raise HostFailure(code, f"the program was stopped: {state.reason}", state.exit_code)

    async def find_run(self, owner: Owner, key: str) -> Literal["running", "ended", "absent"]:
        """Whether a program that was started under `key` still exists."""
        client = self._existing_supervisor(owner)
        if client is None:
            return "absent"
        try:
            state = await client.find_run(owner.label, key)
        except SupervisorGone:
            return "absent"
        except SupervisorRefusal as problem:
            _raise_host_failure(problem)
        if state is None or state.reason == "lost":
            return "absent"
        return "ended" if state.state == "ended" else "running"

    async def cancel_run(self, owner: Owner, key: str) -> None:
        """Kill that program and what it started."""
        client = self._existing_supervisor(owner)
        if client is None:
            return
        try:
            remaining = await client.cancel_run(owner.label, key)
        except SupervisorGone:
            return
        except SupervisorRefusal as problem:
            _raise_host_failure(problem)
        if remaining:
            raise HostFailure("host_error", f"{len(remaining)} processes could not be killed")

    async def start_service(
        self, owner: Owner, name: str, process: ProcessSpec, restart: RestartPolicy
    ) -> ServiceState:
        """Start a supervised program, or return the state of the one with this name."""
        policy = {"policy": restart.policy, "backoff_seconds": restart.backoff_seconds, "limit": restart.limit}
        try:
            client = await self._supervisor(owner)
            state = await client.start_service(owner.label, name, _program_spec(process), policy)
        except (SupervisorGone, SupervisorRefusal) as problem:
            _raise_host_failure(problem)
        return self._service_state(owner, name, state)

    async def stop_service(self, owner: Owner, name: str, kill: Literal["main", "owner"], grace_seconds: float) -> bool:
        """Stop the main process, or everything that the owner runs; returns whether it was running."""
        client = self._existing_supervisor(owner)
        if client is None:
            return False
        try:
            if kill == "main":
                return await client.stop_service(owner.label, name, grace_seconds)
            ran, remaining = await client.kill(owner.label, grace_seconds)
        except (SupervisorGone, SupervisorRefusal) as problem:
            _raise_host_failure(problem)
        if remaining:
            raise HostFailure("host_error", f"{len(remaining)} processes could not be killed")
        return name in ran

    async def inspect_service(self, owner: Owner, name: str) -> ServiceState:
        client = self._existing_supervisor(owner)
        if client is None:
            return ServiceState(name, "absent")
        try:
            state = await client.inspect(owner.label, name)
        except SupervisorGone:
            return ServiceState(name, "absent")
        except SupervisorRefusal as problem:
            _raise_host_failure(problem)
        return self._service_state(owner, name, state)

    async def read_log(self, owner: Owner, key: str, offset: int) -> AsyncIterator[bytes]:
        """The output of a run or service, from an offset to its current end."""
        pieces = segmented_log.read_log(str(self._log_directory(owner, key)), offset)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    async def read_log_part(self, owner: Owner, key: str, request: LogRequest) -> LogPart | None:
        """A bounded part of a log; none if there is no log with this key."""
        return await asyncio.to_thread(read_service_log, str(self._log_directory(owner, key)), request)

    async def read_output(self, owner: Owner, key: str) -> tuple[bytes, bool] | None:
        """The captured standard output of a run."""
        return await asyncio.to_thread(read_capture, str(self._log_directory(owner, key)))

    async def open_command(self, owner: Owner, process: ProcessSpec, columns: int, rows: int) -> CommandStream:
        """Start an interactive command with a terminal of this size."""
        try:
            client = await self._supervisor(owner)
            return stream_of(await client.open_command(owner.label, _program_spec(process), columns, rows))
        except (SupervisorGone, SupervisorRefusal) as problem:
            _raise_host_failure(problem)

    async def open_piped(self, owner: Owner, process: ProcessSpec) -> CommandStream:
        """Start a command without a terminal."""
        try:
            client = await self._supervisor(owner)
            return stream_of(await client.open_piped(owner.label, _program_spec(process)))
        except (SupervisorGone, SupervisorRefusal) as problem:
            _raise_host_failure(problem)

    def _log_directory(self, owner: Owner, key: str) -> Path:
        if not is_name(key):
            raise HostFailure("path_refused", f"{key!r} is not the name of a program")
        return self.store.owner(owner) / "data" / directory_of(owner.label) / "logs" / key

    def _service_state(self, owner: Owner, name: str, state: ProgramState | None) -> ServiceState:
        if state is None or state.state == "ended":
            return ServiceState(name, "absent")
        return ServiceState(
            name=name,
            state="running" if state.state == "starting" else state.state,
            pid=state.pid,
            started_at=state.started_at,
            restarts=state.restarts,
            exit_code=state.exit_code,
            last_lines=segmented_log.last_lines(str(self._log_directory(owner, name)), LAST_LINES),
        )


def _program_spec(process: ProcessSpec) -> ProgramSpec:
    environment = dict(process.environment)
    user, directory = process.user, process.directory
    return ProgramSpec(process.argv, environment, user, directory, process.stdin, process.output_bytes)


def _raise_host_failure(problem: SupervisorGone | SupervisorRefusal) -> NoReturn:
    if isinstance(problem, SupervisorRefusal):
        raise HostFailure(problem.code, problem.detail) from problem
    raise HostFailure("interrupted", str(problem)) from problem
