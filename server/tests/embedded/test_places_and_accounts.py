"""The embedded server: its data directory, its user, who may connect, and the error when it cannot start."""

import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from mooring import embedded
from mooring.embedded import DataDirectoryUnusable, EmbeddedPostgres, StartFailed, VersionMismatch, binaries
from mooring.embedded.cluster import LOG_FILES_MAX, SOCKET_PATH_MAX, ClusterLayout, make_cluster, remove_old_logs
from mooring.embedded.launcher import REFUSED
from mooring.embedded.processes import ProgramLaunch, SystemAccount, account_for, own_account
from server.tests.embedded.conftest import CHILD, Remembered

pytestmark = pytest.mark.real_part("postgresql")
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another account")


def psql(account: SystemAccount, directory: Path, dsn: str) -> subprocess.CompletedProcess[str]:
    """Try to come in as an account of the operating system."""
    layout = ClusterLayout(directory)
    programs = binaries.readable_by(binaries.find_installation(), account, Path("/"), layout.binaries)
    return ProgramLaunch(account, Path("/"), programs.program("psql"), [dsn, "-XAtc", "SELECT 1"]).run(
        timeout_seconds=60
    )


async def test_a_path_too_long_for_a_socket_gets_a_private_one_elsewhere(directory: Path, log: Remembered) -> None:
    long = directory / ("x" * 120)
    socket = ClusterLayout(long).socket
    async with EmbeddedPostgres(long, log=log) as server:
        connection = await asyncpg.connect(server.dsn)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()
    assert not socket.is_relative_to(long)
    assert len(str(socket)) < SOCKET_PATH_MAX
    assert stat.S_IMODE(socket.stat().st_mode) == 0o700
    socket.rmdir()


async def test_a_socket_directory_that_somebody_else_made_is_refused(directory: Path, log: Remembered) -> None:
    socket = ClusterLayout(directory).socket
    socket.parent.mkdir(mode=0o711)
    (directory / "elsewhere").mkdir()
    socket.symlink_to(directory / "elsewhere")
    with pytest.raises(DataDirectoryUnusable, match="is not a directory of the account"):
        await EmbeddedPostgres(directory, log=log).start()


async def test_a_place_that_cannot_be_a_directory_is_named(log: Remembered) -> None:
    with pytest.raises(DataDirectoryUnusable, match=r"/dev/null/data: something that is not a directory"):
        await EmbeddedPostgres(Path("/dev/null/data"), log=log).start()


async def test_data_of_a_version_that_is_not_here_is_refused_with_advice(directory: Path, log: Remembered) -> None:
    async with EmbeddedPostgres(directory, log=log):
        pass
    (ClusterLayout(directory).cluster / "PG_VERSION").write_text("12\n")
    with pytest.raises(VersionMismatch, match=r"PostgreSQL 12 wrote the data.*pg_dumpall"):
        await EmbeddedPostgres(directory, log=log).start()


async def test_a_setting_that_postgresql_refuses_is_quoted_in_the_error(directory: Path, log: Remembered) -> None:
    server = EmbeddedPostgres(directory, log=log, settings={"max_connections": "many"})
    with pytest.raises(StartFailed, match="max_connections"):
        await server.start()
    await server.stop()


def test_a_failing_initdb_is_reported_with_the_place_and_its_own_words(directory: Path) -> None:
    program = directory / "bin" / "initdb"
    program.parent.mkdir()
    words = "FATAL:  could not write: No space left on device\nchild process exited\nremoving contents\nbye"
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    program.chmod(0o755)
    program.parent.chmod(0o755)
    layout = ClusterLayout(directory)
    layout.home.mkdir(mode=0o711)
    installation = binaries.Installation(directory, "18.0", is_wheel=False)
    with pytest.raises(StartFailed, match=rf"{layout.home}.*exit code 1: FATAL: .*No space left on device"):
        make_cluster(layout, installation, account_for(layout.cluster), durable=True)
    assert not layout.cluster.exists()


def test_only_the_newest_log_files_are_kept(directory: Path) -> None:
    layout = ClusterLayout(directory)
    layout.log.mkdir(parents=True)
    for second in range(LOG_FILES_MAX + 3):
        (layout.log / f"postgresql-20300101T00000{second}.log").touch()
    remove_old_logs(layout)
    kept = sorted(path.name for path in layout.log.iterdir())
    assert len(kept) == LOG_FILES_MAX
    assert kept[0] == "postgresql-20300101T000003.log"


def test_a_program_is_not_started_for_a_parent_that_is_gone() -> None:
    launch = ProgramLaunch(own_account(), Path("/"), Path("/bin/true"), [])
    command = [str(os.getppid()) if word == str(os.getpid()) else word for word in launch.command()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == REFUSED
    assert "has ended" in done.stderr


@only_root
async def test_nobody_but_the_supervisors_account_gets_in(directory: Path, log: Remembered) -> None:
    nobody = pwd.getpwnam("nobody")
    async with EmbeddedPostgres(directory, log=log) as server:
        owner = account_for(ClusterLayout(directory).cluster)
        by_owner = psql(owner, directory, server.dsn)
        by_nobody = psql(SystemAccount("nobody", nobody.pw_uid, nobody.pw_gid), directory, server.dsn)
        by_root = psql(own_account(), directory, server.dsn)
    assert owner.uid != 0
    assert "Peer authentication failed" in by_owner.stderr
    assert by_nobody.returncode != 0
    assert by_nobody.stdout == ""
    assert by_root.stdout == "1\n"


@only_root
async def test_a_directory_closed_to_the_account_is_named(directory: Path, log: Remembered) -> None:
    closed = directory / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(DataDirectoryUnusable, match=f"may not pass through {closed};"):
        await EmbeddedPostgres(closed / "data", log=log).start()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@only_root
async def test_programs_that_the_account_cannot_read_are_copied_once(
    directory: Path, log: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = next((root for root, is_wheel in binaries.candidates() if is_wheel), None)
    assert wheel is not None
    closed = directory / "closed"
    closed.mkdir(mode=0o700)
    hidden = hide_wheel(wheel, closed)
    monkeypatch.setattr(binaries, "candidates", lambda: iter([(hidden, True)]))
    async with EmbeddedPostgres(directory, log=log):
        copies = list(ClusterLayout(directory).binaries.iterdir())
        made_at = copies[0].stat().st_mtime_ns
    async with EmbeddedPostgres(directory, log=log):
        assert [path.stat().st_mtime_ns for path in ClusterLayout(directory).binaries.iterdir()] == [made_at]


def hide_wheel(wheel: Path, target: Path) -> Path:
    """Copy the wheel's programs to another place, in the wheel's own layout."""
    libraries = wheel.parent.with_name(f"{wheel.parent.name}.libs")
    ignore = shutil.ignore_patterns("include", "*.a")
    shutil.copytree(wheel, target / wheel.parent.name / wheel.name, ignore=ignore)
    shutil.copytree(libraries, target / libraries.name)
    return target / wheel.parent.name / wheel.name


@only_root
def test_an_ordinary_user_runs_it_as_itself(directory: Path) -> None:
    """The same supervisor without privileges: by the system's Python, since ours may lie in root's home."""
    entry = pwd.getpwnam("nobody")
    site, data = directory / "site", directory / "data"
    package = Path(embedded.__file__).parent
    shutil.copytree(package, site / "mooring" / "embedded", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "mooring" / "__init__.py").touch()
    wheel = next(root for root, is_wheel in binaries.candidates() if is_wheel)
    hide_wheel(wheel, site)
    shutil.copy(CHILD, site / "child.py")
    data.mkdir()
    os.chown(data, entry.pw_uid, entry.pw_gid)
    for path in (site, *site.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)

    done = subprocess.run(
        [python_for(entry), "-S", str(site / "child.py"), str(data)],
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        user=entry.pw_uid,
        group=entry.pw_gid,
        extra_groups=[],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "mooring"
    assert ClusterLayout(data).cluster.stat().st_uid == entry.pw_uid
    assert stat.S_IMODE(ClusterLayout(data).home.stat().st_mode) == 0o700


def python_for(entry: pwd.struct_passwd) -> str:
    """A Python that this account can run."""
    for python in (sys.executable, "/usr/bin/python3"):
        question = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            answer = subprocess.run(question, check=False, cwd="/", user=entry.pw_uid, group=entry.pw_gid)
        except OSError:
            continue
        if answer.returncode == 0:
            return python
    pytest.skip(f"{entry.pw_name} can run neither {sys.executable} nor /usr/bin/python3")
