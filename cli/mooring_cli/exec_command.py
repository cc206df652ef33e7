"""`mooring exec`: a command in a sandbox, with this terminal as its own.

Its arguments go into the audit trail. It runs as a user who is not root. Its exit code is this command's.
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
from mooring_cli.scope import ScopeResolver
from mooring_cli.relay_client import CLOSE, DATA, END, ERRORS, EXIT, FAILURE, RESIZE, RelayConnection, VisitRefused, dial, failure_of

READ_BYTES = 65_536
STANDS_SECONDS = 30
SETTLED = "active,failed,releasing,release_failed,released"


@click.command("exec", cls=MooringCommand, context_settings={"ignore_unknown_options": True})
@click.argument("allocation")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--project", metavar="NAME", help="The project, by slug or id.")
@click.option("--user", default="app", help="A user of the sandbox who is not root. [default: app]")
@click.option("--label", default="", help="The owner within the allocation, such as a member.")
def exec_(*, allocation: str, argv: tuple[str, ...], project: str | None, user: str, label: str) -> int:
    """Run an interactive command in an allocation's sandbox: mooring exec ALLOCATION -- bash."""
    invocation = current()
    resolver = ScopeResolver(invocation)
    path = {"project_id": resolver.project_id(project)}
    path["allocation_id"] = resolver.reference("allocation_id", allocation, path)
    # One that was asked for a moment ago is waited for; any other stands as it stands, and the answer says so.
    invocation.call("get_allocation", path, {"wait": STANDS_SECONDS, "until": SETTLED})
    size = shutil.get_terminal_size()
    body = {"argv": list(argv), "user": user, "label": label, "columns": size.columns, "rows": size.lines}
    ticket = invocation.call("exec_allocation", path, body=body)
    return asyncio.run(attend(ticket, terminal=True))


exec = exec_
"""How the root finds it."""


def run_at(invocation: Invocation, path: dict[str, str], argv: Sequence[str], endpoint: str | None = None) -> int:
    """Run a command at the terminal of an app, or a login shell where there is none; its exit code.

    It has a terminal of its own where this one is at both ends; else pipes, so that what it writes passes unchanged.
    """
    size, terminal = shutil.get_terminal_size(), sys.stdin.isatty() and sys.stdout.isatty()
    body = {"argv": list(argv), "columns": size.columns, "rows": size.lines, "terminal": terminal}
    if endpoint is not None:
        body["endpoint"] = endpoint
    ticket = invocation.call("exec_instance", path, body=body)
    return asyncio.run(attend(ticket, terminal=terminal))


async def attend(ticket: dict[str, Any], *, terminal: bool) -> int:
    """Show a command's ticket to the relay and sit at the command until it ends; its exit code."""
    line = await dial(ticket["relay_url"], ticket["ticket"])
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
    """A terminal and a pipe can; a plain file and /dev/null are read at once."""
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
            raise VisitRefused("the connection to the sandbox broke; whether the command still runs is not known")


@contextmanager
def _raw_terminal(*, wanted: bool) -> Iterator[None]:
    """Every key goes to the command, Ctrl-C too; afterwards the terminal is as it was."""
    if not wanted or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
