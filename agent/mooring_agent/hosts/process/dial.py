"""Connecting to a port of a sandbox on a shared machine: only to a socket that the sandbox's own processes hold.

The kernel's socket table shows which socket would accept the connection. It is read before and after connecting, so a
process that takes over the port in between is detected before any byte is exchanged.
"""

import asyncio
import socket
from typing import Final

from mooring_agent.hosts.contract import HostFailure
from mooring_agent.hosts.process.inspect import InspectionScope, find_processes
from mooring_agent.kernel import proc

CONNECT_SECONDS: Final = 10.0


async def dial(scope: InspectionScope, port: int) -> socket.socket:
    """Connect to a port on which a process of the sandbox listens."""
    target = await asyncio.to_thread(_find, scope, port)
    family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(connection, (target.dial_address, port))
        if await asyncio.to_thread(_find, scope, port) != target:
            raise HostFailure("permission_denied", f"port {port} was taken over by another process")
    except (OSError, TimeoutError) as error:
        connection.close()
        raise HostFailure("not_found", f"port {port} of the sandbox accepts no connections") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _find(scope: InspectionScope, port: int) -> proc.Socket:
    """The sandbox's own socket that accepts connections on this port, if no other process's socket could."""
    sockets = proc.sockets("/proc/self/net")
    listening = [each for each in sockets if each.protocol == "tcp" and each.port == port]
    if not listening:
        raise HostFailure("not_found", f"nothing accepts connections on port {port}")
    found = find_processes(scope, proc.processes())
    inodes = proc.socket_inodes([each.pid for each in found])
    own = sorted((each for each in listening if each.inode in inodes), key=lambda each: (each.address, each.inode))
    if not own:
        raise HostFailure("permission_denied", f"no process of the sandbox listens on port {port}")
    strangers = [each for each in listening if each.inode not in inodes]
    for target in own:
        if not any(each.is_wildcard or each.dial_address == target.dial_address for each in strangers):
            return target
    raise HostFailure("permission_denied", f"processes outside the sandbox listen on port {port} too")
