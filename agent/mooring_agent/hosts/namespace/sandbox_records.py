"""What the host knows of its sandboxes, on disk: it is written before the machine is changed, so that a crash forgets
nothing.

Below the agent's state directory each sandbox has a directory of its own:

* `record.json`: what was asked for, what was given out for it (users, link, cgroups), and how far it is;
* `root/`: the sandbox's own files, or what they begin with where it has a disk of its own;
* `disk.img`: that disk; `disk/`: where it is mounted, in the sandbox's view alone;
* `owners/<label>/`: for each owner the files of its init: `init.json` (written by the program that made it, before
  the init goes on), `control.sock`, `data/` (logs and results, the supervisor's) and `files.json` (what was written
  for this owner). The
  allocation itself and the sandbox's own init have theirs beside, named with a `_` that no label begins with.

A directory without a record is a birth that never was; it is removed.
"""

import contextlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from mooring_agent.atomic_files import sync_directory, write_private
from mooring_agent.hosts.contract import HostFailure, Owner, SandboxSpec

Status = Literal["creating", "standing", "destroying"]

UIDS: Final = 65536
ALLOCATION: Final = "_allocation"  # where the allocation itself, as an owner, has its things
SANDBOX: Final = "_sandbox"  # where the sandbox's own init has its
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def sandbox_owner(allocation_id: str) -> Owner:
    """The sandbox's own init, spelled as an owner."""
    return Owner(allocation_id, SANDBOX)


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """One sandbox, as far as it is."""

    spec: SandboxSpec
    status: Status
    first_uid: int | None = None  # of its range; none while it has none, and for a bounded sandbox
    link: str = ""  # the project network's end of its cable
    cgroups: tuple[str, ...] = ()
    limits: dict[str, str] = field(default_factory=dict)
    disk: str = ""  # what bounds its files, or why nothing does
    has_disk: bool = False  # whether they are in a file of their own


@dataclass(frozen=True, slots=True)
class InitProcess:
    """A pid 1 that was made, and the namespaces that it was made in (numbers of the kernel)."""

    pid: int
    start: int
    namespaces: dict[str, int]
    boot: str = ""


# Made here, since records are read in threads (`wire.make_ready`).
_RECORD: Final = msgspec.json.Decoder(SandboxRecord)
_INIT: Final = msgspec.json.Decoder(InitProcess)


@dataclass(frozen=True, slots=True)
class SandboxStore:
    """Where one agent keeps its sandboxes, and the name that is on everything it makes on the machine."""

    state: Path
    label: str
    registry: Path = Path("/var/lib/mooring-agent/uid-ranges")  # shared by all agents of the machine

    @property
    def sandboxes(self) -> Path:
        """One directory per allocation."""
        return self.state / "sandboxes"

    def sandbox(self, allocation_id: str) -> Path:
        """The directory of a sandbox; an id that could be a path is refused."""
        if not _IDENTIFIER.fullmatch(allocation_id):
            raise HostFailure("path_refused", f"{allocation_id!r} is no identifier of an allocation")
        return self.sandboxes / allocation_id

    def root(self, allocation_id: str) -> Path:
        """The sandbox's own files, as the machine sees them."""
        return self.sandbox(allocation_id) / "root"

    def disk(self, allocation_id: str) -> Path:
        """The disk of its own that bounds what it writes."""
        return self.sandbox(allocation_id) / "disk.img"

    def owner(self, owner: Owner) -> Path:
        """The directory of an owner's init."""
        name = owner.label or ALLOCATION
        if name not in (ALLOCATION, SANDBOX) and not _LABEL.fullmatch(name):
            raise HostFailure("path_refused", f"{owner.label!r} is no label of an owner")
        return self.sandbox(owner.allocation_id) / "owners" / name

    def owners(self, allocation_id: str) -> list[Owner]:
        """Everybody who has a directory, the sandbox itself among them."""
        try:
            names = sorted(each.name for each in (self.sandbox(allocation_id) / "owners").iterdir())
        except FileNotFoundError:
            return []
        return [Owner(allocation_id, "" if name == ALLOCATION else name) for name in names]

    def make(self) -> None:
        """The directories, readable for root alone."""
        for directory in (self.state, self.sandboxes):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.state.chmod(0o700)
        self.registry.mkdir(mode=0o755, parents=True, exist_ok=True)

    def allocations(self) -> list[str]:
        """Every allocation that has a directory, recorded or not."""
        try:
            return sorted(each.name for each in self.sandboxes.iterdir() if _IDENTIFIER.fullmatch(each.name))
        except FileNotFoundError:
            return []

    def load(self, allocation_id: str) -> SandboxRecord | None:
        """The record of a sandbox, if there is one."""
        try:
            data = (self.sandbox(allocation_id) / "record.json").read_bytes()
        except FileNotFoundError:
            return None
        return _RECORD.decode(data)

    def save(self, record: SandboxRecord) -> SandboxRecord:
        """Have it on disk before anything follows from it."""
        directory = self.sandbox(record.spec.allocation_id)
        if not directory.exists():
            directory.mkdir(mode=0o700)
            sync_directory(self.sandboxes)
        write_private(directory / "record.json", msgspec.json.encode(record))
        return record

    def load_init(self, owner: Owner) -> InitProcess | None:
        """Whom the birth of this owner's init recorded."""
        try:
            data = (self.owner(owner) / "init.json").read_bytes()
        except FileNotFoundError:
            return None
        return _INIT.decode(data)

    def note_killed(self, owner: Owner, ticks: int) -> None:
        """Remember when the last of an owner's processes was gone: what began later is somebody else's."""
        directory = self.owner(owner)
        if directory.exists():
            write_private(directory / "killed", str(ticks).encode())

    def killed_at(self, owner: Owner) -> int | None:
        """When that was, in ticks since the machine's start."""
        try:
            return int((self.owner(owner) / "killed").read_text())
        except FileNotFoundError:
            return None

    def load_files(self, owner: Owner) -> list[str]:
        """The paths, as the sandbox sees them, that were written for this owner."""
        names: dict[str, None] = {}
        with contextlib.suppress(FileNotFoundError), (self.owner(owner) / "files.json").open(encoding="utf-8") as file:
            for line in file:
                # A line that a crash cut off had no effect yet.
                with contextlib.suppress(ValueError):
                    names[str(json.loads(line))] = None
        return list(names)

    def add_files(self, owner: Owner, paths: list[str]) -> None:
        """Remember whose these are before they are written; adding is cheap however many there are."""
        directory = self.owner(owner)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (directory / "files.json").open("a", encoding="utf-8") as file:
            file.write("\n" + "".join(f"{json.dumps(path)}\n" for path in paths))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(directory)
