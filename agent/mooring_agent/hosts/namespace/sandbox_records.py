"""The host's records of its sandboxes on disk, written before the machine is changed, so that a crash loses nothing.

Below the agent's state directory each sandbox has a directory:

* `record.json`: what was requested, what was allocated for it (uids, link, cgroups), and its status;
* `root/`: the sandbox's files, or their initial content if it has a disk of its own;
* `disk.img`: that disk; `disk/`: where it is mounted, in the sandbox's own mount namespace only;
* `owners/<label>/`: for each owner the files of its init: `init.json` (written by the spawner before the init
  continues), `control.sock`, `data/` (the supervisor's logs and results) and `files.json` (what was written for this
  owner). The allocation itself and the sandbox's own init have directories whose names begin with `_`, which no label
  does.

A directory without a record belongs to a sandbox that was never begun; it is removed.
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
from mooring_agent.kernel import hostile_files
from mooring_agent.supervisor.log_room import RESERVE_BYTES

Status = Literal["creating", "standing", "destroying"]

UIDS: Final = 65536
ALLOCATION: Final = "_allocation"  # the directory of the allocation itself as an owner
SANDBOX: Final = "_sandbox"  # the directory of the sandbox's own init
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def sandbox_owner(allocation_id: str) -> Owner:
    """The sandbox's own init, expressed as an owner."""
    return Owner(allocation_id, SANDBOX)


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    spec: SandboxSpec
    status: Status
    first_uid: int | None = None  # the first uid of its range; none if it has none yet, or is a bounded sandbox
    link: str = ""  # the project network's end of its veth pair
    cgroups: tuple[str, ...] = ()
    limits: dict[str, str] = field(default_factory=dict)
    disk: str = ""  # what limits its disk usage, or why nothing does
    has_disk: bool = False  # whether it has a disk of its own
    machine_network: str = ""  # how a whole-machine sandbox has its network; one of an older agent shares the machine's
    link_subnet: str = ""  # of the link between a routed sandbox and the machine

    @property
    def is_routed(self) -> bool:
        """Whether it has a network of its own that is routed through the machine."""
        return self.spec.network.machine and self.machine_network == "routed"

    @property
    def shares_network(self) -> bool:
        """Whether it uses the machine's own network."""
        return self.spec.network.machine and self.machine_network != "routed"


@dataclass(frozen=True, slots=True)
class InitProcess:
    """A pid 1 that was spawned, and the numbers of its namespaces."""

    pid: int
    start: int
    namespaces: dict[str, int]
    boot: str = ""
    supervisor_pid: int = 0  # the process outside that supervises this owner; none for the sandbox's own init
    supervisor_start: int = 0


# Built here, because records are read in threads (`messages.prepare_decoders`).
_RECORD: Final = msgspec.json.Decoder(SandboxRecord)
_INIT: Final = msgspec.json.Decoder(InitProcess)


@dataclass(frozen=True, slots=True)
class SandboxStore:
    """Where one agent keeps its sandboxes, and the label on everything it creates on the machine."""

    state: Path
    label: str
    registry: Path = Path("/var/lib/mooring-agent/uid-ranges")  # shared by all agents of the machine
    reserve_bytes: int = RESERVE_BYTES  # what the logs of sandboxes must leave free on the disk
    added_usr: tuple[str, ...] = ()  # what sandboxes see of the machine's /usr besides the list

    @property
    def sandboxes(self) -> Path:
        return self.state / "sandboxes"

    def sandbox(self, allocation_id: str) -> Path:
        """The directory of a sandbox; an id that could be a path is refused."""
        if not _IDENTIFIER.fullmatch(allocation_id):
            raise HostFailure("path_refused", f"{allocation_id!r} is not an allocation id")
        return self.sandboxes / allocation_id

    def root(self, allocation_id: str) -> Path:
        """The sandbox's files, as the machine sees them."""
        return self.sandbox(allocation_id) / "root"

    def disk(self, allocation_id: str) -> Path:
        """The image file of the sandbox's own disk."""
        return self.sandbox(allocation_id) / "disk.img"

    def owner(self, owner: Owner) -> Path:
        name = owner.label or ALLOCATION
        if name not in (ALLOCATION, SANDBOX) and not _LABEL.fullmatch(name):
            raise HostFailure("path_refused", f"{owner.label!r} is not an owner label")
        return self.sandbox(owner.allocation_id) / "owners" / name

    def owners(self, allocation_id: str) -> list[Owner]:
        """All owners that have a directory, including the sandbox itself."""
        try:
            names = sorted(each.name for each in (self.sandbox(allocation_id) / "owners").iterdir())
        except FileNotFoundError:
            return []
        return [Owner(allocation_id, "" if name == ALLOCATION else name) for name in names]

    def make(self) -> None:
        """Create the directories, readable by root only."""
        for directory in (self.state, self.sandboxes):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        hostile_files.make_private(self.state)
        self.registry.mkdir(mode=0o755, parents=True, exist_ok=True)

    def allocations(self) -> list[str]:
        """Every allocation that has a directory, with or without a record."""
        try:
            return sorted(each.name for each in self.sandboxes.iterdir() if _IDENTIFIER.fullmatch(each.name))
        except FileNotFoundError:
            return []

    def load(self, allocation_id: str) -> SandboxRecord | None:
        try:
            data = (self.sandbox(allocation_id) / "record.json").read_bytes()
        except FileNotFoundError:
            return None
        return _RECORD.decode(data)

    def save(self, record: SandboxRecord) -> SandboxRecord:
        """Save the record durably, before anything follows from it."""
        directory = self.sandbox(record.spec.allocation_id)
        if not directory.exists():
            directory.mkdir(mode=0o700)
            sync_directory(self.sandboxes)
        write_private(directory / "record.json", msgspec.json.encode(record))
        return record

    def load_init(self, owner: Owner) -> InitProcess | None:
        """The init that the spawner recorded for this owner."""
        try:
            data = (self.owner(owner) / "init.json").read_bytes()
        except FileNotFoundError:
            return None
        return _INIT.decode(data)

    def note_killed(self, owner: Owner, ticks: int) -> None:
        """Record when the last of an owner's processes was gone: anything that started later is not its."""
        directory = self.owner(owner)
        if directory.exists():
            write_private(directory / "killed", str(ticks).encode())

    def killed_at(self, owner: Owner) -> int | None:
        """That time, in ticks since boot."""
        try:
            return int((self.owner(owner) / "killed").read_text())
        except FileNotFoundError:
            return None

    def load_files(self, owner: Owner) -> list[str]:
        """The paths that were written for this owner, as the sandbox sees them."""
        names: dict[str, None] = {}
        with contextlib.suppress(FileNotFoundError), (self.owner(owner) / "files.json").open(encoding="utf-8") as file:
            for line in file:
                # A line that a crash truncated had no effect yet.
                with contextlib.suppress(ValueError):
                    names[str(json.loads(line))] = None
        return list(names)

    def add_files(self, owner: Owner, paths: list[str]) -> None:
        """Record the owner of these paths before they are written; appending is cheap however many there are."""
        directory = self.owner(owner)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (directory / "files.json").open("a", encoding="utf-8") as file:
            file.write("\n" + "".join(f"{json.dumps(path)}\n" for path in paths))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(directory)
