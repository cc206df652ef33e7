"""The byte streams of a host: connections, terminals of commands, and pipes of commands."""

import asyncio
import os
import socket
from typing import Final

from mooring_agent.hosts.contract import HostFailure
from mooring_agent.supervisor.supervisor_client import PipedCommand, SupervisorGone, SupervisorRefusal, TerminalCommand

PIECE_BYTES: Final = 65_536
_END_OF_TRANSMISSION: Final = b"\x04"


class SocketStream:
    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._receiving = asyncio.Lock()
        self._sending = asyncio.Lock()

    async def receive(self) -> bytes:
        """The next bytes; empty at the end."""
        async with self._receiving:
            if self._connection.fileno() < 0:
                return b""
            try:
                return await asyncio.get_running_loop().sock_recv(self._connection, PIECE_BYTES)
            except ConnectionError:
                return b""

    async def send(self, data: bytes) -> None:
        async with self._sending:
            if self._connection.fileno() < 0:
                raise HostFailure("not_found", "the connection is closed")
            try:
                await asyncio.get_running_loop().sock_sendall(self._connection, data)
            except ConnectionError as error:
                raise HostFailure("not_found", "the app closed the connection") from error

    async def send_end(self) -> None:
        """Signal that nothing more will be sent."""
        async with self._sending:
            self._shut_down(socket.SHUT_WR)

    async def close(self) -> None:
        """Close both directions; pending reads and writes are woken first."""
        self._shut_down(socket.SHUT_RDWR)
        async with self._receiving, self._sending:
            self._connection.close()

    def _shut_down(self, direction: int) -> None:
        if self._connection.fileno() >= 0:
            try:
                self._connection.shutdown(direction)
            except OSError:
                return  # the other side closed it first


class _SupervisedStream:
    """The part that both kinds of commands share: exit code, signals, and waiting for a descriptor."""

    def __init__(self, command: TerminalCommand | PipedCommand) -> None:
        self._handle = command
        self._exit = asyncio.create_task(command.exit_code())
        self._receiving = asyncio.Lock()
        self._receiving_errors = asyncio.Lock()
        self._sending = asyncio.Lock()
        self._closed = asyncio.Event()

    async def signal(self, number: int) -> None:
        """Send a signal to the foreground process group."""
        try:
            self._handle.signal(number)
        except OSError as error:
            raise HostFailure("not_found", "the command has ended") from error

    async def exit_code(self) -> int:
        """Wait for the command to exit."""
        try:
            return await asyncio.shield(self._exit)
        except (SupervisorGone, SupervisorRefusal) as error:
            raise HostFailure("interrupted", "the command was stopped together with its owner") from error

    async def close(self) -> None:
        """Hang up: a command that still runs is killed."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._exit.cancel()
        await asyncio.wait([self._exit])
        async with self._receiving, self._receiving_errors, self._sending:
            self._handle.close()

    async def _read(self, descriptor: int) -> bytes:
        """The next bytes; empty when the command has ended and everything was read."""
        while not self._closed.is_set():
            ended = self._exit.done()
            try:
                return os.read(descriptor, PIECE_BYTES)
            except BlockingIOError:
                if ended:
                    return b""
                await self._wait(descriptor, for_writing=False)
            except OSError:
                return b""  # the other end is closed
        return b""

    async def _write(self, descriptor: int, data: bytes) -> None:
        while data:
            if self._closed.is_set():
                raise HostFailure("not_found", "the command is closed")
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                if self._exit.done():
                    raise HostFailure("not_found", "the command has ended") from None
                await self._wait(descriptor, for_writing=True)
            except OSError as error:
                raise HostFailure("not_found", "the command has ended") from error

    async def _wait(self, descriptor: int, for_writing: bool) -> None:
        """Wait until the descriptor is ready, the command has ended, or the stream is closed."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        closed = asyncio.create_task(self._closed.wait())
        (loop.add_writer if for_writing else loop.add_reader)(descriptor, _settle, ready)
        try:
            await asyncio.wait({ready, closed, self._exit}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            (loop.remove_writer if for_writing else loop.remove_reader)(descriptor)
            closed.cancel()


class TerminalStream(_SupervisedStream):
    """The terminal of a supervised command. Create it inside a running event loop."""

    def __init__(self, command: TerminalCommand) -> None:
        super().__init__(command)
        self._command = command

    async def receive(self) -> bytes:
        """The next bytes that the command wrote; empty when it has ended and everything was read."""
        async with self._receiving:
            return await self._read(self._command.terminal)

    async def send(self, data: bytes) -> None:
        """Type all of it."""
        await self._write(self._command.terminal, data)

    async def send_end(self) -> None:
        """Type the end-of-input character."""
        await self.send(_END_OF_TRANSMISSION)

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal."""
        if not 0 < columns <= 4096 or not 0 < rows <= 4096:
            raise HostFailure("refused", "a terminal must have 1 to 4096 columns and rows")
        if not self._closed.is_set():
            self._command.resize(columns, rows)


class PipedStream(_SupervisedStream):
    """A command with pipes instead of a terminal: standard error is separate from its output."""

    def __init__(self, command: PipedCommand) -> None:
        super().__init__(command)
        self._command = command

    async def receive(self) -> bytes:
        """The next bytes of its standard output; empty at its end."""
        async with self._receiving:
            return await self._read(self._command.output)

    async def receive_errors(self) -> bytes:
        """The next bytes of its standard error; empty at its end."""
        async with self._receiving_errors:
            return await self._read(self._command.errors)

    async def send(self, data: bytes) -> None:
        """Write all of it to standard input."""
        async with self._sending:
            if self._command.input < 0:
                raise HostFailure("not_found", "the command's input is closed")
            await self._write(self._command.input, data)

    async def send_end(self) -> None:
        """Close standard input."""
        async with self._sending:
            self._command.close_input()

    async def resize(self, columns: int, rows: int) -> None:
        """Ignored: there is no terminal."""


def stream_of(command: TerminalCommand | PipedCommand) -> TerminalStream | PipedStream:
    """The stream of a command. Create it inside a running event loop."""
    return PipedStream(command) if isinstance(command, PipedCommand) else TerminalStream(command)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
