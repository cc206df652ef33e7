"""Wakes when somebody changes the machine's packet filter or routing rules, by the kernel's own notifications."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Final

from mooring_agent.hosts.namespace import project_network

_NETFILTER: Final = 12
_NFTABLES_GROUP: Final = 7
_RULE_GROUP: Final = 8  # of IPv4
_READ_BYTES: Final = 65_536
_SETTLE_SECONDS: Final = 0.1  # a firewall that restarts makes many changes


def _listen(protocol: int, group: int) -> socket.socket:
    monitor = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, protocol)
    monitor.bind((0, 1 << (group - 1)))
    return monitor


async def changes(namespace: str) -> AsyncIterator[None]:
    """Yields once at the start, and after each change of rules in this namespace, several at once as one."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    monitors = project_network.run_inside(
        namespace, lambda: [_listen(_NETFILTER, _NFTABLES_GROUP), _listen(socket.NETLINK_ROUTE, _RULE_GROUP)]
    )

    def drain(monitor: socket.socket) -> None:
        try:
            while monitor.recv(_READ_BYTES):
                pass
        except OSError:  # nothing more to read, or more changes than the kernel kept for us
            changed.set()

    try:
        for each in monitors:
            loop.add_reader(each, drain, each)
        while True:
            yield
            await changed.wait()
            await asyncio.sleep(_SETTLE_SECONDS)
            changed.clear()
    finally:
        for each in monitors:
            loop.remove_reader(each)
            each.close()
