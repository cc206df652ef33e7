"""The supervisor of one owner: what it is asked to do with the owner's programs.

It does not care where the programs are: below this process, or in a pid namespace behind an init.
"""

import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from mooring_agent.supervisor import packets
from mooring_agent.supervisor.event_loop import EventLoop
from mooring_agent.supervisor.interactive_commands import InteractiveCommands
from mooring_agent.supervisor.process_control import KEY_VARIABLE, RequestRefused, TerminalSize, read_spec
from mooring_agent.supervisor.program_runner import ProgramRunner, ServiceRestartPolicy, SupervisedProgram
from mooring_agent.supervisor.replies import Reply

SECONDS_MAX: Final = 30 * 86_400.0
_POLICIES: Final = ("never", "on_failure", "always")
_POLL_SECONDS: Final = 0.02
_POLLS_MAX: Final = 500


class OwnerSupervisor:
    """Handles the requests for one owner."""

    def __init__(self, loop: EventLoop, programs: ProgramRunner) -> None:
        self._loop = loop
        self._programs = programs
        self._control = programs.control
        self._commands = InteractiveCommands(programs)
        self._operations: dict[str, Callable[[dict[str, Any], Reply], None]] = {
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

    def handle(self, packet: bytes, descriptors: list[int], connection: socket.socket) -> None:
        """Handle one request; the reply goes over its connection."""
        reply = Reply(self._loop, connection)
        try:
            message = packets.unpack(packet, descriptors)
            self._operations[message["op"]](message, reply)
        except RequestRefused as refusal:
            reply.refuse(refusal)
        except (KeyError, TypeError, ValueError, packets.WireError) as error:
            reply.refuse(RequestRefused("refused", f"malformed request: {type(error).__name__}"))
        except OSError as error:
            reply.refuse(RequestRefused("host_error", error.strerror or str(error)))

    def abandon(self, then: Callable[[], None]) -> None:
        """Nobody will ask any more: kill everything, then call."""
        self._programs.abandon()
        self._kill_all(lambda left: then(), _POLLS_MAX)

    def _start_run(self, message: dict[str, Any], reply: Reply) -> None:
        timeout = _check_seconds(message["timeout_seconds"])
        program = self._programs.start_run(message["key"], read_spec(message["program"]), timeout)
        reply.send_and_close(program=dict(program.entry))

    def _find_run(self, message: dict[str, Any], reply: Reply) -> None:
        program = self._programs.programs.get(message["key"])
        known = program is not None and program.entry["kind"] == "run"
        reply.send_and_close(program=dict(program.entry) if known and program else None)

    def _wait_run(self, message: dict[str, Any], reply: Reply) -> None:
        program = self._run(message["key"])
        if program.is_finished:
            reply.send_and_close(program=dict(program.entry))
        else:
            _wait_for(program, reply)

    def _cancel_run(self, message: dict[str, Any], reply: Reply) -> None:
        program = self._programs.programs.get(message["key"])
        if program is None or program.entry["kind"] != "run":
            reply.send_and_close(left=[])
        else:
            self._programs.end_run(program, "cancelled", reply)

    def _start_service(self, message: dict[str, Any], reply: Reply) -> None:
        policy, backoff, limit = (message["restart"][name] for name in ("policy", "backoff_seconds", "limit"))
        if policy not in _POLICIES or not isinstance(limit, int) or limit < 0:
            raise RequestRefused("refused", "a restart policy must be never, on_failure or always, with a limit")
        restart = ServiceRestartPolicy(policy, _check_seconds(backoff), limit)
        program = self._programs.start_service(message["name"], read_spec(message["program"]), restart)
        reply.send_and_close(program=dict(program.entry))

    def _stop_service(self, message: dict[str, Any], reply: Reply) -> None:
        """Stop the main process only."""
        program = self._programs.programs.get(message["name"])
        if program is None or program.entry["kind"] != "service" or program.is_finished:
            reply.send_and_close(ran=False)
            return
        if self._programs.stop_main(program, _check_seconds(message["grace_seconds"])):
            _wait_for(program, reply)
        else:
            reply.send_and_close(ran=False)

    def _inspect(self, message: dict[str, Any], reply: Reply) -> None:
        program = self._programs.programs.get(message["name"])
        known = program is not None and program.entry["kind"] == "service"
        reply.send_and_close(program=dict(program.entry) if known and program else None)

    def _list(self, message: dict[str, Any], reply: Reply) -> None:
        reply.send_and_close(programs={name: dict(program.entry) for name, program in self._programs.programs.items()})

    def _processes(self, message: dict[str, Any], reply: Reply) -> None:
        reply.send_and_close(pids=self._control.living())

    def _open_command(self, message: dict[str, Any], reply: Reply) -> None:
        size = TerminalSize(message["columns"], message["rows"]) if message.get("terminal", True) else None
        self._commands.open(read_spec(message["program"]), size, reply)

    def _kill(self, message: dict[str, Any], reply: Reply) -> None:
        """Kill everything that the owner runs; it may start other programs later."""
        grace = _check_seconds(message["grace_seconds"])
        running = [name for name, each in self._programs.programs.items() if not each.is_finished]
        for program in self._programs.programs.values():
            program.stopping = True
            program.cancel_timer()
            if program.entry["kind"] == "run" and not program.is_finished:
                program.entry["reason"] = "cancelled"
            elif program.entry["state"] == "backing_off":
                self._programs.stop_main(program, 0)
        self._control.signal_all(signal.SIGTERM)
        until = time.monotonic() + grace

        def poll() -> None:
            if time.monotonic() < until and not self._has_no_children():
                self._loop.call_later(_POLL_SECONDS, poll)
            else:
                self._kill_all(lambda left: reply.send_and_close(ran=running, left=left), _POLLS_MAX)

        poll()

    def _kill_all(self, then: Callable[[list[int]], None], polls_left: int) -> None:
        """Kill everything below, and repeat until nothing is left."""
        if self._has_no_children():
            then([])
            return
        self._control.signal_all(signal.SIGKILL)
        if polls_left == 0:
            then(self._control.living())
        else:
            self._loop.call_later(_POLL_SECONDS, lambda: self._kill_all(then, polls_left - 1))

    def _has_no_children(self) -> bool:
        self._programs.reap()
        return self._control.is_empty()

    def _run(self, key: str) -> SupervisedProgram:
        program = self._programs.programs.get(key)
        if program is None or program.entry["kind"] != "run":
            raise RequestRefused("not_found", f"nothing was started under {KEY_VARIABLE}={key}")
        return program


def _wait_for(program: SupervisedProgram, reply: Reply) -> None:
    """Reply when the program is finished, unless the requester is gone by then."""
    program.waiters.append(reply)
    reply.wait(lambda: program.waiters.remove(reply) if reply in program.waiters else None)


def _check_seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SECONDS_MAX:
        raise RequestRefused("refused", f"a time must be 0 to {SECONDS_MAX:.0f} seconds")
    return float(value)
