"""The real cloud-init as an oracle: Debian's packages, unpacked below `.tools` and never installed.

apt fetches them and checks what it fetched, as always; nothing of the machine is changed. They run with the Python that
they were built for. Where they cannot be had (another distribution, no network), the tests that need them are skipped.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
PYTHON: Final = "/usr/bin/python3"
SECONDS_MAX: Final = 90.0
PACKAGES: Final = (
    "cloud-init",
    "python3-attr",
    "python3-certifi",
    "python3-chardet",
    "python3-configobj",
    "python3-idna",
    "python3-jinja2",
    "python3-json-pointer",
    "python3-jsonpatch",
    "python3-jsonschema",
    "python3-markupsafe",
    "python3-netifaces",
    "python3-oauthlib",
    "python3-pyrsistent",
    "python3-requests",
    "python3-serial",
    "python3-six",
    "python3-urllib3",
    "python3-yaml",
)
START: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from cloudinit.cmd.main import main; sys.exit(main())"


def schema_findings(document: Path) -> str | None:
    """The complaint of `cloud-init schema --config-file` about a document; None if there is none."""
    packages = _unpacked() / "usr" / "lib" / "python3" / "dist-packages"
    words = [PYTHON, "-I", "-c", START, str(packages), "schema", "--config-file", str(document)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    said = (done.stdout + done.stderr).strip()
    if done.returncode == 0:
        assert said.startswith("Valid cloud-config"), said
        return None
    assert "schema errors" in said or "Invalid" in said or "Cloud config" in said, said
    return said


def _unpacked() -> Path:
    """The unpacked packages, fetched once."""
    for program in ("apt-get", "dpkg-deb", PYTHON):
        if shutil.which(program) is None:
            pytest.skip(f"cloud-init cannot be had: there is no {program}")
    kept = ROOT / ".tools" / "cloud-init"
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (kept / "root").is_dir():
            with tempfile.TemporaryDirectory(dir=kept) as place:
                _fetch(Path(place))
                (Path(place) / "root").rename(kept / "root")
    return kept / "root"


def _fetch(place: Path) -> None:
    for name in ("lists/partial", "cache/archives/partial", "packages"):
        (place / name).mkdir(parents=True)
    own = {"Dir::Cache": f"{place}/cache", "APT::Sandbox::User": "", "Acquire::Retries": "1"}
    fresh = {**own, "Dir::State::Lists": f"{place}/lists", "Acquire::Languages": "none"}
    if _run([*_apt(own), "download", *PACKAGES], place / "packages") is not None:
        # The machine's own lists are old, or there are none.
        wrong = _run([*_apt(fresh), "update"], place) or _run([*_apt(fresh), "download", *PACKAGES], place / "packages")
        if wrong is not None:
            pytest.skip(f"cloud-init cannot be had: {wrong}")
    for package in sorted((place / "packages").glob("*.deb")):
        wrong = _run(["dpkg-deb", "--extract", str(package), str(place / "root")], place)
        assert wrong is None, wrong


def _apt(options: dict[str, str]) -> list[str]:
    return ["apt-get", "--quiet=2", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]


def _run(command: list[str], directory: Path) -> str | None:
    """Why a command failed; None if it succeeded."""
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
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not come to an end"
    said = (done.stderr or done.stdout).strip().splitlines()
    return None if done.returncode == 0 else f"{command[0]} failed: {said[-1] if said else done.returncode}"
