"""The paths, services and ports of a member in its sandbox.

Members of one sandbox share its files and its network, so every member has its own directory, named after it, and
members share nothing: two clusters of one project may run in one allocation. For the same reason ports are chosen by
the id of the instance.
"""

from dataclasses import dataclass
from typing import Final

ROOT: Final = "/srv/slurm"
DIRECTORIES: Final = ("bin", "etc", "key", "log", "run", "spool", "state", "database", "submits")
SHUT: Final = frozenset({"key", "database", "state"})
"""Directories that only root can enter: keys, the database, and the jobs' scripts and environments."""

MUNGED: Final = "munged"
SLURMCTLD: Final = "slurmctld"
SLURMD: Final = "slurmd"
MARIADBD: Final = "mariadbd"
SLURMDBD: Final = "slurmdbd"

FIRST_PORT: Final = 21_000
PORTS: Final = 10_000
PROGRAM_ROLE: Final = "program"
PYTHON: Final = ("python3", "-I", "-S")


@dataclass(frozen=True, slots=True)
class MemberHome:
    """The directory of one member; the member's name is also the name of its node in Slurm."""

    name: str

    @property
    def path(self) -> str:
        return f"{ROOT}/{self.name}"

    def below(self, *parts: str) -> str:
        return "/".join((self.path, *parts))

    @property
    def slurm_conf(self) -> str:
        """Its own slurm.conf; Slurm reads gres.conf and cgroup.conf beside it."""
        return self.below("etc", "slurm.conf")

    @property
    def slurmdbd_conf(self) -> str:
        """The file of slurmdbd, which always reads it beside the file that `SLURM_CONF` names."""
        return self.below("etc", "slurmdbd.conf")

    @property
    def job_over(self) -> str:
        """The script that the controller runs when an attempt of a job ends."""
        return self.below("etc", "job_over")

    @property
    def munge_key(self) -> str:
        """The cluster's key, which only root can read."""
        return self.below("key", "munge.key")

    @property
    def munge_socket(self) -> str:
        """The socket of munged, which everybody in the sandbox may use."""
        return self.below("run", "munge.socket")

    @property
    def database_socket(self) -> str:
        """The only socket of the database."""
        return self.below("run", "mariadb.socket")

    @property
    def program(self) -> str:
        """The node program of this adapter."""
        return self.below("bin", "slurm_node.pyz")

    def argv(self, *words: str) -> list[str]:
        """The command line of the node program with a verb and its options."""
        return [*PYTHON, self.program, "--home", self.path, *words]


def modes(accounting: bool, controller: bool) -> list[tuple[str, str]]:
    """The directories of a member, outermost first, with their modes."""
    wanted = [each for each in DIRECTORIES if controller or each not in ("state", "database", "submits")]
    if not accounting:
        wanted = [each for each in wanted if each != "database"]
    return [("", "0755"), *((each, _mode(each)) for each in wanted)]


def _mode(directory: str) -> str:
    return "0700" if directory in SHUT else "0755"


def controller_port(instance_id: str) -> int:
    """The port of slurmctld; slurmdbd and the workers' slurmd have the next two."""
    return FIRST_PORT + 3 * (_number(instance_id) % (PORTS // 3))


def database_port(instance_id: str) -> int:
    """The port of slurmdbd."""
    return controller_port(instance_id) + 1


def worker_port(instance_id: str) -> int:
    """The port of every worker's slurmd: for a dynamic node the controller assumes the port of its own file."""
    return controller_port(instance_id) + 2


def _number(text: str) -> int:
    number = 5_381
    for character in text:
        number = (number * 33 + ord(character)) % 4_294_967_296
    return number
