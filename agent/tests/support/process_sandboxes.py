"""A process host for a test, and what tests often request of it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent.tests.support.supervisors import until
from mooring_agent.hosts.contract import Network, Owner, ProcessSpec, RestartPolicy, SandboxSpec
from mooring_agent.hosts.process import ProcessHost

A = Owner("alc_1", "a")
B = Owner("alc_1", "b")
NEVER = RestartPolicy("never")

SERVER = """
import http.server, pathlib, socket, sys
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
pathlib.Path("sockets").mkdir(exist_ok=True)
named = socket.socket(socket.AF_UNIX); named.bind("sockets/" + sys.argv[1]); named.listen()
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0mooring-test-" + sys.argv[1] + str(server.server_port))
new = pathlib.Path(sys.argv[1] + ".new"); new.write_text(str(server.server_port)); new.rename(sys.argv[1] + ".port")
server.serve_forever()
"""
"""Serves HTTP on a free port, which it writes to a file, and holds a unix socket of each kind."""


def wanted(allocation_id: str = "alc_1", project_id: str = "prj_1") -> SandboxSpec:
    """A sandbox as the platform requests it."""
    network = Network("prj_1", "10.77.0.5", "10.77.0.0/24")
    return SandboxSpec(allocation_id, "ten_1", project_id, "one", 1.0, 2**30, 100, (), network)


@asynccontextmanager
async def host_below(directory: Path, node_id: str) -> AsyncIterator[ProcessHost]:
    """A host whose sandboxes are destroyed afterwards."""
    host = ProcessHost(directory / "host", node_id)
    try:
        yield host
    finally:
        for sandbox in (directory / "host" / "sandboxes").iterdir():
            if sandbox.is_dir():
                await host.destroy(sandbox.name)


def shell(script: str) -> ProcessSpec:
    """A shell script as a program."""
    return ProcessSpec(("sh", "-c", script))


def python(script: str, *arguments: str) -> ProcessSpec:
    """A Python script as a program."""
    return ProcessSpec((sys.executable, "-c", script, *arguments))


def root_of(directory: Path, allocation_id: str = "alc_1") -> Path:
    return directory / "host" / "sandboxes" / allocation_id / "root"


async def serve(host: ProcessHost, owner: Owner, directory: Path) -> int:
    """Start a real HTTP server of an owner; returns its port."""
    await host.start_service(owner, "web", python(SERVER, owner.label), NEVER)
    place = root_of(directory, owner.allocation_id) / f"{owner.label}.port"
    await until(place.exists)
    return int(place.read_text())


async def get(host: ProcessHost, port: int, allocation_id: str = "alc_1") -> bytes:
    """The first bytes of a response, over a connection that the host made."""
    stream = await host.dial(allocation_id, port)
    await stream.send(b"GET / HTTP/1.0\r\n\r\n")
    async with asyncio.timeout(180):
        answer = await stream.receive()
    await stream.close()
    return answer


async def is_running(host: ProcessHost, key: str = "task-1") -> bool:
    """Whether the first owner's run of this key is running."""
    return await host.find_run(A, key) == "running"


async def log_of(host: ProcessHost, owner: Owner, key: str, offset: int = 0) -> bytes:
    return b"".join([piece async for piece in host.read_log(owner, key, offset)])
