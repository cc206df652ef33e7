"""What every response and every request have in common, seen from outside: headers, and the socket of the metrics."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from mooring.api.metrics_listener import metrics_listener
from mooring.gateways.telemetry.instruments import Telemetry
from mooring.settings import SettingRefused, Settings
from server.tests.conftest import NO_AUTHORITIES, World, running_platform
from server.tests.support.http_wire import exchange_raw

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

HSTS = "strict-transport-security"


async def test_a_header_that_must_be_unambiguous_is_refused_when_it_is_repeated(world: World) -> None:
    """An attacker adds a second header, of which a proxy reads one and the platform the other."""
    right = str(world.admin.headers["Authorization"])
    rows = {
        "two tokens, the right one last": ("Authorization", "Bearer mrgs_other", right),
        "two tokens, the right one first": ("Authorization", right, "Bearer mrgs_other"),
        "the same token twice": ("Authorization", right, right),
        "two hosts": ("Host", "a", "b"),
        "two keys": ("Idempotency-Key", "one", "two"),
        "two labels": ("X-Correlation-ID", "one", "two"),
        "two kinds of body": ("Content-Type", "application/json", "text/plain"),
    }
    for name, (header, first, second) in rows.items():
        lines = [f"{header}: {first}", f"{header.upper()}: {second}", "Connection: close"]
        lines += [] if header == "Host" else ["Host: a"]
        lines += [] if header == "Authorization" else [f"Authorization: {right}"]
        raw = "GET /api/v1/whoami HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n"
        head, body = await exchange_raw(world.running.url, raw.encode())
        assert head.startswith("HTTP/1.1 400 "), name
        problem = json.loads(body)
        assert (problem["code"], problem["details"]) == ("header_invalid", {"header": header}), name
    listed = [("Accept", "a/b"), ("Accept", "c/d")]
    assert (await world.admin.get("/api/v1/whoami", headers=listed)).status_code == 200


async def test_a_browser_is_sent_to_tls_for_good_only_if_the_request_came_over_tls(settings: Settings) -> None:
    forwarded = {"X-Forwarded-Proto": "https"}
    async with running_platform(settings) as running, running.client() as client:
        assert HSTS not in (await client.get("/healthz", headers=forwarded)).headers
    async with running_platform(replace(settings, trusted_proxies="127.0.0.1")) as running, running.client() as client:
        assert HSTS not in (await client.get("/healthz")).headers
        for path in ("/healthz", "/api/v1/whoami", "/no-such-page"):
            assert (await client.get(path, headers=forwarded)).headers[HSTS] == "max-age=31536000"


async def test_strangers_who_reach_the_api_do_not_reach_the_metrics(settings: Settings, tmp_path: Path) -> None:
    async with running_platform(settings) as running, running.client() as client:
        answer = await client.get("/metrics")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        telemetry = running.platform.tools.telemetry
        path = tmp_path / "metrics.sock"
        for place in ("127.0.0.1:0", str(path)):
            async with metrics_listener(replace(settings, metrics_listen=place), telemetry) as address:
                assert address is not None
                over = httpx.AsyncHTTPTransport(uds=str(path)) if place == str(path) else None
                async with httpx.AsyncClient(transport=over, verify=NO_AUTHORITIES) as scraper:
                    base = "http://unix" if over else address.removesuffix("/metrics")
                    assert "mooring_http_requests_total" in (await scraper.get(f"{base}/metrics")).text
                    assert (await scraper.get(f"{base}/api/v1/whoami")).status_code == 404
                    assert (await scraper.post(f"{base}/metrics")).status_code == 404
        assert not path.exists()
    async with running_platform(replace(settings, metrics_listen="api")) as running, running.client() as client:
        assert "mooring_http_requests_total" in (await client.get("/metrics")).text


async def test_a_path_of_the_metrics_that_something_has_is_not_taken_away(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    wanted, telemetry = replace(settings, metrics_listen=str(path)), Telemetry()
    async with metrics_listener(wanted, telemetry):
        with pytest.raises(SettingRefused, match="METRICS_LISTEN"):
            async with metrics_listener(wanted, telemetry):
                pass
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with metrics_listener(wanted, telemetry) as address:
        assert address == f"unix:{path}"
    path.write_text("a file")
    with pytest.raises(SettingRefused, match="METRICS_LISTEN"):
        async with metrics_listener(wanted, telemetry):
            pass
    assert path.read_text() == "a file"
