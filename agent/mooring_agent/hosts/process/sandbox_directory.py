"""One sandbox on disk: its record, its root and its supervisor's directory."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mooring_agent.hosts.contract import HostFailure, Owner, SandboxSpec
from mooring_agent.supervisor.program_records import directory_of
from mooring_agent.supervisor.program_runner import is_name

SANDBOX_VARIABLE: Final = "MOORING_SANDBOX"
ROOT_VARIABLE: Final = "MOORING_ROOT"

Phase = Literal["making", "ready", "destroying"]


@dataclass(frozen=True, slots=True)
class ProcessSandboxRecord:
    """What must be known again after a crash."""

    allocation_id: str
    tenant_id: str
    project_id: str
    hostname: str
    phase: Phase
    origin: tuple[str, ...] = ()  # the namespaces and control groups of the agent that started the supervisor


@dataclass(frozen=True, slots=True)
class SandboxDirectory:
    """The paths of a sandbox, and how its processes are marked."""

    directory: Path
    node_id: str

    @property
    def allocation_id(self) -> str:
        """The name of the directory."""
        return self.directory.name

    @property
    def root(self) -> Path:
        """The directory that the tenant's paths are relative to."""
        return self.directory / "root"

    @property
    def supervisor(self) -> Path:
        """The supervisor's socket, records and logs."""
        return self.directory / "supervisor"

    @property
    def mark(self) -> str:
        """Identifies its processes by their environment, and its supervisors by their title."""
        return f"{self.node_id}/{self.allocation_id}"

    @property
    def title(self) -> str:
        return f"mooring-init {self.mark}"

    def owner_directory(self, label: str) -> Path:
        """The records and logs of one owner."""
        return self.supervisor / directory_of(label)

    def log(self, owner: Owner, key: str) -> str:
        """The directory of one program's output."""
        if not is_name(key):
            raise HostFailure("path_refused", "not the key of a run nor the name of a service")
        return str(self.owner_directory(owner.label) / "logs" / key)

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """A program's environment: the sandbox's variables, overridden by the requested ones."""
        place = {"HOME": str(self.root), "TMPDIR": str(self.root / "tmp"), ROOT_VARIABLE: str(self.root)}
        return {**place, **given}

    def read(self) -> ProcessSandboxRecord | None:
        """The record, if the creation was begun."""
        try:
            fields = json.loads((self.directory / "record.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return ProcessSandboxRecord(**{**fields, "origin": tuple(fields["origin"])})

    def begin(self, spec: SandboxSpec) -> ProcessSandboxRecord:
        """Record that the sandbox is being created, before anything else of it exists."""
        record = ProcessSandboxRecord(spec.allocation_id, spec.tenant_id, spec.project_id, spec.hostname, "making")
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.write(record)
        return record

    def make_directories(self) -> None:
        for directory in (self.root, self.root / "tmp", self.supervisor):
            directory.mkdir(mode=0o700, exist_ok=True)

    def write(self, record: ProcessSandboxRecord) -> None:
        replace_json(self.directory / "record.json", asdict(record))


def replace_json(path: Path, content: Any) -> None:
    """Replace a JSON file atomically and durably."""
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
