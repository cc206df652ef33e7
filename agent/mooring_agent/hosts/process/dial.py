"""Connect to a port of a sandbox on a machine that it shares with others: only to a socket that its own processes hold.

The kernel's table says which socket would take the connection; it is asked before and after, so a stranger that takes
the port over in between is found out before a byte is exchanged.
"""

import asyncio
import socket
from typing import Final

from mooring_agent.hosts.contract import HostFailure
from mooring_agent.hosts.process.inspect import InspectionScope, find_processes
from mooring_agent.kernel import proc

CONNECT_SECONDS: Final = 10.0


async def dial(scope: InspectionScope, port: int) -> socket.socket:
    """A connection to a port on which a process of the sandbox listens."""
    target = await asyncio.to_thread(_find, scope, port)
    family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(connection, (target.dial_address, port))
        if await asyncio.to_thread(_find, scope, port) != target:
            raise HostFailure("permission_denied", f"port {port} changed hands")
    except (OSError, TimeoutError) as error:
        connection.close()
        raise HostFailure("not_found", f"port {port} of the sandbox takes no connections") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _find(scope: InspectionScope, port: int) -> proc.Socket:
    """The socket of the sandbox's own that takes connections on this port, if nobody else's could."""
    sockets = proc.sockets("/proc/self/net")
    listening = [each for each in sockets if each.protocol == "tcp" and each.port == port]
    if not listening:
        raise HostFailure("not_found", f"nothing takes connections on port {port}")
    found = find_processes(scope, proc.processes())
    inodes = proc.socket_inodes([each.pid for each in found])
    own = sorted((each for each in listening if each.inode in inodes), key=lambda each: (each.address, each.inode))
    if not own:
        raise HostFailure("permission_denied", f"no process of the sandbox listens on port {port}")
    strangers = [each for each in listening if each.inode not in inodes]
    for target in own:
        if not any(each.is_wildcard or each.dial_address == target.dial_address for each in strangers):
            return target
    raise HostFailure("permission_denied", f"others than the sandbox listen on port {port} too")
