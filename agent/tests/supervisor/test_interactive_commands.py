"""Interactive commands and connections to ports."""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.tests.support.supervisors import NEVER, RunningSupervisor, is_alive, python, running_supervisor, shell, until
from mooring_agent.hosts.contract import HostFailure
from mooring_agent.hosts.streams import PipedStream, SocketStream, TerminalStream, stream_of
from mooring_agent.supervisor.supervisor_client import ProgramSpec, SupervisorRefusal
from tests.support.waiting import turns


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[RunningSupervisor]:
    """A running supervisor for one test."""
    async with running_supervisor(tmp_path) as made:
        yield made


async def opened(sandbox: RunningSupervisor, script: str) -> TerminalStream:
    """A command with a terminal of 80 × 24."""
    return TerminalStream(await sandbox.client.open_command("", shell(script), 80, 24))


async def read_until(stream: TerminalStream | PipedStream | SocketStream, wanted: bytes) -> bytes:
    """Read up to the expected bytes."""
    seen = b""
    async with asyncio.timeout(180):
        while wanted not in seen:
            piece = await stream.receive()
            assert piece, seen
            seen += piece
    return seen


async def read_all(stream: TerminalStream | PipedStream | SocketStream) -> bytes:
    """Read to the end."""
    seen = b""
    async with asyncio.timeout(180):
        while piece := await stream.receive():
            seen += piece
    return seen


async def test_a_command_has_a_terminal_a_size_and_an_exit_code(sandbox: RunningSupervisor) -> None:
    command = await opened(
        sandbox, "tty; stty size; trap 'stty size; exit 6' WINCH; echo ready; while :; do sleep 0.05; done"
    )
    seen = await read_until(command, b"ready")
    assert b"/dev/pts/" in seen
    assert b"24 80" in seen
    await command.resize(132, 43)
    assert b"43 132" in await read_all(command)
    assert await command.exit_code() == 6
    await command.close()


async def test_what_is_typed_arrives_and_its_end_too(sandbox: RunningSupervisor) -> None:
    command = await opened(sandbox, "stty -echo; echo ready; read line; echo got $line; cat; echo ended")
    await read_until(command, b"ready")
    await command.send(b"hello\n")
    await read_until(command, b"got hello")
    await command.send_end()
    assert b"ended" in await read_all(command)
    assert await command.exit_code() == 0
    await command.close()


async def test_a_signal_reaches_the_foreground(sandbox: RunningSupervisor) -> None:
    command = await opened(sandbox, "trap 'echo heard; exit 3' USR1; echo ready; while :; do sleep 0.05; done")
    await read_until(command, b"ready")
    await command.signal(signal.SIGUSR1)
    assert b"heard" in await read_all(command)
    assert await command.exit_code() == 3
    await command.close()


async def test_much_output_is_not_lost_at_the_end(sandbox: RunningSupervisor) -> None:
    command = await opened(sandbox, "stty -opost; i=0; while test $i -lt 20000; do echo line $i; i=$((i+1)); done")
    seen = await read_all(command)
    assert seen.splitlines()[-1] == b"line 19999"
    assert len(seen.splitlines()) == 20_000
    await command.close()


async def test_a_command_whose_viewer_goes_is_ended(sandbox: RunningSupervisor) -> None:
    terminal = await sandbox.client.open_command(
        "",
        python(
            "import signal,time\nsignal.signal(1, signal.SIG_IGN)\nprint('up',flush=True)\nwhile True: time.sleep(1)"
        ),
        80,
        24,
    )
    command = TerminalStream(terminal)
    await read_until(command, b"up")
    (pid,) = await sandbox.client.processes("")
    await command.close()
    await until(lambda: not is_alive(pid))
    assert await command.receive() == b""
    with pytest.raises(HostFailure):
        await command.send(b"late")


async def test_closing_the_owner_ends_its_commands(sandbox: RunningSupervisor) -> None:
    command = await opened(sandbox, "echo ready; exec sleep 1000")
    await read_until(command, b"ready\r\n")
    await sandbox.client.close_owner("")
    assert await read_all(command) == b""
    with pytest.raises(HostFailure) as raised:
        await command.exit_code()
    assert raised.value.code == "interrupted"
    await command.close()


async def test_a_command_that_is_not_there_is_refused_and_leaks_nothing(sandbox: RunningSupervisor) -> None:
    await sandbox.client.list_programs("")
    status = await sandbox.client.status()
    owner = status.owners[""]
    gc.collect()
    before = len(os.listdir(f"/proc/{owner}/fd")), len(os.listdir("/proc/self/fd"))
    for size in ((80, 24), (0, 24), (80, 100_000)):
        with pytest.raises(SupervisorRefusal):
            await sandbox.client.open_command("", ProgramSpec(("no-such-program",), {}), *size)
    # Fewer is fine: what an earlier test left open may be closed meanwhile.
    await until(lambda: len(os.listdir(f"/proc/{owner}/fd")) <= before[0])
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before[1])


ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
"""


def said(sandbox: RunningSupervisor) -> str:
    """What the echo service has written so far."""
    return "".join(file.read_text() for file in Path(sandbox.log("", "echo")).iterdir())


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0"])
async def test_a_port_inside_is_reached_and_bytes_go_both_ways(sandbox: RunningSupervisor, address: str) -> None:
    await sandbox.client.start_service("", "echo", python(ECHO, address), NEVER)
    await until(lambda: said(sandbox).endswith("\n"))
    port = int(said(sandbox))
    stream = SocketStream(await sandbox.client.dial(port))
    content = os.urandom(1_000_000)

    async def send() -> None:
        await stream.send(content)
        await stream.send_end()

    sending = asyncio.create_task(send())
    assert await read_all(stream) == content
    await sending
    await stream.close()
    assert await stream.receive() == b""


async def test_a_port_on_which_nothing_listens_is_refused(sandbox: RunningSupervisor) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody else listens there meanwhile
        with pytest.raises(SupervisorRefusal) as refused:
            await sandbox.client.dial(silent.getsockname()[1])
    assert refused.value.code == "not_found"
    for odd in (0, -1, 65_536, True, "80", None):
        with pytest.raises(SupervisorRefusal):
            await sandbox.client.dial(odd)  # type: ignore[arg-type]


async def test_closing_a_stream_wakes_its_reader(sandbox: RunningSupervisor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        stream = SocketStream(await sandbox.client.dial(silent.getsockname()[1]))
        reading = asyncio.create_task(stream.receive())
        await turns()
        await stream.close()
        assert await reading == b""


async def piped(sandbox: RunningSupervisor, script: str) -> PipedStream:
    """A command without a terminal."""
    stream = stream_of(await sandbox.client.open_piped("", shell(script)))
    assert isinstance(stream, PipedStream)
    return stream


async def test_a_command_without_a_terminal_has_its_output_and_its_errors_apart(sandbox: RunningSupervisor) -> None:
    command = await piped(sandbox, "tty >&2; cat; echo end; exit 6")
    await command.send(b"a line\n")
    await command.send_end()
    assert await read_all(command) == b"a line\nend\n"
    assert await command.receive_errors() == b"not a tty\n"
    assert await command.receive_errors() == b""
    assert await command.exit_code() == 6
    await command.close()


async def test_a_long_input_and_output_pass_through_pipes_whole(sandbox: RunningSupervisor) -> None:
    command = await piped(sandbox, "cat")
    data = bytes(range(256)) * 4_000

    async def send() -> None:
        await command.send(data)
        await command.send_end()

    sending = asyncio.create_task(send())
    assert await read_all(command) == data
    await sending
    await command.close()


async def test_a_signal_reaches_a_command_without_a_terminal_and_a_hang_up_ends_it(sandbox: RunningSupervisor) -> None:
    command = await piped(sandbox, "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done")
    await read_until(command, b"ready\n")
    await command.signal(signal.SIGINT)
    assert b"caught" in await read_all(command)
    assert await command.exit_code() == 7
    await command.close()
    other = await piped(sandbox, "echo $$; exec sleep 1000")
    pid = int(await other.receive())
    await other.close()
    await until(lambda: not is_alive(pid))
