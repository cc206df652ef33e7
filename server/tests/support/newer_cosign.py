"""The real cosign, as an oracle: the package of a newer Debian release, unpacked below `.tools` and never installed.

The machine's own apt sources are read, those for the release that it runs are taken over with another suite's name, and
apt works in directories of its own: it fetches, and checks what it fetched by its keys as always, and the machine stays
as it is. No host is named here. Where it cannot be had (another distribution, no network, another architecture), the
tests that need it are skipped and say why.
"""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = Path("/etc/apt")
SECONDS_MAX = 90.0


class CannotHave(Exception):
    """There is no such package to be had here; the message says why."""


def newer_cosign(major: int, *suites: str) -> Path:
    """The program of the first of these suites that has this major version; the test is skipped without one."""
    reasons = []
    for suite in suites:
        try:
            program = _fetched(suite)
            found = _version(program)
        except CannotHave as error:
            reasons.append(f"{suite}: {error}")
            continue
        if found == major:
            return program
        reasons.append(f"{suite}: it has version {found}")
    pytest.skip(f"cosign {major} cannot be had ({'; '.join(reasons)})")


def sources_for(suite: str, codename: str, sources: Path = SOURCES) -> str:
    """One-line sources for another suite, from those that the machine has for its own release."""
    lines: list[str] = []
    listed = [sources / "sources.list", *sorted((sources / "sources.list.d").glob("*.list"))]
    for path in listed:
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            parts = re.fullmatch(r"\s*deb\s+(\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+.*", line)
            if parts is not None and parts[3] == codename:
                lines.append(f"deb {parts[1] or ''}{parts[2]} {suite} main")
    for path in sorted((sources / "sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
            lines += _from_stanza(stanza, suite, codename)
    return "".join(f"{line}\n" for line in dict.fromkeys(lines))


def _from_stanza(stanza: str, suite: str, codename: str) -> list[str]:
    fields: dict[str, str] = {}
    for line in stanza.splitlines():
        name, colon, value = line.partition(":")
        if colon and not line.startswith(("#", " ", "\t")):
            fields[name.strip().lower()] = value.strip()
    if "deb" not in fields.get("types", "").split() or codename not in fields.get("suites", "").split():
        return []
    signed = fields.get("signed-by", "")
    option = f"[signed-by={signed}] " if signed.startswith("/") else ""
    return [f"deb {option}{address} {suite} main" for address in fields.get("uris", "").split()]


def _codename() -> str:
    try:
        said = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError as error:
        raise CannotHave("the machine does not say what it runs") from error
    found = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', said, re.MULTILINE)
    if not re.search(r"^ID=debian$", said, re.MULTILINE) or found is None:
        raise CannotHave("the machine does not run a release of Debian")
    return found[1]


def _fetched(suite: str) -> Path:
    """The program of a suite, fetched once."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise CannotHave("there is no apt")
    kept = ROOT / ".tools" / "cosign"
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotHave(f"{kept} cannot be made") from error
    program = kept / suite / "usr" / "bin" / "cosign"
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            with tempfile.TemporaryDirectory(dir=kept) as place:
                _fetch(suite, Path(place))
                (Path(place) / "unpacked").rename(kept / suite)
    return program


def _fetch(suite: str, place: Path) -> None:
    sources = sources_for(suite, _codename())
    if not sources:
        raise CannotHave("the machine has no apt source for its own release")
    for name in ("lists/partial", "cache/archives/partial", "etc", "package"):
        (place / name).mkdir(parents=True)
    (place / "etc" / "sources.list").write_text(sources, encoding="utf-8")
    options = {
        "Dir::Etc::SourceList": f"{place}/etc/sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": f"{place}/lists",
        "Dir::Cache": f"{place}/cache",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "1",
        "Acquire::http::Timeout": "10",
        "Acquire::https::Timeout": "10",
    }
    apt = ["apt-get", "--quiet=2", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]
    _run([*apt, "update"], place)
    _run([*apt, "download", "cosign"], place / "package")
    package = next((place / "package").glob("*.deb"), None)
    if package is None:
        raise CannotHave("apt fetched nothing")
    _run(["dpkg-deb", "--extract", str(package), str(place / "unpacked")], place)
    version = _run(["dpkg-deb", "--field", str(package), "Version"], place)
    (place / "unpacked" / "version").write_text(version, encoding="utf-8")


def _run(command: list[str], directory: Path) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotHave(f"{command[0]} did not come to an end") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CannotHave(f"{command[0]} failed: {said[-1] if said else done.returncode}")
    return done.stdout


def _version(program: Path) -> int:
    """The major version, as the package says it; refused when the program does not run here."""
    try:
        done = subprocess.run([program, "version"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotHave("the program does not run on this machine") from error
    if done.returncode != 0:
        raise CannotHave("the program does not run on this machine")
    return int((program.parents[2] / "version").read_text(encoding="utf-8").partition(".")[0])
