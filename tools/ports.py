"""Ports for servers that have to know their own before they start, and that keep it over a restart.

A port that the kernel picks can be taken by anybody's outgoing connection as soon as it is let go of. These are below
those that the kernel picks, and below those at which apps listen that run as plain processes of this machine (they
choose by their own ids, from 20,000 on). Every call here, in any process of the machine, returns a different port.
"""

import random
import socket
from pathlib import Path
from typing import Final

PICKED_BY_THE_KERNEL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST: Final = 10_240
LAST: Final = 19_999
LOOPBACK: Final = "127.0.0.1"
_claims: Final[list[socket.socket]] = []
"""What this process was given: the kernel lets go of them when it ends, however that happens."""


class NoPortLeft(Exception):
    """Every port of the range is listened at or claimed."""


def free_port() -> int:
    """A port that nobody listens at, claimed until this process ends."""
    last = min(LAST, int(PICKED_BY_THE_KERNEL.read_text(encoding="ascii").split()[0]) - 1)
    ports = list(range(FIRST, last + 1))
    random.shuffle(ports)
    for port in ports:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0mooring-port-{port}")
            with socket.create_server((LOOPBACK, port)):
                pass
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise NoPortLeft(f"no port from {FIRST} to {last} is free on {LOOPBACK}")
