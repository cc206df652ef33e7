"""What a launcher filled in, read into typed values.

The platform has checked the values against the manifest's schema; what a schema cannot say is said here, as a refusal
with a sentence. What was not filled in has its default here: the manifest's are for whoever fills in the form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

DEFAULT_USER: Final = "app"
FIRST_UID: Final = 1_000
NOT_A_PARTITION: Final = frozenset({"default"})
"""Names that mean something else to Slurm."""
NOT_A_USER: Final = frozenset({"root", "daemon", "bin", "sys", "nobody", "slurm", "munge", "mysql"})


class ConfigRefused(Exception):
    """The configuration cannot be run; the message says why, for whoever filled it in."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A queue of the cluster: every worker is in each of them."""

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
        """The tenant's user: jobs are his where nobody else is named."""
        return self.users[0]

    @property
    def default_partition(self) -> Partition:
        """Where a job goes that names none."""
        return next(each for each in self.partitions if each.default)

    def uids(self) -> list[dict[str, Any]]:
        """The users with their numbers, which are the same on every member: by their place in the list."""
        others = [each for each in self.users if each != DEFAULT_USER]
        numbered = [{"name": DEFAULT_USER, "uid": FIRST_UID}] if DEFAULT_USER in self.users else []
        return numbered + [{"name": name, "uid": FIRST_UID + 1 + place} for place, name in enumerate(others)]


def read_config(given: Mapping[str, Any]) -> LaunchConfig:
    """The configuration of an instance, or `ConfigRefused`."""
    users = tuple(given.get("users") or (DEFAULT_USER,))
    if len(set(users)) != len(users):
        raise ConfigRefused("users: a name stands twice")
    if odd := sorted(set(users) & NOT_A_USER):
        raise ConfigRefused(f"users: {odd[0]!r} is a name of the system")
    return LaunchConfig(
        partitions=_partitions(given.get("partitions") or ()),
        accounting=bool(given.get("accounting", False)),
        users=users,
        gpu_type=given.get("gpu_type") or "gpu",
        cpus_per_worker=given.get("cpus_per_worker"),
        memory_mib_per_worker=given.get("memory_mib_per_worker"),
    )


def _partitions(given: Sequence[Mapping[str, Any]]) -> tuple[Partition, ...]:
    """The partitions; without a default one, the first is it."""
    if not given:
        return LaunchConfig().partitions
    names = [each["name"] for each in given]
    if len(set(names)) != len(names):
        raise ConfigRefused("partitions: a name stands twice")
    if odd := sorted(set(names) & NOT_A_PARTITION):
        raise ConfigRefused(f"partitions: {odd[0]!r} means something else to Slurm")
    chosen = [name for name, each in zip(names, given, strict=True) if each.get("default")] or names[:1]
    if len(chosen) > 1:
        raise ConfigRefused(f"partitions: {' and '.join(chosen)} cannot both be the default")
    return tuple(
        Partition(each["name"], default=each["name"] == chosen[0], max_minutes=each.get("max_minutes"))
        for each in given
    )
