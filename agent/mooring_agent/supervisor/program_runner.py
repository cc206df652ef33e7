"""The programs of one owner: runs that end, and services that are restarted.

A run is started at most once under its key. A service has a main process; what it leaves behind when it ends keeps
running, keeps writing to the service's log, and still belongs to the owner.
"""

import contextlib
import fcntl
import os
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from mooring_agent.backoff import Backoff
from mooring_agent.supervisor import program_records, segmented_log
from mooring_agent.supervisor.event_loop import EventLoop, Timer
from mooring_agent.supervisor.log_room import LOGS_BYTES, RESERVE_BYTES, LogRoom
from mooring_agent.supervisor.output_capture import OutputCapture
from mooring_agent.supervisor.process_control import (
    KEY_VARIABLE,
    ProcessControl,
    RequestRefused,
    SpawnSpec,
    StandardStreams,
)
from mooring_agent.supervisor.replies import Reply
from mooring_agent.supervisor.segmented_log import HEAD_BYTES, SEGMENT_BYTES, LogWriter

RUNNING_MAX: Final = 256
NAME_MAX: Final = 128
OUTPUTS_MAX: Final = 2048
_BACKOFF_MAX_SECONDS: Final = 60.0
_STEADY_SECONDS: Final = 60.0
_READ_BYTES: Final = 65_536
_POLL_SECONDS: Final = 0.02
_POLLS_MAX: Final = 250
_REAP_SECONDS: Final = 1.0
_SAVE_AGAIN_SECONDS: Final = 1.0


class ServiceRestartPolicy(NamedTuple):
    """When a service is restarted."""

    policy: str
    backoff_seconds: float
    limit: int


class SupervisedProgram:
    """One program and its state; `entry` is what the records keep."""

    def __init__(self, name: str, entry: program_records.Entry) -> None:
        self.name = name
        self.entry = entry
        self.spec: SpawnSpec | None = None
        self.restart = ServiceRestartPolicy("never", 0.0, 0)
        self.log: LogWriter | None = None
        self.has_log = True  # whether something of its log may still be on disk
        self.outputs: set[int] = set()
        self.capture: tuple[int, OutputCapture] | None = None  # the captured standard output, by its descriptor
        self.timer: Timer | None = None
        self.waiters: list[Reply] = []
        self.stopping = False
        self.failures = 0  # consecutive
        self.backoff = Backoff(0.0, 0.0)
        self.started_monotonic = 0.0

    @property
    def pid(self) -> int | None:
        """The main process, while it is alive."""
        pid: int | None = self.entry["pid"]
        return pid

    @property
    def is_finished(self) -> bool:
        """Whether no process of it should be running."""
        return self.entry["state"] in ("ended", "exited", "failed")

    def cancel_timer(self) -> None:
        """Cancel a pending time-out or restart."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class ProgramRunner:
    """Starts programs, logs their output and records how they end."""

    def __init__(
        self,
        loop: EventLoop,
        control: ProcessControl,
        directory: int,
        *,
        log_segment_bytes: int = SEGMENT_BYTES,
        log_head_bytes: int = HEAD_BYTES,
        logs_bytes: int = LOGS_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        self.loop = loop
        self.control = control
        self.closing = False
        self._directory = directory
        self._log_segment_bytes = log_segment_bytes
        self._log_head_bytes = log_head_bytes
        self._logs = program_records.open_directory(directory, "logs")
        self.programs = {
            name: SupervisedProgram(name, entry) for name, entry in program_records.load(directory).items()
        }
        self._room = LogRoom(self._logs, logs_bytes, reserve_bytes)
        self._room.make_room = self._drop_oldest_log
        for name in os.listdir(self._logs):
            with self._opened_log(name) as log:
                self._room.add(segmented_log.size_of(log))
        self.children: dict[int, Callable[[int], None]] = {}
        self._saving: Timer | None = None  # the next try to save, after one failed

    def start_run(self, key: str, spec: SpawnSpec, timeout_seconds: float) -> SupervisedProgram:
        """Start a run once; for a known key, return it as it is."""
        program = self.programs.get(key)
        if program is None:
            program = self._register(key, "run")
            self._start_first(program, spec)
            program.timer = self.loop.call_later(timeout_seconds, lambda: self.end_run(program, "timed_out"))
        elif program.entry["kind"] != "run":
            raise RequestRefused("refused", f"{key} is a service")
        return program

    def end_run(self, program: SupervisedProgram, reason: str, reply: Reply | None = None) -> None:
        """Kill a run and what it started; the reply is sent when nothing of it is left."""
        if not program.is_finished:
            program.entry["reason"] = reason
        program.cancel_timer()
        self._kill_related(program, reply, _POLLS_MAX)

    def start_service(self, name: str, spec: SpawnSpec, restart: ServiceRestartPolicy) -> SupervisedProgram:
        """Start a service, or return the one with this name if it is running or about to."""
        program = self.programs.get(name)
        if program is not None and program.entry["kind"] != "service":
            raise RequestRefused("refused", f"{name} is a run")
        if program is None or program.is_finished:
            program = self._register(name, "service")
            program.restart = restart
            program.backoff = Backoff(restart.backoff_seconds, _BACKOFF_MAX_SECONDS)
            self._start_first(program, spec)
        return program

    def stop_main(self, program: SupervisedProgram, grace_seconds: float) -> bool:
        """Ask the main process to exit, and kill it after the grace time; returns whether it was running."""
        program.stopping = True
        program.cancel_timer()
        pid = program.pid
        if pid is None:
            if program.entry["state"] == "backing_off":
                self._finish(program, "exited")
            return False
        self.control.signal([pid], signal.SIGTERM)
        program.timer = self.loop.call_later(grace_seconds, lambda: self._kill_main(program, pid))
        return True

    def _kill_main(self, program: SupervisedProgram, pid: int) -> None:
        self.control.signal([pid], signal.SIGKILL)
        self._end_unreaped_later(program, pid)

    def _end_unreaped_later(self, program: SupervisedProgram, pid: int) -> None:
        """A killed process is reaped at once, unless a tracer holds it: after a while it counts as ended all the same.

        Otherwise a tenant could keep a program, and the task that waits for it, from ever ending.
        """
        program.timer = self.loop.call_later(_REAP_SECONDS, lambda: self._end_unreaped(program, pid))

    def _end_unreaped(self, program: SupervisedProgram, pid: int) -> None:
        if program.pid != pid:
            return
        if pid in self.control.living():  # it is in a system call that ends only with its device
            self._end_unreaped_later(program, pid)
        elif (on_exit := self.children.pop(pid, None)) is not None:
            on_exit(128 + signal.SIGKILL)

    def abandon(self) -> None:
        """Start nothing more; runs that are killed now count as lost."""
        self.closing = True
        for program in self.programs.values():
            if program.entry["kind"] == "run" and not program.is_finished:
                program.entry["reason"] = "lost"

    def reap(self) -> None:
        """Record how the processes that have ended did so."""
        for ended in self.control.ended():
            on_exit = self.children.pop(ended.pid, None)
            if on_exit is not None:
                on_exit(ended.exit_code)

    def log_directory(self, name: str) -> int:
        return program_records.open_directory(self._logs, name)

    def _register(self, name: str, kind: str) -> SupervisedProgram:
        if self.closing:
            raise RequestRefused("refused", "the owner is being closed")
        if not is_name(name):
            raise RequestRefused(
                "refused", "a key must be 1 to 128 letters, digits, '.', '_' or '-', and must not begin with '.'"
            )
        if sum(not each.is_finished for each in self.programs.values()) >= RUNNING_MAX:
            raise RequestRefused("capacity", f"{RUNNING_MAX} programs are already running")
        self._make_room()
        entry = {"kind": kind, "state": "starting", "pid": None, "started_at": time.time(), "restarts": 0}
        entry |= {"exit_code": None, "reason": None, "ended_at": None}
        # A service that is started again keeps its log, which its leftover processes may still be writing to.
        known = self.programs.pop(name, None)
        program = known or SupervisedProgram(name, entry)
        program.stopping, program.failures = False, 0
        self.programs[name] = program
        before, program.entry = program.entry, entry
        try:
            program_records.save(self._directory, self._entries())
        except OSError:
            # A full disk: nothing was started, so nothing may look as if it were about to.
            program.entry = before
            if known is None:
                del self.programs[name]
            raise
        return program

    def _make_room(self) -> None:
        """Forget the oldest finished runs, with their output."""
        finished = [each for each in self.programs.values() if each.is_finished and not each.outputs]
        for program in finished[: max(0, len(self.programs) - program_records.PROGRAMS_MAX + 1)]:
            self._close_log(program)
            with self._opened_log(program.name) as directory:
                self._room.release(segmented_log.remove_segments(directory))
                for name in os.listdir(directory):
                    os.unlink(name, dir_fd=directory)
            os.rmdir(program.name, dir_fd=self._logs)
            del self.programs[program.name]

    def _drop_oldest_log(self) -> bool:
        """Remove the log of the program that ended first and still has one; its result stays known."""
        ended = [each for each in self.programs.values() if each.is_finished and each.log is None and each.has_log]
        for program in sorted(ended, key=lambda each: each.entry["ended_at"] or 0.0):
            with self._opened_log(program.name) as directory:
                size = segmented_log.remove_segments(directory)
            program.has_log = False
            if size:
                self._room.release(size)
                return True
        return False

    @contextlib.contextmanager
    def _opened_log(self, name: str) -> Iterator[int]:
        directory = self.log_directory(name)
        try:
            yield directory
        finally:
            os.close(directory)

    def _start_first(self, program: SupervisedProgram, spec: SpawnSpec) -> None:
        """Start the first process; if that fails, the program is finished."""
        program.spec = spec
        try:
            self._launch(program, spec)
        except (RequestRefused, OSError) as problem:
            program.entry["reason"] = problem.code if isinstance(problem, RequestRefused) else "host_error"
            self._finish(program, "ended" if program.entry["kind"] == "run" else "failed")
            raise

    def _launch(self, program: SupervisedProgram, spec: SpawnSpec) -> None:
        if sum(len(each.outputs) for each in self.programs.values()) >= OUTPUTS_MAX:
            raise RequestRefused("capacity", "too many processes of ended programs still hold their output open")
        if program.log is None:
            directory = self.log_directory(program.name)
            program.has_log = True
            program.log = LogWriter(directory, self._log_segment_bytes, self._log_head_bytes, self._room)
        spawn_spec = spec._replace(environment={**spec.environment, KEY_VARIABLE: program.name})
        # Standard output and error share a pipe, so that the log keeps their order, unless output is captured.
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2 if spec.output_bytes else 1)]
        for _, write in pipes:
            os.fchmod(write, 0o222)  # so that the program can open it again as /dev/stdout, whatever its user
        outputs = [read for read, _ in pipes]
        try:
            pid = self.control.start(spawn_spec, StandardStreams(pipes[0][1], pipes[-1][1]))
        except (RequestRefused, OSError):
            for output in outputs:
                os.close(output)
            raise
        finally:
            for _, write in pipes:
                os.close(write)
        if spec.output_bytes:
            self._capture_output(program, outputs[0], spec.output_bytes)
        program.started_monotonic = time.monotonic()
        program.entry |= {"state": "running", "pid": pid, "started_at": time.time(), "exit_code": None}
        self.children[pid] = lambda code: self._on_exit(program, outputs, code)
        for output in outputs:
            os.set_blocking(output, False)
            program.outputs.add(output)
            self.loop.watch(output, partial(self._on_output, program, output))
        self._save()

    def _capture_output(self, program: SupervisedProgram, output: int, limit_bytes: int) -> None:
        """Capture what comes out of this pipe; if no file can be created, only the log has it."""
        directory = self.log_directory(program.name)
        try:
            program.capture = (output, OutputCapture(directory, limit_bytes))
        except OSError:
            os.close(directory)

    def _on_output(self, program: SupervisedProgram, output: int) -> None:
        self._drain(program, output)

    def _drain(self, program: SupervisedProgram, output: int) -> bool:
        """Log what a program wrote; returns whether there may be more."""
        try:
            data = os.read(output, _READ_BYTES)
        except BlockingIOError:
            return False
        if data and program.log is not None:
            program.log.write(data)
            if program.capture is not None and program.capture[0] == output:
                program.capture[1].write(data)
            return True
        self.loop.unwatch(output)
        os.close(output)
        program.outputs.discard(output)
        if program.is_finished:
            self._close_log(program)
        return False

    def _on_exit(self, program: SupervisedProgram, outputs: list[int], code: int) -> None:
        """The main process ended: log what it wrote before. What its leftovers write is not captured."""
        for output in outputs:
            # Only what is in the pipe now: a leftover process may write faster than this reads.
            for _ in range(_waiting_bytes(output) // _READ_BYTES + 1 if output in program.outputs else 0):
                if not self._drain(program, output):
                    break
        if program.capture is not None:
            program.capture[1].close()
            program.capture = None
        entry = program.entry
        entry |= {"pid": None, "exit_code": code, "ended_at": time.time()}
        if entry["kind"] == "run":
            entry["reason"] = entry["reason"] or "exited"
            program.cancel_timer()
            self._finish(program, "ended")
        elif program.stopping or self.closing:
            program.cancel_timer()
            self._finish(program, "exited")
        else:
            self._restart_or_finish(program)

    def _restart_or_finish(self, program: SupervisedProgram) -> None:
        policy, entry = program.restart, program.entry
        if time.monotonic() - program.started_monotonic >= max(_STEADY_SECONDS, 10 * policy.backoff_seconds):
            program.failures = 0
            program.backoff.reset()
        should_restart = policy.policy == "always" or (policy.policy == "on_failure" and entry["exit_code"] != 0)
        if not should_restart:
            self._finish(program, "exited" if entry["exit_code"] == 0 else "failed")
        elif program.failures >= policy.limit:
            entry["reason"] = "restart limit"
            self._finish(program, "failed")
        else:
            program.failures += 1
            entry["state"] = "backing_off"
            program.timer = self.loop.call_later(program.backoff.next_seconds(), lambda: self._restart(program))
            self._save()

    def _restart(self, program: SupervisedProgram) -> None:
        program.timer = None
        program.entry["restarts"] += 1
        if program.spec is None:
            raise ValueError("a program from an earlier supervisor cannot be restarted")
        try:
            self._launch(program, program.spec)
        except (RequestRefused, OSError) as error:
            # A program that no longer exists counts as a failed start.
            program.entry |= {"exit_code": 127, "reason": str(error)[:200]}
            self._restart_or_finish(program)

    def _finish(self, program: SupervisedProgram, state: str) -> None:
        program.entry["state"] = state
        program.spec = None  # its environment is no longer needed
        self._save()
        waiters, program.waiters = program.waiters, []
        for reply in waiters:
            reply.send_and_close(program=dict(program.entry))
        if not program.outputs:
            self._close_log(program)

    def _kill_related(
        self, program: SupervisedProgram, reply: Reply | None, polls_left: int, killed: frozenset[int] = frozenset()
    ) -> None:
        """Kill what descends from a program, is in its session or carries its key; repeat until nothing is left.

        A dying process loses its environment a while before it is gone, so killed processes are awaited by pid.
        """
        found = self.control.related(program.pid, program.name)
        remaining = found.related | (found.living & killed)
        if not remaining or polls_left == 0:
            if reply is not None:
                reply.send_and_close(left=sorted(remaining))
            if program.pid is not None and not remaining:
                self._end_unreaped_later(program, program.pid)
            return
        self.control.signal(found.related, signal.SIGKILL)
        self.loop.call_later(_POLL_SECONDS, lambda: self._kill_related(program, reply, polls_left - 1, remaining))

    def _close_log(self, program: SupervisedProgram) -> None:
        if program.log is not None and not program.outputs:
            program.log.close()
            program.log = None

    def _entries(self) -> dict[str, program_records.Entry]:
        return {name: program.entry for name, program in self.programs.items()}

    def _save(self) -> None:
        """Save the records; a full disk delays that, and stops nothing."""
        if self._saving is not None:
            self._saving.cancel()
            self._saving = None
        try:
            program_records.save(self._directory, self._entries())
        except OSError:
            self._saving = self.loop.call_later(_SAVE_AGAIN_SECONDS, self._save)


def _waiting_bytes(pipe: int) -> int:
    """How much can be read from a pipe now."""
    found: int = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]
    return found


def is_name(name: Any) -> bool:
    """Whether this is valid as a key, a service name or a label."""
    return (
        isinstance(name, str)
        and 1 <= len(name) <= NAME_MAX
        and name.isascii()
        and not name.startswith(".")
        and all(letter.isalnum() or letter in "._-" for letter in name)
    )
