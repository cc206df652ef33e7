"""A platform that answers from a script, and one way to drive both clients."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from mooring_sdk import AsyncClient, Client, ClientSettings, Timing

URL = "http://127.0.0.1:7420"
Answer = httpx.Response | Exception
Script = Callable[[httpx.Request], Answer]


class FakeClock:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    def timing(self) -> Timing:
        return Timing(
            monotonic=lambda: self.now,
            wall=lambda: 1_800_000_000.0 + self.now,
            chance=lambda: 1.0,
            sleep=self.sleep,
            sleep_async=self.sleep_async,
        )


class ChunkedBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in chunks; a chunk that is an exception breaks the connection there."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces = pieces
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class ScriptedTransport:
    """The recorded requests and the prepared answers: a list in order, or a function of the request."""

    script: Sequence[object] | Script
    requests: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        given = self.script(request) if callable(self.script) else self.script[len(self.requests) - 1]
        if isinstance(given, Exception):
            raise given
        assert isinstance(given, httpx.Response)
        return given

    def header(self, name: str) -> list[str | None]:
        """One header of every request."""
        return [request.headers.get(name) for request in self.requests]


class ClientUnderTest:
    """One of the two clients; a test does not know which one it is."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.clock = FakeClock()

    def __repr__(self) -> str:
        return self.form

    def do(
        self, script: Sequence[object] | Script, act: Callable[[Any], Any], **options: Any
    ) -> tuple[Any, ScriptedTransport]:
        """Run `act` with a client against the script; returns its result and the double."""
        double = ScriptedTransport(script)
        settings = replace(options.pop("settings", ClientSettings()), timing=self.clock.timing())
        arguments = {"settings": settings, "transport": httpx.MockTransport(double), **options}
        if not {"token", "credentials"} & set(options):
            arguments["token"] = "mrgp_secret-token"
        url = arguments.pop("url", URL)
        if self.form == "sync":
            with Client(url, **arguments) as client:
                return act(client), double
        return asyncio.run(self._do_async(url, act, arguments)), double

    async def _do_async(self, url: str, act: Callable[[Any], Any], arguments: dict[str, Any]) -> Any:
        async with AsyncClient(url, **arguments) as client:
            given = act(client)
            return await given if isinstance(given, Awaitable) else given

    def take(self, count: int | None, iterate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """An act that takes this many items of an iteration, or all."""

        def take_sync(client: Any) -> list[Any]:
            taken = []
            iteration = iterate(client)
            for item in iteration:
                taken.append(item)
                if len(taken) == count:
                    iteration.close()
                    break
            return taken

        async def take_async(client: Any) -> list[Any]:
            taken = []
            iteration = iterate(client)
            async for item in iteration:
                taken.append(item)
                if len(taken) == count:
                    await iteration.aclose()
                    break
            return taken

        return take_sync if self.form == "sync" else take_async


def answer(status: int = 200, body: Any = None, **headers: str) -> httpx.Response:
    """An answer of the platform."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json=body, headers={"x-correlation-id": "cor_1", **named})


def problem(status: int, code: str, *, retryable: bool = False, **headers: str) -> httpx.Response:
    content = {
        "type": f"urn:mooring:error:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "code": code,
        "detail": f"the detail of {code}",
        "remedy": f"the remedy of {code}",
        "retryable": retryable,
        "correlation_id": "cor_problem",
        "details": {"about": code},
    }
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(
        status, content=json.dumps(content), headers={"content-type": "application/problem+json", **named}
    )


def project(slug: str = "vision") -> dict[str, Any]:
    return {
        "id": f"prj_{slug}",
        "tenant_id": "ten_acme",
        "slug": slug,
        "display_name": slug.capitalize(),
        "created_at": "2030-01-31T12:00:00Z",
        "revision": 0,
        "etag": "0",
        "allowed_actions": [],
    }


def event(number: int) -> dict[str, Any]:
    return {
        "id": f"evt_{number}",
        "cursor": f"c{number}",
        "type": "identity.project.created",
        "noun": "project",
        "subject_id": "prj_vision",
        "generation": None,
        "org_id": "ten_acme",
        "project_id": "prj_vision",
        "app_slug": None,
        "app_instance_id": None,
        "actor_kind": "user",
        "actor_id": "usr_ada",
        "correlation_id": "cor_1",
        "trace_id": "0" * 32,
        "occurred_at": "2030-01-31T12:00:00Z",
        "data": {"number": number},
    }


def server_sent(*numbers: int) -> bytes:
    return b"".join(
        f"id: c{number}\nevent: identity.project.created\ndata: {json.dumps(event(number))}\n\n".encode()
        for number in numbers
    )


def stream(*pieces: bytes | Exception) -> httpx.Response:
    return httpx.Response(200, stream=ChunkedBody(*pieces), headers={"content-type": "text/event-stream"})
