"""Builds the platform from its parts: the one place that knows all of them.

A platform is opened from settings and the URL of a database, and closed in this order: requests, workers, hub,
database. Whatever it starts, it stops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import asyncpg

from mooring.api.auth import Authenticator
from mooring.api.guess_limits import GuessLimits
from mooring.api.limits import RateLimit
from mooring.api.project_tenant_cache import ProjectTenantCache
from mooring.api.request_context import AppState
from mooring.commands.catalog.artifact_check import hand_back
from mooring.commands.catalog.artifact_source import SourceCredentials
from mooring.commands.catalog.artifact_upload import UploadStore
from mooring.commands.identity.bootstrap import (
    load_document_key,
    make_first_admin,
    make_signing_key,
    node_authority_pair,
    registry_pair,
)
from mooring.commands.live.claim_broker import ClaimBroker
from mooring.commands.live.task_dispatcher import TaskDispatcher
from mooring.commands.live.terminals import Terminals
from mooring.commands.services import Services
from mooring.core.kernel.errors import Refusal
from mooring.core.kernel.event import Event
from mooring.gateways.clock import SystemClock
from mooring.gateways.egress import outbound_for, outbound_inside, outbound_public
from mooring.gateways.lazy_import import lazy_module
from mooring.gateways.master_key_source import key_source
from mooring.gateways.passwords import Passwords
from mooring.gateways.registry.artifact_reader import ArtifactReader, OwnRegistry
from mooring.gateways.registry.registry_token import RegistryTokenIssuer
from mooring.gateways.secrets import SecretBox
from mooring.gateways.telemetry.instruments import Telemetry
from mooring.gateways.tls.local_authority import LocalAuthority
from mooring.gateways.tls.node_authority import NodeAuthority
from mooring.gateways.tls.server_certificate import (
    HANDSHAKE_SECONDS,
    SHUTDOWN_SECONDS,
    CertificateFiles,
    CertificateRefused,
    ServerCertificate,
)
from mooring.settings import PREFIX, SettingRefused, Settings
from mooring.storage.kernel import secret as stored
from mooring.storage.kernel.database import BROKEN, PLATFORM, Database, PoolSettings
from mooring.storage.kernel.hub import EventHub
from mooring.storage.kernel.migrate import missing
from mooring.storage.money import cost as costs
from mooring.storage.records import delivery as deliveries

if TYPE_CHECKING:
    from mooring.api import app as api_app
    from mooring.relay import (
        command_stream,
        connection_limits,
        listener,
        proxy,
        request_counter,
        tunnel_registry,
    )
    from mooring.relay import http as relay_http
    from mooring.workers import loop as worker_loop
    from mooring.workers import registry as worker_registry
else:
    api_app = lazy_module("mooring.api.app")
    relay_http = lazy_module("mooring.relay.http")
    command_stream = lazy_module("mooring.relay.command_stream")
    connection_limits = lazy_module("mooring.relay.connection_limits")
    listener = lazy_module("mooring.relay.listener")
    proxy = lazy_module("mooring.relay.proxy")
    request_counter = lazy_module("mooring.relay.request_counter")
    tunnel_registry = lazy_module("mooring.relay.tunnel_registry")
    worker_loop = lazy_module("mooring.workers.loop")
    worker_registry = lazy_module("mooring.workers.registry")

BOOKKEEPING_SECONDS = 30.0
HEARTBEAT_FLUSH_SECONDS = 5.0
TLS_ENDPOINTS_DOMAIN = "apps.localhost"
"""Browsers do not accept a certificate for `*.localhost`: a wildcard needs two labels after it."""
DENIAL_FLUSH_SECONDS = 5.0

log = logging.getLogger("mooring")


@dataclass(frozen=True)  # no slots: a cached property needs a place
class Platform:
    """A running platform, without a listening socket."""

    services: Services
    tools: AppState
    first_admin_code: str | None

    @cached_property
    def application(self) -> api_app.Application:
        """The API; its routes are loaded here, because a process of workers alone never serves them."""
        return api_app.Application(self.tools)


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
        keys = key_source(settings.master_key_path, settings.master_key_command, settings.master_key_unwrap_command)
        if keys.ready(await stored.master_keys(database)):
            log.warning("created a master key in %s; store a copy of it apart from the database", keys.name)
        clock = SystemClock()
        secrets = SecretBox(keys)
        reader = ArtifactReader(settings, public, inside, passwords=SourceCredentials(database, secrets))
        reader.uploads = UploadStore(database)
        services = Services(settings, database, clock, secrets, passwords, hub, outbound, reader)
        await load_document_key(services)
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
            guesses=GuessLimits(settings.sign_in_limit_per_minute),
            telemetry=telemetry,
            projects=project_tenants,
            dispatcher=dispatcher,
            claims=ClaimBroker(services),
            terminals=Terminals(services),
            meter_events=RateLimit(settings.meter_events_per_second, 50_000.0),
            addresses=[settings.public_url.rstrip("/")] if settings.public_url else [],
            readiness=lambda: _readiness(database, hub),
            node_authority=await _node_authority(services),
        )
        async with (
            _bookkeeping(tools),
            _heartbeats(services),
            _denials(services),
            _artifact_checks(services),
            dispatcher,
        ):
            yield Platform(services, tools, code)
        services.threads.close()
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
            log.warning("cannot release running checks; other processes take them when the leases expire: %s", error)
        else:
            if count:
                log.info("released %d running checks; other processes can take them now", count)


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


async def _node_authority(services: Services) -> NodeAuthority | None:
    """The authority for the client certificates of nodes, if this platform speaks TLS itself and asks for them."""
    if not services.settings.uses_node_certificates:
        return None
    lifetime = timedelta(hours=services.settings.node_certificate_hours)
    return NodeAuthority(await node_authority_pair(services), lifetime)


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
    """Persist from time to time which tokens were used, count what waits in the outbox, and sum what runs."""
    waiting: dict[tuple[str, ...], float] = {}
    rates: dict[tuple[str, ...], float] = {}
    tools.telemetry.watch("mooring_outbox_deliveries", lambda: waiting)
    tools.telemetry.watch("mooring_cost_rate", lambda: rates)

    async def run() -> None:
        while True:
            try:
                waiting.update(await deliveries.counts(tools.services.database))
                found = await costs.rates(tools.services.database)
                rates.clear()
                rates.update(found)
                await tools.authenticator.flush_last_used()
            except (Refusal, asyncpg.PostgresError, TimeoutError) as error:
                waiting.clear()  # no number is better than a stale one
                rates.clear()
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

    async def flush(*, last: bool) -> None:
        await services.presence.flush(services.database, services.clock.now())

    async with _flushing(flush, HEARTBEAT_FLUSH_SECONDS, "node heartbeats"):
        yield


@asynccontextmanager
async def _denials(services: Services) -> AsyncIterator[None]:
    """Persist the counts of repeated refusals, and at the end also those of the running minute."""

    async def flush(*, last: bool) -> None:
        await services.denials.flush(services.database, everything=last)

    async with _flushing(flush, DENIAL_FLUSH_SECONDS, "the counts of refused requests"):
        yield


class _Flush(Protocol):
    def __call__(self, *, last: bool) -> Awaitable[None]: ...


@asynccontextmanager
async def _flushing(flush: _Flush, seconds: float, what: str) -> AsyncIterator[None]:
    async def once(*, last: bool = False) -> None:
        try:
            await flush(last=last)
        except (Refusal, asyncpg.PostgresError, TimeoutError) as error:
            log.warning("cannot persist %s; %s: %s", what, "dropping them at shutdown" if last else "retrying", error)

    async def run() -> None:
        while True:
            await asyncio.sleep(seconds)
            await once()

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await once(last=True)


def listening_url(scheme: str, host: str, port: int) -> str:
    """The URL of a listening socket; of one that listens on every address, the URL on this machine."""
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def cannot_listen(who: str, host: str, port: int, error: OSError, *, setting: str) -> SettingRefused:
    """An error that names the port, and the ways to choose another."""
    why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    ways = f"`mooring up --port N`, `make up ARGS='--port N'` or {PREFIX}{setting}"
    return SettingRefused(f"{who} cannot listen on {host} port {port}: {why}; choose another: {ways}")


@asynccontextmanager
async def server_certificate(running: Platform) -> AsyncIterator[ServerCertificate | None]:
    """The certificate that both listeners serve, reloaded when its files change; None without TLS."""
    settings, authority = running.services.settings, running.tools.node_authority
    of_nodes = None if authority is None else authority.certificate_pem
    if bool(settings.tls_cert_file) != bool(settings.tls_key_file):
        raise SettingRefused(f"{PREFIX}TLS_CERT_FILE and {PREFIX}TLS_KEY_FILE must be set together")
    if settings.tls and settings.tls_cert_file:
        raise SettingRefused(
            f"{PREFIX}TLS makes a certificate, and {PREFIX}TLS_CERT_FILE names one: set only one of them"
        )
    if not settings.tls and not settings.tls_cert_file:
        yield None
        return
    try:
        if settings.tls:
            local = LocalAuthority(settings.local_tls_path, settings.listen_host)
            local.renew()
            certificate = ServerCertificate(local.files, client_authority=of_nodes, renew=local.renew)
        else:
            files = CertificateFiles(Path(settings.tls_cert_file), Path(settings.tls_key_file))
            certificate = ServerCertificate(files, client_authority=of_nodes)
    except CertificateRefused as refused:
        raise SettingRefused(f"TLS: {refused}") from refused
    async with certificate.watched():
        yield certificate


@asynccontextmanager
async def relay(running: Platform, certificate: ServerCertificate | None = None) -> AsyncIterator[listener.Relay]:
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
    scheme, domain = ("http", "localhost") if certificate is None else ("https", TLS_ENDPOINTS_DOMAIN)
    tools.relay.url = settings.relay_url.rstrip("/") or listening_url(scheme, host, port)
    tools.relay.endpoints_url = settings.relay_endpoints_url or f"{scheme}://*.{domain}:{port}"
    tunnels = tunnel_registry.TunnelRegistry(running.services, tools.relay.url)
    domain = tools.relay.endpoints_url.partition("*.")[2].partition(":")[0]
    counter = request_counter.RequestCounter(running.services)
    secure = tools.relay.endpoints_url.startswith("https:")
    endpoints = proxy.Proxy(running.services, tunnels, counter, domain, secure=secure)
    bounds = connection_limits.ConnectionBounds(
        settings.relay_connections_per_address,
        settings.relay_connections_per_visit,
        settings.relay_connections_per_tenant,
    )
    serving = listener.Relay(
        running.services,
        tools.authenticator.caller,
        tunnels,
        endpoints,
        connection_limits.ConnectionLimits(bounds),
        needs_certificates=tools.node_authority is not None,
    )
    handshake = {"ssl_handshake_timeout": HANDSHAKE_SECONDS, "ssl_shutdown_timeout": SHUTDOWN_SECONDS}
    server = await asyncio.start_server(
        serving.accept,
        sock=listening,
        limit=2 * relay_http.HEAD_MAX,
        **({} if certificate is None else {"ssl": certificate.context, **handshake}),  # type: ignore[arg-type]
    )
    tools.terminals.open(lambda visit: command_stream.open_command(tunnels, visit))
    async with counter.reporting():
        try:
            yield serving
        finally:
            await tools.terminals.close()
            server.close()
            await serving.close()


@asynccontextmanager
async def workers(running: Platform, telemetry: Telemetry) -> AsyncIterator[None]:
    """Run every worker; at the end each finishes its tick and hands back its leases."""
    loops = [
        worker_loop.WorkerLoop(worker, telemetry.worker_tick)
        for worker in worker_registry.all_workers(running.services)
    ]

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
