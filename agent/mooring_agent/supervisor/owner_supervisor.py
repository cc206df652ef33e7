"""The supervisor of one owner: a fork of the sandbox's, with the owner's programs below it.

It hears questions over a channel from the sandbox supervisor, each with the connection that is to be answered. When the
channel ends, the sandbox's supervisor is gone, and it kills what is below it and goes too: a sandbox without its init
is no sandbox.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

from mooring_agent.kernel import process_tree, syscalls
from mooring_agent.supervisor import packets, program_records
from mooring_agent.supervisor.event_loop import Loop
from mooring_agent.supervisor.interactive_commands import Commands
from mooring_agent.supervisor.options import Options
from mooring_agent.supervisor.program_runner import KEY_VARIABLE, Program, Programs, Restart
from mooring_agent.supervisor.replies import Answer
from mooring_agent.supervisor.spawn import Refusal, read_spec

OWNER_VARIABLE: Final = "MOORING_OWNER"
SECONDS_MAX: Final = 30 * 86_400.0
_POLICIES: Final = ("never", "on_failure", "always")
_LOOK_SECONDS: Final = 0.02
_LOOKS_MAX: Final = 500
_BEFORE_SECONDS: Final = 30.0


def serve_owner(label: str, channel: socket.socket, options: Options) -> NoReturn:
    """In the fork: serve until the channel ends."""
    if options.owner_namespaces:
        (options.prepare_owner or private_proc)()
    else:
        syscalls.adopt_orphans()
    directory = program_records.open_directory(options.state, program_records.directory_of(label))
    os.close(options.state)
    # If the sandbox's supervisor was killed, this owner's former one may still be ending what it had started.
    program_records.lock(directory, _BEFORE_SECONDS)
    marked = options._replace(state=directory, markers={**options.markers, OWNER_VARIABLE: label})
    OwnerSupervisor(channel, marked).run()
    os._exit(0)


def private_proc() -> None:
    """A /proc of the owner's own pid namespace, in a mount namespace of its own."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=syscalls.MS_SLAVE | syscalls.MS_REC)
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)


class OwnerSupervisor:
    """Answers what is asked of one owner."""

    def __init__(self, channel: socket.socket, options: Options) -> None:
        self._channel = channel
        self._options = options
        self._loop = Loop(self._child_ended)
        self._programs = Programs(self._loop, options, options.state)
        self._commands = Commands(self._programs)
        self._asked: dict[str, Callable[[dict[str, Any], Answer], None]] = {
            "start_run": self._start_run,
            "find_run": self._find_run,
            "wait_run": self._wait_run,
            "cancel_run": self._cancel_run,
            "start_service": self._start_service,
            "stop_service": self._stop_service,
            "inspect": self._inspect,
            "list": self._list,
            "processes": self._processes,
            "open_command": self._open_command,
            "kill": self._kill,
        }

    def run(self) -> None:
        """Until the channel ends and nothing is left."""
        self._loop.watch(self._channel.fileno(), self._heard)
        self._loop.run()

    def _child_ended(self) -> None:
        self._programs.reap()

    def _heard(self) -> None:
        packet, descriptors = packets.receive_packet(self._channel)
        if not packet or not descriptors:
            packets.close_all(descriptors)
            self._loop.forget(self._channel.fileno())
            self._programs.give_up()
            self._end_all(lambda left: self._loop.stop(), _LOOKS_MAX)
            return
        connection = socket.socket(fileno=descriptors.pop(0))
        answer = Answer(self._loop, connection)
        try:
            message = packets.unpack(packet, descriptors)
            self._asked[message["op"]](message, answer)
        except Refusal as refusal:
            answer.refuse(refusal)
        except (KeyError, TypeError, ValueError, packets.WireError) as error:
            answer.refuse(Refusal("refused", f"not understood: {type(error).__name__}"))
        except OSError as error:
            answer.refuse(Refusal("host_error", error.strerror or str(error)))
        finally:
            packets.close_all(descriptors)

    def _start_run(self, message: dict[str, Any], answer: Answer) -> None:
        timeout = _seconds(message["timeout_seconds"])
        program = self._programs.start_run(message["key"], read_spec(message["program"]), timeout)
        answer.give(program=dict(program.entry))

    def _find_run(self, message: dict[str, Any], answer: Answer) -> None:
        program = self._programs.known.get(message["key"])
        known = program is not None and program.entry["kind"] == "run"
        answer.give(program=dict(program.entry) if known and program else None)

    def _wait_run(self, message: dict[str, Any], answer: Answer) -> None:
        program = self._run(message["key"])
        if program.is_over:
            answer.give(program=dict(program.entry))
        else:
            _wait_for(program, answer)

    def _cancel_run(self, message: dict[str, Any], answer: Answer) -> None:
        program = self._programs.known.get(message["key"])
        if program is None or program.entry["kind"] != "run":
            answer.give(left=[])
        else:
            self._programs.end_run(program, "cancelled", answer)

    def _start_service(self, message: dict[str, Any], answer: Answer) -> None:
        policy, backoff, limit = (message["restart"][name] for name in ("policy", "backoff_seconds", "limit"))
        if policy not in _POLICIES or not isinstance(limit, int) or limit < 0:
            raise Refusal("refused", "a restart policy is never, on_failure or always, with a limit")
        restart = Restart(policy, _seconds(backoff), limit)
        program = self._programs.start_service(message["name"], read_spec(message["program"]), restart)
        answer.give(program=dict(program.entry))

    def _stop_service(self, message: dict[str, Any], answer: Answer) -> None:
        """The main process alone."""
        program = self._programs.known.get(message["name"])
        if program is None or program.entry["kind"] != "service" or program.is_over:
            answer.give(ran=False)
            return
        if self._programs.stop_main(program, _seconds(message["grace_seconds"])):
            _wait_for(program, answer)
        else:
            answer.give(ran=False)

    def _inspect(self, message: dict[str, Any], answer: Answer) -> None:
        program = self._programs.known.get(message["name"])
        known = program is not None and program.entry["kind"] == "service"
        answer.give(program=dict(program.entry) if known and program else None)

    def _list(self, message: dict[str, Any], answer: Answer) -> None:
        answer.give(programs={name: dict(program.entry) for name, program in self._programs.known.items()})

    def _processes(self, message: dict[str, Any], answer: Answer) -> None:
        answer.give(pids=process_tree.descendants(os.getpid()))

    def _open_command(self, message: dict[str, Any], answer: Answer) -> None:
        size = (message["columns"], message["rows"]) if message.get("terminal", True) else None
        self._commands.open(read_spec(message["program"]), size, answer)

    def _kill(self, message: dict[str, Any], answer: Answer) -> None:
        """All that the owner runs; the owner itself may start other things later."""
        grace = _seconds(message["grace_seconds"])
        ran = [name for name, each in self._programs.known.items() if not each.is_over]
        for program in self._programs.known.values():
            program.stopping = True
            program.cancel_timer()
            if program.entry["kind"] == "run" and not program.is_over:
                program.entry["reason"] = "cancelled"
            elif program.entry["state"] == "backing_off":
                self._programs.stop_main(program, 0)
        process_tree.send_signal(process_tree.descendants(os.getpid()), signal.SIGTERM)
        until = time.monotonic() + grace

        def look() -> None:
            if time.monotonic() < until and not self._is_alone():
                self._loop.after(_LOOK_SECONDS, look)
            else:
                self._end_all(lambda left: answer.give(ran=ran, left=left), _LOOKS_MAX)

        look()

    def _end_all(self, then: Callable[[list[int]], None], looks: int) -> None:
        """Kill everything below, and look again until nothing is left."""
        if self._is_alone():
            then([])
            return
        left = process_tree.descendants(os.getpid())
        process_tree.send_signal(left, signal.SIGKILL)
        if looks == 0:
            then(left)
        else:
            self._loop.after(_LOOK_SECONDS, lambda: self._end_all(then, looks - 1))

    def _is_alone(self) -> bool:
        """Whether nothing is below: whatever loses its parent becomes a child of this process."""
        self._programs.reap()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False

    def _run(self, key: str) -> Program:
        program = self._programs.known.get(key)
        if program is None or program.entry["kind"] != "run":
            raise Refusal("not_found", f"nothing was started under {KEY_VARIABLE}={key}")
        return program


def _wait_for(program: Program, answer: Answer) -> None:
    """Answer when the program is over, unless nobody waits any more by then."""
    program.waiters.append(answer)
    answer.wait(lambda: program.waiters.remove(answer) if answer in program.waiters else None)


def _seconds(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= SECONDS_MAX:
        raise Refusal("refused", f"a time is 0 to {SECONDS_MAX:.0f} seconds")
    return float(given)
