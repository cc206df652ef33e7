"""The relay over TLS: pages, WebSockets and visits pass as they do without."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mooring.gateways.tls.server_certificate import CertificateFiles, ServerCertificate
from mooring.relay.frames import CLOSE, DATA
from mooring.wiring import relay
from server.tests.conftest import World
from server.tests.relay.test_proxy import BrowserWithSession
from server.tests.support.relay_peers import PlatformWithRelay, platform_with_relay
from tests.support.certificates import TestAuthority

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]
LARGE = b"x" * 200_000


@pytest.fixture
async def platform(world: World, tmp_path: Path) -> AsyncIterator[PlatformWithRelay]:
    """A platform whose relay speaks TLS."""
    authority = TestAuthority(tmp_path)
    files = authority.issue()
    certificate = ServerCertificate(CertificateFiles(files.certificate, files.key))
    async with (
        relay(world.running.platform, certificate) as listening,
        platform_with_relay(world, listening) as made,
    ):
        made.trusted = authority.trusted
        yield made


async def test_pages_and_websockets_pass_over_tls(platform: PlatformWithRelay) -> None:
    assert platform.host().partition(":")[0].endswith(".apps.localhost")
    cookie = await platform.session()
    assert cookie.startswith("__Host-")
    browser = BrowserWithSession(platform, cookie)
    line = await platform.line()
    for body in (b"ahoy", LARGE):
        whole = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        await line.ask(platform.host(), Cookie=cookie)
        inside = await browser.inside()
        await inside.accept()
        assert (await inside.head())["x-forwarded-proto"] == "https"
        for start in range(0, len(whole), 50_000):
            await inside.send(DATA, whole[start : start + 50_000])
        answer = await line.answer()
        assert (answer.status, answer.body) == (200, body)
        line = await platform.line()
    await line.ask(platform.host(), Cookie=cookie, Connection="Upgrade", Upgrade="websocket")
    inside = await browser.inside()
    await inside.accept()
    await inside.head()
    await inside.send(DATA, b"HTTP/1.1 101 Go\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nearly")
    assert (await line.reader.readuntil(b"early")).startswith(b"HTTP/1.1 101 ")
    await line.send(b"\x81\x80 from the page")
    assert (await inside.until(b"from the page")).endswith(b"\x81\x80 from the page")
    await inside.send(CLOSE)
    assert await line.is_over()


async def test_a_visit_passes_over_tls(platform: PlatformWithRelay) -> None:
    frames, inside, _ = await platform.connected()
    await frames.send(DATA, 0, b"from the viewer")
    assert await inside.until(b"from the viewer")
    await inside.send(DATA, b"from the sandbox")
    answer = await frames.next()
    assert answer is not None
    assert (answer.kind, answer.data) == (DATA, b"from the sandbox")
