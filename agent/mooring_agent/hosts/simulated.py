"""The simulated host: sandboxes in memory, with configurable latency, failures and leftovers.

It is for tests of scale and of faults: thousands fit into one process, and a seed makes a run repeatable. Nothing runs:
a program "ends" after its latency with the exit code in its name (`exit-3` ends with 3, anything else with 0).
Everything it reports carries `simulated`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mooring_agent.hosts.contract import (
    RESOURCE_KINDS,
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
    Resource,
    RestartPolicy,
    SandboxFacts,
    SandboxSpec,
    ServiceState,
    Stray,
    TeardownReport,
)


@dataclass(frozen=True, slots=True)
class FaultProfile:
    """The latency and faults of a simulated machine."""

    latency_seconds: float = 0.0
    failure_rate: float = 0.0  # per step that can fail
    leftover_rate: float = 0.0  # per teardown: something remains
    seed: int = 0


@dataclass(slots=True)
class _Sandbox:
    spec: SandboxSpec
    files: dict[str, str] = field(default_factory=dict)  # path -> owner
    services: dict[tuple[str, str], ServiceState] = field(default_factory=dict)
    runs: dict[tuple[str, str], int] = field(default_factory=dict)
    outputs: dict[tuple[str, str], int] = field(default_factory=dict)  # per run, how many bytes to capture
    leftovers: list[Resource] = field(default_factory=list)


class SimulatedHost:
    """A machine that exists only in memory."""

    kind: HostKind = "simulated"

    def __init__(self, faults: FaultProfile | None = None) -> None:
        self._faults = faults = faults or FaultProfile()
        self._random = random.Random(faults.seed)
        self._sandboxes: dict[str, _Sandbox] = {}
        self._pids = 1_000

    async def recover(self) -> Sequence[str]:
        """The sandboxes, which a simulated machine remembers only while its process lives."""
        return sorted(self._sandboxes)

    async def create(self, spec: SandboxSpec) -> SandboxFacts:
        await self._simulate_step("create")
        self._sandboxes.setdefault(spec.allocation_id, _Sandbox(spec))
        return SandboxFacts("simulated", spec.network.address, {"memory": "simulated", "cpus": "simulated"})

    async def set_peers(self, allocation_id: str, peers: Sequence[Peer]) -> None:
        self._require_sandbox(allocation_id)

    async def write_files(self, owner: Owner, files: Sequence[FileSpec]) -> int:
        sandbox = self._require_sandbox(owner.allocation_id)
        await self._simulate_step("files")
        for file in files:
            if ".." in file.path.split("/"):
                raise HostFailure("path_refused", f"{file.path} leaves the sandbox")
            sandbox.files[file.path] = owner.name
        return len(files)

    async def run(self, owner: Owner, key: str, process: ProcessSpec, timeout_seconds: float) -> int:
        """ "Run" a program: wait for the latency, then exit with the code in its name."""
        sandbox = self._require_sandbox(owner.allocation_id)
        place = (owner.name, key)
        if place not in sandbox.runs:
            await self._simulate_step("run")
            word = process.argv[0].rpartition("/")[2]
            sandbox.runs[place] = int(word[5:]) if word.startswith("exit-") and word[5:].isdigit() else 0
            if process.output_bytes:
                sandbox.outputs[place] = process.output_bytes
        return sandbox.runs[place]

    async def find_run(self, owner: Owner, key: str) -> Literal["running", "ended", "absent"]:
        sandbox = self._sandboxes.get(owner.allocation_id)
        return "ended" if sandbox is not None and (owner.name, key) in sandbox.runs else "absent"

    async def cancel_run(self, owner: Owner, key: str) -> None:
        sandbox = self._sandboxes.get(owner.allocation_id)
        if sandbox is not None:
            sandbox.runs.pop((owner.name, key), None)
            sandbox.outputs.pop((owner.name, key), None)

    async def start_service(
        self, owner: Owner, name: str, process: ProcessSpec, restart: RestartPolicy
    ) -> ServiceState:
        sandbox = self._require_sandbox(owner.allocation_id)
        place = (owner.name, name)
        if place not in sandbox.services:
            await self._simulate_step("service")
            self._pids += 1
            sandbox.services[place] = ServiceState(name, "running", self._pids, started_at=0.0)
        return sandbox.services[place]

    async def stop_service(self, owner: Owner, name: str, kill: Literal["main", "owner"], grace_seconds: float) -> bool:
        await self._simulate_step("stop")
        return self._require_sandbox(owner.allocation_id).services.pop((owner.name, name), None) is not None

    async def inspect_service(self, owner: Owner, name: str) -> ServiceState:
        sandbox = self._sandboxes.get(owner.allocation_id)
        service = None if sandbox is None else sandbox.services.get((owner.name, name))
        return service or ServiceState(name, "absent")

    async def read_log(self, owner: Owner, key: str, offset: int) -> AsyncIterator[bytes]:
        """One line that says that it is simulated."""
        text = f"simulated output of {key}\n".encode()
        if offset < len(text):
            yield text[offset:]

    async def read_log_part(self, owner: Owner, key: str, request: LogRequest) -> LogPart | None:
        """The same line, from an offset."""
        text = f"simulated output of {key}\n".encode()
        begin = min(request.offset or 0, len(text))
        content = text[begin : begin + request.max_bytes]
        return LogPart(content, begin, begin + len(content), len(text))

    async def read_output(self, owner: Owner, key: str) -> tuple[bytes, bool] | None:
        """For a run with capture: one line of JSON that says that it is simulated."""
        limit = self._require_sandbox(owner.allocation_id).outputs.get((owner.name, key))
        if limit is None:
            return None
        text = b'{"simulated": true}\n'
        return text[:limit], len(text) > limit

    async def dial(self, allocation_id: str, port: int) -> ByteStream:
        raise HostFailure("not_found", f"nothing listens on {port} in a simulated sandbox")

    async def open_command(self, owner: Owner, process: ProcessSpec, columns: int, rows: int) -> CommandStream:
        raise HostFailure("not_found", "a simulated sandbox has no terminal")

    async def open_piped(self, owner: Owner, process: ProcessSpec) -> CommandStream:
        raise HostFailure("not_found", "a simulated sandbox cannot run a command")

    async def close_owner(self, owner: Owner) -> TeardownReport:
        sandbox = self._sandboxes.get(owner.allocation_id)
        await self._simulate_step("teardown")
        if sandbox is None:
            return self._teardown_report((), ())
        found = self._resources(sandbox, owner.name)
        sandbox.files = {path: name for path, name in sandbox.files.items() if name != owner.name}
        sandbox.services = {place: state for place, state in sandbox.services.items() if place[0] != owner.name}
        sandbox.runs = {place: code for place, code in sandbox.runs.items() if place[0] != owner.name}
        sandbox.outputs = {place: limit for place, limit in sandbox.outputs.items() if place[0] != owner.name}
        return self._teardown_report(found, self._leftovers(sandbox))

    async def destroy(self, allocation_id: str) -> TeardownReport:
        """Forget the sandbox, unless the fault profile leaves something."""
        sandbox = self._sandboxes.get(allocation_id)
        await self._simulate_step("destroy")
        if sandbox is None:
            return self._teardown_report((), ())
        found = self._resources(sandbox, None)
        remaining = self._leftovers(sandbox)
        if not remaining:
            self._sandboxes.pop(allocation_id, None)
        return self._teardown_report(found, remaining)

    async def sweep(self, known: Collection[str]) -> Sequence[Stray]:
        strays = [each for each in self._sandboxes if each not in known]
        for each in strays:
            del self._sandboxes[each]
        return [Stray(Resource("files", f"simulated sandbox {each}"), "reaped", each) for each in strays]

    async def _simulate_step(self, what: str) -> None:
        if self._faults.latency_seconds > 0:
            await asyncio.sleep(self._random.uniform(0.5, 1.5) * self._faults.latency_seconds)
        if self._random.random() < self._faults.failure_rate:
            raise HostFailure("host_error", f"simulated failure of {what}")

    def _require_sandbox(self, allocation_id: str) -> _Sandbox:
        sandbox = self._sandboxes.get(allocation_id)
        if sandbox is None:
            raise HostFailure("not_found", f"there is no simulated sandbox of {allocation_id} here")
        return sandbox

    def _leftovers(self, sandbox: _Sandbox) -> tuple[Resource, ...]:
        if self._random.random() < self._faults.leftover_rate:
            return (Resource("processes", "simulated leftover"),)
        return ()

    def _resources(self, sandbox: _Sandbox, owner: str | None) -> tuple[Resource, ...]:
        files = [Resource("files", path) for path, name in sandbox.files.items() if owner in (None, name)]
        return (*files, *(Resource("processes", name) for (who, name) in sandbox.services if owner in (None, who)))

    def _teardown_report(self, found: tuple[Resource, ...], remaining: tuple[Resource, ...]) -> TeardownReport:
        removed = tuple(resource for resource in found if resource not in remaining)
        return TeardownReport(found, removed, remaining, dict.fromkeys(RESOURCE_KINDS, len(found)))
