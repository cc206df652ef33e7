"""Interactive commands: a program with a terminal, or with pipes, whose other ends go to the requester.

The connection stays open: signals and sizes arrive over it, and the exit code is sent back. If it closes, the viewer or
the agent is gone, and the command is hung up.
"""

import fcntl
import os
import signal
import struct
import termios
from typing import Any, Final, NamedTuple

from mooring_agent.kernel import process_tree
from mooring_agent.supervisor import spawn
from mooring_agent.supervisor.program_runner import ProgramRunner
from mooring_agent.supervisor.replies import Reply
from mooring_agent.supervisor.spawn import RequestRefused, SpawnSpec, StandardStreams

COMMANDS_MAX: Final = 64
SIZE_MAX: Final = 4096
_HANG_UP_SECONDS: Final = 3.0


class TerminalSize(NamedTuple):
    """The size of a terminal, in characters."""

    columns: int
    rows: int


class InteractiveCommands:
    """The commands of one owner."""

    def __init__(self, programs: ProgramRunner) -> None:
        self._programs = programs
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
        master, slave = os.openpty()
        try:
            _resize(master, size.columns, size.rows)
            pid = spawn.start(spec, self._programs.options, StandardStreams(slave, slave, slave, is_terminal=True))
        except (RequestRefused, OSError):
            os.close(master)
            raise
        finally:
            os.close(slave)
        self._track(_TerminalCommand(master, pid), reply, (master,))

    def _open_pipes(self, spec: SpawnSpec, reply: Reply) -> None:
        """Separate pipes for standard input, output and error."""
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        child_ends = (pipes[0][0], pipes[1][1], pipes[2][1])
        parent_ends = (pipes[0][1], pipes[1][0], pipes[2][0])
        try:
            pid = spawn.start(
                spec, self._programs.options, StandardStreams(child_ends[1], child_ends[2], child_ends[0])
            )
            self._track(_PipedCommand(pid), reply, parent_ends)
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
        reply.send_and_close(exit_code=code if code >= 0 else 128 - code)
        command.close()

    def _hang_up(self, command: "_TerminalCommand | _PipedCommand") -> None:
        """The requester is gone: hang up, and kill what does not exit."""
        if command.close():
            process_tree.send_signal([command.pid], signal.SIGHUP)
            self._programs.loop.call_later(_HANG_UP_SECONDS, lambda: self._kill(command.pid))

    def _kill(self, pid: int) -> None:
        if pid in self._programs.children:
            below = [each for each in process_tree.descendants(pid) if process_tree.is_in_session(each, pid)]
            process_tree.send_signal([pid, *below], signal.SIGKILL)


class _TerminalCommand:
    """Our end of a command's terminal."""

    def __init__(self, master: int, pid: int) -> None:
        self._master = master
        self.pid = pid

    def on_message(self, message: dict[str, Any]) -> None:
        """Handle a size or a signal."""
        if self._master < 0:
            return
        if message.get("op") == "resize":
            _resize(self._master, message.get("columns"), message.get("rows"))
        elif message.get("op") == "signal" and message.get("number") in set(signal.valid_signals()):
            foreground = os.tcgetpgrp(self._master)
            if foreground > 0:
                os.killpg(foreground, message["number"])

    def close(self) -> bool:
        """Release it; returns whether it was still held."""
        if self._master < 0:
            return False
        os.close(self._master)
        self._master = -1
        return True


class _PipedCommand:
    """A command without a terminal: only its process is held."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._held = True

    def on_message(self, message: dict[str, Any]) -> None:
        """Handle a signal, which goes to the process group that the command leads."""
        if self._held and message.get("op") == "signal" and message.get("number") in set(signal.valid_signals()):
            process_tree.send_signal([-self.pid], message["number"])

    def close(self) -> bool:
        """Release it; returns whether it was still held."""
        command, self._held = self._held, False
        return command


def _resize(master: int, columns: Any, rows: Any) -> None:
    if not all(isinstance(each, int) and 0 < each <= SIZE_MAX for each in (columns, rows)):
        raise RequestRefused("refused", f"a terminal must have 1 to {SIZE_MAX} columns and rows")
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
