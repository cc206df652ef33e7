"""Keeps one PostgreSQL server running for as long as the process that needs it.

A thread does all the work: it takes the lock, cleans up after a killed predecessor, starts the postmaster and watches
it until `stop`. The asynchronous methods only talk to that thread. For the kernel the thread is the postmaster's
parent, and the kernel ends the postmaster (fast shutdown) when the thread ends, that is, when the process ends in any
way. So nothing survives a `kill -9` of the supervisor, and the database does not depend on an event loop.

A postmaster that dies is started again after a growing, bounded pause, without limit: the server's connection pool
reconnects, and nobody has to restart anything. The supervisor first waits for the orphaned children, because they are
attached to the old shared memory, and kills those that do not end by themselves. Acknowledged commits are in the
write-ahead log, which recovery replays.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from mooring.embedded import binaries, cluster, processes
from mooring.embedded.errors import AlreadyRunning, DataDirectoryUnusable, EmbeddedPostgresError, StartFailed

READY_SECONDS_MAX = 300.0
"""Long, because recovery after a crash replays the log since the last checkpoint, maybe from a slow disk."""
OLD_SERVER_SECONDS_MAX = 20.0
ORPHAN_SECONDS_MAX = 5.0
FAST_SHUTDOWN_SECONDS_MAX = 30.0
CHECK_EVERY_SECONDS = 0.1
REMOVE_LOGS_EVERY_SECONDS = 10.0
PAUSE_SECONDS_FIRST = 0.1
PAUSE_SECONDS_MAX = 30.0
STEADY_AFTER_SECONDS = 30.0


class Log(Protocol):
    """Where the supervisor logs: a structlog logger, or anything with the same methods."""

    def info(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...

    def error(self, event: str, **fields: object) -> object: ...


class EmbeddedPostgres:
    """A PostgreSQL server of our own: `await start()` returns a DSN, `await stop()` ends it."""

    def __init__(
        self,
        data_directory: Path,
        *,
        log: Log,
        settings: Mapping[str, str] | None = None,
        roles: Sequence[str] = (),
        on_restart: Callable[[int], None] | None = None,
    ) -> None:
        """`roles` are roles besides the superuser that may connect (needed before PostgreSQL 16 only).

        `on_restart` is called in the event loop of `start`, with the number of restarts, each time the server is back
        after it had died.
        """
        self._layout = cluster.ClusterLayout(Path(os.path.abspath(data_directory)))
        self._configuration = cluster.Configuration(dict(settings or {}), tuple(roles))
        self._log = log
        self._on_restart = on_restart
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = threading.Event()
        self._started: Future[str] = Future()
        self._finished: Future[None] = Future()
        self._thread: threading.Thread | None = None
        self.restarts = 0
        self.postmaster_pid: int | None = None

    @property
    def dsn(self) -> str:
        """The connection string of the superuser `mooring` for the database `mooring`; it contains no secret."""
        return self._layout.dsn

    @property
    def log_directory(self) -> Path:
        return self._layout.log

    async def start(self) -> str:
        """Start the server, on a new cluster if there is none; returns the DSN once it accepts connections."""
        if self._thread is not None:
            raise RuntimeError("an EmbeddedPostgres can be started only once; create a new one")
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="embedded-postgres", daemon=True)
        self._thread.start()
        try:
            return await asyncio.shield(asyncio.wrap_future(self._started))
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the server and release the data directory; may be called twice, or after a failed start."""
        self._stopping.set()
        if self._thread is not None:
            await asyncio.shield(asyncio.wrap_future(self._finished))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _run(self) -> None:
        """The main function of the thread."""
        try:
            cluster.make_home(self._layout)
            with _locked(self._layout.lock, self._layout.home):
                server = _Server(self._layout, self._configuration, self._stopping, self._log)
                try:
                    server.prepare()
                    server.start()
                    self.postmaster_pid = server.pid
                    self._started.set_result(self.dsn)
                    self._watch(server)
                finally:
                    server.shut_down()
        except Exception as error:  # noqa: BLE001 - raised in `start`, or logged: a thread has no caller
            if self._started.done():
                self._log.error(
                    "the supervisor of embedded PostgreSQL failed; shutting embedded PostgreSQL down", error=repr(error)
                )
            else:
                self._started.set_exception(error)
        finally:
            self.postmaster_pid = None
            self._finished.set_result(None)

    def _watch(self, server: "_Server") -> None:
        """Restart the server whenever it dies; returns when it has to stop."""
        logs_removed_at = time.monotonic()
        pause_seconds = PAUSE_SECONDS_FIRST
        while not self._stopping.wait(CHECK_EVERY_SECONDS):
            if time.monotonic() - logs_removed_at > REMOVE_LOGS_EVERY_SECONDS:
                logs_removed_at = time.monotonic()
                cluster.remove_old_logs(self._layout)
            if (ended := server.ended()) is None:
                continue
            self._log.warning(
                "embedded PostgreSQL died; restarting it", pid=self.postmaster_pid, how=ended, log=str(self._layout.log)
            )
            self.postmaster_pid = None
            if time.monotonic() - server.started_at > STEADY_AFTER_SECONDS:
                pause_seconds = PAUSE_SECONDS_FIRST
            pause_seconds = self._start_again(server, pause_seconds)

    def _start_again(self, server: "_Server", pause_seconds: float) -> float:
        """Retry until the server is back or has to stop; returns the pause for the next time."""
        died_at = time.monotonic()
        while not self._stopping.wait(pause_seconds):
            pause_seconds = min(pause_seconds * 2, PAUSE_SECONDS_MAX)
            try:
                server.start()
            except (EmbeddedPostgresError, OSError) as error:
                if self._stopping.is_set():
                    break
                self._log.error(
                    "cannot restart embedded PostgreSQL; retrying", error=str(error), next_attempt_seconds=pause_seconds
                )
                continue
            self.restarts += 1
            self.postmaster_pid = server.pid
            took = round(time.monotonic() - died_at, 3)
            self._log.warning(
                "restarted embedded PostgreSQL", pid=server.pid, down_seconds=took, restarts=self.restarts
            )
            self._report_restart()
            break
        return pause_seconds

    def _report_restart(self) -> None:
        if self._on_restart is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody listens
                self._loop.call_soon_threadsafe(self._on_restart, self.restarts)


@contextlib.contextmanager
def _locked(lock: Path, home: Path) -> Iterator[None]:
    """Hold the lock of the data directory; the kernel releases it however the process ends."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirectoryUnusable(lock, error.strerror or str(error)) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).strip()
            raise AlreadyRunning(home, int(holder) if holder.isdigit() else None) from None
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise DataDirectoryUnusable(lock, error.strerror or str(error)) from error
        yield
    finally:
        os.close(descriptor)


class _Server:
    """One cluster and its postmaster, for the supervising thread; all methods block for a limited time."""

    def __init__(
        self,
        layout: cluster.ClusterLayout,
        configuration: cluster.Configuration,
        stopping: threading.Event,
        log: Log,
    ) -> None:
        self._layout = layout
        self._configuration = configuration
        self._stopping = stopping
        self._log = log
        self._account = processes.account_for(layout.cluster)
        self._installation = binaries.find_installation(layout.cluster)
        self._process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def ended(self) -> str | None:
        """How the postmaster ended, or None while it runs."""
        code = self._process.poll() if self._process else None
        if code is None:
            return None
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def prepare(self) -> None:
        """Create everything that a start needs and that does not exist yet."""
        layout, account = self._layout, self._account
        cluster.check_reachable(layout, account)
        self._installation = binaries.readable_by(self._installation, account, layout.home, layout.binaries)
        if binaries.data_version(layout.cluster) is None:
            self._log.info(
                "creating the data directory of embedded PostgreSQL",
                directory=str(layout.cluster),
                account=account.name,
            )
            cluster.make_cluster(layout, self._installation, account, durable=self._configuration.durable)
        cluster.make_private(layout.log, account)
        cluster.make_private(layout.socket, account)

    def start(self) -> None:
        """Start the postmaster and return when it accepts connections."""
        self._clear_old_server()
        layout = self._layout
        cluster.write_configuration(layout, self._account, self._installation.major, self._configuration)
        arguments = ["-D", str(layout.home), "-c", f"cluster_name={layout.cluster_name()}"]
        program = self._installation.program("postgres")
        launch = processes.ProgramLaunch(self._account, layout.home, program, arguments, signal.SIGINT)
        try:
            with layout.start_log.open("wb") as output:
                self._process = launch.spawn(output)
        except OSError as error:
            raise DataDirectoryUnusable(layout.start_log, error.strerror or str(error)) from error
        self.started_at = time.monotonic()
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.shut_down()
            raise
        self._log.info(
            "embedded PostgreSQL is ready",
            pid=self._process.pid,
            version=self._installation.version,
            account=self._account.name,
            directory=str(layout.cluster),
            start_seconds=round(time.monotonic() - self.started_at, 3),
        )

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the mark in the postmaster's pid file; until then it may be replaying the log."""
        begun = time.time()
        while not _is_ready(self._layout.cluster / "postmaster.pid", process.pid):
            if ended := self.ended():
                raise StartFailed(
                    f"PostgreSQL in {self._layout.cluster} did not start ({ended}): "
                    f"{cluster.recent_errors(self._layout, begun)}; its log is in {self._layout.log}"
                )
            if time.monotonic() - self.started_at > READY_SECONDS_MAX:
                raise StartFailed(
                    f"PostgreSQL in {self._layout.cluster} was not ready after {READY_SECONDS_MAX:.0f} s; "
                    f"its log is in {self._layout.log}"
                )
            if self._stopping.wait(0.02):
                raise StartFailed("stopped while PostgreSQL was starting")

    def _clear_old_server(self) -> None:
        """Make sure that no process of an earlier server is left, then remove the pid file that it may have left.

        We hold the lock, so the supervisor of that server is dead. The server is shutting down, or its postmaster was
        killed and the children are about to notice; both usually end by themselves.
        """
        name, account = self._layout.cluster_name(), self._account
        remaining = processes.running_pids(name, account)
        if remaining:
            self._log.warning(
                "processes of an earlier embedded PostgreSQL still run; waiting for them to exit", pids=remaining
            )
            patience = ORPHAN_SECONDS_MAX if self._process else OLD_SERVER_SECONDS_MAX
            remaining = processes.wait_until_gone(name, account, timeout_seconds=patience)
        for number in (signal.SIGQUIT, signal.SIGKILL):
            if remaining:
                self._log.warning(
                    "processes of an earlier embedded PostgreSQL did not exit; signalling them",
                    pids=remaining,
                    signal=number.name,
                )
                processes.signal_all(remaining, number)
                remaining = processes.wait_until_gone(name, account, timeout_seconds=ORPHAN_SECONDS_MAX)
        if remaining:
            raise StartFailed(
                f"an earlier server in {self._layout.cluster} does not stop: processes {', '.join(map(str, remaining))}"
            )
        try:
            (self._layout.cluster / "postmaster.pid").unlink(missing_ok=True)
        except OSError as error:
            raise DataDirectoryUnusable(self._layout.cluster, error.strerror or str(error)) from error

    def shut_down(self) -> None:
        """Stop the postmaster: a fast shutdown, then an immediate one, then SIGKILL, also for its children."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        for number, timeout_seconds in (
            (signal.SIGINT, FAST_SHUTDOWN_SECONDS_MAX),
            (signal.SIGQUIT, ORPHAN_SECONDS_MAX),
        ):
            process.send_signal(number)
            try:
                process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                self._log.warning(
                    "embedded PostgreSQL did not stop after this signal; sending a stronger one",
                    pid=process.pid,
                    signal=number.name,
                )
                continue
            # The postmaster does not wait for connections that it refused: such a child ends a moment later.
            name = self._layout.cluster_name()
            left = processes.wait_until_gone(name, self._account, timeout_seconds=ORPHAN_SECONDS_MAX)
            self._log.info("embedded PostgreSQL stopped", pid=process.pid, how=self.ended(), left=left)
            return
        processes.signal_all(processes.running_pids(self._layout.cluster_name(), self._account), signal.SIGKILL)
        process.wait()


def _is_ready(pid_file: Path, pid: int) -> bool:
    try:
        lines = pid_file.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"
