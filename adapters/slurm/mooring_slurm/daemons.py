"""How Slurm's programs are started: names, arguments and environments of the services of a member, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mooring_slurm.conf import Worker, worker_words
from mooring_slurm.layout import MARIADBD, MUNGED, SLURMCTLD, SLURMD, SLURMDBD, Home

CONTROLLER_SECONDS: Final = 10
BEGINS: Final = "a daemon begins"
"""A line of a worker's log before each start of its daemon: what one said is told from what the next one says."""


def with_controller(seconds: int = CONTROLLER_SECONDS) -> str:
    """For a daemon that asks its controller once, and again only after a second where nobody listens: it starts as soon
    as somebody does, or after a while all the same. Whoever looks for it by its name has to allow it that while.
    """
    return (
        f"end=$(($(date +%s) + {seconds})); "
        'until timeout 2 scontrol ping >/dev/null 2>&1 || [ "$(date +%s)" -ge "$end" ]; '
        f'do sleep 0.02; done; echo "{BEGINS}"; exec "$0" "$@"'
    )


@dataclass(frozen=True, slots=True)
class Daemon:
    """One supervised program."""

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


def munged(home: Home) -> Daemon:
    """Who asks whom: every member has its own, with the cluster's key."""
    words = {
        "key-file": home.munge_key,
        "socket": home.munge_socket,
        "pid-file": home.below("run", "munged.pid"),
        "log-file": home.below("log", "munged.log"),
        "seed-file": home.below("key", "munge.seed"),
        "num-threads": "2",
    }
    return Daemon(MUNGED, ("munged", "--foreground", *(f"--{name}={value}" for name, value in words.items())))


def slurmctld(home: Home) -> Daemon:
    """The controller."""
    return Daemon(SLURMCTLD, ("slurmctld", "-D", "-f", home.slurm_conf), _environment(home))


def slurmd(home: Home, worker: Worker, gpu_type: str) -> Daemon:
    """A worker, as a dynamic node: it tells the controller what it is."""
    words = ("-D", "-Z", "-N", worker.name, "-f", home.slurm_conf, "--conf", worker_words(worker, gpu_type))
    return Daemon(SLURMD, ("sh", "-c", with_controller(), "slurmd", *words), _environment(home))


def mariadbd(home: Home) -> Daemon:
    """The database of the accounting; the program makes it where there is none, and then becomes the server."""
    return Daemon(MARIADBD, tuple(home.argv("serve-database")))


def slurmdbd(home: Home) -> Daemon:
    """The accounting daemon; it looks for its file beside the one that `SLURM_CONF` names."""
    return Daemon(SLURMDBD, ("slurmdbd", "-D"), {**_environment(home), "MYSQL_UNIX_PORT": home.database_socket})


def _environment(home: Home) -> dict[str, str]:
    return {"SLURM_CONF": home.slurm_conf}
