"""TLS of the API as an operator starts it: requests, streams, certificates that clients refuse, and reloads."""

import asyncio
import json
import signal
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import connect

from mooring_sdk import Client, ClientSettings, ConnectionFailed, RetryPolicy
from server.tests.support.server_process import FIRST_ADMIN, PASSWORD, ServerGroup, ServerProcess
from tests.support.certificates import TestAuthority, replace_file
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


async def admin_token(served: ServerProcess, authority: TestAuthority) -> str:
    body = {"email": FIRST_ADMIN, "one_time_code": served.code, "new_password": PASSWORD}
    async with httpx.AsyncClient(base_url=served.url, verify=authority.trusted) as caller:
        return str((await caller.post("/api/v1/sign-in", json=body)).raise_for_status().json()["token"])


def served_names(url: str, trusted: ssl.SSLContext) -> str:
    """The common name of the certificate that a new connection gets."""
    parts = urlsplit(url)
    with (
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as plain,
        trusted.wrap_socket(plain, server_hostname=parts.hostname) as secure,
    ):
        shown: Any = secure.getpeercert()
    return str(dict(part[0] for part in shown["subject"])["commonName"])


async def test_requests_streams_and_websockets_go_over_tls(fleet: ServerGroup, tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    served = await fleet.start("serve", **authority.issue().environment)
    assert served.url.startswith("https://127.0.0.1:")
    headers = {"Authorization": f"Bearer {await admin_token(served, authority)}"}
    events = f"{served.url}/api/v1/platform/events"
    async with httpx.AsyncClient(verify=authority.trusted, headers=headers, timeout=50) as caller:
        assert (await caller.get(f"{served.url}/api/v1/whoami")).json()["kind"] == "user"
        async with caller.stream("GET", f"{events}/stream") as stream:
            lines = stream.aiter_lines()
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert await asyncio.wait_for(anext(lines), 60)
        large = await caller.get(f"{served.url}/api/v1/openapi.json")
        assert len(large.raise_for_status().content) > 100_000
    wss = events.replace("https:", "wss:") + "/ws"
    async with connect(wss, ssl=authority.trusted, additional_headers=headers) as opened:
        assert json.loads(await asyncio.wait_for(opened.recv(), 60))
    old = authority.trusted
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        served_names(served.url, old)
    async with httpx.AsyncClient() as plain:
        with pytest.raises(httpx.HTTPError):
            await plain.get(served.url.replace("https:", "http:") + "/healthz")


async def test_clients_refuse_a_certificate_that_is_not_the_servers(fleet: ServerGroup, tmp_path: Path) -> None:
    authority, other = TestAuthority(tmp_path), TestAuthority(tmp_path, "Another authority")
    expired = await fleet.start("api", **authority.issue("expired", days=-1.0).environment)
    elsewhere = await fleet.start("api", **authority.issue("elsewhere", ("mooring.example.org",)).environment)
    assert "valid only until" in expired.log
    for served, trusted, why in (
        (expired, authority, "certificate has expired"),
        (elsewhere, authority, "IP address mismatch"),
        (elsewhere, other, "unable to get local issuer certificate"),
    ):
        settings = ClientSettings(ca_file=str(trusted.ca_file), retry=RetryPolicy(attempts=1))
        client = Client(served.url, token="never sent", settings=settings)
        with client, pytest.raises(ConnectionFailed, match=why):
            client.get_whoami()


async def test_a_new_certificate_is_served_without_a_restart(fleet: ServerGroup, tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    files = authority.issue("server")
    served = await fleet.start("serve", **files.environment)
    headers = {"Authorization": f"Bearer {await admin_token(served, authority)}"}

    def shown() -> str:
        return served_names(served.url, authority.trusted)

    async with httpx.AsyncClient(base_url=served.url, verify=authority.trusted, headers=headers, timeout=90) as caller:
        cursor = (await caller.get("/api/v1/platform/events")).json()["next_cursor"]
        waiting = {"cursor": cursor, "wait": "60"}
        poll = asyncio.create_task(caller.get("/api/v1/platform/events", params=waiting))
        # A broken file first: half of one, then a key of another certificate. The last good pair stays in use.
        whole = files.certificate.read_bytes()
        replace_file(files.certificate, whole[: len(whole) // 2])
        served.send(signal.SIGHUP)
        await until(lambda: "cannot use the new TLS certificate" in served.log)
        assert shown() == "server"
        renewed = authority.issue("renewed")
        replace_file(files.certificate, renewed.certificate.read_bytes())
        await until(lambda: "KEY_VALUES_MISMATCH" in served.log, what="the check of the changed file")
        assert shown() == "server"
        replace_file(files.key, renewed.key.read_bytes())
        await until(lambda: shown() == "renewed")
        # Then by a signal, at once.
        last = authority.issue("last")
        replace_file(files.key, last.key.read_bytes())
        replace_file(files.certificate, last.certificate.read_bytes())
        served.send(signal.SIGHUP)
        await until(lambda: shown() == "last")
        assert not poll.done()
        async with httpx.AsyncClient(base_url=served.url, verify=authority.trusted, headers=headers) as another:
            first_admin = {"email": "a@during.example", "display_name": "A"}
            body = {"slug": "during", "display_name": "During", "first_admin": first_admin}
            assert (await another.post("/api/v1/tenants", json=body)).status_code == 201
        assert (await poll).json()["items"], "the poll that was open during the reloads got its event"
    served.send(signal.SIGTERM)
    assert await served.ended() == 0


async def test_a_listener_that_others_reach_in_the_clear_warns(fleet: ServerGroup, tmp_path: Path) -> None:
    plain = await fleet.start("api", "--host", "0.0.0.0")
    assert "listen on 0.0.0.0 WITHOUT TLS" in plain.log
    loopback = await fleet.start("api")
    secure = await fleet.start("api", "--host", "0.0.0.0", **TestAuthority(tmp_path).issue().environment)
    assert "WITHOUT TLS" not in loopback.log + secure.log


async def test_a_certificate_that_cannot_be_used_stops_the_start(fleet: ServerGroup, tmp_path: Path) -> None:
    files = TestAuthority(tmp_path).issue()
    rows = {
        "no key": (["--tls-cert", str(files.certificate)], "must be set together"),
        "no file": (["--tls-cert", "/nowhere", "--tls-key", str(files.key)], "/nowhere"),
        "not a key": (["--tls-cert", str(files.certificate), "--tls-key", str(files.certificate)], "are not a"),
    }
    for arguments, why in rows.values():
        served = await fleet.begin("api", *arguments)
        assert await served.ended() == 1
        assert why in served.log, served.log
