"""Puts the parts together: the one place that knows all of them.

A platform is opened from settings and a database address, and closed again, in that order: requests first, then
workers, then the hub, then the database. What it needs from outside, it is given; what it starts, it stops.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from mooring.api.app import Application
from mooring.api.auth import Authenticator
from mooring.api.limits import RateLimit
from mooring.api.project_tenant_cache import ProjectTenantCache
from mooring.api.request_context import AppState
from mooring.commands.catalog.artifact_check import hand_back
from mooring.commands.identity.bootstrap import make_first_admin, make_signing_key, registry_pair
from mooring.commands.live.claim_broker import ClaimBroker
from mooring.commands.live.task_dispatcher import TaskDispatcher
from mooring.commands.services import Services
from mooring.core.kernel.errors import Refusal
from mooring.core.kernel.event import Event
from mooring.gateways.clock import SystemClock
from mooring.gateways.egress import outbound_for, outbound_inside, outbound_public
from mooring.gateways.passwords import Passwords
from mooring.gateways.registry.artifact_reader import ArtifactReader, OwnRegistry
from mooring.gateways.registry.registry_token import RegistryTokenIssuer
from mooring.gateways.secrets import SecretBox, ready_key_file
from mooring.gateways.telemetry.instruments import Telemetry
from mooring.relay.http import HEAD_MAX
from mooring.relay.listener import Relay
from mooring.relay.proxy import Proxy
from mooring.relay.tunnel_registry import TunnelRegistry
from mooring.settings import PREFIX, SettingRefused, Settings
from mooring.storage.kernel import secret as stored
from mooring.storage.kernel.database import BROKEN, PLATFORM, Database, PoolSettings
from mooring.storage.kernel.hub import EventHub
from mooring.storage.kernel.migrate import missing
from mooring.storage.records import delivery as deliveries
from mooring.workers.loop import WorkerLoop
from mooring.workers.registry import all_workers

KEEP_SECONDS = 30.0
HEARD_SECONDS = 5.0

log = logging.getLogger("mooring")


@dataclass(frozen=True, slots=True)
class Platform:
    """A running platform, without a listening socket."""

    services: Services
    tools: AppState
    application: Application
    first_admin_code: str | None


@asynccontextmanager
async def platform(settings: Settings, database_url: str, telemetry: Telemetry) -> AsyncIterator[Platform]:
    """Open everything that the API and the workers share."""
    database = Database(
        PoolSettings(
            database_url,
            settings.database_connections,
            statement_timeout_seconds=settings.statement_timeout_seconds,
            connect_timeout_seconds=settings.database_connect_timeout_seconds,
        )
    )
    passwords = Passwords()
    outbound = outbound_for(settings, database_url)
    public, inside = outbound_public(settings, database_url), outbound_inside()
    hub = EventHub(database)
    telemetry.watch("mooring_database_connections", database.connections)
    try:
        await database.open()
        await hub.open()
        if ready_key_file(settings.master_key_path, await stored.master_keys(database)):
            log.warning(
                "a master key was made in %s: keep a copy of it apart from the database's", settings.master_key_path
            )
        clock = SystemClock()
        secrets = SecretBox(settings.master_key_path)
        reader = ArtifactReader(settings, public, inside)
        services = Services(settings, database, clock, secrets, passwords, hub, outbound, reader)
        code = await make_first_admin(services)
        await make_signing_key(services)
        reader.own = await _own_registry(services)
        authenticator = Authenticator(database, clock, settings.token_cache_seconds)
        homes = ProjectTenantCache(database)
        dispatcher = TaskDispatcher(services)
        hub.on_event(authenticator.forget)
        hub.on_commit(authenticator.forget_after)
        hub.on_event(homes.forget)
        hub.on_commit(homes.forget_after)
        hub.on_event(services.fleet.forget)
        hub.on_commit(services.fleet.forget_after)
        tools = AppState(
            services=services,
            authenticator=authenticator,
            failures=RateLimit(settings.sign_in_limit_per_minute / 60, max(5.0, settings.sign_in_limit_per_minute)),
            telemetry=telemetry,
            projects=homes,
            dispatcher=dispatcher,
            claims=ClaimBroker(services),
            addresses=[settings.public_url.rstrip("/")] if settings.public_url else [],
            readiness=lambda: _readiness(database, hub),
        )
        async with _kept(tools), _heard(services), _read(services), dispatcher:
            yield Platform(services, tools, Application(tools), code)
    finally:
        await hub.close()
        await database.close()
        await outbound.close()
        await public.close()
        await inside.close()
        passwords.close()


@asynccontextmanager
async def _read(services: Services) -> AsyncIterator[None]:
    """Read checks of artifacts while the platform is open, then let others go on with them."""
    try:
        yield
    finally:
        held = await services.checks.close()
        try:
            count = await hand_back(services, held)
        except (Refusal, asyncpg.PostgresError, TimeoutError) as error:
            log.warning("checks that are read here are left to their leases: %s", error)
        else:
            if count:
                log.info("%d checks are handed back", count)


async def _own_registry(services: Services) -> OwnRegistry | None:
    """The platform's own registry, when there is one; its signing pair is made in any case, to set it up with."""
    settings, pair = services.settings, await registry_pair(services)
    if not settings.registry_url:
        return None
    issuer = RegistryTokenIssuer(
        pair,
        issuer=settings.registry_issuer,
        service=settings.registry_service,
        lifetime_seconds=settings.registry_token_seconds,
    )
    return OwnRegistry(settings.registry_url, issuer)


async def _readiness(database: Database, hub: EventHub) -> list[str]:
    """Why requests cannot be served now; empty when they can."""
    if hub.closed:
        return ["the process is stopping"]
    try:
        async with database.connection(PLATFORM) as connection:
            lacking = await missing(connection)
    except Refusal as refusal:
        return [refusal.detail]
    except (*BROKEN, asyncpg.PostgresError, TimeoutError) as error:
        return [f"the database does not answer: {type(error).__name__}"]
    return [f"the migration {name} is missing" for name in lacking]


@asynccontextmanager
async def _kept(tools: AppState) -> AsyncIterator[None]:
    """Write down now and then which tokens were used, and count what waits in the outbox."""
    waiting: dict[tuple[str, ...], float] = {}
    tools.telemetry.watch("mooring_outbox_deliveries", lambda: waiting)

    async def keep() -> None:
        while True:
            try:
                waiting.update(await deliveries.counts(tools.services.database))
                await tools.authenticator.flush_last_used()
            except (Refusal, asyncpg.PostgresError, TimeoutError) as error:
                waiting.clear()  # no number is better than an old one
                log.warning("the use of tokens and the outbox could not be looked after: %s", error)
            await asyncio.sleep(KEEP_SECONDS)

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _heard(services: Services) -> AsyncIterator[None]:
    """Write down every few seconds which nodes were heard of, and once more at the end."""

    async def flush() -> None:
        try:
            await services.presence.flush(services.database, services.clock.now())
        except (Refusal, asyncpg.PostgresError, TimeoutError) as error:
            log.warning("who was heard of could not be written down; it is tried again: %s", error)

    async def keep() -> None:
        while True:
            await asyncio.sleep(HEARD_SECONDS)
            await flush()

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await flush()


def cannot_listen(who: str, where: tuple[str, int], setting: str, error: OSError) -> SettingRefused:
    """One line that says which port is taken, and by what it is changed."""
    why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return SettingRefused(f"{who} cannot listen on {where[0]} port {where[1]}: {why}; {PREFIX}{setting} sets another")


@asynccontextmanager
async def relay(running: Platform) -> AsyncIterator[Relay]:
    """Listen for nodes, viewers and browsers; who listens where is told to the API."""
    settings, tools = running.services.settings, running.tools
    port_wanted = settings.relay_listen_port or (settings.listen_port + 1 if settings.listen_port else 0)
    try:
        listening = socket.create_server(
            (settings.listen_host, port_wanted),
            backlog=512,
            family=socket.AF_INET6 if ":" in settings.listen_host else socket.AF_INET,
        )
    except OSError as error:
        raise cannot_listen("the relay", (settings.listen_host, port_wanted), "RELAY_LISTEN_PORT", error) from error
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    tools.relay.url = settings.relay_url.rstrip("/") or address
    tools.relay.endpoints_url = settings.relay_endpoints_url or f"http://*.localhost:{port}"
    desk = TunnelRegistry(running.services, tools.relay.url)
    domain = tools.relay.endpoints_url.partition("*.")[2].partition(":")[0]
    proxy = Proxy(running.services, desk, domain, secure=tools.relay.endpoints_url.startswith("https:"))
    serving = Relay(running.services, tools.authenticator.caller, desk, proxy)
    server = await asyncio.start_server(serving.accept, sock=listening, limit=2 * HEAD_MAX)
    try:
        yield serving
    finally:
        server.close()
        await serving.close()


@asynccontextmanager
async def workers(running: Platform, telemetry: Telemetry) -> AsyncIterator[None]:
    """Run every worker; on the way out each finishes its tick and hands its leases back."""
    loops = [WorkerLoop(worker, telemetry.worker_tick) for worker in all_workers(running.services)]

    def wake(event: Event) -> None:
        for loop in loops:
            loop.wake(event)

    running.services.hub.on_event(wake)
    tasks = [asyncio.create_task(loop.run()) for loop in loops]
    try:
        yield
    finally:
        for loop in loops:
            loop.stop()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=running.services.settings.shutdown_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
