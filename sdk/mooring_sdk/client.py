"""The two clients: `Client` blocks, `AsyncClient` is for asyncio. Both run the same flows.

    with Client("https://mooring.example.org", token=token) as client:
        for project in client.iter_projects():
            print(project.slug)

A client is a context manager; its connections are closed at the end of the block.
"""

from collections.abc import AsyncGenerator, Generator
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from mooring_sdk import models
from mooring_sdk.calls import UNCHANGED, Call, perform, read_answer
from mooring_sdk.credentials import TokenCredentials
from mooring_sdk.drivers import AsyncDriver, SyncDriver
from mooring_sdk.event_stream import follow
from mooring_sdk.flow import Flow
from mooring_sdk.methods import AsyncMethods, SyncMethods
from mooring_sdk.operations import BY_NAME
from mooring_sdk.paging import Page, pages
from mooring_sdk.session import Credentials, Session
from mooring_sdk.settings import CallOptions, ClientSettings

Model = TypeVar("Model")


def session_for(
    url: str, token: str | None, credentials: Credentials | None, settings: ClientSettings | None
) -> Session:
    if token is not None and credentials is not None:
        raise ValueError("give a token or credentials, not both")
    holds = TokenCredentials(token) if token is not None else credentials
    return Session(url, settings or ClientSettings(), holds)


def events_call(project_id: str | None, tenant_id: str | None, query: dict[str, Any], options: CallOptions) -> Call:
    """The call for the event stream of a project, a tenant or the platform."""
    if project_id is not None and tenant_id is not None:
        raise ValueError("give a project or a tenant, not both")
    if project_id is not None:
        return Call(BY_NAME["stream_project_events"], {"project_id": project_id}, query, options=options)
    if tenant_id is not None:
        return Call(BY_NAME["stream_tenant_events"], {"tenant_id": tenant_id}, query, options=options)
    return Call(BY_NAME["stream_platform_events"], {}, query, options=options)


def answered(session: Session, call: Call, model: type[Model]) -> Flow[Model]:
    """Send a call and decode its answer."""
    response = yield from perform(session, call)
    return read_answer(response, model)


class Client(SyncMethods):
    """A client that blocks. Threads may share it."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        credentials: Credentials | None = None,
        settings: ClientSettings | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._driver = SyncDriver(session_for(url, token, credentials, settings), transport)
        self._options = UNCHANGED

    def __repr__(self) -> str:
        return f"Client({self._driver.session.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._driver.close()

    def correlated(self, correlation_id: str) -> Self:
        """The same client with the same connections and token; all its calls carry this correlation id."""
        other = object.__new__(type(self))
        other._driver = self._driver
        other._options = replace(self._options, correlation_id=correlation_id)
        return other

    def follow_events(
        self,
        *,
        project_id: str | None = None,
        tenant_id: str | None = None,
        cursor: str | None = None,
        correlation_id: str | None = None,
        options: CallOptions = UNCHANGED,
    ) -> Generator[models.Event, None, None]:
        """Follow the events of a project, of a tenant, or (without either) of the platform.

        It reconnects when a connection breaks, misses nothing and repeats nothing. Without a cursor it starts now;
        the cursor `beginning` is the oldest event that is kept. `CursorExpired` means that events are missing.
        """
        call = events_call(project_id, tenant_id, {"correlation_id": correlation_id}, options)
        return self.follow(call, models.Event, cursor)

    def call(self, call: Call, model: type[Model]) -> Model:
        """Send a call and decode its answer as a model; with `Any`, as plain data with every field."""
        return self._driver.run(answered(self._driver.session, self._labelled(call), model))

    def execute(self, call: Call) -> None:
        """Send a call whose answer has no body."""
        self._driver.run(perform(self._driver.session, self._labelled(call)))

    def pages(self, call: Call, model: Any = Page, most: int | None = None) -> Generator[Any, None, None]:
        """Iterate over the items of all pages of a list; plain data unless a model of the page is given."""
        return self._driver.iterate(pages(self._driver.session, self._labelled(call), model, most))

    def follow(self, call: Call, model: Any = Any, cursor: str | None = None) -> Generator[Any, None, None]:
        """Iterate over the events of a stream, without an end; plain data unless a model is given."""
        return self._driver.iterate(follow(self._driver.session, self._labelled(call), model, cursor))

    def _labelled(self, call: Call) -> Call:
        return labelled(call, self._options)


class AsyncClient(AsyncMethods):
    """A client for asyncio."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        credentials: Credentials | None = None,
        settings: ClientSettings | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._driver = AsyncDriver(session_for(url, token, credentials, settings), transport)
        self._options = UNCHANGED

    def __repr__(self) -> str:
        return f"AsyncClient({self._driver.session.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._driver.close()

    def correlated(self, correlation_id: str) -> Self:
        """The same client with the same connections and token; all its calls carry this correlation id."""
        other = object.__new__(type(self))
        other._driver = self._driver
        other._options = replace(self._options, correlation_id=correlation_id)
        return other

    def follow_events(
        self,
        *,
        project_id: str | None = None,
        tenant_id: str | None = None,
        cursor: str | None = None,
        correlation_id: str | None = None,
        options: CallOptions = UNCHANGED,
    ) -> AsyncGenerator[models.Event, None]:
        """Follow the events of a project, of a tenant, or (without either) of the platform.

        It reconnects when a connection breaks, misses nothing and repeats nothing. Without a cursor it starts now;
        the cursor `beginning` is the oldest event that is kept. `CursorExpired` means that events are missing.
        """
        call = events_call(project_id, tenant_id, {"correlation_id": correlation_id}, options)
        return self.follow(call, models.Event, cursor)

    async def call(self, call: Call, model: type[Model]) -> Model:
        """Send a call and decode its answer as a model; with `Any`, as plain data with every field."""
        return await self._driver.run(answered(self._driver.session, self._labelled(call), model))

    async def execute(self, call: Call) -> None:
        """Send a call whose answer has no body."""
        await self._driver.run(perform(self._driver.session, self._labelled(call)))

    def pages(self, call: Call, model: Any = Page, most: int | None = None) -> AsyncGenerator[Any, None]:
        """Iterate over the items of all pages of a list; plain data unless a model of the page is given."""
        return self._driver.iterate(pages(self._driver.session, self._labelled(call), model, most))

    def follow(self, call: Call, model: Any = Any, cursor: str | None = None) -> AsyncGenerator[Any, None]:
        """Iterate over the events of a stream, without an end; plain data unless a model is given."""
        return self._driver.iterate(follow(self._driver.session, self._labelled(call), model, cursor))

    def _labelled(self, call: Call) -> Call:
        return labelled(call, self._options)


def labelled(call: Call, options: CallOptions) -> Call:
    """The call with the client's correlation id, unless it has its own."""
    if options.correlation_id is None or call.options.correlation_id is not None:
        return call
    return replace(call, options=replace(call.options, correlation_id=options.correlation_id))
