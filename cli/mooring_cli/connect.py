"""`mooring connect`: a local port that leads to an app's endpoint; with --browser, a link to it.

An app may have a terminal, where its users run commands: `mooring connect INSTANCE -- COMMAND` runs one there, and
`--shell` opens a shell.

Nothing is published: each connection to the local port goes through the platform's relay to a port inside the app's
sandbox.
"""

import asyncio
import os
import sys
import webbrowser
from collections.abc import Mapping
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
@click.argument("endpoint", metavar="INSTANCE[/ENDPOINT]")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@click.option("--project", metavar="NAME", help="The project, by slug or id.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Local port; 0 picks a free one. [default: 0]")
@click.option("--browser", is_flag=True, help="Open it in a browser instead, with a link that works once.")
@click.option("--shell", is_flag=True, help="Open a shell at the terminal of the instance.")
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
    """Connect to an app's endpoint, or run a command at the terminal of an instance.

    An instance with one endpoint is enough; of several give INSTANCE/ENDPOINT. An endpoint's own name or id works too.
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
    if browser:
        open_in_browser(invocation, project_id, found)
        return None
    path = {"project_id": project_id, "endpoint_id": found["id"]}
    with suppress(KeyboardInterrupt):
        asyncio.run(Listener(invocation, path, found).run(port))
    return None


def find(invocation: Invocation, project_id: str, named: str) -> dict[str, Any]:
    """The endpoint with this id, the only one with this name, INSTANCE/ENDPOINT, or the only one of an instance."""
    call = plain_call("list_endpoints", {"project_id": project_id}, {"limit": 500})
    endpoints = list(invocation.client.pages(call))
    instance, part, name = named.partition("/")
    found = [each for each in endpoints if named in (each["id"], each["name"])]
    if len(found) == 1 and not part:
        return dict(found[0])
    instance_id = None
    with suppress(NoSuchName):
        instance_id = find_instance(invocation, project_id, instance)["instance_id"]
    own = [each for each in endpoints if each["instance_id"] == instance_id is not None]
    wanted = [each for each in own if name in ("", each["id"], each["name"])]
    if wanted and len({each["name"] for each in wanted}) == 1:
        if len(wanted) > 1:
            output.note(f"{instance} has {len(wanted)} members with this endpoint; this is the first of them.")
        return dict(wanted[0])
    if own:
        raise click.UsageError(f"give one endpoint of {instance}: {listed(own, instance)}")
    if found:
        places = listed(found, *names_of(invocation, project_id, found))
        raise click.UsageError(f"{named!r} is the name of {len(found)} endpoints; give one of {places}")
    raise NoSuchName(
        f"there is no endpoint {named!r} here; mooring endpoints list shows them. If {instance!r} is an instance: "
        f"mooring connect {instance} -- COMMAND runs a command there, mooring connect {instance} --shell opens a shell"
    )


def listed(endpoints: list[dict[str, Any]], *instances: str) -> str:
    """INSTANCE/ENDPOINT for each endpoint; one instance may stand for all of them."""
    owners = instances * len(endpoints) if len(instances) == 1 else instances
    pairs = zip(owners, endpoints, strict=True)
    return ", ".join(dict.fromkeys(f"{owner}/{each['name']}" if owner else str(each["id"]) for owner, each in pairs))


def names_of(invocation: Invocation, project_id: str, endpoints: list[dict[str, Any]]) -> list[str]:
    """The name of each endpoint's instance; empty for an endpoint of a bare allocation."""
    call = plain_call("list_instances", {"project_id": project_id}, {"limit": 500})
    names = {each["id"]: str(each["name"]) for each in invocation.client.pages(call)}
    return [names.get(each["instance_id"], "") for each in endpoints]


def open_in_browser(invocation: Invocation, project_id: str, endpoint: dict[str, Any]) -> None:
    """Make a link that works once, print it, and open it where there is a browser."""
    path = {"project_id": project_id, "endpoint_id": str(endpoint["id"])}
    link = invocation.call("open_endpoint", path)
    if invocation.output != "table":
        output.show(invocation.output, link)
        return
    click.echo(link["url"])
    if has_browser(invocation.environment) and webbrowser.open(link["url"]):
        output.note(f"Opened {endpoint['name']} in your browser.")
    else:
        output.note("Open this link in a browser on this machine; it works once, and only for a short time.")


def has_browser(environment: Mapping[str, str]) -> bool:
    """Whether there is a screen, or a browser that the user named: a text browser would take over the terminal."""
    return sys.platform == "darwin" or any(environment.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))


@click.command("open", cls=MooringCommand)
@click.argument("target", metavar="INSTANCE[/ENDPOINT]")
@click.option("--project", metavar="NAME", help="The project, by slug or id.")
def open_(*, target: str, project: str | None) -> None:
    """Open an app's page in a browser, with a link that works once.

    \b
    mooring open greeter            its only endpoint
    mooring open greeter/web        one of several
    """
    invocation = current()
    project_id = ScopeResolver(invocation).project_id(project)
    open_in_browser(invocation, project_id, find(invocation, project_id, target))


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
        try:
            server = await asyncio.start_server(self._carry, "127.0.0.1", port)
        except OSError as error:
            raise click.UsageError(
                f"--port {port}: cannot listen on 127.0.0.1: {os.strerror(error.errno or 0)}"
            ) from error
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
        except (click.ClickException, asyncio.CancelledError) as refused:
            if isinstance(refused, click.ClickException):
                output.note(f"error: {refused.format_message()}")
            writer.close()
            return
        going = [asyncio.create_task(_in(reader, line)), asyncio.create_task(_out(line, writer))]
        try:
            await asyncio.gather(*going)
        except VisitRefused as refused:
            output.note(f"error: {refused.format_message()}")
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has disconnected, or Ctrl-C ends all connections: nobody waits for this task
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
