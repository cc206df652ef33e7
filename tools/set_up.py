"""Makes .venv from the lock: the second half of `set_up.sh`, which calls it only when something has changed.

All that the machine must have is Python 3.11 with pip or with venv. uv is fetched by pip into .tools, makes
.venv and installs the hashed lock, then the parts of the workspace as editable. pip reads the machine's
configuration (mirrors, local directories of wheels, certificates) and uv does not, so the usual settings are
handed on to uv; when uv fails all the same, pip itself does the work.

Interrupted anywhere, it heals at the next run: uv is moved into place when complete, .venv carries a mark
while it is being changed and is rebuilt if the mark is still there, and the stamp is written last. Two runs
at once wait for each other by a lock. Standard library only, and nothing outside of the clone is changed but
the caches.
"""

import ast
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "set-up-stamp"
PLACE = VENV / "set-up-place"
UNFINISHED = VENV / "set-up-unfinished"
LOCK = ROOT / "requirements.txt"
UV_LOCK = ROOT / "requirements-uv.txt"

PIP_ENVIRONMENT = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_USER": "0",
    "PIP_REQUIRE_VIRTUALENV": "0",
}
HELD: list[int] = []
"""The lock's file, which children inherit: when only this program is killed, they still hold the lock."""
UV_SETTING_OF_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}


class SetUpFailed(Exception):
    """The set-up cannot go on; the message says what the reader has to do."""


def say(text: str) -> None:
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def run(command: list[str], environment: dict[str, str] | None = None) -> bool:
    """Run a command of ours with its output shown; whether it succeeded."""
    values = {**os.environ, **PIP_ENVIRONMENT, **cache_directories(), **(environment or {})}
    return subprocess.run(command, cwd=ROOT, env=values, pass_fds=HELD, check=False).returncode == 0


def succeeds(command: list[str]) -> bool:
    """Whether a command works at all; its output is of no interest."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@functools.cache
def cache_directories() -> dict[str, str]:
    """Caches inside the clone for an account that has no home to write to."""
    home = Path(os.path.expanduser("~"))
    place = next(path for path in (home / ".cache", home, *home.parents) if path.exists())
    if os.access(place, os.W_OK) and place in (home, home / ".cache"):
        return {}
    return {"UV_CACHE_DIR": str(TOOLS / "cache-uv"), "PIP_CACHE_DIR": str(TOOLS / "cache-pip")}


@contextmanager
def alone() -> Iterator[None]:
    """Let one set-up of this clone run at a time; the others wait and then find the work done."""
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "lock").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this clone is running; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        HELD.append(file.fileno())
        yield


@functools.cache
def pip() -> tuple[str, ...]:
    """How to call pip: the one of this Python, or else one in a virtual environment made for it."""
    if succeeds([sys.executable, "-m", "pip", "--version"]):
        return (sys.executable, "-m", "pip")
    bootstrap = TOOLS / "bootstrap"
    shutil.rmtree(bootstrap, ignore_errors=True)
    if not succeeds([sys.executable, "-m", "venv", str(bootstrap)]):
        raise SetUpFailed(
            f"{sys.executable} has neither pip nor a working venv; on Debian or Ubuntu install one of them: "
            "apt-get install python3-venv (or python3-pip)"
        )
    return (str(bootstrap / "bin" / "python"), "-m", "pip")


def uv() -> Path | None:
    """The uv of the lock, fetched once; None if it cannot be had, and then pip does the work."""
    key = hashlib.sha256(UV_LOCK.read_bytes()).hexdigest()[:12]
    place = TOOLS / f"uv-{key}"
    program = place / "bin" / "uv"
    if program.exists():
        return program
    for old in TOOLS.glob("uv-*"):
        shutil.rmtree(old)
    say("fetching uv")
    unfinished = Path(tempfile.mkdtemp(prefix="uv-unfinished-", dir=TOOLS))
    options = [
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--target",
        str(unfinished),
    ]
    if not run([*pip(), "install", *options, "-r", str(UV_LOCK)]):
        say("uv could not be fetched; pip will do its work, more slowly")
        return None
    unfinished.rename(place)
    return program


def pip_settings() -> dict[str, str]:
    """pip's configuration of this machine in the words of uv. The user's own settings of uv win."""
    listed = subprocess.run([*pip(), "config", "list"], capture_output=True, text=True, check=False).stdout
    settings = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        variable = UV_SETTING_OF_PIP.get(name.rpartition(".")[2])
        if variable is None or variable in os.environ:
            continue
        try:
            words = str(ast.literal_eval(value)).split()
        except (SyntaxError, ValueError):
            continue
        settings[variable] = (",".join if variable == "UV_FIND_LINKS" else " ".join)(words)
    return settings


def workspace_parts() -> list[Path]:
    """The directories of the workspace's distributions."""
    found = [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("adapters/*/pyproject.toml")]
    return sorted(path.parent for path in found if not path.parent.name.startswith("."))


def make_environment(uv_program: Path | None) -> None:
    """Have a .venv that belongs to this place and works; an unfinished, moved or broken one is rebuilt."""
    is_ours = PLACE.exists() and PLACE.read_text(encoding="utf-8") == str(ROOT)
    if is_ours and not UNFINISHED.exists() and succeeds([str(PYTHON), "-c", ""]):
        return
    say(f"making .venv with {sys.executable}")
    shutil.rmtree(VENV, ignore_errors=True)
    if VENV.exists():
        raise SetUpFailed(f"{VENV} cannot be removed; remove it, or run as the account that made it")
    by_uv = [
        str(uv_program),
        "venv",
        "--quiet",
        "--python",
        sys.executable,
        "--no-python-downloads",
        str(VENV),
    ]
    if not (uv_program and run(by_uv)) and not run(
        [sys.executable, "-m", "venv", "--without-pip", "--clear", str(VENV)]
    ):
        raise SetUpFailed(f"{sys.executable} could not make a virtual environment")


def install(uv_program: Path | None) -> None:
    """Install the lock, then the workspace, whose build backend is in the lock and so needs no network."""
    editable = [word for part in workspace_parts() for word in ("--editable", str(part))]
    ours = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", *editable]
    say("installing the packages of requirements.txt")
    if uv_program:
        target = ["--python", str(PYTHON)]
        # The hashes decide what is accepted, so every index may be asked for every package. They are compiled once,
        # here, and not by each of the many programs that begin at one moment afterwards.
        sync = ["--quiet", "--require-hashes", "--compile-bytecode", "--index-strategy", "unsafe-best-match", str(LOCK)]
        if run([str(uv_program), "pip", "sync", *target, *sync], pip_settings()) and run(
            [str(uv_program), "pip", "install", *target, *ours]
        ):
            return
        say("uv could not install them (see above); trying pip, which knows this machine's own configuration")
    by_pip = [*pip(), "--python", str(PYTHON), "install"]
    if not (run([*by_pip, "--quiet", "--require-hashes", "-r", str(LOCK)]) and run([*by_pip, *ours])):
        raise SetUpFailed(
            "the packages could not be installed (see above). Is there a registry that pip can reach? "
            "`pip config list` shows the configuration of pip on this machine"
        )


def build_init() -> None:
    """Build the C program that runs inside sandboxes. Only root can make those, so only root installs a compiler."""
    command = [sys.executable, str(ROOT / "agent" / "build_init.py")]
    install_compiler = [str(PYTHON), "-c", "from tools import debian_packages as d; d.install(('gcc', 'libc6-dev'))"]
    if run(command) or (os.geteuid() == 0 and run(install_compiler) and run(command)):
        return
    say("going on without it: the agent's host `namespace` is not available until it is built")


def set_up(stamp: str) -> None:
    """The whole, in the order that lets an interruption be noticed."""
    with alone():
        if STAMP.exists() and STAMP.read_text(encoding="utf-8").strip() == stamp and succeeds([str(PYTHON), "-c", ""]):
            return
        program = uv()
        make_environment(program)
        UNFINISHED.touch()
        STAMP.unlink(missing_ok=True)
        PLACE.write_text(str(ROOT), encoding="utf-8")
        install(program)
        build_init()
        UNFINISHED.unlink()
        STAMP.write_text(stamp + "\n", encoding="utf-8")
        say("done")


def main() -> int:
    try:
        set_up(sys.argv[1])
    except SetUpFailed as error:
        say(str(error))
        return 1
    except PermissionError as error:
        say(f"{error.filename}: {error.strerror}; run as the account that made it, or remove .venv and .tools")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next run goes on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
