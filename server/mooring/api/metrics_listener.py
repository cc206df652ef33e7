"""The socket of the metrics, apart from the API's.

What a process does, and how much of it, is for operators, so the metrics are not on the socket that strangers reach.
The connections have the same protocol and the same bounds as those of the API.
"""

import asyncio
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import uvicorn
from uvicorn.server import ServerState

from mooring.api.connection import HttpConnection
from mooring.gateways.telemetry.instruments import Telemetry
from mooring.gateways.telemetry.metrics import MEDIA_TYPE
from mooring.settings import METRICS_NONE, METRICS_ON_API, PREFIX, SettingRefused, Settings, read_metrics_listen

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 7429
SOCKET_MODE: Final = 0o660
"""For the process's user and group; the directory decides who reaches it."""

log = logging.getLogger("mooring")

Message = dict[str, Any]


@asynccontextmanager
async def metrics_listener(settings: Settings, telemetry: Telemetry) -> AsyncIterator[str | None]:
    """Serve the metrics on their own socket; yields its address, or None if there is none."""
    listening = _bound(settings)
    if listening is None:
        yield None
        return
    config = uvicorn.Config(
        _application(telemetry.metrics),
        loop="none",
        http=HttpConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
    )
    config.load()
    state = ServerState()
    address = _address(listening)
    loop = asyncio.get_running_loop()

    def connected() -> HttpConnection:
        return HttpConnection(config, state, {})

    if listening.family == socket.AF_UNIX:
        server = await loop.create_unix_server(connected, sock=listening)
    else:
        server = await loop.create_server(connected, sock=listening)
    log.info("metrics are served on %s", address)
    try:
        yield address
    finally:
        server.close()
        for connection in list(state.connections):
            if isinstance(connection, HttpConnection):
                connection.cut_off()
        if listening.family == socket.AF_UNIX:
            with suppress(OSError):
                os.unlink(address.removeprefix("unix:"))


def _bound(settings: Settings) -> socket.socket | None:
    wanted = settings.metrics_listen
    if wanted in (METRICS_NONE, METRICS_ON_API):
        return None
    if not wanted:
        port = DEFAULT_PORT if settings.listen_port else 0
        try:
            return socket.create_server((DEFAULT_HOST, port), backlog=64)
        except OSError as error:
            log.warning(
                "cannot serve metrics on %s port %d (%s); going on without them. %sMETRICS_LISTEN sets another address",
                DEFAULT_HOST,
                port,
                os.strerror(error.errno or 0),
                PREFIX,
            )
            return None
    place = read_metrics_listen(wanted)
    try:
        if place.path:
            return _unix_socket(place.path)
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        return socket.create_server((place.host, place.port), family=family, backlog=64)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise SettingRefused(f"{PREFIX}METRICS_LISTEN: cannot listen on {wanted}: {why}") from error


def _unix_socket(path: str) -> socket.socket:
    """A socket at this path; one that a dead process left behind is replaced, anything else is not."""
    if os.path.lexists(path) and stat.S_ISSOCK(os.lstat(path).st_mode):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
    listening = socket.socket(socket.AF_UNIX)
    try:
        mask = os.umask(0o777 & ~SOCKET_MODE)
        try:
            listening.bind(path)
        finally:
            os.umask(mask)
        listening.listen(64)
    except OSError:
        listening.close()
        raise
    return listening


def _address(listening: socket.socket) -> str:
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return f"unix:{name}"
    host, port = name[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


def _application(metrics: Callable[[], bytes]) -> Callable[..., Awaitable[None]]:
    async def serve(
        scope: Message, _receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        found = scope["path"] == "/metrics" and scope["method"] in ("GET", "HEAD")
        status, body = (200, metrics()) if found else (404, b"the metrics are at /metrics\n")
        kind = MEDIA_TYPE if found else "text/plain; charset=utf-8"
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return serve
