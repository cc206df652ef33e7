"""Which tests belong to which gate, which of them run one after another, and what each folder may cost.

`tests/gates.toml` is the table; the root's `conftest.py` applies it to every collected test, and `tools/test.py` runs
one gate of it. A path in the table means the file or everything below the folder; a path with `::` means one test, with
all of its parameters. The longest path that fits a test decides.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEST = "test"
SYSTEM = "system"
FILE = Path("tests/gates.toml")
ENVIRONMENT = "MOORING_TEST_GATE"
"""The gate that a run is of; without it every test that is named runs, whatever its gate."""


@dataclass(frozen=True)
class Gate:
    """What a gate may cost on two idle cores: in minutes as a whole, in seconds of its tests by folder."""

    minutes: float
    folders: Mapping[str, float]


@dataclass(frozen=True)
class Gates:
    """The whole table."""

    gates: Mapping[str, Gate] = field(default_factory=dict)
    system: tuple[str, ...] = ()
    walks: Mapping[str, str] = field(default_factory=dict)
    both: tuple[str, ...] = ()
    in_order: tuple[str, ...] = ()
    spread: tuple[str, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reference_seconds: float = 1.0

    def of(self, nodeid: str) -> frozenset[str]:
        """The gates that a test runs in."""
        if _fits(nodeid, self.both):
            return frozenset((TEST, SYSTEM))
        if _fits(nodeid, self.walks.values()):
            return frozenset((TEST,))
        return frozenset((SYSTEM,) if _fits(nodeid, self.system) else (TEST,))

    def group_of(self, nodeid: str) -> str | None:
        """The resource that a test shares with others, which therefore run one after another."""
        fitting = {path: name for name, paths in self.groups.items() for path in paths if _covers(path, nodeid)}
        return fitting[max(fitting, key=len)] if fitting else None

    def is_in_order(self, nodeid: str) -> bool:
        """Whether the tests of its file build on one another, so that none of them can run alone."""
        return _fits(nodeid, self.in_order)

    def is_spread(self, nodeid: str) -> bool:
        """Whether the tests of its file may run on several workers at the same time."""
        return _fits(nodeid, self.spread)

    def folder_of(self, nodeid: str, gate: str) -> str:
        """The folder whose budget a test is part of."""
        known = [path for path in self.gates[gate].folders if _covers(path, nodeid)]
        return max(known, key=len, default=nodeid.partition("::")[0].rpartition("/")[0] or ".")

    def paths(self) -> list[str]:
        """Every path that the table names, for the check that each of them exists."""
        grouped = (path for paths in self.groups.values() for path in paths)
        budgets = (path for gate in self.gates.values() for path in gate.folders)
        return [
            *self.system,
            *self.walks.values(),
            *self.both,
            *self.in_order,
            *self.spread,
            *grouped,
            *budgets,
        ]

    def collected(self, gate: str) -> list[str]:
        """The arguments with which pytest reads only the files that this gate needs, where that is a gain."""
        if gate == SYSTEM:
            return sorted({path.partition("::")[0] for path in (*self.system, *self.both)})
        needed = {path.partition("::")[0] for path in (*self.walks.values(), *self.both)}
        spared = [path for path in self.system if "::" not in path and not any(_covers(path, each) for each in needed)]
        return [f"--ignore={path}" for path in spared]


def load(root: Path) -> Gates:
    """The table of a tree; a tree without one has no gates, and every test belongs to `make test`."""
    path = root / FILE
    return _read(tomllib.loads(path.read_text(encoding="utf-8"))) if path.is_file() else Gates()


def plain(nodeid: str) -> str:
    """A test's name without the group that xdist appends to it."""
    return nodeid.rpartition("@")[0] if nodeid.rfind("@") > nodeid.rfind("]") else nodeid


def _read(table: Mapping[str, Any]) -> Gates:
    return Gates(
        gates={name: Gate(table[name]["minutes"], table[name].get("folders", {})) for name in (TEST, SYSTEM)},
        system=tuple(table[SYSTEM]["paths"]),
        walks=table.get("walks", {}),
        both=tuple(table.get("both", ())),
        in_order=tuple(table.get("in_order", ())),
        spread=tuple(table.get("spread", ())),
        groups={name: tuple(paths) for name, paths in table.get("groups", {}).items()},
        reference_seconds=table["reference_seconds"],
    )


def _fits(nodeid: str, paths: Iterable[str]) -> bool:
    return any(_covers(path, nodeid) for path in paths)


def _covers(path: str, nodeid: str) -> bool:
    if not nodeid.startswith(path):
        return False
    following = nodeid[len(path) :]
    return not following or following[0] in ("[" if "::" in path else "/:")
