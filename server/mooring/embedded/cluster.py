"""The files of one embedded database: where they are, how a cluster is created, and how it is configured.

Everything lives in `postgres/` below the data directory:

    lock          locked (flock) by the supervisor while it runs; contains its process id
    cluster/      PostgreSQL's own data directory, 0700, owned by the account that runs it
    cluster.new-… a cluster that is being created; renamed to `cluster` when complete, removed if left over
    log/          the server's log, bounded in size
    start.log     what the server wrote before it opened its log, at its last start
    *.conf        the server's configuration and access rules, written at each start
    local.conf    the operator's own settings: read last, never written
    socket/       the only way to connect; elsewhere if this path is too long for a socket
    binaries/     a copy of the programs, only if the account cannot read the original

The server does not listen on the network. The socket's directory is private, and peer authentication accepts only the
operating system account of the supervisor, so there is no password to protect.

When the supervisor is root, the server's account owns the directories `cluster`, `log` and `socket`, and root never
creates, opens for writing or changes a file inside them: a symbolic link there could lead root anywhere.
"""

import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar
from urllib.parse import quote

from mooring.embedded.binaries import VERSION_SECONDS_MAX, Installation
from mooring.embedded.errors import DataDirectoryUnusable, EmbeddedPostgresError, StartFailed
from mooring.embedded.launcher import UNREACHABLE
from mooring.embedded.processes import ProgramLaunch, SystemAccount, own_account

SUPERUSER = "mooring"
DATABASE = "mooring"
PORT = 5432
SOCKET_PATH_MAX = 100
"""The kernel's limit is 107 bytes; PostgreSQL appends `.s.PGSQL.5432`, which is counted in."""
INITDB_SECONDS_MAX = 120.0
LEFT_OVER_SECONDS_MAX = 10.0
LOG_FILES_MAX = 5
TAIL_BYTES = 16_384
ROLES_BY_MAP_SINCE = 16

SETTINGS: Mapping[str, str] = {
    "max_connections": "100",
    "shared_buffers": "128MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "idle_in_transaction_session_timeout": "60s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "logging_collector": "on",
    "log_filename": "postgresql-%Y%m%dT%H%M%S.log",
    "log_file_mode": "0600",
    "log_rotation_size": "8MB",
    "log_rotation_age": "1d",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    # Without DETAIL, which would log the values of rows that a constraint refused.
    "log_error_verbosity": "terse",
}

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class ClusterLayout:
    """The paths of one embedded database."""

    data_directory: Path

    @property
    def home(self) -> Path:
        """The directory that the supervisor owns; everything else is below it."""
        return self.data_directory / "postgres"

    @property
    def cluster(self) -> Path:
        """PostgreSQL's data directory."""
        return self.home / "cluster"

    @property
    def log(self) -> Path:
        """The directory of the server's log files."""
        return self.home / "log"

    @property
    def start_log(self) -> Path:
        """What the server wrote before it opened its log; the supervisor owns the file."""
        return self.home / "start.log"

    @property
    def lock(self) -> Path:
        """The file that a running supervisor has locked."""
        return self.home / "lock"

    @property
    def binaries(self) -> Path:
        """The copy of the programs, if one was needed."""
        return self.home / "binaries"

    @property
    def socket(self) -> Path:
        """The directory of the socket: next to the data, or elsewhere when that path is too long."""
        beside = self.home / "socket"
        if len(os.fsencode(_socket_file(beside))) <= SOCKET_PATH_MAX:
            return beside
        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:12]
        if os.geteuid() == 0:
            return Path("/run") / f"mooring-{digest}"
        runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp", f"mooring-{os.geteuid()}-{digest}")
        if len(os.fsencode(_socket_file(runtime))) <= SOCKET_PATH_MAX and runtime.parent.is_dir():
            return runtime
        return Path("/tmp", runtime.name)

    @property
    def dsn(self) -> str:
        """The connection string of the superuser; it contains no secret."""
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={quote(str(self.socket), safe='')}&port={PORT}"

    def cluster_name(self) -> str:
        """The name in the titles of this cluster's processes; it does not depend on the path."""
        status = self.cluster.stat()
        return f"mooring-{status.st_dev:x}-{status.st_ino:x}"


def _socket_file(directory: Path) -> Path:
    return directory / f".s.PGSQL.{PORT}"


def _access(path: Path, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do something with a path; an error of the operating system becomes one that names the path."""
    try:
        return action(*args, **kwargs)
    except FileExistsError as error:
        raise DataDirectoryUnusable(path, "something that is not a directory is in the way") from error
    except OSError as error:
        raise DataDirectoryUnusable(path, error.strerror or str(error)) from error


def make_home(layout: ClusterLayout) -> None:
    """Create the directories that the supervisor itself owns; existing ones keep their modes."""
    # The server's account may pass through root's data directory, but not list it.
    mode = 0o711 if os.geteuid() == 0 else 0o700
    for path in (layout.data_directory, layout.home):
        if not path.is_dir():
            _access(path, os.makedirs, path.parent, exist_ok=True)
            _access(path, path.mkdir, exist_ok=True)
            _access(path, path.chmod, mode)


def make_private(path: Path, account: SystemAccount) -> None:
    """Create a directory that only the account can enter; refuse one that another account created."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise DataDirectoryUnusable(path, error.strerror or str(error)) from error
    else:
        _chown(path, account)
    status = _access(path, path.lstat)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != account.uid:
        raise DataDirectoryUnusable(path, f"it exists, but is not a directory of the account {account.name!r}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        _access(path, path.chmod, 0o700)


def _chown(path: Path, account: SystemAccount) -> None:
    if not account.is_own:
        _access(path, os.chown, path, account.uid, account.gid)


def check_reachable(layout: ClusterLayout, account: SystemAccount) -> None:
    """Refuse a data directory that the account cannot reach, and name the directory that blocks it."""
    if account.is_own:
        return
    launch = ProgramLaunch(account, layout.home, Path("/bin/true"), [])
    if launch.run(timeout_seconds=VERSION_SECONDS_MAX).returncode != UNREACHABLE:
        return
    for path in (*reversed(layout.home.parents), layout.home):
        status = path.stat()
        bit = 0o100 if status.st_uid == account.uid else 0o010 if status.st_gid == account.gid else 0o001
        if not status.st_mode & bit:
            raise DataDirectoryUnusable(
                layout.data_directory,
                f"PostgreSQL runs as the account {account.name!r}, which may not pass through {path}; choose "
                "a data directory outside of it (the default for root is /var/lib/mooring)",
            )
    raise DataDirectoryUnusable(layout.data_directory, f"the account {account.name!r} cannot enter it")


def make_cluster(layout: ClusterLayout, installation: Installation, account: SystemAccount, *, durable: bool) -> None:
    """Create the cluster next to its final path and move it there when it is complete."""
    for left_over in layout.home.glob("cluster.new-*"):
        _remove_left_over(left_over)
    unfinished = Path(_access(layout.home, tempfile.mkdtemp, prefix="cluster.new-", dir=layout.home))
    _chown(unfinished, account)
    locale = ["--locale=C"]
    if installation.major >= 17:  # PostgreSQL's own UTF-8 locale, the same on every machine
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    arguments = [
        f"--pgdata={unfinished}",
        f"--username={SUPERUSER}",
        "--encoding=UTF8",
        *locale,
        "--data-checksums",
        "--auth-local=peer",
        "--auth-host=reject",
        *([] if durable else ["--no-sync"]),
    ]
    _run_or_fail(ProgramLaunch(account, unfinished, installation.program("initdb"), arguments))
    create = ["--single", "-D", str(unfinished), "-c", "exit_on_error=on"]
    create += ["-c", "max_wal_senders=0", *(() if durable else ("-F",)), "postgres"]
    postgres = installation.program("postgres")
    _run_or_fail(ProgramLaunch(account, unfinished, postgres, create), stdin=f"CREATE DATABASE {DATABASE};\n")
    _access(layout.cluster, unfinished.rename, layout.cluster)
    _sync_directory(layout.home)


def _remove_left_over(path: Path) -> None:
    """Remove an unfinished cluster; an orphaned initdb may still be writing to it, so try for a while."""
    deadline = time.monotonic() + LEFT_OVER_SECONDS_MAX
    while path.exists() and time.monotonic() < deadline:
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(0.02)
    if path.exists():
        _access(path, shutil.rmtree, path)


def _run_or_fail(launch: ProgramLaunch, stdin: str = "") -> None:
    done = launch.run(timeout_seconds=INITDB_SECONDS_MAX, stdin=stdin)
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        worst = [line for line in lines if re.search("FATAL|PANIC|ERROR|error:|No space left", line)]
        raise StartFailed(
            f"creating the database in {launch.directory} failed: {launch.program.name} ended with exit code "
            f"{done.returncode}: {' / '.join((worst or lines)[-3:])}"
        )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Configuration:
    """The caller's part of the configuration: extra settings, and roles besides the superuser."""

    settings: Mapping[str, str]
    roles: Sequence[str]

    @property
    def durable(self) -> bool:
        """Whether the data must survive a power failure; only tests turn it off."""
        return self.settings.get("fsync", "on") != "off"


def write_configuration(
    layout: ClusterLayout, account: SystemAccount, major: int, configuration: Configuration
) -> None:
    """Write the three configuration files: settings, access rules and the user map."""
    paths = {
        "data_directory": str(layout.cluster),
        "hba_file": str(layout.home / "pg_hba.conf"),
        "ident_file": str(layout.home / "pg_ident.conf"),
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": _socket_list_entry(layout.socket),
        "unix_socket_permissions": "0700",
        "log_directory": str(layout.log),
        # A container may have no /dev/shm, or one that the account cannot write to.
        "dynamic_shared_memory_type": "posix" if _is_open_to_all(Path("/dev/shm")) else "mmap",
    }
    lines = [f"{name} = {_quoted(value)}" for name, value in {**SETTINGS, **paths, **configuration.settings}.items()]
    head = "# Written at every start. Settings of your own go into local.conf beside this file.\n"
    tail = "include = 'local.conf'\n" if (layout.home / "local.conf").exists() else ""
    _replace(layout.home / "postgresql.conf", head + "\n".join(lines) + "\n" + tail, account)
    _replace(layout.home / "pg_hba.conf", "local all all peer map=supervisor\n", account)
    roles = ["all"] if major >= ROLES_BY_MAP_SINCE else [SUPERUSER, *configuration.roles]
    user = own_account().name.replace('"', '""')
    _replace(layout.home / "pg_ident.conf", "".join(f'supervisor "{user}" {role}\n' for role in roles), account)


def _quoted(value: str) -> str:
    if "\n" in value:
        raise EmbeddedPostgresError(f"a setting of PostgreSQL cannot contain a line break: {value!r}")
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _socket_list_entry(path: Path) -> str:
    """One entry of a list of directories; quoted, because a comma or a space would end it."""
    return '"' + str(path).replace('"', '""') + '"'


def _is_open_to_all(path: Path) -> bool:
    return path.is_dir() and stat.S_IMODE(path.stat().st_mode) & 0o003 == 0o003


def _replace(path: Path, content: str, account: SystemAccount) -> None:
    """Replace a file atomically, if its content changes."""
    unfinished = path.with_name(path.name + ".new")
    try:
        if path.exists() and path.read_text(encoding="utf-8") == content:
            return
        unfinished.write_text(content, encoding="utf-8")
        unfinished.chmod(0o600 if account.is_own else 0o644)
        unfinished.replace(path)
    except OSError as error:
        raise DataDirectoryUnusable(path, error.strerror or str(error)) from error


def remove_old_logs(layout: ClusterLayout) -> None:
    """Delete all but the newest log files; the server rotates them, but deletes none."""
    for path in sorted(layout.log.glob("postgresql-*.log"))[:-LOG_FILES_MAX]:
        path.unlink(missing_ok=True)


def recent_errors(layout: ClusterLayout, since: float) -> str:
    """The last lines that a server started at this time wrote, to its log or before it had one."""
    files = [layout.start_log, *sorted(layout.log.glob("postgresql-*.log"))[-1:]]
    fresh = [path for path in files if path.exists() and path.lstat().st_mtime >= since - 1]
    lines = [line for path in fresh for line in _tail(path).splitlines()]
    relevant = [line for line in lines if "logging collector" not in line and "Future log output" not in line]
    worst = [line for line in relevant if "FATAL" in line or "PANIC" in line]
    return " / ".join(dict.fromkeys([*relevant[-3:], *worst[-1:]])) or "it wrote nothing"


def _tail(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""  # there is no such log; the caller's message works without it
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(descriptor).st_size - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode(errors="replace")
