"""The launcher's configuration, read into typed values.

The platform has validated the values against the manifest's schema; what a schema cannot express is validated here. The
defaults here are the ones that count: those of the manifest are for the launch form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

DEFAULT_USER: Final = "app"
FIRST_UID: Final = 1_000
NOT_A_PARTITION: Final = frozenset({"default"})
"""Names with a special meaning in Slurm."""
NOT_A_USER: Final = frozenset({"root", "daemon", "bin", "sys", "nobody", "slurm", "munge", "mysql"})


class ConfigRefused(Exception):
    """The configuration is invalid; the message tells the launcher why."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A queue of the cluster; every worker is in all partitions."""

    name: str
    default: bool = False
    max_minutes: int | None = None


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """The configuration of one cluster."""

    partitions: tuple[Partition, ...] = (Partition("main", default=True),)
    accounting: bool = False
    users: tuple[str, ...] = (DEFAULT_USER,)
    gpu_type: str = "gpu"
    cpus_per_worker: int | None = None
    memory_mib_per_worker: int | None = None

    @property
    def user(self) -> str:
        """The tenant's user, who owns jobs that name no other user."""
        return self.users[0]

    @property
    def default_partition(self) -> Partition:
        """The partition of jobs that name none."""
        return next(each for each in self.partitions if each.default)

    def uids(self) -> list[dict[str, Any]]:
        """The users with their user ids, which follow from their position and are the same on every member."""
        others = [each for each in self.users if each != DEFAULT_USER]
        numbered = [{"name": DEFAULT_USER, "uid": FIRST_UID}] if DEFAULT_USER in self.users else []
        return numbered + [{"name": name, "uid": FIRST_UID + 1 + place} for place, name in enumerate(others)]


def read_config(given: Mapping[str, Any]) -> LaunchConfig:
    """Read the configuration of an instance; raises `ConfigRefused`."""
    users = tuple(given.get("users") or (DEFAULT_USER,))
    if len(set(users)) != len(users):
        raise ConfigRefused("users: a name is given twice")
    if odd := sorted(set(users) & NOT_A_USER):
        raise ConfigRefused(f"users: {odd[0]!r} is a system user")
    return LaunchConfig(
        partitions=_partitions(given.get("partitions") or ()),
        accounting=bool(given.get("accounting", False)),
        users=users,
        gpu_type=given.get("gpu_type") or "gpu",
        cpus_per_worker=given.get("cpus_per_worker"),
        memory_mib_per_worker=given.get("memory_mib_per_worker"),
    )


def _partitions(given: Sequence[Mapping[str, Any]]) -> tuple[Partition, ...]:
    """Read the partitions; without an explicit default the first one is the default."""
    if not given:
        return LaunchConfig().partitions
    names = [each["name"] for each in given]
    if len(set(names)) != len(names):
        raise ConfigRefused("partitions: a name is given twice")
    if odd := sorted(set(names) & NOT_A_PARTITION):
        raise ConfigRefused(f"partitions: {odd[0]!r} has a special meaning in Slurm")
    chosen = [name for name, each in zip(names, given, strict=True) if each.get("default")] or names[:1]
    if len(chosen) > 1:
        raise ConfigRefused(f"partitions: {' and '.join(chosen)} cannot both be the default")
    return tuple(
        Partition(each["name"], default=each["name"] == chosen[0], max_minutes=each.get("max_minutes"))
        for each in given
    )
