"""The agent's side: ask a supervisor, one connection per question.

A question that takes long, such as the wait for a run's end, holds its connection until then; closing it takes nothing
back. What the supervisor refuses is raised as `SupervisorRefusal` with a failure code of the node plane. If nobody
answers at all, the supervisor is gone, which `SupervisorGone` says.
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
    """No supervisor answers at this socket."""


class SupervisorRefusal(Exception):
    """The supervisor did not do it; `code` is one of the node plane's failure codes."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """One program to start."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    user: str = "root"
    directory: str = "/"
    stdin: bytes = b""
    output_bytes: int = 0

    def message(self) -> dict[str, Any]:
        """As it goes over the socket."""
        fields: dict[str, Any] = {"argv": list(self.argv), "environment": dict(self.environment), "user": self.user}
        fields |= {"directory": self.directory, "stdin": base64.b64encode(self.stdin).decode()}
        return fields | {"output_bytes": self.output_bytes}


@dataclass(frozen=True, slots=True)
class ProgramState:
    """A run or a service as its supervisor sees it. A run is `running` or `ended`; `reason` says how it ended."""

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
        """Out of an answer."""
        return cls(**{name: entry[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """The sandbox's supervisor; `pid` is as its own pid namespace counts."""

    pid: int
    machine_pid: int  # as the machine counts; the socket's other end
    started_at: float
    owners: Mapping[str, int]


class TerminalCommand:
    """An interactive command: the terminal's descriptor is the holder's to read and write, and to close by `close`."""

    def __init__(self, connection: socket.socket, terminal: int) -> None:
        self._connection = connection
        self.terminal = terminal

    def resize(self, columns: int, rows: int) -> None:
        """The window has this size now."""
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def signal(self, number: int) -> None:
        """To the foreground of the terminal."""
        packets.send_message(self._connection, {"op": "signal", "number": number})

    async def exit_code(self) -> int:
        """Wait for its end. Only one may wait."""
        response, _ = await _receive(self._connection)
        return int(response["exit_code"])

    def close(self) -> None:
        """Hang up: a command that still runs is ended."""
        self._connection.close()
        if self.terminal >= 0:
            os.close(self.terminal)
            self.terminal = -1


class PipedCommand:
    """A command without a terminal: the ends of its three pipes are the holder's to use, and to close by `close`."""

    def __init__(self, connection: socket.socket, pipes: tuple[int, int, int]) -> None:
        self._connection = connection
        self.input, self.output, self.errors = pipes

    def signal(self, number: int) -> None:
        """To the command and what it started, as far as that stayed in its group."""
        packets.send_message(self._connection, {"op": "signal", "number": number})

    async def exit_code(self) -> int:
        """Wait for its end. Only one may wait."""
        response, _ = await _receive(self._connection)
        return int(response["exit_code"])

    def close_input(self) -> None:
        """Nothing more is typed."""
        if self.input >= 0:
            os.close(self.input)
            self.input = -1

    def close(self) -> None:
        """Hang up: a command that still runs is ended."""
        self._connection.close()
        self.close_input()
        for each in (self.output, self.errors):
            if each >= 0:
                os.close(each)
        self.output = self.errors = -1


class SupervisorClient:
    """Asks the supervisor whose socket is in this directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def status(self) -> SupervisorStatus:
        """Who answers."""
        with _connect(self._directory) as connection:
            response, _ = await _request(connection, {"op": "status"})
        # One that connected before the supervisor had begun would name whoever had made the socket.
        with _connect(self._directory) as connection:
            pid = _peer_pid(connection)
        return SupervisorStatus(response["pid"], pid, response["started_at"], response["owners"])

    async def start_run(self, owner: str, key: str, program: ProgramSpec, timeout_seconds: float) -> ProgramState:
        """Start a program once under a key; a known key is answered as it stands."""
        message = {"op": "start_run", "key": key, "program": program.message(), "timeout_seconds": timeout_seconds}
        return ProgramState.read((await self._call(owner, message))["program"])

    async def find_run(self, owner: str, key: str) -> ProgramState | None:
        """What was started under this key."""
        return _optional_state(await self._call(owner, {"op": "find_run", "key": key}))

    async def wait_run(self, owner: str, key: str) -> ProgramState:
        """What it came to, when it has ended."""
        return ProgramState.read((await self._call(owner, {"op": "wait_run", "key": key}, None))["program"])

    async def cancel_run(self, owner: str, key: str) -> tuple[int, ...]:
        """Kill it and what it started; the processes that could not be ended."""
        return tuple((await self._call(owner, {"op": "cancel_run", "key": key}))["left"])

    async def start_service(
        self, owner: str, name: str, program: ProgramSpec, restart: Mapping[str, Any]
    ) -> ProgramState:
        """Start a supervised program (`restart`: policy, backoff_seconds, limit), or answer how it runs."""
        message = {"op": "start_service", "name": name, "program": program.message(), "restart": dict(restart)}
        return ProgramState.read((await self._call(owner, message))["program"])

    async def stop_service(self, owner: str, name: str, grace_seconds: float) -> bool:
        """End the main process of a service; what it left behind lives on. Whether it ran."""
        message = {"op": "stop_service", "name": name, "grace_seconds": grace_seconds}
        return bool((await self._call(owner, message, ANSWER_SECONDS + grace_seconds)).get("ran", True))

    async def inspect(self, owner: str, name: str) -> ProgramState | None:
        """How a service stands."""
        return _optional_state(await self._call(owner, {"op": "inspect", "name": name}))

    async def list_programs(self, owner: str) -> dict[str, ProgramState]:
        """All that is known of an owner."""
        programs = (await self._call(owner, {"op": "list"}))["programs"]
        return {name: ProgramState.read(entry) for name, entry in programs.items()}

    async def processes(self, owner: str) -> tuple[int, ...]:
        """The living processes of an owner, as its supervisor's pid namespace counts them."""
        return tuple((await self._call(owner, {"op": "processes"}))["pids"])

    async def kill(self, owner: str, grace_seconds: float) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """End all that an owner runs: the names of what ran, and the processes that could not be ended."""
        response = await self._call(
            owner, {"op": "kill", "grace_seconds": grace_seconds}, ANSWER_SECONDS + grace_seconds
        )
        return tuple(response["ran"]), tuple(response["left"])

    async def close_owner(self, owner: str) -> tuple[int, ...]:
        """Kill everything of an owner, its supervisor last; the processes that could not be ended."""
        return tuple((await self._call(owner, {"op": "close_owner"}))["left"])

    async def shut_down(self) -> None:
        """Kill everything in the sandbox and end the supervisor."""
        await self._call("", {"op": "shut_down"})

    async def dial(self, port: int) -> socket.socket:
        """A connection to a port in the sandbox's own network, made there."""
        with _connect(self._directory) as connection:
            _, descriptors = await _request(connection, {"op": "dial", "port": port})
            return socket.socket(fileno=descriptors[0])

    async def open_command(self, owner: str, program: ProgramSpec, columns: int, rows: int) -> TerminalCommand:
        """Start a command with a terminal of this size."""
        message = {"op": "open_command", "owner": owner, "program": program.message(), "columns": columns, "rows": rows}
        connection, descriptors = await self._open(message)
        return TerminalCommand(connection, descriptors[0])

    async def open_piped(self, owner: str, program: ProgramSpec) -> PipedCommand | TerminalCommand:
        """Start a command with three pipes; a supervisor of before this was possible gives it a terminal."""
        message = {"op": "open_command", "owner": owner, "program": program.message(), "columns": 80, "rows": 24}
        connection, descriptors = await self._open(message | {"terminal": False})
        if len(descriptors) == 1:
            return TerminalCommand(connection, descriptors[0])
        return PipedCommand(connection, (descriptors[0], descriptors[1], descriptors[2]))

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
    """A listening socket for a supervisor that is about to start; one of before is taken away."""
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        (directory / SOCKET_NAME).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # By the descriptor, since a path in a deep directory does not fit into a socket's address.
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
        raise SupervisorGone("no supervisor answers") from None
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
        raise SupervisorRefusal("timed_out", f"the supervisor did not answer {message['op']}") from None


async def _receive(connection: socket.socket) -> tuple[packets.Message, list[int]]:
    await _readable(connection)
    try:
        response, descriptors = packets.receive_message(connection)
    except ConnectionError:
        response, descriptors = None, []
    if response is None:
        raise SupervisorGone("the supervisor ended before it answered")
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
