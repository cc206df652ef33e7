"""Both sides of the relay, played: a node that dials and speaks frames, a browser and a viewer on raw sockets."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import httpx

from mooring.relay.frames import CLOSE, DATA, END, OPEN, ROOM, WINDOW, TunnelFrame, packed, read_frame
from mooring.relay.listener import Relay
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support.agent_double import AgentDouble, joined_agent
from server.tests.support.endpoint_rows import Reachable, an_endpoint
from server.tests.support.lifecycle_rows import ProjectRows

PAGE: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nahoy"
SWITCH_NODE: Final = "mooring-tunnel"
SWITCH_VIEWER: Final = "mooring-visit"


@dataclass
class RelayAnswer:
    """What a browser got."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for each, value in self.headers if each == name]


@dataclass
class BrowserConnection:
    """A connection to the relay."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    state: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))

    async def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, host: str, target: str = "/", method: str = "GET", body: str = "", **headers: str) -> None:
        """A request; an underscore in the name of a header stands for a hyphen."""
        named = [("Host", host), *((name.replace("_", "-"), value) for name, value in headers.items())]
        if body and "Transfer_Encoding" not in headers:
            named.append(("Content-Length", str(len(body))))
        await self.send(self.state.send(h11.Request(method=method, target=target, headers=named)) or b"")
        if body:
            await self.send(self.state.send(h11.Data(data=body.encode())) or b"")
        await self.send(self.state.send(h11.EndOfMessage()) or b"")

    async def answer(self) -> RelayAnswer:
        """The whole answer."""
        received: RelayAnswer | None = None
        while True:
            event = self.state.next_event()
            if event is h11.NEED_DATA:
                self.state.receive_data(await self.reader.read(65_536))
            elif isinstance(event, h11.Response) or (
                isinstance(event, h11.InformationalResponse) and event.status_code == 101
            ):
                headers = [(name.decode(), value.decode("latin-1")) for name, value in event.headers]
                received = RelayAnswer(event.status_code, headers, b"")
                if event.status_code == 101:
                    return received
            elif isinstance(event, h11.Data):
                assert received is not None
                received.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert received is not None
                if self.state.our_state is h11.DONE and self.state.their_state is h11.DONE:
                    self.state.start_next_cycle()
                return received
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("the relay hung up")

    async def is_over(self) -> bool:
        """Whether the relay has hung up; waits until it has, or until it says something."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


@dataclass
class Frames:
    """A connection that was switched to frames."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, kind: bytes, stream: int = 0, data: bytes = b"") -> None:
        """One frame."""
        self.writer.write(packed(kind, stream, data))
        await self.writer.drain()

    async def next(self) -> TunnelFrame | None:
        """The next frame; none when the relay is gone."""
        try:
            return await read_frame(self.reader)
        except ConnectionError:
            return None


@dataclass
class Inside:
    """A stream as the node sees it: what is inside the sandbox."""

    tunnel: "NodeTunnel"
    number: int
    asked: dict[str, Any]
    arrived: "asyncio.Queue[TunnelFrame]" = field(default_factory=asyncio.Queue)
    heard: bytes = b""

    async def accept(self) -> None:
        """What is inside answers: there is room for a window."""
        await self.send(ROOM, WINDOW.to_bytes(4))

    async def send(self, kind: bytes, data: bytes = b"") -> None:
        """One frame of this stream."""
        await self.tunnel.frames.send(kind, self.number, data)

    async def next(self) -> TunnelFrame:
        """The next frame for this stream; data is acknowledged."""
        frame = await self.arrived.get()
        if frame.kind == DATA:
            self.heard += frame.data
            await self.send(ROOM, len(frame.data).to_bytes(4))
        return frame

    async def until(self, text: bytes) -> bytes:
        """All that came, once this has come."""
        while text not in self.heard:
            assert (await self.next()).kind in (DATA, ROOM)  # the relay took what was sent before
        return self.heard

    async def head(self) -> dict[str, str]:
        """The head of the request that the app gets: the request line under an empty name, and the headers."""
        text = (await self.until(b"\r\n\r\n")).partition(b"\r\n\r\n")[0].decode("latin-1")
        line, *rest = text.split("\r\n")
        return {"": line} | {name.lower(): value for name, _, value in (each.partition(": ") for each in rest)}

    async def serve(self, answer: bytes = PAGE) -> dict[str, str]:
        """Take a request, answer it, and end; the request's head."""
        await self.accept()
        head = await self.head()
        await self.send(DATA, answer)
        await self.send(END)
        return head


@dataclass
class NodeTunnel:
    """A tunnel as the node holds it."""

    frames: Frames
    opened: "asyncio.Queue[Inside]" = field(default_factory=asyncio.Queue)
    streams: dict[int, Inside] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def carry(self) -> None:
        """Hand what comes to its stream, until the relay hangs up."""
        while (frame := await self.frames.next()) is not None:
            if frame.kind == OPEN:
                self.streams[frame.stream] = Inside(self, frame.stream, json.loads(frame.data))
                self.opened.put_nowait(self.streams[frame.stream])
            else:
                self.streams[frame.stream].arrived.put_nowait(frame)
        self.ended.set()

    async def inside(self) -> Inside:
        """The next stream that the relay opens."""
        return await self.opened.get()


@dataclass
class PlatformWithRelay:
    """A running platform with its relay, an endpoint on a joined machine, and a fake of the machine."""

    world: World
    relay: Relay
    tenant: TenantWithAdmin
    project_id: str
    people: httpx.AsyncClient
    agent: AgentDouble
    project_rows: ProjectRows
    app: Reachable
    carrying: list["asyncio.Task[None]"] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    trusted: ssl.SSLContext | None = None  # for a relay that speaks TLS
    local_address: str = "127.0.0.1"  # from which its lines come

    @property
    def path(self) -> str:
        """Where the project's things are."""
        return f"/api/v1/projects/{self.project_id}"

    @property
    def address(self) -> tuple[str, int]:
        """Where the relay listens."""
        parts = urlsplit(self.world.running.platform.tools.relay.url)
        return str(parts.hostname), int(parts.port or 0)

    def host(self, app: Reachable | None = None) -> str:
        """The name of an endpoint, as a browser says it."""
        origin = self.world.running.platform.tools.relay.origin_of((app or self.app).endpoint_id)
        return urlsplit(origin).netloc

    async def line(self) -> BrowserConnection:
        """A connection to the relay."""
        local = (self.local_address, 0)
        reader, writer = await asyncio.open_connection(*self.address, ssl=self.trusted, local_addr=local)
        self.writers.append(writer)
        return BrowserConnection(reader, writer)

    async def switched(self, path: str, protocol: str, token: str) -> tuple[int, Frames]:
        """Ask for frames; the status, and the connection."""
        line = await self.line()
        head = {"Connection": "Upgrade", "Upgrade": protocol, "Authorization": f"Bearer {token}"}
        await line.ask("relay", path, **head)
        response_head = await line.reader.readuntil(b"\r\n\r\n")  # and nothing of the frames that follow it
        return int(response_head.split(b" ", 2)[1]), Frames(line.reader, line.writer)

    async def dial(self, task_id: str, token: str) -> tuple[int, Frames]:
        """Dial as a node does."""
        return await self.switched(f"/tunnels/{task_id}", SWITCH_NODE, token)

    async def node_token(self, agent: AgentDouble | None = None) -> str:
        """A token of the node's."""
        return str((agent or self.agent).client.headers["Authorization"]).removeprefix("Bearer ")

    async def asked(self) -> dict[str, Any]:
        """The task by which the node is asked to dial."""
        (task,) = await self.agent.claim()
        assert task["type"] == "tunnel.open"
        return dict(task)

    async def tunnel(self, task: dict[str, Any] | None = None) -> NodeTunnel:
        """The node does as it is asked."""
        asked = task or await self.asked()
        status, frames = await self.dial(asked["task_id"], await self.node_token())
        assert status == 101
        tunnel = NodeTunnel(frames)
        self.carrying.append(asyncio.create_task(tunnel.carry()))
        return tunnel

    async def ticket(self, kind: str = "connect", app: Reachable | None = None) -> str:
        """A ticket for the endpoint."""
        made = await self.people.post(f"{self.path}/endpoints/{(app or self.app).endpoint_id}/{kind}")
        assert made.status_code == 201, made.text
        created = made.json()
        return str(created["ticket"]) if kind == "connect" else str(created["url"]).rpartition("=")[2]

    async def command(self, *argv: str) -> str:
        """A ticket for a command."""
        made = await self.people.post(
            f"{self.path}/allocations/{self.app.allocation_id}/exec", json={"argv": list(argv)}
        )
        assert made.status_code == 201, made.text
        return str(made.json()["ticket"])

    async def visit(self, ticket: str) -> tuple[int, Frames]:
        """Show a ticket as a viewer does."""
        return await self.switched("/visits", SWITCH_VIEWER, ticket)

    async def connected(self) -> tuple[Frames, Inside, NodeTunnel]:
        """A viewer who is connected, and what is inside."""
        visiting = asyncio.create_task(self.visit(await self.ticket()))
        tunnel = await self.tunnel()
        inside = await tunnel.inside()
        await inside.accept()
        status, frames = await visiting
        assert status == 101
        return frames, inside, tunnel

    async def open_link(self, code: str, host: str | None = None, method: str = "GET") -> RelayAnswer:
        """Open a link as a browser does."""
        line = await self.line()
        await line.ask(host or self.host(), f"/.mooring/open?code={code}", method)
        return await line.answer()

    async def session(self, app: Reachable | None = None) -> str:
        """A browser's cookie for the endpoint."""
        answer = await self.open_link(await self.ticket("open", app), self.host(app))
        assert (answer.status, answer.all("location")) == (303, ["/"])
        return answer.all("set-cookie")[0].partition(";")[0]


@asynccontextmanager
async def platform_with_relay(world: World, relay: Relay) -> AsyncIterator[PlatformWithRelay]:
    """Add an endpoint and a fake machine to a running platform with a relay."""
    tenant = await world.tenant("acme")
    project_id = await world.project(tenant, "train")
    agent = await joined_agent(world.client(), world.admin)
    project_rows = ProjectRows(world.running.platform.services.database, tenant.id, project_id, agent.node_id)
    app = await an_endpoint(project_rows)
    project_rows = replace(project_rows, allocation_id=app.allocation_id)
    made = PlatformWithRelay(world, relay, tenant, project_id, world.client(tenant.token), agent, project_rows, app)
    try:
        yield made
    finally:
        for writer in made.writers:
            writer.close()
        for task in made.carrying:
            task.cancel()
        await asyncio.gather(*made.carrying, return_exceptions=True)
        await agent.client.aclose()


__all__ = [
    "CLOSE",
    "DATA",
    "END",
    "PAGE",
    "BrowserConnection",
    "Frames",
    "Inside",
    "NodeTunnel",
    "PlatformWithRelay",
    "RelayAnswer",
    "platform_with_relay",
]
