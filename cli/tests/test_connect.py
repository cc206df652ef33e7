"""`mooring connect` and `open`: an endpoint by its instance, and a command at an app's terminal."""

import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from click.testing import Result

from cli.tests.conftest import TerminalResult
from cli.tests.support.fake_platform import PROJECT, CannedResponse, FakeCliPlatform, page, problem
from mooring_cli.relay_client import DATA, END, ERRORS, EXIT, HEAD
from tests.support.rows import every_row

Run = Callable[..., Result]
AT = f"/api/v1/projects/{PROJECT}/app-instances"
EXEC = f"{AT}/ins_01web/exec"


@pytest.fixture(autouse=True)
def in_project(environment: dict[str, str], platform: FakeCliPlatform) -> None:
    environment["MOORING_PROJECT"] = PROJECT
    platform.on("GET", AT, page({"id": "ins_01web", "name": "web", "status": "running"}))
    platform.on("GET", f"/api/v1/projects/{PROJECT}/endpoints", page())


def frame(kind: bytes, data: bytes = b"") -> bytes:
    return HEAD.pack(kind, 0, len(data)) + data


@contextmanager
def relay(platform: FakeCliPlatform, *says: bytes) -> Iterator[bytearray]:
    """A relay that reads its input to the end, then sends these frames; returns the input."""
    typed = bytearray()

    def meet(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as lines:
            while lines.readline().strip():
                pass
            connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            while (head := lines.read(HEAD.size)) and (asked := HEAD.unpack(head))[0] != END:
                typed.extend(lines.read(asked[2]))
            connection.sendall(b"".join(says))

    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        platform.on("POST", EXEC, CannedResponse(201, {"relay_url": url, "ticket": "mrgv_x"}))
        thread = threading.Thread(target=meet, args=(server,))
        thread.start()
        yield typed
        thread.join()


def test_in_a_pipeline_output_is_clean_errors_are_apart_and_the_exit_code_is_the_commands(
    platform: FakeCliPlatform, spawn: Callable[..., "subprocess.Popen[str]"]
) -> None:
    says = (frame(ERRORS, b"careful\n"), frame(DATA, b"one\ntwo\n"), frame(END), frame(EXIT, b"9"))
    with relay(platform, *says) as typed:
        process = spawn("connect", "web", "--", "srun", "-N2", "hostname")
        out, errors = process.communicate("words\n", timeout=60)
    assert (out, errors, process.returncode, bytes(typed)) == ("one\ntwo\n", "careful\n", 9, b"words\n")
    (sent,) = platform.of("POST")
    assert (sent.body["argv"], sent.body["terminal"]) == (["srun", "-N2", "hostname"], False)


def test_on_a_terminal_it_has_one_and_a_shell_is_a_command_that_is_not_named(
    platform: FakeCliPlatform, on_terminal: Callable[..., TerminalResult]
) -> None:
    platform.on("POST", EXEC, problem(409, "conflict", "web has no place where commands run"))
    shown = on_terminal("connect", "web", "--shell", "--terminal", "login")
    assert (shown.exit_code, "no place where commands run" in shown.screen) == (5, True)
    (sent,) = platform.of("POST")
    assert (sent.body["argv"], sent.body["terminal"], sent.body["endpoint"]) == ([], True, "login")


def test_an_instance_given_as_an_endpoint_is_answered_with_how_to_use_it(run: Run) -> None:
    result = run("connect", "web")
    assert result.exit_code == 4
    assert "mooring connect web -- COMMAND" in result.stderr


@pytest.mark.parametrize("words", [("--browser", "--shell"), ("--port", "80", "--", "id"), ("--shell", "--", "id")])
def test_a_command_and_a_port_are_two_things(run: Run, words: tuple[str, ...]) -> None:
    assert run("connect", "web", *words).exit_code == 1


ENDPOINTS = f"/api/v1/projects/{PROJECT}/endpoints"


def endpoint(name: str, instance: str, number: int = 1) -> dict[str, object]:
    return {
        "id": f"end_{instance}{name}{number}",
        "name": name,
        "instance_id": f"ins_01{instance}",
        "allocation_id": f"alc_{number}",
        "protocol": "http",
    }


@every_row(
    ("target", "chosen"),
    [
        ("greeter", "end_greeterpage1"),  # its only endpoint
        ("greeter/page", "end_greeterpage1"),
        ("lab/admin", "end_labadmin1"),
        ("twins", "end_twinspage1"),  # two members with the same endpoint
        ("admin", "end_labadmin1"),  # an endpoint's own name, if there is only one
        ("end_labpage1", "end_labpage1"),
        ("lab", "give one endpoint of lab: lab/admin, lab/page"),
        ("lab/none", "give one endpoint of lab: lab/admin, lab/page"),
        ("page", "'page' is the name of 4 endpoints; give one of lab/page, greeter/page, twins/page"),
        ("nobody", "there is no endpoint 'nobody' here"),
        ("nobody/page", "there is no endpoint 'nobody/page' here"),
    ],
)
def test_an_endpoint_is_found_by_its_instance(run: Run, platform: FakeCliPlatform, target: str, chosen: str) -> None:
    names = ("lab", "greeter", "twins")
    platform.on("GET", AT, page(*({"id": f"ins_01{each}", "name": each, "status": "running"} for each in names)))
    held = [endpoint("admin", "lab"), endpoint("page", "lab"), endpoint("page", "greeter")]
    platform.on("GET", ENDPOINTS, page(*held, endpoint("page", "twins"), endpoint("page", "twins", 2)))
    for each in ("end_greeterpage1", "end_labadmin1", "end_twinspage1", "end_labpage1"):
        platform.on("POST", f"{ENDPOINTS}/{each}/open", CannedResponse(201, {"url": f"http://apps.localhost/{each}"}))
    result = run("open", target)
    if chosen.startswith("end_"):
        assert result.stdout == f"http://apps.localhost/{chosen}\n"
    else:
        assert chosen in result.stderr, result.stderr


def test_ctrl_c_ends_a_connection_without_a_word(
    platform: FakeCliPlatform, spawn: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """Also while a client that was served keeps its connection open."""
    platform.on("GET", ENDPOINTS, page(endpoint("page", "web")))
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        made = CannedResponse(201, {"relay_url": url, "ticket": "mrgv_x"})
        platform.on("POST", f"{ENDPOINTS}/end_webpage1/connect", made)
        server.settimeout(30)
        process = spawn("connect", "page")

        def meet() -> socket.socket:
            line, _ = server.accept()
            while not line.recv(65_536).endswith(b"\r\n\r\n"):
                pass
            line.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            return line

        with meet():  # whether it can be reached at all
            assert process.stderr is not None
            port = process.stderr.readline().partition("127.0.0.1:")[2].partition("/")[0]
            with socket.create_connection(("127.0.0.1", int(port))) as client, meet() as line:
                line.sendall(frame(DATA, b"served"))
                assert client.recv(100) == b"served"
                other = spawn("connect", "page", "--port", port)
                with meet():
                    assert (
                        f"--port {port}: cannot listen on 127.0.0.1: Address already in use" in other.communicate()[1]
                    )
                process.send_signal(signal.SIGINT)
                out, errors = process.communicate(timeout=60)
    assert (out, errors) == ("", "")
