"""The server with a death built in: a program of the tests, which runs the product as it is.

It imports everything once, holds the listening socket, and forks a child for each line `run` on its input; the child
is `python -m mooring api` from there on, with its seams taken hold of and no line of the product changed. It prints
`child <pid>` for each, what the child itself prints when it listens, and `ended <how>` once it is over. Passwords are
hashed cheaply, so that a start is quick.

A request that carries the header `X-Doom` is the one during which the child kills itself, by SIGKILL:

- `suspended:<n>`: the n-th time that the request, or a task that it started, waits for something; what it sent to
  the database just before is on its way already, and done although nobody gets the answer;
- `before`: when the unit of work is about to send its one statement, which is the commit;
- `after`: when the answer to that statement has come.

Waiting is seen by driving the coroutine by hand: whatever it yields to the event loop is one suspension.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any

import msgspec
from argon2 import PasswordHasher

from mooring import __main__ as program
from mooring import wiring
from mooring.api import app as api_app
from mooring.api.app import Application, Receive, Scope_, Send
from mooring.api.routes import ROUTES
from mooring.gateways.passwords import Passwords
from mooring.storage.kernel import database
from mooring.storage.kernel.pool import PooledConnection
from server.tests.support.aftermath import SESSION_NAME
from server.tests.support.loopback_egress import loopback_egress
from server.tests.support.server_process import end_with_parent

HEADER = b"x-doom"
COMMIT = 'INSERT INTO "audit"'
"""Every mutation writes an audit row, in the statement that is its transaction, and nothing else does."""


def die() -> None:
    """As sudden as it gets."""
    os.kill(os.getpid(), signal.SIGKILL)


class Doom:
    """When this request kills its server."""

    def __init__(self, text: str) -> None:
        self.kind, _, number = text.partition(":")
        self._left = int(number or 0)

    def suspended(self) -> None:
        """The request waits: is it time?"""
        self._left -= 1
        if self._left == 0:
            die()


DOOM: ContextVar[Doom | None] = ContextVar("doom", default=None)


class Driven:
    """A coroutine whose every suspension is seen."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], doom: Doom) -> None:
        self._coroutine = coroutine
        self._doom = doom

    def __await__(self) -> Generator[Any, Any, Any]:
        answer, failure = None, None
        while True:
            try:
                coroutine = self._coroutine
                waiting_for = coroutine.send(answer) if failure is None else coroutine.throw(failure)
            except StopIteration as done:
                return done.value
            self._doom.suspended()
            answer, failure = None, None
            try:
                answer = yield waiting_for
            except BaseException as error:  # noqa: BLE001  handed on to whom it is meant for
                failure = error


async def drive(coroutine: Coroutine[Any, Any, Any], doom: Doom) -> Any:
    return await Driven(coroutine, doom)


def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    """Tasks that a doomed request starts count as part of it."""
    doom = DOOM.get()
    if doom is not None and asyncio.iscoroutine(coroutine):
        coroutine = drive(coroutine, doom)
    return asyncio.Task(coroutine, loop=loop, **options)


class DoomedApplication(Application):
    """The application, one of whose requests may be the last."""

    async def __call__(self, scope: Scope_, receive: Receive, send: Send) -> None:
        text = dict(scope["headers"]).get(HEADER)
        if text is None:
            await super().__call__(scope, receive, send)
            return
        doom = Doom(text.decode())
        DOOM.set(doom)
        asyncio.get_running_loop().set_task_factory(make_task)
        request = super().__call__(scope, receive, send)
        await (drive(request, doom) if doom.kind == "suspended" else request)


def doomed_fetchval(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The call by which the unit of work commits."""

    async def fetchval(self: PooledConnection, query: str, *arguments: object, **options: Any) -> Any:
        doom = DOOM.get()
        kind = doom.kind if doom is not None and COMMIT in query else None
        if kind == "before":
            die()
        value = await original(self, query, *arguments, **options)
        if kind == "after":
            die()
        return value

    return fetchval


class HeldListener:
    """The module `socket` as the API's own listener sees it: what it opens is there. The relay opens one of its own."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening

    def create_server(self, *_: object, **__: object) -> socket.socket:
        """The socket that outlives each child."""
        return self._listening.dup()

    def __getattr__(self, name: str) -> object:
        return getattr(socket, name)


def named_settings(original: Callable[..., dict[str, str]]) -> Callable[..., dict[str, str]]:
    """The settings of a session, under a name that tells the connections of a dead server from all others."""
    return lambda *arguments: {**original(*arguments), "application_name": SESSION_NAME}


def become_server(listening: socket.socket) -> int:
    """The child's life: the product's own program, on the socket that is there already."""
    end_with_parent()
    cheap = partial(Passwords, hasher=PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
    vars(api_app).update(Application=DoomedApplication)
    vars(wiring).update(Passwords=cheap, outbound_for=loopback_egress)
    # What was there before the fork is set aside already; to look through it would copy all of it in each life.
    vars(program).update(socket=HeldListener(listening), collecting=nullcontext)
    vars(database).update(session_settings=named_settings(database.session_settings))
    PooledConnection.fetchval = doomed_fetchval(PooledConnection.fetchval)  # type: ignore[method-assign,assignment]
    return program.main(["api"])


def main() -> None:
    end_with_parent()
    listening = socket.create_server(("127.0.0.1", 0), backlog=100)
    _ = [msgspec.json.Decoder(each.body) for each in ROUTES if each.body]  # what a type is made of is found out once
    gc.freeze()
    print(f"listening {listening.getsockname()[1]}", flush=True)
    for line in sys.stdin:
        assert line == "run\n", line
        child = os.fork()
        if child == 0:
            print(f"child {os.getpid()}", flush=True)
            os._exit(become_server(listening))
        _, status = os.waitpid(child, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
