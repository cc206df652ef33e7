"""The agent's side of the supervisor protocol: one connection per request.

A long request, such as waiting for a run to end, holds its connection until then; closing it cancels nothing. A refusal
is raised as `SupervisorRefusal` with a failure code of the node plane. If nobody responds at all, the supervisor is
gone, and `SupervisorGone` is raised.
"""

import asyncio
import base64
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from mooring_agent.supervisor import packets

SOCKET_NAME: Final = "supervisor.sock"
ANSWER_SECONDS: Final = 60.0
_BACKLOG: Final = 128

ProgramKind = Literal["run", "service"]


class SupervisorGone(Exception):
    """No supervisor responds at this socket."""


class SupervisorRefusal(Exception):
    """The supervisor refused a request; `code` is one of the node plane's failure codes."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    user: str = "root"
    directory: str = "/"
    stdin: bytes = b""
    output_bytes: int = 0

    def message(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"argv": list(self.argv), "environment": dict(self.environment), "user": self.user}
        fields |= {"directory": self.directory, "stdin": base64.b64encode(self.stdin).decode()}
        return fields | {"output_bytes": self.output_bytes}


@dataclass(frozen=True, slots=True)
class ProgramState:
    """The state of a run or service. A run is `running` or `ended`; `reason` says how it ended."""

    kind: ProgramKind
    state: Literal["starting", "running", "ended", "backing_off", "exited", "failed"]
    pid: int | None
    started_at: float
    ended_at: float | None
    exit_code: int | None
    restarts: int
    reason: str | None

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Self:
        """Read the state from a response."""
        return cls(**{name: entry[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """The sandbox's supervisor; `pid` is its pid in its own pid namespace."""

    pid: int
    machine_pid: int  # its pid on the machine: the socket's peer
    started_at: float
    owners: Mapping[str, int]


class TerminalCommand:
    """An interactive command. The caller reads and writes the terminal's descriptor, and closes it by `close`."""

    def __init__(self, connection: socket.socket, terminal: int) -> None:
        self._connection = connection
        self.terminal = terminal

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal."""
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def signal(self, number: int) -> None:
        """Send a signal to the terminal's foreground process group."""
        packets.send_message(self._connection, {"op": "signal", "number": number})

    async def exit_code(self) -> int:
        """Wait for the command to exit. Only one caller may wait."""
        response, _ = await _receive(self._connection)
        return int(response["exit_code"])

    def close(self) -> None:
        """Hang up: a command that still runs is killed."""
        self._connection.close()
        if self.terminal >= 0:
            os.close(self.terminal)
            self.terminal = -1


class PipedCommand:
    """A command without a terminal. The caller uses its ends of the three pipes, and closes them by `close`."""

    def __init__(self, connection: socket.socket, *, input: int, output: int, errors: int) -> None:
        self._connection = connection
        self.input = input
        self.output = output
        self.errors = errors

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        packets.send_message(self._connection, {"op": "signal", "number": number})

    async def exit_code(self) -> int:
        """Wait for the command to exit. Only one caller may wait."""
        response, _ = await _receive(self._connection)
        return int(response["exit_code"])

    def close_input(self) -> None:
        if self.input >= 0:
            os.close(self.input)
            self.input = -1

    def close(self) -> None:
        """Hang up: a command that still runs is killed."""
        self._connection.close()
        self.close_input()
        for each in (self.output, self.errors):
            if each >= 0:
                os.close(each)
        self.output = self.errors = -1


class SupervisorClient:
    """A client of the supervisor whose socket is in this directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def status(self) -> SupervisorStatus:
        with _connect(self._directory) as connection:
            response, _ = await _request(connection, {"op": "status"})
        # A connection made before the supervisor was running would name the process that created the socket.
        with _connect(self._directory) as connection:
            pid = _peer_pid(connection)
        return SupervisorStatus(response["pid"], pid, response["started_at"], response["owners"])

    async def start_run(self, owner: str, key: str, program: ProgramSpec, timeout_seconds: float) -> ProgramState:
        """Start a program once under a key; a known key returns its state."""
        message = {"op": "start_run", "key": key, "program": program.message(), "timeout_seconds": timeout_seconds}
        return ProgramState.read((await self._call(owner, message))["program"])

    async def find_run(self, owner: str, key: str) -> ProgramState | None:
        """The run that was started under this key."""
        return _optional_state(await self._call(owner, {"op": "find_run", "key": key}))

    async def wait_run(self, owner: str, key: str) -> ProgramState:
        """Wait until a run has ended."""
        return ProgramState.read((await self._call(owner, {"op": "wait_run", "key": key}, None))["program"])

    async def cancel_run(self, owner: str, key: str) -> tuple[int, ...]:
        """Kill a run and what it started; returns the processes that could not be killed."""
        return tuple((await self._call(owner, {"op": "cancel_run", "key": key}))["left"])

    async def start_service(
        self, owner: str, name: str, program: ProgramSpec, restart: Mapping[str, Any]
    ) -> ProgramState:
        """Start a supervised program (`restart`: policy, backoff_seconds, limit), or return its state."""
        message = {"op": "start_service", "name": name, "program": program.message(), "restart": dict(restart)}
        return ProgramState.read((await self._call(owner, message))["program"])

    async def stop_service(self, owner: str, name: str, grace_seconds: float) -> bool:
        """Stop the main process of a service, not its leftovers; returns whether it was running."""
        message = {"op": "stop_service", "name": name, "grace_seconds": grace_seconds}
        return bool((await self._call(owner, message, ANSWER_SECONDS + grace_seconds)).get("ran", True))

    async def inspect(self, owner: str, name: str) -> ProgramState | None:
        return _optional_state(await self._call(owner, {"op": "inspect", "name": name}))

    async def list_programs(self, owner: str) -> dict[str, ProgramState]:
        programs = (await self._call(owner, {"op": "list"}))["programs"]
        return {name: ProgramState.read(entry) for name, entry in programs.items()}

    async def processes(self, owner: str) -> tuple[int, ...]:
        """The living processes of an owner, by their pids in its supervisor's pid namespace."""
        return tuple((await self._call(owner, {"op": "processes"}))["pids"])

    async def kill(self, owner: str, grace_seconds: float) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Kill what an owner runs; returns the names of what ran and the processes that could not be killed."""
        response = await self._call(
            owner, {"op": "kill", "grace_seconds": grace_seconds}, ANSWER_SECONDS + grace_seconds
        )
        return tuple(response["ran"]), tuple(response["left"])

    async def close_owner(self, owner: str) -> tuple[int, ...]:
        """Kill everything of an owner, its supervisor last; returns the processes that could not be killed."""
        return tuple((await self._call(owner, {"op": "close_owner"}))["left"])

    async def shut_down(self) -> None:
        """Kill everything in the sandbox and end the supervisor."""
        await self._call("", {"op": "shut_down"})

    async def dial(self, port: int) -> socket.socket:
        """A connection to a port in the sandbox's own network, made from inside."""
        with _connect(self._directory) as connection:
            _, descriptors = await _request(connection, {"op": "dial", "port": port})
            return socket.socket(fileno=descriptors[0])

    async def open_command(self, owner: str, program: ProgramSpec, columns: int, rows: int) -> TerminalCommand:
        """Start a command with a terminal of this size."""
        message = {"op": "open_command", "owner": owner, "program": program.message(), "columns": columns, "rows": rows}
        connection, descriptors = await self._open(message)
        return TerminalCommand(connection, descriptors[0])

    async def open_piped(self, owner: str, program: ProgramSpec) -> PipedCommand | TerminalCommand:
        """Start a command with three pipes; a supervisor of an older version gives it a terminal."""
        message = {"op": "open_command", "owner": owner, "program": program.message(), "columns": 80, "rows": 24}
        connection, descriptors = await self._open(message | {"terminal": False})
        if len(descriptors) == 1:
            return TerminalCommand(connection, descriptors[0])
        return PipedCommand(connection, input=descriptors[0], output=descriptors[1], errors=descriptors[2])

    async def _open(self, message: packets.Message) -> tuple[socket.socket, list[int]]:
        connection = _connect(self._directory)
        try:
            _, descriptors = await _request(connection, message)
        except BaseException:
            connection.close()
            raise
        for each in descriptors:
            os.set_blocking(each, False)
        return connection, descriptors

    async def _call(
        self, owner: str, message: packets.Message, timeout_seconds: float | None = ANSWER_SECONDS
    ) -> packets.Message:
        with _connect(self._directory) as connection:
            response, _ = await _request(connection, message | {"owner": owner}, timeout_seconds)
            return response


def bind_listener(directory: Path) -> socket.socket:
    """Create the listening socket of a supervisor that is about to start, replacing an old one."""
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        (directory / SOCKET_NAME).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # By the descriptor, because the path of a deep directory does not fit into a socket address.
            listener.bind(f"/proc/self/fd/{place}/{SOCKET_NAME}")
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener
    finally:
        os.close(place)


def _connect(directory: Path) -> socket.socket:
    try:
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SupervisorGone("there is no such sandbox") from None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.setblocking(False)
        connection.connect(f"/proc/self/fd/{place}/{SOCKET_NAME}")
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        raise SupervisorGone("no supervisor responds") from None
    except OSError:
        connection.close()
        raise
    finally:
        os.close(place)
    return connection


async def _request(
    connection: socket.socket, message: packets.Message, timeout_seconds: float | None = ANSWER_SECONDS
) -> tuple[packets.Message, list[int]]:
    try:
        packets.send_message(connection, message)
    except (ConnectionError, BrokenPipeError):
        raise SupervisorGone("the supervisor ended") from None
    try:
        async with asyncio.timeout(timeout_seconds):  # wait_for of Python 3.11 can swallow a cancellation
            return await _receive(connection)
    except TimeoutError:
        raise SupervisorRefusal("timed_out", f"the supervisor did not respond to {message['op']}") from None


async def _receive(connection: socket.socket) -> tuple[packets.Message, list[int]]:
    await _readable(connection)
    try:
        response, descriptors = packets.receive_message(connection)
    except ConnectionError:
        response, descriptors = None, []
    if response is None:
        raise SupervisorGone("the supervisor ended before it responded")
    if not response["ok"]:
        raise SupervisorRefusal(response["code"], response["detail"])
    return response, descriptors


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def on_readable() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(connection.fileno(), on_readable)
    try:
        await readable
    finally:
        loop.remove_reader(connection.fileno())


def _peer_pid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def _optional_state(response: packets.Message) -> ProgramState | None:
    return ProgramState.read(response["program"]) if response["program"] is not None else None
