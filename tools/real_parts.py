"""The real parts of the outside world that tests drive, and how they come onto the machine.

As root on Debian or Ubuntu every real part must be tested, so `make test` has the packages installed before the tests
run; elsewhere nothing is installed and the tests skip with the reason. A run of some tests only has only what those
need.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.debian_packages import PackagesMissing, install

ROOT = Path(__file__).resolve().parent.parent
VALUED = ("-k", "-m", "-n", "-p", "-c", "-o", "-W", "-r")
"""pytest's options whose value is the next word."""


@dataclass(frozen=True)
class RealPart:
    """A part: the tests that drive it, and the Debian packages that it is in."""

    name: str
    tests: str
    packages: tuple[str, ...]


CONTAINERS = ("podman", "netavark", "runc", "conmon", "catatonit", "uidmap", "busybox-static", "docker-registry")
LANGUAGES = ("nodejs", "golang-go", "curl", "jq", "openssl")
SLURM = (
    "slurmctld", "slurmd", "slurm-client", "munge", "slurmdbd", "mariadb-server-core", "mariadb-client-core",
)  # fmt: skip
PARTS = (
    RealPart("registry", "server/tests/gateways/registry", ("docker-registry",)),
    RealPart("containers", "agent/tests/containers", CONTAINERS),
    RealPart("browser", "tests/e2e/browser", ("chromium",)),
    RealPart(
        "namespaces",
        "agent/tests/hosts/namespace",
        ("iproute2", "nftables", "util-linux", "gcc", "libc6-dev", "apparmor"),
    ),
    RealPart("the shell", "adapters/echo/tests", ("curl", "jq", "openssl")),
    RealPart("languages of adapters", "adapters/kit/tests", LANGUAGES),
    RealPart("new adapters", "tests/e2e", LANGUAGES),
    RealPart("the catalog's registry", "tests/e2e", ("docker-registry",)),
    RealPart("apps", "tests/e2e", CONTAINERS),
    RealPart("a second book-keeper", "cli/tests", ("beancount",)),
    RealPart("slurm", "adapters/slurm/tests", SLURM),
    RealPart("a cluster", "tests/e2e", (*SLURM, "nftables")),
    RealPart("cloud-init", "adapters/workload/tests", ()),  # its tests unpack Debian's packages, and install nothing
)


def named_paths(arguments: Sequence[str], root: Path) -> list[Path]:
    """The files and folders that the arguments of a run name; the word behind `-k` or `-n` is not one of them."""
    words = zip(arguments, ("", *arguments), strict=False)
    named = [word.partition("::")[0] for word, before in words if word[:1] != "-" and before not in VALUED]
    return [path for path in (root / word for word in named) if path.exists()]


def chosen(arguments: Sequence[str], parts: Sequence[RealPart] = PARTS) -> list[RealPart]:
    """The parts that a run of pytest with these arguments may drive."""
    paths = [path.resolve() for path in named_paths(arguments, ROOT)]
    if not paths:
        return list(parts)
    return [part for part in parts if any(_touches(path, (ROOT / part.tests).resolve()) for path in paths)]


def prepare(arguments: Sequence[str], have: Callable[[Sequence[str]], None] = install) -> None:
    """Have the packages of the parts that are about to be tested; what cannot be had is said, and its tests skip."""
    packages = list(dict.fromkeys(package for part in chosen(arguments) for package in part.packages))
    try:
        have(packages)
    except PackagesMissing as error:
        print(error, file=sys.stderr)


def _touches(path: Path, tests: Path) -> bool:
    return path.is_relative_to(tests) or tests.is_relative_to(path)
