"""Further machines for a test: network namespaces, each with its own address on one bridge.

An agent in one of them sees nothing of the network of the test's machine; it reaches the platform through a forwarded
port, as an agent behind a gateway does.
"""

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Final

from mooring_agent.hosts.namespace.project_network import run_inside
from tools.ports import LOOPBACK

NAMESPACES: Final = Path("/run/netns")
WIRE: Final = "10.213.77"
PART_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class NetworkNamespace:
    """The network of one machine."""

    name: str
    address: str

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """The words before a command that run it in this namespace."""
        return ("nsenter", f"--net={NAMESPACES / self.name}")


@contextmanager
def network_namespaces(count: int, ports: Sequence[int] = (), subnet: str = WIRE) -> Iterator[list[NetworkNamespace]]:
    """Create namespaces on one bridge; these ports of their loopback are forwarded to the test's loopback."""
    mark = token_hex(2)
    wire = f"mrw{mark}"
    with ExitStack() as stack:
        _ip("netns", "add", wire)  # the bridge has its own namespace: not even the test's machine is on it
        stack.callback(_ip, "netns", "delete", wire)
        _ip("-n", wire, "link", "add", "wire", "type", "bridge")
        _ip("-n", wire, "link", "set", "wire", "up")
        made = [NetworkNamespace(f"mrm{mark}-{number}", f"{subnet}.{10 + number}") for number in range(count)]
        for number, each in enumerate(made):
            _ip("netns", "add", each.name)
            stack.callback(_ip, "netns", "delete", each.name)
            _ip("-n", each.name, "link", "set", "lo", "up")
            _ip("-n", wire, "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", each.name)
            _ip("-n", wire, "link", "set", f"to{number}", "master", "wire", "up")
            _ip("-n", each.name, "address", "add", f"{each.address}/24", "dev", "eth0")
            _ip("-n", each.name, "link", "set", "eth0", "up")
            _ip("-n", each.name, "route", "add", "default", "via", f"{subnet}.1")
            for port in ports:
                stack.enter_context(_forwarded_port(each, port))
        yield made


@contextmanager
def _forwarded_port(machine: NetworkNamespace, port: int) -> Iterator[None]:
    """Forward connections to this port of the machine's loopback to the same port of the test's loopback."""
    listening = run_inside(str(NAMESPACES / machine.name), lambda: socket.create_server((LOOPBACK, port), backlog=128))
    taking = threading.Thread(target=_accept_connections, args=(listening, port), daemon=True)
    taking.start()
    try:
        yield
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        taking.join()
        listening.close()


def _accept_connections(listening: socket.socket, port: int) -> None:
    while True:
        try:
            near, _ = listening.accept()
        except OSError:  # it was shut
            return
        try:
            far = socket.create_connection((LOOPBACK, port))
        except OSError:
            near.close()
            continue
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=_copy_bytes, args=(source, target), daemon=True).start()


def _copy_bytes(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(PART_BYTES):
            target.sendall(part)
    for each, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            each.shutdown(how)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
