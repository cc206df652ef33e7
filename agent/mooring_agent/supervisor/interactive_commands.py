"""Commands that somebody sits at: a program with a terminal, or with pipes, whose other ends go to whoever asked.

The connection that asked stays open: over it come signals and sizes, and back goes the exit code. If it closes, the
viewer or the agent is gone, and the command is hung up on.
"""

import fcntl
import os
import signal
import struct
import termios
from typing import Any, Final

from mooring_agent.kernel import process_tree
from mooring_agent.supervisor import spawn
from mooring_agent.supervisor.program_runner import Programs
from mooring_agent.supervisor.replies import Answer
from mooring_agent.supervisor.spawn import Plumbing, Refusal, Spec

COMMANDS_MAX: Final = 64
SIZE_MAX: Final = 4096
_HANG_UP_SECONDS: Final = 3.0


class Commands:
    """The commands of one owner."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._count = 0

    def open(self, spec: Spec, size: tuple[int, int] | None, answer: Answer) -> None:
        """Start it, with a terminal of this size or with three pipes; the answer carries our ends of them.

        Later it carries the exit code.
        """
        if self._programs.closing:
            raise Refusal("refused", "the owner is being closed")
        if self._count >= COMMANDS_MAX:
            raise Refusal("capacity", f"{COMMANDS_MAX} commands are open already")
        if size is None:
            self._open_pipes(spec, answer)
        else:
            self._open_terminal(spec, size, answer)

    def _open_terminal(self, spec: Spec, size: tuple[int, int], answer: Answer) -> None:
        master, slave = os.openpty()
        try:
            _resize(master, *size)
            pid = spawn.start(spec, self._programs.options, Plumbing(slave, slave, slave, is_terminal=True))
        except (Refusal, OSError):
            os.close(master)
            raise
        finally:
            os.close(slave)
        self._begun(_Terminal(master, pid), answer, (master,))

    def _open_pipes(self, spec: Spec, answer: Answer) -> None:
        """Standard input, output and errors apart from each other, as a program in a pipeline has them."""
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        theirs = (pipes[0][0], pipes[1][1], pipes[2][1])
        ours = (pipes[0][1], pipes[1][0], pipes[2][0])
        try:
            pid = spawn.start(spec, self._programs.options, Plumbing(theirs[1], theirs[2], theirs[0]))
            self._begun(_Piped(pid), answer, ours)
        finally:
            for each in (*theirs, *ours):
                os.close(each)

    def _begun(self, held: "_Terminal | _Piped", answer: Answer, descriptors: tuple[int, ...]) -> None:
        self._count += 1
        self._programs.children[held.pid] = lambda code: self._ended(answer, held, code)
        answer.tell(descriptors, pid=held.pid)
        answer.wait(lambda: self._gone(held), held.heard)

    def _ended(self, answer: Answer, held: "_Terminal | _Piped", code: int) -> None:
        self._count -= 1
        answer.give(exit_code=code if code >= 0 else 128 - code)
        held.close()

    def _gone(self, held: "_Terminal | _Piped") -> None:
        """Nobody looks any more: hang up, and kill what does not go."""
        if held.close():
            process_tree.send_signal([held.pid], signal.SIGHUP)
            self._programs.loop.after(_HANG_UP_SECONDS, lambda: self._kill(held.pid))

    def _kill(self, pid: int) -> None:
        if pid in self._programs.children:
            below = [each for each in process_tree.descendants(pid) if process_tree.is_in_session(each, pid)]
            process_tree.send_signal([pid, *below], signal.SIGKILL)


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


class _Piped:
    """A command without a terminal: all that is held of it is its process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._held = True

    def heard(self, message: dict[str, Any]) -> None:
        """A signal, for the group that it leads; it has no size."""
        if self._held and message.get("op") == "signal" and message.get("number") in set(signal.valid_signals()):
            process_tree.send_signal([-self.pid], message["number"])

    def close(self) -> bool:
        """Let go of it; whether it was held."""
        held, self._held = self._held, False
        return held


def _resize(master: int, columns: Any, rows: Any) -> None:
    if not all(isinstance(each, int) and 0 < each <= SIZE_MAX for each in (columns, rows)):
        raise Refusal("refused", f"a terminal has 1 to {SIZE_MAX} columns and rows")
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
