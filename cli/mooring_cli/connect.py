"""`mooring connect`: a local port that leads to an app's endpoint; with --browser, a link to it.

An app may have a terminal, where its users run commands: `mooring connect INSTANCE -- COMMAND` runs one there, and
`--shell` opens a shell.

Nothing is published: each connection to the local port goes through the platform's relay to a port inside the app's
sandbox.
"""

import asyncio
import sys
import webbrowser
from contextlib import suppress
from typing import Any

import click

from mooring_cli import output
from mooring_cli.exec_command import run_at
from mooring_cli.failures import NoSuchName
from mooring_cli.invocation import Invocation, current, plain_call
from mooring_cli.main import MooringCommand
from mooring_cli.relay_client import (
    CLOSE,
    DATA,
    END,
    FAILURE,
    RelayConnection,
    VisitRefused,
    dial,
    failure_of,
    relay_trust,
)
from mooring_cli.scope import ScopeResolver
from mooring_cli.watch import find as find_instance

READ_BYTES = 65_536


@click.command(cls=MooringCommand, context_settings={"ignore_unknown_options": True})
@click.argument("endpoint")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@click.option("--project", metavar="NAME", help="The project, by slug or id.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Local port; 0 picks a free one. [default: 0]")
@click.option("--browser", is_flag=True, help="Open it in a browser instead, with a link that works once.")
@click.option("--shell", is_flag=True, help="ENDPOINT is an instance: open a shell at its terminal.")
@click.option("--terminal", metavar="NAME", help="The terminal, if the instance has several.")
def connect(
    *,
    endpoint: str,
    argv: tuple[str, ...],
    project: str | None,
    port: int,
    browser: bool,
    shell: bool,
    terminal: str | None,
) -> int | None:
    """Connect to an app's endpoint, by id or name; or run a command at the terminal of an instance.

    A local port leads to the endpoint until you press Ctrl-C. With --browser a link is made and opened.

    `mooring connect INSTANCE -- COMMAND` runs a command at the instance's terminal, as the app's user, and exits with
    its exit code; in a pipe its output passes unchanged. `mooring connect INSTANCE --shell` opens a shell there.
    """
    invocation = current()
    project_id = ScopeResolver(invocation).project_id(project)
    if argv or shell or terminal:
        if browser or port or (argv and shell):
            raise click.UsageError("give only one of a command, --shell, --port and --browser")
        return run_at(invocation, find_instance(invocation, project_id, endpoint), argv, terminal)
    found = find(invocation, project_id, endpoint)
    path = {"project_id": project_id, "endpoint_id": found["id"]}
    if browser:
        link = invocation.call("open_endpoint", path)
        if invocation.output != "table" or not webbrowser.open(link["url"]):
            output.show(invocation.output, link, ("url", "expires_at"))
        return None
    with suppress(KeyboardInterrupt):
        asyncio.run(Listener(invocation, path, found).run(port))
    return None


def find(invocation: Invocation, project_id: str, named: str) -> dict[str, Any]:
    """The endpoint with this id, or the only one with this name."""
    call = plain_call("list_endpoints", {"project_id": project_id}, {"limit": 500})
    found = [each for each in invocation.client.pages(call) if named in (each["id"], each["name"])]
    if not found:
        raise NoSuchName(
            f"there is no endpoint {named!r} here; mooring endpoints list shows them. If {named!r} is an instance: "
            f"mooring connect {named} -- COMMAND runs a command there, mooring connect {named} --shell opens a shell"
        )
    if len(found) > 1:
        raise click.UsageError(f"{named!r} is the name of {len(found)} endpoints; give an id")
    return dict(found[0])


class Listener:
    """A local port; each connection to it is forwarded to the endpoint."""

    def __init__(self, invocation: Invocation, path: dict[str, str], endpoint: dict[str, Any]) -> None:
        self._invocation = invocation
        self._path = path
        self._endpoint = endpoint
        self._ticket: dict[str, Any] | None = None

    async def run(self, port: int) -> None:
        """Listen until interrupted."""
        (await self._dialled()).close()  # fail now, not at the first connection, if it cannot be reached
        server = await asyncio.start_server(self._carry, "127.0.0.1", port)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        shown = f"http://{address}/" if self._endpoint["protocol"] == "http" else address
        output.note(f"{self._endpoint['name']} is at {shown}; press Ctrl-C to stop.")
        if self._invocation.output == "json":
            output.show("json", {"address": address, "endpoint_id": self._endpoint["id"]})
            sys.stdout.flush()
        async with server:
            await server.serve_forever()

    async def _dialled(self) -> RelayConnection:
        for again in (True, False):
            if self._ticket is None:
                self._ticket = await asyncio.to_thread(self._invocation.call, "connect_endpoint", self._path)
            ticket: dict[str, Any] = self._ticket or {}
            try:
                return await dial(ticket["relay_url"], ticket["ticket"], relay_trust(self._invocation))
            except VisitRefused as refused:
                if refused.status != 401 or not again:
                    raise
                self._ticket = None  # it has expired; ask for a new one
        raise VisitRefused("the relay refused a new ticket")

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await self._dialled()
        except click.ClickException as refused:
            output.note(f"error: {refused.format_message()}")
            writer.close()
            return
        going = [asyncio.create_task(_in(reader, line)), asyncio.create_task(_out(line, writer))]
        try:
            await asyncio.gather(*going)
        except VisitRefused as refused:
            output.note(f"error: {refused.format_message()}")
        except ConnectionError:
            pass  # the client has disconnected
        finally:
            for task in going:
                task.cancel()
            line.close()
            writer.close()


async def _in(reader: asyncio.StreamReader, line: RelayConnection) -> None:
    while data := await reader.read(READ_BYTES):
        await line.send(DATA, data)
    await line.send(END)


async def _out(line: RelayConnection, writer: asyncio.StreamWriter) -> None:
    while True:
        kind, data = await line.next()
        if kind == DATA:
            writer.write(data)
            await writer.drain()
        elif kind == END:
            if writer.can_write_eof():
                writer.write_eof()
        elif kind == FAILURE:
            raise failure_of(data)
        elif kind == CLOSE:
            writer.close()
            return
