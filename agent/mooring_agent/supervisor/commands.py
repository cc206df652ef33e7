"""Interactive commands: a program with a terminal whose other end goes to whoever asked.

The connection that asked stays open: over it come signals and sizes, and back goes the exit code. If it closes, the
viewer or the agent is gone, and the command's terminal hangs up.
"""

import fcntl
import os
import signal
import struct
import termios
from typing import Any, Final

from mooring_agent.supervisor import spawn, tree
from mooring_agent.supervisor.answers import Answer
from mooring_agent.supervisor.programs import Programs
from mooring_agent.supervisor.spawn import Refusal, Spec

COMMANDS_MAX: Final = 64
SIZE_MAX: Final = 4096
_HANG_UP_SECONDS: Final = 3.0


class Commands:
    """The commands of one owner."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._count = 0

    def open(self, spec: Spec, size: tuple[int, int], answer: Answer) -> None:
        """Start it; the answer carries the terminal, and later the exit code."""
        if self._programs.closing:
            raise Refusal("refused", "the owner is being closed")
        if self._count >= COMMANDS_MAX:
            raise Refusal("capacity", f"{COMMANDS_MAX} commands are open already")
        master, slave = os.openpty()
        try:
            _resize(master, *size)
            pid = spawn.start(spec, self._programs.options, slave, terminal=slave)
        except (Refusal, OSError):
            os.close(master)
            raise
        finally:
            os.close(slave)
        self._count += 1
        terminal = _Terminal(master, pid)
        self._programs.children[pid] = lambda code: self._ended(answer, terminal, code)
        answer.tell((master,), pid=pid)
        answer.wait(lambda: self._gone(terminal), terminal.heard)

    def _ended(self, answer: Answer, terminal: "_Terminal", code: int) -> None:
        self._count -= 1
        answer.give(exit_code=code if code >= 0 else 128 - code)
        terminal.close()

    def _gone(self, terminal: "_Terminal") -> None:
        """Nobody looks any more: hang up, and kill what does not go."""
        if terminal.close():
            tree.send_signal([terminal.pid], signal.SIGHUP)
            self._programs.loop.after(_HANG_UP_SECONDS, lambda: self._kill(terminal.pid))

    def _kill(self, pid: int) -> None:
        if pid in self._programs.children:
            below = [each for each in tree.descendants(pid) if tree.is_in_session(each, pid)]
            tree.send_signal([pid, *below], signal.SIGKILL)


class _Terminal:
    """Our own hold on a command's terminal."""

    def __init__(self, master: int, pid: int) -> None:
        self._master = master
        self.pid = pid

    def heard(self, message: dict[str, Any]) -> None:
        """A size or a signal."""
        if self._master < 0:
            return
        if message.get("op") == "resize":
            _resize(self._master, message.get("columns"), message.get("rows"))
        elif message.get("op") == "signal" and message.get("number") in set(signal.valid_signals()):
            foreground = os.tcgetpgrp(self._master)
            if foreground > 0:
                os.killpg(foreground, message["number"])

    def close(self) -> bool:
        """Let go of it; whether it was held."""
        if self._master < 0:
            return False
        os.close(self._master)
        self._master = -1
        return True


def _resize(master: int, columns: Any, rows: Any) -> None:
    if not all(isinstance(each, int) and 0 < each <= SIZE_MAX for each in (columns, rows)):
        raise Refusal("refused", f"a terminal has 1 to {SIZE_MAX} columns and rows")
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
