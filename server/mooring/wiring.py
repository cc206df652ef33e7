"""Builds the platform from its parts: the one place that knows all of them.

A platform is opened from settings and the URL of a database, and closed in this order: requests, workers, hub,
database. Whatever it starts, it stops.
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

BOOKKEEPING_SECONDS = 30.0
HEARTBEAT_FLUSH_SECONDS = 5.0

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
                "created a master key in %s; store a copy of it apart from the database", settings.master_key_path
            )
        clock = SystemClock()
        secrets = SecretBox(settings.master_key_path)
        reader = ArtifactReader(settings, public, inside)
        services = Services(settings, database, clock, secrets, passwords, hub, outbound, reader)
        code = await make_first_admin(services)
        await make_signing_key(services)
        reader.own = await _own_registry(services)
        authenticator = Authenticator(database, clock, settings.token_cache_seconds)
        project_tenants = ProjectTenantCache(database)
        dispatcher = TaskDispatcher(services)
        hub.on_event(authenticator.forget)
        hub.on_commit(authenticator.forget_after)
        hub.on_event(project_tenants.forget)
        hub.on_commit(project_tenants.forget_after)
        hub.on_event(services.fleet.forget)
        hub.on_commit(services.fleet.forget_after)
        tools = AppState(
            services=services,
            authenticator=authenticator,
            failures=RateLimit(settings.sign_in_limit_per_minute / 60, max(5.0, settings.sign_in_limit_per_minute)),
            telemetry=telemetry,
            projects=project_tenants,
            dispatcher=dispatcher,
            claims=ClaimBroker(services),
            addresses=[settings.public_url.rstrip("/")] if settings.public_url else [],
            readiness=lambda: _readiness(database, hub),
        )
        async with _bookkeeping(tools), _heartbeats(services), _artifact_checks(services), dispatcher:
            yield Platform(services, tools, Application(tools), code)
    finally:
        await hub.close()
        await database.close()
        await outbound.close()
        await public.close()
        await inside.close()
        passwords.close()


@asynccontextmanager
async def _artifact_checks(services: Services) -> AsyncIterator[None]:
    """Let checks of artifacts run while the platform is open, then hand them back to other processes."""
    try:
        yield
    finally:
        held = await services.checks.close()
        try:
            count = await hand_back(services, held)
        except (Refusal, asyncpg.PostgresError, TimeoutError) as error:
            log.warning("cannot hand back running checks; other processes take them when the leases expire: %s", error)
        else:
            if count:
                log.info("handed back %d running checks", count)


async def _own_registry(services: Services) -> OwnRegistry | None:
    """The platform's own registry, if it has one; its signing key is created in any case, to set up a registry with."""
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
async def _bookkeeping(tools: AppState) -> AsyncIterator[None]:
    """Persist from time to time which tokens were used, and count what waits in the outbox."""
    waiting: dict[tuple[str, ...], float] = {}
    tools.telemetry.watch("mooring_outbox_deliveries", lambda: waiting)

    async def run() -> None:
        while True:
            try:
                waiting.update(await deliveries.counts(tools.services.database))
                await tools.authenticator.flush_last_used()
            except (Refusal, asyncpg.PostgresError, TimeoutError) as error:
                waiting.clear()  # no number is better than a stale one
                log.warning("cannot persist the use of tokens or count the outbox; retrying: %s", error)
            await asyncio.sleep(BOOKKEEPING_SECONDS)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _heartbeats(services: Services) -> AsyncIterator[None]:
    """Persist the heartbeats of nodes every few seconds, and once more at the end."""

    async def flush() -> None:
        try:
            await services.presence.flush(services.database, services.clock.now())
        except (Refusal, asyncpg.PostgresError, TimeoutError) as error:
            log.warning("cannot persist node heartbeats; retrying: %s", error)

    async def run() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_FLUSH_SECONDS)
            await flush()

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await flush()


def cannot_listen(who: str, host: str, port: int, error: OSError, *, setting: str) -> SettingRefused:
    """An error that names the port, and the setting that changes it."""
    why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return SettingRefused(f"{who} cannot listen on {host} port {port}: {why}; {PREFIX}{setting} sets another")


@asynccontextmanager
async def relay(running: Platform) -> AsyncIterator[Relay]:
    """Listen for nodes, viewers and browsers, and tell the API the URLs of the relay."""
    settings, tools = running.services.settings, running.tools
    port_wanted = settings.relay_listen_port or (settings.listen_port + 1 if settings.listen_port else 0)
    try:
        listening = socket.create_server(
            (settings.listen_host, port_wanted),
            backlog=512,
            family=socket.AF_INET6 if ":" in settings.listen_host else socket.AF_INET,
        )
    except OSError as error:
        raise cannot_listen(
            "the relay", settings.listen_host, port_wanted, error, setting="RELAY_LISTEN_PORT"
        ) from error
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    tools.relay.url = settings.relay_url.rstrip("/") or address
    tools.relay.endpoints_url = settings.relay_endpoints_url or f"http://*.localhost:{port}"
    tunnels = TunnelRegistry(running.services, tools.relay.url)
    domain = tools.relay.endpoints_url.partition("*.")[2].partition(":")[0]
    proxy = Proxy(running.services, tunnels, domain, secure=tools.relay.endpoints_url.startswith("https:"))
    serving = Relay(running.services, tools.authenticator.caller, tunnels, proxy)
    server = await asyncio.start_server(serving.accept, sock=listening, limit=2 * HEAD_MAX)
    try:
        yield serving
    finally:
        server.close()
        await serving.close()


@asynccontextmanager
async def workers(running: Platform, telemetry: Telemetry) -> AsyncIterator[None]:
    """Run every worker; at the end each finishes its tick and hands back its leases."""
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
