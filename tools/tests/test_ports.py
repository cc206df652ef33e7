"""A port for a server: below those that the kernel picks, and given once on the whole machine."""

import socket
import subprocess
import sys

import pytest

from mooring_echo.members import FIRST_PORT
from mooring_workload.render import PORTS_FROM
from tools import ports


def test_a_port_is_below_those_of_the_kernel_and_of_apps_and_can_be_listened_at_again_and_again() -> None:
    port = ports.free_port()
    first = int(ports.PICKED_BY_THE_KERNEL.read_text().split()[0])
    assert ports.FIRST <= port < min(first, PORTS_FROM, FIRST_PORT)
    for _ in range(3):
        with socket.create_server((ports.LOOPBACK, port)), socket.create_connection((ports.LOOPBACK, port)):
            pass


def test_a_port_in_use_or_reserved_is_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((ports.LOOPBACK, ports.free_port())) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setattr(ports, "FIRST", port)
        monkeypatch.setattr(ports, "PICKED_BY_THE_KERNEL", _Range(f"{port + 1} 60999"))
        monkeypatch.setattr(ports, "_claims", [])
        with pytest.raises(ports.NoPortLeft, match=f"no port from {port} to {port} is free"):
            ports.free_port()
    with pytest.raises(ports.NoPortLeft):
        ports.free_port()  # nobody listens there now, but it was given to this process


def test_another_process_is_given_what_this_one_has_only_after_its_end() -> None:
    ask = "from tools import ports; print(ports.free_port(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", ask], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        with socket.socket(socket.AF_UNIX) as claim:
            with pytest.raises(OSError, match="in use"):
                claim.bind(f"\0mooring-port-{port}")
            other.kill()
            other.wait()
            claim.bind(f"\0mooring-port-{port}")


class _Range:
    """The kernel's file, with other numbers in it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_text(self, encoding: str = "ascii") -> str:
        return self._text
