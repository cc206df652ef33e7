"""Where things lie in a sandbox, what services are called, and which ports they have.

Members of one sandbox share its files and its network, so every member has a directory of its own, named after it, and
nothing is shared between members: two clusters of one project may stand in one allocation. Ports are chosen by the id
of the instance, for the same reason.
"""

from dataclasses import dataclass
from typing import Final

ROOT: Final = "/srv/slurm"
DIRECTORIES: Final = ("bin", "etc", "key", "log", "run", "spool", "state", "database", "submits")
SHUT: Final = frozenset({"key", "database", "state"})
"""Directories that only root enters: keys, the database, and the jobs' scripts and environments."""

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
    """The directory of one member; the name of a member is the name of its node in Slurm."""

    name: str

    @property
    def path(self) -> str:
        """The directory itself."""
        return f"{ROOT}/{self.name}"

    def below(self, *parts: str) -> str:
        """A path in it."""
        return "/".join((self.path, *parts))

    @property
    def slurm_conf(self) -> str:
        """Its own slurm.conf; gres.conf and cgroup.conf are looked for beside it."""
        return self.below("etc", "slurm.conf")

    @property
    def slurmdbd_conf(self) -> str:
        """What slurmdbd reads, without a path of its own to say: it takes `SLURM_CONF`'s directory."""
        return self.below("etc", "slurmdbd.conf")

    @property
    def job_over(self) -> str:
        """What the controller runs when an attempt of a job ends."""
        return self.below("etc", "job_over")

    @property
    def munge_key(self) -> str:
        """The cluster's key, which only root reads."""
        return self.below("key", "munge.key")

    @property
    def munge_socket(self) -> str:
        """Where munged is asked; everybody in the sandbox may."""
        return self.below("run", "munge.socket")

    @property
    def database_socket(self) -> str:
        """Where the database is asked; it listens nowhere else."""
        return self.below("run", "mariadb.socket")

    @property
    def program(self) -> str:
        """The program of this adapter on the node."""
        return self.below("bin", "slurm_node.pyz")

    def argv(self, *words: str) -> list[str]:
        """The program with a verb and its options."""
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
    """Where slurmctld listens; slurmdbd and the workers' slurmd have the two next ones."""
    return FIRST_PORT + 3 * (_number(instance_id) % (PORTS // 3))


def database_port(instance_id: str) -> int:
    """Where slurmdbd listens."""
    return controller_port(instance_id) + 1


def worker_port(instance_id: str) -> int:
    """Where every worker's slurmd listens: of a dynamic node the controller assumes its own file's port."""
    return controller_port(instance_id) + 2


def _number(text: str) -> int:
    number = 5_381
    for character in text:
        number = (number * 33 + ord(character)) % 4_294_967_296
    return number
