"""`make demo`, as far as it is not set-up: it tells its story, and leaves nothing behind, however it ends."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.leftovers import eventually, leftovers_of, wait_for_no_leftovers
from tools.demo import remove
from tools.demo_nodes import HOST, nodes_are_missing
from tools.demo_output import HOLD
from tools.demo_slurm import PACKAGES, PROGRAMS

pytestmark = pytest.mark.real_part("postgresql")
ROOT = Path(__file__).resolve().parent.parent.parent
IDENTITY = ("403 permission_denied", "denied  project.update", "identity.project.created", "/docs", "make up")
CATALOG = (
    "422 signature_missing", "trust now          verified", "may not be launched: not_entitled", "may be launched",
    "decided by the project layer", "policy_denied", "canary → active",
)  # fmt: skip
NODES = (
    "8, all simulated", "eight more?        no: local: 8 GPUs", "it says            hello from ",
    "that works once: 'Hello from inside a sandbox.'", "released; how that is known: receipts", ": verified, clean",
    "NOT VERIFIED",
)  # fmt: skip
APPS = (
    "its page           read at", "two more workers", "worker 3/3 healthy", "drained and gone", "known by receipts",
    "GPU-seconds",
)  # fmt: skip
SLURM = (
    "srun -N2 hostname", "the sandbox of hpc-worker-0", "the sandbox of hpc-worker-1", "worker 3/3 healthy, controller",
    "Slurm has hpc-worker-2 draining, held by job", "long of app RUNNING", "hpc-worker-2 drained, job",
    "long of app COMPLETED", "with GPU 0; ended by itself", "Slurm's nodes      hpc-worker-0, hpc-worker-1\n",
    "receipt            hpc-controller-0: rcp_", "receipts           4, one of each member", "job-hours",
)  # fmt: skip
ISOLATION = {
    "namespace": ("isolated in namespaces", "hello from box", "GPUs in /dev: 2", "nothing listens on port"),
    "process": ("NOT isolated: that needs root", "it listens there as well"),
}


@pytest.fixture
def place() -> Iterator[Path]:
    """Where a demo has its temporary files: short, as sockets need it, and open for the database's account."""
    directory = Path(tempfile.mkdtemp(prefix="mooring-e2e-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def few_programs(place: Path) -> str:
    """A place with no programs but those that a node needs: there is no registry."""
    if why := nodes_are_missing():
        pytest.skip(why)
    directory = place / "bin"
    directory.mkdir()
    for name in ("ip", "nsenter", "unshare", "setpriv"):
        (directory / name).symlink_to(str(shutil.which(name)))
    return str(directory)


def begun(place: Path, path: str, hold: str = "") -> "subprocess.Popen[str]":
    """The demo, as somebody starts it who has these programs and an empty home; it may be held at a fact."""
    (place / "home").mkdir()
    (place / "tmp").mkdir(mode=0o711)
    environment = {
        "PATH": path,
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
        "MOORING_DATABASE_URL": "postgresql://nobody.test/x",
        HOLD: hold,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tools.demo", "--no-jupyter"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: "subprocess.Popen[str]", place: Path) -> tuple[int, str, str]:
    """How it ended and what it said; where it was held, it goes on. Nothing of it may be left."""
    output, failures = process.communicate(timeout=900)
    assert list((place / "home").iterdir()) == [], "nothing is left in the home"
    assert list((place / "tmp").iterdir()) == [], failures
    wait_for_no_leftovers(place)
    return process.returncode, output, failures


@contextmanager
def held(place: Path, path: str, fact: str) -> Iterator["subprocess.Popen[str]"]:
    """A demo that stands still at a fact: all that it had said by then is read, and it says no more."""
    process = begun(place, path, fact)
    assert process.stdout is not None
    if not any(line.strip().startswith(fact) for line in process.stdout):
        raise AssertionError(f"it ended before it printed {fact!r}: {process.communicate()}")
    try:
        yield process
    finally:
        if process.poll() is None:  # a test that failed: the demo tidies up after itself
            process.terminate()
            process.communicate()


def demo(place: Path, path: str) -> str:
    """What the demo prints when nothing disturbs it."""
    code, said, failures = ended(begun(place, path), place)
    assert code == 0, failures + said
    return said


@pytest.mark.real_part("registry")
@pytest.mark.real_part("slurm")
def test_the_demo_shows_a_denial_an_app_that_may_be_launched_and_a_sandbox_that_is_proven_gone(place: Path) -> None:
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed; as root: apt-get install docker-registry")
    if why := nodes_are_missing():
        pytest.skip(why)
    if HOST == "namespace" and (absent := [name for name in PROGRAMS if shutil.which(name) is None]):
        pytest.skip(f"{', '.join(absent)} not found; as root: apt-get install {' '.join(PACKAGES)}")
    said = demo(place, os.environ["PATH"])
    for words in (*IDENTITY, *CATALOG, *NODES, *APPS, *ISOLATION[HOST]):
        assert words in said
    if HOST == "namespace":
        assert [words for words in SLURM if words not in said] == []
    assert ("Left out" in said) == ("Left out: a cluster of Slurm" in said) == (HOST == "process")


def test_the_demo_says_what_it_leaves_out_where_there_is_no_registry_and_no_program_for_nodes(place: Path) -> None:
    said = demo(place, "/nowhere")
    why = "munged cannot be found: as root, apt-get install slurmctld" if HOST == "namespace" else "need root"
    for words in (*IDENTITY, "Left out: apps", "docker-registry is not installed", "Left out: a cluster of Slurm", why):
        assert words in said
    assert "signature_missing" not in said
    assert ("Left out: allocations" in said) == (HOST == "namespace")


def test_a_demo_that_is_interrupted_gives_back_what_it_had(place: Path, few_programs: str) -> None:
    with held(place, few_programs, "its own origin") as process:
        os.killpg(process.pid, signal.SIGINT)
        code, said, failures = ended(process, place)
    assert code == 130
    assert "released; how that is known: receipts" in said
    assert "left behind" not in failures


def test_a_demo_whose_mooring_is_killed_removes_what_it_had(place: Path, few_programs: str) -> None:
    with held(place, few_programs, "it says") as process:
        assert serving(place)
        os.kill(child_of(process.pid), signal.SIGKILL)
        eventually(lambda: serving(place), lambda left: left == [])
        code, said, failures = ended(process, place)
    assert code == 1
    assert "not given back" in said
    assert "left behind" in failures


def serving(place: Path) -> list[str]:
    """What of Mooring would still answer: its server ends by itself when `mooring up` was killed."""
    return [each for each in leftovers_of(place) if "-m mooring up" in each.replace("\0", " ")]


def child_of(pid: int) -> int:
    """The only child of a process: of the demo, `mooring up`."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_store_that_podman_left_mounted_is_removed_with_the_rest(tmp_path: Path) -> None:
    store = tmp_path / "demo" / "containers" / "storage" / "overlay"
    store.mkdir(parents=True)
    (store / "layer").write_text("bytes")
    subprocess.run(["mount", "--bind", str(store), str(store)], check=True)
    remove(tmp_path / "demo")
    assert not (tmp_path / "demo").exists()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
