"""Interactive commands: a program with a terminal, or with pipes, whose other ends go to the requester.

The connection stays open: signals and sizes arrive over it, and the exit code is sent back. If it closes, the viewer or
the agent is gone, and the command is hung up.
"""

import fcntl
import os
import signal
import struct
import termios
from typing import Any, Final

from mooring_agent.supervisor.process_control import (
    ProcessControl,
    RequestRefused,
    SpawnSpec,
    StandardStreams,
    TerminalSize,
)
from mooring_agent.supervisor.program_runner import ProgramRunner
from mooring_agent.supervisor.replies import Reply

COMMANDS_MAX: Final = 64
SIZE_MAX: Final = 4096
_HANG_UP_SECONDS: Final = 3.0


class InteractiveCommands:
    """The commands of one owner."""

    def __init__(self, programs: ProgramRunner) -> None:
        self._programs = programs
        self._control = programs.control
        self._count = 0

    def open(self, spec: SpawnSpec, size: TerminalSize | None, reply: Reply) -> None:
        """Start a command with a terminal of this size or with three pipes.

        The first reply carries our ends of them, the second one the exit code.
        """
        if self._programs.closing:
            raise RequestRefused("refused", "the owner is being closed")
        if self._count >= COMMANDS_MAX:
            raise RequestRefused("capacity", f"{COMMANDS_MAX} commands are already open")
        if size is None:
            self._open_pipes(spec, reply)
        else:
            self._open_terminal(spec, size, reply)

    def _open_terminal(self, spec: SpawnSpec, size: TerminalSize, reply: Reply) -> None:
        _check_size(size.columns, size.rows)
        pid, terminal = self._control.start_on_terminal(spec, size)
        self._track(_TerminalCommand(self._control, terminal, pid), reply, (terminal,))

    def _open_pipes(self, spec: SpawnSpec, reply: Reply) -> None:
        """Separate pipes for standard input, output and error."""
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        child_ends = (pipes[0][0], pipes[1][1], pipes[2][1])
        for each, mode in zip(child_ends, (0o444, 0o222, 0o222), strict=True):
            os.fchmod(each, mode)  # so that the program can open it again as /dev/stdin, /dev/stdout or /dev/stderr
        parent_ends = (pipes[0][1], pipes[1][0], pipes[2][0])
        try:
            pid = self._control.start(spec, StandardStreams(child_ends[1], child_ends[2], child_ends[0]))
            self._track(_PipedCommand(self._control, pid), reply, parent_ends)
        finally:
            for each in (*child_ends, *parent_ends):
                os.close(each)

    def _track(self, command: "_TerminalCommand | _PipedCommand", reply: Reply, descriptors: tuple[int, ...]) -> None:
        self._count += 1
        self._programs.children[command.pid] = lambda code: self._on_exit(reply, command, code)
        reply.send(descriptors, pid=command.pid)
        reply.wait(lambda: self._hang_up(command), command.on_message)

    def _on_exit(self, reply: Reply, command: "_TerminalCommand | _PipedCommand", code: int) -> None:
        self._count -= 1
        reply.send_and_close(exit_code=code)
        command.close()

    def _hang_up(self, command: "_TerminalCommand | _PipedCommand") -> None:
        """The requester is gone: hang up, and kill what does not exit."""
        if command.close():
            self._control.signal([command.pid], signal.SIGHUP)
            self._programs.loop.call_later(_HANG_UP_SECONDS, lambda: self._kill(command.pid))

    def _kill(self, pid: int) -> None:
        """Kill the command and what is in its session."""
        if pid in self._programs.children:
            self._control.signal([pid, *self._control.related(pid, "").related], signal.SIGKILL)


class _TerminalCommand:
    """Our end of a command's terminal."""

    def __init__(self, control: ProcessControl, terminal: int, pid: int) -> None:
        self._control = control
        self._terminal = terminal
        self.pid = pid

    def on_message(self, message: dict[str, Any]) -> None:
        """Handle a size or a signal."""
        if self._terminal < 0:
            return
        if message.get("op") == "resize":
            columns, rows = message.get("columns"), message.get("rows")
            _check_size(columns, rows)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        elif message.get("op") == "signal" and _is_signal(message.get("number")):
            self._control.signal_foreground(self._terminal, message["number"])

    def close(self) -> bool:
        """Release it; returns whether it was still held."""
        if self._terminal < 0:
            return False
        os.close(self._terminal)
        self._terminal = -1
        return True


class _PipedCommand:
    """A command without a terminal: there is only its process to signal and release."""

    def __init__(self, control: ProcessControl, pid: int) -> None:
        self._control = control
        self.pid = pid
        self._held = True

    def on_message(self, message: dict[str, Any]) -> None:
        """Handle a signal, which goes to the process group that the command leads."""
        if self._held and message.get("op") == "signal" and _is_signal(message.get("number")):
            self._control.signal([-self.pid], message["number"])

    def close(self) -> bool:
        """Release it; returns whether it was still held."""
        command, self._held = self._held, False
        return command


def _is_signal(number: Any) -> bool:
    return isinstance(number, int) and number in signal.valid_signals()


def _check_size(columns: Any, rows: Any) -> None:
    if not all(isinstance(each, int) and 0 < each <= SIZE_MAX for each in (columns, rows)):
        raise RequestRefused("refused", f"a terminal must have 1 to {SIZE_MAX} columns and rows")
