"""`mooring exec`: run a command in a sandbox, attached to this terminal.

Its arguments go into the audit trail. It runs as a non-root user, and its exit code becomes that of this command.
"""

import asyncio
import json
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from mooring_cli.invocation import Invocation, current
from mooring_cli.main import MooringCommand
from mooring_cli.relay_client import (
    CLOSE,
    DATA,
    END,
    ERRORS,
    EXIT,
    FAILURE,
    RESIZE,
    RelayConnection,
    RelayTrust,
    VisitRefused,
    dial,
    failure_of,
    relay_trust,
)
from mooring_cli.scope import ScopeResolver

READ_BYTES = 65_536
STANDS_SECONDS = 30
SETTLED = "active,failed,releasing,release_failed,released"


@click.command("exec", cls=MooringCommand, context_settings={"ignore_unknown_options": True})
@click.argument("allocation")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--project", metavar="NAME", help="The project, by slug or id.")
@click.option("--user", default="app", help="A non-root user of the sandbox. [default: app]")
@click.option("--label", default="", help="The owner within the allocation, such as a member.")
def exec_(*, allocation: str, argv: tuple[str, ...], project: str | None, user: str, label: str) -> int:
    """Run an interactive command in an allocation's sandbox: mooring exec ALLOCATION -- bash."""
    invocation = current()
    resolver = ScopeResolver(invocation)
    path = {"project_id": resolver.project_id(project)}
    path["allocation_id"] = resolver.reference("allocation_id", allocation, path)
    # Wait for an allocation that is still being provisioned; for any other the server's answer says what is wrong.
    invocation.call("get_allocation", path, {"wait": STANDS_SECONDS, "until": SETTLED})
    size = shutil.get_terminal_size()
    body = {"argv": list(argv), "user": user, "label": label, "columns": size.columns, "rows": size.lines}
    ticket = invocation.call("exec_allocation", path, body=body)
    return asyncio.run(attend(ticket, relay_trust(invocation), terminal=True))


exec = exec_
"""The name under which the root command finds it."""


def run_at(invocation: Invocation, path: dict[str, str], argv: Sequence[str], endpoint: str | None = None) -> int:
    """Run a command, or a login shell without one, at the terminal of an app; returns its exit code.

    It gets a terminal if stdin and stdout of this command are one; otherwise pipes, so that its output passes
    unchanged.
    """
    size, terminal = shutil.get_terminal_size(), sys.stdin.isatty() and sys.stdout.isatty()
    body = {"argv": list(argv), "columns": size.columns, "rows": size.lines, "terminal": terminal}
    if endpoint is not None:
        body["endpoint"] = endpoint
    ticket = invocation.call("exec_instance", path, body=body)
    return asyncio.run(attend(ticket, relay_trust(invocation), terminal=terminal))


async def attend(ticket: dict[str, Any], trust: RelayTrust | None = None, *, terminal: bool) -> int:
    """Present the ticket to the relay and stay attached to the command until it ends; returns its exit code."""
    line = await dial(ticket["relay_url"], ticket["ticket"], trust or RelayTrust())
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    with _raw_terminal(wanted=terminal):
        typing = asyncio.create_task(_typed(line))
        if terminal and sys.stdin.isatty():
            loop.add_signal_handler(signal.SIGWINCH, lambda: loop.create_task(_resized(line)))
        shown = asyncio.create_task(_shown(line, ended))
        try:
            await asyncio.wait((shown,))
            shown.result()
            return await ended
        finally:
            typing.cancel()
            line.close()


async def _typed(line: RelayConnection) -> None:
    if not _can_be_waited_for(0):
        while data := await asyncio.to_thread(os.read, 0, READ_BYTES):
            await line.send(DATA, data)
        await line.send(END)
        return
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb", 0))
    while data := await reader.read(READ_BYTES):
        await line.send(DATA, data)
    await line.send(END)


def _can_be_waited_for(descriptor: int) -> bool:
    """Whether a file can be polled: terminals and pipes can, plain files and /dev/null are always ready."""
    with select.epoll() as asked:
        try:
            asked.register(descriptor, select.EPOLLIN)
        except PermissionError:
            return False
    return True


async def _resized(line: RelayConnection) -> None:
    size = shutil.get_terminal_size()
    await line.send(RESIZE, json.dumps({"columns": size.columns, "rows": size.lines}).encode())


async def _shown(line: RelayConnection, ended: "asyncio.Future[int]") -> None:
    while True:
        kind, data = await line.next()
        if kind == DATA:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        elif kind == ERRORS:
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()
        elif kind == EXIT:
            code = int(data)
            ended.set_result(code if 0 <= code < 256 else 128 - code)
            return
        elif kind == FAILURE:
            raise failure_of(data)
        elif kind == CLOSE:
            raise VisitRefused("the connection to the sandbox broke; the command may still be running")


@contextmanager
def _raw_terminal(*, wanted: bool) -> Iterator[None]:
    """Pass every key to the command, Ctrl-C too, and restore the terminal afterwards."""
    if not wanted or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
