"""The supervisor of one owner: a fork of the sandbox's, with the owner's programs below it.

It receives requests over a channel from the sandbox supervisor, each with the connection to reply on. When the channel
closes, the sandbox's supervisor is gone: it kills everything below it and exits too.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

from mooring_agent.kernel import process_tree, syscalls
from mooring_agent.supervisor import packets, program_records
from mooring_agent.supervisor.event_loop import EventLoop
from mooring_agent.supervisor.interactive_commands import InteractiveCommands, TerminalSize
from mooring_agent.supervisor.options import SupervisorOptions
from mooring_agent.supervisor.program_runner import KEY_VARIABLE, ProgramRunner, ServiceRestartPolicy, SupervisedProgram
from mooring_agent.supervisor.replies import Reply
from mooring_agent.supervisor.spawn import RequestRefused, read_spec

OWNER_VARIABLE: Final = "MOORING_OWNER"
SECONDS_MAX: Final = 30 * 86_400.0
_POLICIES: Final = ("never", "on_failure", "always")
_POLL_SECONDS: Final = 0.02
_POLLS_MAX: Final = 500
_LOCK_SECONDS: Final = 30.0


def serve_owner(label: str, channel: socket.socket, options: SupervisorOptions) -> NoReturn:
    """In the fork: serve until the channel closes."""
    if options.owner_namespaces:
        (options.prepare_owner or private_proc)()
    else:
        syscalls.adopt_orphans()
    directory = program_records.open_directory(options.state, program_records.directory_of(label))
    os.close(options.state)
    # If the sandbox's supervisor was killed, this owner's previous supervisor may still be killing its programs.
    program_records.lock(directory, _LOCK_SECONDS)
    marked = options._replace(state=directory, markers={**options.markers, OWNER_VARIABLE: label})
    OwnerSupervisor(channel, marked).run()
    os._exit(0)


def private_proc() -> None:
    """Mount a /proc of the owner's own pid namespace, in its own mount namespace."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=syscalls.MS_SLAVE | syscalls.MS_REC)
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)


class OwnerSupervisor:
    """Handles the requests for one owner."""

    def __init__(self, channel: socket.socket, options: SupervisorOptions) -> None:
        self._channel = channel
        self._options = options
        self._loop = EventLoop(self._child_ended)
        self._programs = ProgramRunner(self._loop, options, options.state)
        self._commands = InteractiveCommands(self._programs)
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

    def run(self) -> None:
        """Run until the channel closes and nothing is left."""
        self._loop.watch(self._channel.fileno(), self._on_readable)
        self._loop.run()

    def _child_ended(self) -> None:
        self._programs.reap()

    def _on_readable(self) -> None:
        packet, descriptors = packets.receive_packet(self._channel)
        if not packet or not descriptors:
            packets.close_all(descriptors)
            self._loop.unwatch(self._channel.fileno())
            self._programs.abandon()
            self._kill_all(lambda left: self._loop.stop(), _POLLS_MAX)
            return
        connection = socket.socket(fileno=descriptors.pop(0))
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
        finally:
            packets.close_all(descriptors)

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
        reply.send_and_close(pids=process_tree.descendants(os.getpid()))

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
        process_tree.send_signal(process_tree.descendants(os.getpid()), signal.SIGTERM)
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
        left = process_tree.descendants(os.getpid())
        process_tree.send_signal(left, signal.SIGKILL)
        if polls_left == 0:
            then(left)
        else:
            self._loop.call_later(_POLL_SECONDS, lambda: self._kill_all(then, polls_left - 1))

    def _has_no_children(self) -> bool:
        """Whether nothing is left below: orphans become children of this process."""
        self._programs.reap()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False

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
