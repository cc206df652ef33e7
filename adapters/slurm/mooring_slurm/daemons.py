"""The command lines of Slurm's daemons: names, arguments and environments of a member's services."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mooring_slurm.config_files import WorkerResources, worker_words
from mooring_slurm.layout import MARIADBD, MUNGED, SLURMCTLD, SLURMD, SLURMDBD, MemberHome

CONTROLLER_SECONDS: Final = 10
BEGINS: Final = "a daemon begins"
"""A line in a worker's log before each start of its daemon, to separate the output of two runs."""


def with_controller(seconds: int = CONTROLLER_SECONDS) -> str:
    """A shell script that starts a daemon as soon as the controller listens, or after `seconds` in any case.

    The daemon itself would ask its controller once and retry only after a second. A check for the process by its name
    has to allow for this delay.
    """
    return (
        f"end=$(($(date +%s) + {seconds})); "
        'until timeout 2 scontrol ping >/dev/null 2>&1 || [ "$(date +%s)" -ge "$end" ]; '
        f'do sleep 0.02; done; echo "{BEGINS}"; exec "$0" "$@"'
    )


@dataclass(frozen=True, slots=True)
class DaemonSpec:
    """One supervised service."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """The arguments of `service.start`."""
        return {
            "name": self.name,
            "argv": list(self.argv),
            "environment": dict(self.environment),
            "directory": "/",
            "restart": {"policy": "on_failure", "backoff_seconds": 1, "limit": 10},
        }


def munged(home: MemberHome) -> DaemonSpec:
    """The authentication daemon: every member has its own, with the cluster's key."""
    words = {
        "key-file": home.munge_key,
        "socket": home.munge_socket,
        "pid-file": home.below("run", "munged.pid"),
        "log-file": home.below("log", "munged.log"),
        "seed-file": home.below("key", "munge.seed"),
        "num-threads": "2",
    }
    return DaemonSpec(MUNGED, ("munged", "--foreground", *(f"--{name}={value}" for name, value in words.items())))


def slurmctld(home: MemberHome) -> DaemonSpec:
    """The controller's daemon."""
    return DaemonSpec(SLURMCTLD, ("slurmctld", "-D", "-f", home.slurm_conf), _environment(home))


def slurmd(home: MemberHome, worker: WorkerResources, gpu_type: str) -> DaemonSpec:
    """A worker's daemon, as a dynamic node: it registers its resources with the controller."""
    words = ("-D", "-Z", "-N", worker.name, "-f", home.slurm_conf, "--conf", worker_words(worker, gpu_type))
    return DaemonSpec(SLURMD, ("sh", "-c", with_controller(), "slurmd", *words), _environment(home))


def mariadbd(home: MemberHome) -> DaemonSpec:
    """The accounting database; the node program creates it if it does not exist, and then becomes the server."""
    return DaemonSpec(MARIADBD, tuple(home.argv("serve-database")))


def slurmdbd(home: MemberHome) -> DaemonSpec:
    """The accounting daemon; it reads its file beside the one that `SLURM_CONF` names."""
    return DaemonSpec(SLURMDBD, ("slurmdbd", "-D"), {**_environment(home), "MYSQL_UNIX_PORT": home.database_socket})


def _environment(home: MemberHome) -> dict[str, str]:
    return {"SLURM_CONF": home.slurm_conf}
