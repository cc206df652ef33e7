"""The server's program: `python -m mooring <command>`.

`up` is the whole platform on one machine: the embedded database, the API and the workers. `serve`, `api` and `worker`
run against a PostgreSQL of your own, named by MOORING_DATABASE_URL, in as many replicas as you like.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import asyncpg
import uvicorn
import uvloop

from mooring.api.connection import HttpConnection
from mooring.api.metrics_listener import metrics_listener
from mooring.api.openapi import document
from mooring.api.request_context import encode_json
from mooring.commands.fleet.local_node import offer_local_enrolment
from mooring.commands.identity.bootstrap import FIRST_ADMIN_EMAIL, recover_user, registry_pair
from mooring.commands.kernel.master_key import rewrap_secrets, rotate_master_key
from mooring.core.kernel.errors import Refusal
from mooring.embedded import EmbeddedPostgres, EmbeddedPostgresError
from mooring.gateways.gc_tuning import collecting
from mooring.gateways.master_key_source import key_source
from mooring.gateways.secrets import MasterKeyRefused
from mooring.gateways.telemetry.instruments import Telemetry, configure_logging
from mooring.gateways.tls.server_certificate import ServerCertificate
from mooring.settings import PREFIX, SettingRefused, Settings, read_settings
from mooring.storage.kernel.hub import EventHub
from mooring.storage.kernel.migrate import MigrationRefused, migrate
from mooring.wiring import Platform, cannot_listen, listening_url, platform, relay, server_certificate, workers

CODE_FILE = "MOORING_FIRST_ADMIN_CODE_FILE"
LOCAL_NODE_PIPE = "MOORING_LOCAL_NODE_PIPE"
REGISTRY_CERTIFICATE_FILE = "MOORING_REGISTRY_CERTIFICATE_FILE"
"""The pipe from which `mooring up` reads the URL and a one-time token for the node of this machine."""
WITH_EMBEDDED = ("up", "migrate", "rotate-master-key", "recover-admin")
"""The commands that also work with the embedded database."""

UNREAD_SECONDS_MAX = 1.0
"""How long a stop waits for a client that does not read its answer."""


class Server(uvicorn.Server):
    """A uvicorn server that ends its event streams before it waits for the other requests."""

    def __init__(self, config: uvicorn.Config, hub: EventHub, welcome: Callable[[], None]) -> None:
        super().__init__(config)
        self._hub = hub
        self._welcome = welcome

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Print the welcome only when requests are served and signals are handled."""
        await super().startup(sockets)
        self._welcome()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals without raising them again, so that the surrounding contexts are closed normally."""
        earlier = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more requests, end the streams, finish the rest."""
        await self._hub.close()
        cutter = asyncio.create_task(self._cut_off_unread())
        try:
            await super().shutdown(sockets)
        finally:
            cutter.cancel()

    async def _cut_off_unread(self) -> None:
        """Cut off clients that do not read their answer: they can resume a stream or repeat a request."""
        unread: dict[HttpConnection, int] = {}
        while True:
            connections: list[HttpConnection] = [
                each for each in self.server_state.connections if isinstance(each, HttpConnection)
            ]
            sizes = {each: each.unread_bytes for each in connections}
            for connection, size in sizes.items():
                if 0 < unread.get(connection, 0) <= size:
                    connection.cut_off()
            unread = sizes
            await asyncio.sleep(UNREAD_SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class AdminToRecover:
    """Whom `recover-admin` gives a new one-time code; without a tenant, an admin of the platform."""

    tenant_slug: str | None
    email: str


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(prog="mooring-server", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, text in (
        ("up", "the embedded database (unless MOORING_DATABASE_URL is set), the API and the workers"),
        ("serve", "the API and the workers"),
        ("api", "the API"),
        ("worker", "the workers"),
        ("migrate", "bring the database to this version"),
        ("rotate-master-key", "create a new master key and wrap every secret with it"),
        ("recover-admin", "give an admin who can no longer sign in a new one-time code"),
        ("openapi", "print the OpenAPI document"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--data-dir", default=None, help="directory of the embedded database")
        command.add_argument("--host", default=None, help="address to listen on")
        command.add_argument("--port", type=int, default=None, help="port to listen on; 0 takes a free one")
        command.add_argument("--tls-cert", default=None, help="certificate chain (PEM) of the API and the relay")
        command.add_argument("--tls-key", default=None, help="private key (PEM) of that certificate")
        if name == "up":
            command.add_argument("--tls", action="store_true", help="make a certificate authority for this machine")
        if name == "recover-admin":
            command.add_argument("--tenant", default=None, help="slug of the admin's tenant; default: the platform")
            command.add_argument("--email", default=FIRST_ADMIN_EMAIL, help="the admin's e-mail address")
    options = parser.parse_args(arguments)
    if options.command == "openapi":
        sys.stdout.write(encode_json(document()).decode() + "\n")
        return 0
    try:
        settings = _settings(options)
        configure_logging(settings.log_level, settings.log_format, sys.stderr)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            admin = AdminToRecover(getattr(options, "tenant", None), getattr(options, "email", FIRST_ADMIN_EMAIL))
            return runner.run(_run(options.command, settings, admin))
    except (SettingRefused, MasterKeyRefused, MigrationRefused, EmbeddedPostgresError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except Refusal as refusal:
        sys.stderr.write(f"error: {refusal.detail}\n")
        return 1
    except (OSError, asyncpg.PostgresError) as error:
        sys.stderr.write(f"error: {type(error).__name__}: {error}\n")
        return 1


def _settings(options: Any) -> Settings:
    settings = read_settings()
    if options.data_dir is not None:
        settings = replace(settings, data_dir=os.path.abspath(options.data_dir))
    if options.host is not None:
        settings = replace(settings, listen_host=options.host)
    if options.port is not None:
        settings = replace(settings, listen_port=options.port)
    if getattr(options, "tls", False):
        settings = replace(settings, tls="local")
    if options.tls_cert is not None:
        settings = replace(settings, tls_cert_file=os.path.abspath(options.tls_cert))
    if options.tls_key is not None:
        settings = replace(settings, tls_key_file=os.path.abspath(options.tls_key))
    return settings


async def _run(command: str, settings: Settings, admin: AdminToRecover) -> int:
    if command not in WITH_EMBEDDED and not settings.database_url:
        raise SettingRefused(
            f"`{command}` needs a PostgreSQL of your own: set {PREFIX}DATABASE_URL, or run `up` for the embedded one"
        )
    telemetry = Telemetry(otlp_endpoint=settings.otlp_endpoint)
    async with AsyncExitStack() as stack:
        stack.callback(telemetry.close)
        url = settings.database_url or await stack.enter_async_context(
            _embedded(settings, telemetry, joins=command != "up")
        )
        await migrate(url, settings.database_connect_timeout_seconds)
        if command == "migrate":
            return 0
        if command == "rotate-master-key":
            if settings.master_key_command or settings.master_key_unwrap_command:
                command, unwrap = settings.master_key_command, settings.master_key_unwrap_command
                count = await rewrap_secrets(url, key_source(settings.master_key_path, command, unwrap))
                sys.stdout.write(f"sealed {count} secrets with the first master key\n")
            else:
                count = await rotate_master_key(url, settings.master_key_path)
                sys.stdout.write(f"sealed {count} secrets with a new master key\n")
            return 0
        if command == "recover-admin":
            async with platform(settings, url, telemetry) as opened:
                code = opened.first_admin_code or await recover_user(opened.services, admin.tenant_slug, admin.email)
            sys.stdout.write(f"One-time sign-in code of {admin.email}, shown only now: {code}\n")
            return 0
        running = await stack.enter_async_context(platform(settings, url, telemetry))
        if command in ("up", "serve", "worker"):
            await stack.enter_async_context(workers(running, telemetry))
        if command != "worker" or settings.metrics_listen:  # workers beside an API leave the usual port to it
            await stack.enter_async_context(metrics_listener(settings, telemetry))
        if command == "worker":
            await _until_signalled()
            return 0
        certificate = await stack.enter_async_context(server_certificate(running))
        await stack.enter_async_context(relay(running, certificate))
        await stack.enter_async_context(collecting())
        return await _listen(settings, running, certificate)


@asynccontextmanager
async def _embedded(settings: Settings, telemetry: Telemetry, *, joins: bool) -> AsyncIterator[str]:
    """The embedded database: a new server, or (for a short command) the one that `up` runs already."""
    database = EmbeddedPostgres(settings.data_path, log=telemetry.lines.log.bind(logger="mooring.embedded"))
    if joins and await _answers(database.dsn):
        yield database.dsn
        return
    async with database:
        yield database.dsn


async def _answers(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url, timeout=5)
    except (OSError, asyncpg.PostgresError):
        return False
    await connection.close()
    return True


async def _listen(settings: Settings, running: Platform, certificate: ServerCertificate | None) -> int:
    try:
        listening = socket.create_server(
            (settings.listen_host, settings.listen_port),
            backlog=2048,
            reuse_port=False,
            family=socket.AF_INET6 if ":" in settings.listen_host else socket.AF_INET,
        )
    except OSError as error:
        raise cannot_listen(
            "the API", settings.listen_host, settings.listen_port, error, setting="LISTEN_PORT"
        ) from error
    # With Nagle's algorithm each small piece would wait for the acknowledgement of the last one: some 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    host, port = listening.getsockname()[:2]
    scheme = "http" if certificate is None else "https"
    address = listening_url(scheme, host, port)
    config = uvicorn.Config(
        running.application,
        loop="none",
        http=HttpConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies or None,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=int(settings.shutdown_seconds),
        ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
    )
    if certificate is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, certificate.reload)
    ca_file = settings.local_tls_path / "ca.crt" if settings.tls else None
    local_node = os.environ.get(LOCAL_NODE_PIPE)
    if not settings.public_url:
        running.tools.addresses.extend((address, f"{scheme}://localhost:{port}"))
    certificate_file = os.environ.get(REGISTRY_CERTIFICATE_FILE)
    if certificate_file:  # a registry on this machine is started once the platform is offered below
        pair = await registry_pair(running.services)
        await asyncio.to_thread(Path(certificate_file).write_bytes, pair.certificate_pem)
    if local_node:
        running.tools.addresses.append(address)  # this machine's own programs use it whatever the public URL is
        await offer_local_enrolment(running.services, address, int(local_node), ca_file=ca_file)
    welcome = Welcome(address, running.first_admin_code, ca_file)
    warning = without_tls(settings.listen_host) if certificate is None else None
    if warning is not None:
        logging.getLogger("mooring").warning(warning)
    server = Server(config, running.services.hub, lambda: _print_welcome(welcome, warning))
    await server.serve(sockets=[listening])
    return 0


def without_tls(host: str) -> str | None:
    """The warning for a listener that other machines reach in the clear; None on the loopback."""
    with suppress(ValueError):
        if ip_address(host).is_loopback:
            return None
    if host == "localhost":
        return None
    return (
        f"the API and the relay listen on {host} WITHOUT TLS: anybody on the network path reads passwords, tokens and "
        "traffic of apps, and can change them. Give --tls-cert and --tls-key (docs/tls.md), unless a proxy on this "
        "machine or a private network ends TLS in front of them."
    )


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the start prints: the code on the first start only, the CA file with a local authority only."""

    address: str
    code: str | None
    ca_file: Path | None


def _print_welcome(welcome: Welcome, warning: str | None) -> None:
    """Print the URL and, on the first start only, the one-time sign-in code; neither goes to the log."""
    address, code, ca_file = welcome.address, welcome.code, welcome.ca_file
    lines = [f"Mooring listens on {address}", f"API reference: {address}/docs"]
    trust = "" if ca_file is None else f" --ca-file {ca_file}"
    if ca_file is not None:
        lines += [
            f"The certificate authority of this machine is {ca_file}; give it to clients with --ca-file.",
            "Browsers trust it once it is imported there as an authority; on Debian and Ubuntu all programs do after: "
            f"sudo cp {ca_file} /usr/local/share/ca-certificates/mooring.crt && sudo update-ca-certificates",
        ]
    if warning is not None:
        lines.append(f"WARNING: {warning}")
    if code is not None:
        path = os.environ.get(CODE_FILE)
        if path:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(code + "\n")
            lines.append(f"First admin: {FIRST_ADMIN_EMAIL}; the one-time sign-in code is in {Path(path)}")
        else:
            lines += [
                f"First admin: {FIRST_ADMIN_EMAIL}",
                f"One-time sign-in code, shown only now: {code}",
                f"Sign in: mooring login --url {address}{trust} --email {FIRST_ADMIN_EMAIL} --one-time-code",
            ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


async def _until_signalled() -> None:
    signalled = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    await signalled.wait()


if __name__ == "__main__":
    sys.exit(main())
