"""The proxy: an endpoint's pages under its own name, for its own sessions, and no head that two could read two ways."""

import asyncio
import base64
import json
from typing import Any

import h11
import pytest

from mooring.relay.frames import CLOSE, DATA, END
from mooring.relay.header_policy import has_platform_token, request_headers, response_headers, without_domain
from mooring.relay.proxy import Proxy
from server.tests.support.endpoint_rows import an_endpoint
from server.tests.support.relay_peers import PAGE, BrowserConnection, Inside, NodeTunnel, PlatformWithRelay, RelayAnswer

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

TOKEN = "mrgp_" + "a" * 43


class BrowserWithSession:
    """A browser with a session, and the tunnel that its requests come through."""

    def __init__(self, platform: PlatformWithRelay, cookie: str) -> None:
        self.platform = platform
        self.cookie = cookie
        self.tunnel: NodeTunnel | None = None

    async def inside(self) -> Inside:
        """The stream that the next request comes by."""
        if self.tunnel is None or self.tunnel.ended.is_set():
            self.tunnel = await self.platform.tunnel()
        return await self.tunnel.inside()

    async def fetch(
        self, target: str = "/", *, said: bytes = PAGE, line: BrowserConnection | None = None, **request: Any
    ) -> tuple[RelayAnswer, dict[str, str]]:
        """Ask the app, which says this; what came back, and the head that the app got."""
        request.setdefault("Cookie", self.cookie)
        used = line or await self.platform.line()
        await used.ask(self.platform.host(), target, **request)
        head = await (await self.inside()).serve(said)
        return await used.answer(), head

    async def refused(self, data: bytes) -> int:
        """The status by which these bytes are answered; the app hears of nothing."""
        line = await self.platform.line()
        line.state.send(_any_request())
        await line.send(data)
        answer = await line.answer()
        assert answer.all("content-type") == ["application/problem+json"]
        assert json.loads(answer.body)["status"] == answer.status
        return answer.status


def _any_request() -> Any:
    return h11.Request(method="GET", target="/", headers=[("Host", "any")])


@pytest.fixture
async def browser(platform: PlatformWithRelay) -> BrowserWithSession:
    return BrowserWithSession(platform, await platform.session())


async def test_a_page_and_a_second_one_on_the_same_connection(browser: BrowserWithSession) -> None:
    line = await browser.platform.line()
    for target in ("/one?x=1", "/two"):
        answer, head = await browser.fetch(target, line=line)
        assert (answer.status, answer.body) == (200, b"ahoy")
        assert head[""] == f"GET {target} HTTP/1.1"
        assert head["host"] == browser.platform.host()
        assert head["x-forwarded-host"] == browser.platform.host()
        assert head["x-forwarded-proto"] == "http"
        assert head["x-forwarded-for"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("method", "said", "status", "body"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n", 200, b""),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        ("GET", b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\n\r\n', 304, b""),
        ("GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nahoy\r\n0\r\n\r\n", 200, b"ahoy"),
        ("GET", b"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200, b"until the end"),
        ("GET", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + PAGE, 200, b"ahoy"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 200, b""),
        ("POST", b"HTTP/1.1 500 It Broke\r\nContent-Length: 0\r\n\r\n", 500, b""),
    ],
)
async def test_every_form_of_an_answer_passes(
    browser: BrowserWithSession, method: str, said: bytes, status: int, body: bytes
) -> None:
    answer, head = await browser.fetch(method=method, said=said)
    assert (answer.status, answer.body) == (status, body)
    assert head[""].startswith(f"{method} /")
    assert not (answer.all("content-length") and answer.all("transfer-encoding"))


@pytest.mark.parametrize(
    "said",
    [
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nahoyy",
        b"",
    ],
    ids=["no-http", "huge-head", "unasked-switch", "two-lengths", "nothing"],
)
async def test_an_app_that_does_not_answer_in_http_is_a_clear_error(browser: BrowserWithSession, said: bytes) -> None:
    line = await browser.platform.line()
    await line.ask(browser.platform.host(), Cookie=browser.cookie)
    inside = await browser.inside()
    await inside.accept()
    await inside.head()
    for start in range(0, len(said), 65_536):
        await inside.send(DATA, said[start : start + 65_536])
    await inside.send(END)
    answer = await line.answer()
    assert answer.status == 503
    assert json.loads(answer.body)["detail"] == "the app's answer is not valid HTTP"


async def test_an_app_that_breaks_off_leaves_no_whole_answer(browser: BrowserWithSession) -> None:
    for last in (END, CLOSE):
        line = await browser.platform.line()
        await line.ask(browser.platform.host(), Cookie=browser.cookie)
        inside = await browser.inside()
        await inside.accept()
        await inside.head()
        await inside.send(DATA, b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\nnot so much")
        await inside.send(last)
        with pytest.raises(Exception, match=r"peer closed connection|hung up"):
            await line.answer()


async def test_a_body_passes_and_an_expectation_is_answered_by_the_relay(browser: BrowserWithSession) -> None:
    line = await browser.platform.line()
    host = browser.platform.host()
    await line.send(
        f"POST /in HTTP/1.1\r\nHost: {host}\r\nCookie: {browser.cookie}\r\nExpect: 100-continue\r\n"
        f"Content-Length: 5\r\n\r\n".encode()
    )
    inside = await browser.inside()
    await inside.accept()
    head = await inside.head()
    assert "expect" not in head
    assert await line.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
    await line.send(b"hello")
    assert (await inside.until(b"hello")).endswith(b"\r\n\r\nhello")
    await inside.send(DATA, PAGE)
    assert (await line.reader.readuntil(b"ahoy")).startswith(b"HTTP/1.1 200 ")


async def test_a_body_in_chunks_passes(browser: BrowserWithSession) -> None:
    line = await browser.platform.line()
    await line.ask(
        browser.platform.host(), method="POST", body="chunks", Cookie=browser.cookie, Transfer_Encoding="chunked"
    )
    inside = await browser.inside()
    await inside.accept()
    head = await inside.head()
    assert head["transfer-encoding"] == "chunked"
    assert b"6\r\nchunks\r\n0\r\n\r\n" in await inside.until(b"0\r\n\r\n")
    await inside.send(DATA, PAGE)
    assert (await line.answer()).body == b"ahoy"


async def test_a_browser_that_leaves_in_the_middle_of_its_request_closes_the_stream(
    browser: BrowserWithSession,
) -> None:
    line = await browser.platform.line()
    host = browser.platform.host()
    await line.send(
        f"POST / HTTP/1.1\r\nHost: {host}\r\nCookie: {browser.cookie}\r\nContent-Length: 50\r\n\r\nhalf".encode()
    )
    inside = await browser.inside()
    await inside.accept()
    await inside.until(b"half")
    line.writer.close()
    while (await inside.next()).kind != CLOSE:
        pass


async def test_a_websocket_passes_and_no_other_protocol_does(browser: BrowserWithSession) -> None:
    line = await browser.platform.line()
    host = browser.platform.host()
    await line.ask(host, Cookie=browser.cookie, Connection="keep-alive, Upgrade", Upgrade="WebSocket")
    inside = await browser.inside()
    await inside.accept()
    head = await inside.head()
    assert (head["connection"], head["upgrade"]) == ("Upgrade", "websocket")
    await inside.send(DATA, b"HTTP/1.1 101 Go\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nearly")
    received = await line.reader.readuntil(b"early")
    assert received.startswith(b"HTTP/1.1 101 ")
    await line.send(b"\x81\x80 from the page")
    assert (await inside.until(b"from the page")).endswith(b"\x81\x80 from the page")
    await inside.send(CLOSE)
    assert await line.is_over()

    answer, head = await browser.fetch(Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", HTTP2_Settings="AAMAAABk")
    assert (answer.status, head["connection"]) == (200, "close")
    assert "upgrade" not in head
    assert "http2-settings" not in head
    answer, _ = await browser.fetch(
        said=b"HTTP/1.1 426 No\r\nContent-Length: 0\r\n\r\n", Connection="Upgrade", Upgrade="websocket"
    )
    assert answer.status == 426


async def test_an_open_websocket_ends_when_the_right_to_it_is_taken(
    browser: BrowserWithSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proxy, "poll_interval_seconds", 0.05)
    line = await browser.platform.line()
    await line.ask(browser.platform.host(), Cookie=browser.cookie, Connection="Upgrade", Upgrade="websocket")
    inside = await browser.inside()
    await inside.accept()
    await inside.head()
    await inside.send(DATA, b"HTTP/1.1 101 Go\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    await line.reader.readuntil(b"\r\n\r\n")
    platform = browser.platform
    released = await platform.people.post(f"{platform.path}/allocations/{platform.app.allocation_id}/release")
    assert released.status_code == 200
    assert await line.is_over()
    while (await inside.next()).kind != CLOSE:
        pass


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\n{cookie}",
        "GET / HTTP/1.1\r\n{cookie}Host : {host}\r\n",
        "GET http://evil.example/ HTTP/1.1\r\nHost: {host}\r\n{cookie}",
        "GET https://{host}/ HTTP/1.1\r\nHost: {host}\r\n{cookie}",
        "CONNECT inside:80 HTTP/1.1\r\nHost: {host}\r\n{cookie}",
        "GET x HTTP/1.1\r\nHost: {host}\r\n{cookie}",
        "POST / HTTP/1.1\r\nHost: {host}\r\n{cookie}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "POST / HTTP/1.1\r\nHost: {host}\r\n{cookie}Content-Length: 4\r\nContent-Length: 5\r\n",
        "POST / HTTP/1.1\r\nHost: {host}\r\n{cookie}Content-Length: +4\r\n",
        "GET / HTTP/1.1\r\nHost: {host}\r\n{cookie}X: a\rSet-Cookie: b\r\n",
        "GET / HTTP/1.1\r\nHost: {host}\r\n{cookie}X: a\x00b\r\n",
        "GET / HTTP/1.1\r\nHost: {host}\r\n{cookie}X y: z\r\n",
        "GET / HTTP/1.1\r\nHost: {host}\r\n{cookie}: z\r\n",
        "GET / x HTTP/1.1\r\nHost: {host}\r\n{cookie}",
    ],
)
async def test_what_two_readers_could_read_two_ways_is_refused(browser: BrowserWithSession, head: str) -> None:
    cookie = f"Cookie: {browser.cookie}\r\n"
    data = head.format(host=browser.platform.host(), cookie=cookie) + "\r\n"
    assert await browser.refused(data.encode("latin-1")) == 400


async def test_other_codings_and_huge_heads_are_refused(browser: BrowserWithSession) -> None:
    beginning = f"POST / HTTP/1.1\r\nHost: {browser.platform.host()}\r\nCookie: {browser.cookie}\r\n"
    assert await browser.refused(f"{beginning}Transfer-Encoding: gzip, chunked\r\n\r\n".encode()) == 501
    assert await browser.refused(f"{beginning}X: {'x' * 200_000}\r\n\r\n".encode()) == 431


@pytest.mark.parametrize(
    "spoiled",
    [
        "{label}.localhost.evil", "{label}.localhost.evil:{port}", "{label}.evil.localhost:{port}",
        "x.{label}.localhost:{port}", "{label}.localhost:{port}@evil", "{label}.localhost:x", "{label}.localhost:",
        "{label}.localhost.:{port}", "{label}localhost:{port}", "localhost:{port}", "e-.localhost:{port}",
        "{label}x.localhost:{port}", "127.0.0.1:{port}",
    ],
)  # fmt: skip
async def test_an_unknown_host_name_is_not_an_endpoint(browser: BrowserWithSession, spoiled: str) -> None:
    label, _, rest = browser.platform.host().partition(".")
    host = spoiled.format(label=label, port=rest.partition(":")[2])
    line = await browser.platform.line()
    await line.ask(host, Cookie=browser.cookie)
    assert (await line.answer()).status == 401


async def test_a_name_in_capitals_and_another_port_in_front_are_the_same_endpoint(browser: BrowserWithSession) -> None:
    label = browser.platform.host().partition(".")[0]
    for host in (browser.platform.host().upper(), f"{label}.localhost", f"{label}.localhost:8443"):
        line = await browser.platform.line()
        await line.ask(host, Cookie=browser.cookie, Origin=f"http://{host.lower()}")
        await (await browser.inside()).serve()
        assert (await line.answer()).status == 200


async def test_a_session_counts_at_its_own_endpoint_and_a_tossed_cookie_takes_nothing_from_it(
    browser: BrowserWithSession,
) -> None:
    platform = browser.platform
    other = await an_endpoint(platform.project_rows)
    theirs = await platform.session(other)
    line = await platform.line()
    await line.ask(platform.host(), Cookie=theirs)
    assert (await line.answer()).status == 404
    name = theirs.partition("=")[0]
    for tossed in (f"{theirs}; {browser.cookie}", f"{name}=x; {name}; {browser.cookie}"):
        answer, head = await browser.fetch(Cookie=f"{tossed}; app=1")
        assert (answer.status, head["cookie"]) == (200, "app=1")
    line = await platform.line()
    await line.ask(platform.host(), Cookie="; ".join([f"{name}=x{i}" for i in range(4)] + [browser.cookie]))
    assert (await line.answer()).status == 401, "what is tried is bounded"


async def test_a_link_or_a_ticket_does_not_count_as_a_session(browser: BrowserWithSession) -> None:
    platform, name = browser.platform, browser.cookie.partition("=")[0]
    for cookie in (
        "a=b",
        f"{name}={await platform.ticket('open')}",
        f"{name}={await platform.ticket()}",
        f"{name}={await platform.command('id')}",
        f"{name}={platform.tenant.token}",
        f"{name}=",
    ):
        line = await platform.line()
        await line.ask(platform.host(), Cookie=cookie)
        answer = await line.answer()
        assert (answer.status, answer.all("content-type")) == (401, ["text/html; charset=utf-8"])
        assert answer.all("cache-control") == ["no-store"]


async def test_a_link_counts_once_by_get_at_its_own_endpoint(platform: PlatformWithRelay) -> None:
    code = await platform.ticket("open")
    other = await an_endpoint(platform.project_rows)
    assert (await platform.open_link(code, platform.host(other))).status == 401
    assert (await platform.open_link(code, method="POST")).status == 405
    first = await platform.open_link(code)
    assert first.status == 303
    assert first.all("referrer-policy") == ["no-referrer"]
    (cookie,) = first.all("set-cookie")
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(cookie.split("; "))
    assert "Domain" not in cookie
    assert (await platform.open_link(code)).status == 401
    assert (await platform.open_link(f"{code}&code={code}")).status == 401


async def test_two_who_open_one_link_at_once_get_one_session(platform: PlatformWithRelay) -> None:
    code = await platform.ticket("open")
    answers = await asyncio.gather(*(platform.open_link(code) for _ in range(8)))
    assert sorted(each.status for each in answers) == [303] + [401] * 7


async def test_the_app_sees_nothing_of_the_platforms(browser: BrowserWithSession) -> None:
    _, head = await browser.fetch(
        Cookie=f"{browser.cookie}; app=1",
        Authorization=f"Bearer {TOKEN}",
        X_Forwarded_For="1.2.3.4",
        Forwarded="for=1.2.3.4",
        X_Real_IP="1.2.3.4",
        Proxy_Authorization="Basic eDp5",
        Connection="close, X-Hop",
        X_Hop="1",
    )
    assert head["cookie"] == "app=1"
    assert head["x-forwarded-for"] == "127.0.0.1"
    assert not {"authorization", "forwarded", "x-real-ip", "proxy-authorization", "x-hop"} & set(head)


async def test_what_an_app_says_about_other_names_does_not_pass(browser: BrowserWithSession) -> None:
    name = browser.cookie.partition("=")[0].encode()
    answer, _ = await browser.fetch(
        said=b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nStrict-Transport-Security: max-age=9; includeSubDomains\r\n"
        b'Clear-Site-Data: "cookies"\r\nAlt-Svc: h3=":443"\r\nSet-Cookie: a=1; Domain=localhost; Path=/\r\n'
        b"Set-Cookie: " + name + b"=evil; Path=/\r\nSet-Cookie: __Host-" + name + b"=evil\r\n"
        b"Set-Cookie:  =" + name + b"=evil\r\nSet-Cookie: b=2; domain = .localhost ;Secure\r\nKeep: it\r\n\r\n"
    )
    assert answer.all("set-cookie") == ["a=1; Path=/", "b=2;Secure"]
    assert answer.all("keep") == ["it"]
    assert not {"strict-transport-security", "clear-site-data", "alt-svc"} & {name for name, _ in answer.headers}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:7420"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "method": "POST"},
    ],
)  # fmt: skip
async def test_what_another_sites_page_sends_is_refused(browser: BrowserWithSession, headers: dict[str, str]) -> None:
    line = await browser.platform.line()
    await line.ask(browser.platform.host(), Cookie=browser.cookie, **headers)
    assert (await line.answer()).status == 403


async def test_a_node_that_is_lost_is_a_clear_error_to_a_browser(browser: BrowserWithSession) -> None:
    line = await browser.platform.line()
    await line.ask(browser.platform.host(), Cookie=browser.cookie)
    inside = await browser.inside()
    await inside.accept()
    await inside.head()
    inside.tunnel.frames.writer.close()
    answer = await line.answer()
    assert (answer.status, json.loads(answer.body)["detail"]) == (503, "the node closed the connection")


def test_a_platforms_token_is_known_in_every_dress() -> None:
    dressed = base64.b64encode(f"user:{TOKEN}".encode())
    for value in (f"Bearer {TOKEN}".encode(), f"bearer\t{TOKEN}".encode(), TOKEN.encode(), b"Basic " + dressed):
        assert has_platform_token(value)
    for value in (b"Basic eDp5", b"Bearer of-the-app", b"", b"Digest x=y"):
        assert not has_platform_token(value)
    assert request_headers([(b"x_forwarded_for", b"1"), (b"cookie", b"mooring_endpoint=x"), (b"x", b"y")]) == [
        (b"x", b"y")
    ]
    assert response_headers([(b"connection", b"x-hop"), (b"x-hop", b"1"), (b"x", b"y")]) == [(b"x", b"y")]
    assert without_domain(b"a=1; DOMAIN=x; HttpOnly") == b"a=1; HttpOnly"
