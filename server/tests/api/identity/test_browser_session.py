"""The session of a browser: a cookie that counts only for requests of the platform's own pages."""

import httpx
import pytest

from mooring.api.browser_session import COOKIE
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support.socket_client import Refused, connect

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

SESSION = "/api/v1/browser-session"
WHO = "/api/v1/whoami"
PASSWORD = "correct horse battery staple"
CONSOLE = {"x-mooring-console": "1"}


async def signed_in(world: World, acme: TenantWithAdmin, client: httpx.AsyncClient) -> httpx.Response:
    project = await world.project(acme, "of-vera")
    await world.member(acme, project, "project_viewer", "vera")
    body = {"tenant": acme.slug, "email": f"vera@{acme.slug}.example", "password": PASSWORD}
    answer = await client.post(SESSION, json=body, headers=CONSOLE)
    assert answer.status_code == 200, answer.text
    return answer


async def browser(world: World) -> tuple[httpx.AsyncClient, dict[str, str], str]:
    """A client without a token, the headers that a page of the platform sends, and the platform's origin."""
    client = world.client()
    answer = await signed_in(world, await world.tenant("acme"), client)
    stored = answer.headers["set-cookie"]
    origin = str(client.base_url).rstrip("/")
    return client, {"cookie": stored.partition(";")[0], "sec-fetch-site": "same-origin"}, origin


async def test_signing_in_stores_a_cookie_that_no_script_can_read_and_shows_no_token(world: World) -> None:
    client = world.client()
    answer = await signed_in(world, await world.tenant("acme"), client)
    name, _, rest = answer.headers["set-cookie"].partition("=")
    value, *attributes = rest.split("; ")
    assert name == COOKIE == "__Host-mooring-session"
    assert attributes == ["Max-Age=43200", "Path=/", "Secure", "HttpOnly", "SameSite=Strict"]
    assert value not in answer.text
    assert "token" not in answer.json()
    own = {"cookie": f"{COOKIE}={value}", "sec-fetch-site": "same-origin"}
    listed = (await client.get("/api/v1/tokens", headers=own)).json()["items"]
    assert [(each["id"], each["kind"], each["name"]) for each in listed if each["name"] == "browser"] == [
        (answer.json()["token_id"], "session", "browser")
    ]


async def test_a_sign_in_without_the_consoles_header_is_refused(world: World) -> None:
    acme = await world.tenant("acme")
    answer = await world.client().post(
        SESSION, json={"tenant": acme.slug, "email": "a@b.example", "password": "x" * 12}
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "cross_site_request")


async def test_the_cookie_counts_only_for_requests_of_the_platforms_own_pages(world: World) -> None:
    client, own, origin = await browser(world)
    cookie = {"cookie": own["cookie"]}
    bearer = {"authorization": f"Bearer {own['cookie'].partition('=')[2]}"}
    create = {"name": "made-in-a-browser"}
    rows = [
        ("a page of ours reads", "GET", own, 200),
        ("a person opens an address", "GET", {**cookie, "sec-fetch-site": "none"}, 200),
        ("an old browser reads", "GET", cookie, 200),
        ("a page of a stranger reads", "GET", {**cookie, "sec-fetch-site": "cross-site"}, 403),
        ("a page of a neighbouring name reads", "GET", {**cookie, "sec-fetch-site": "same-site"}, 403),
        ("a stranger's origin reads", "GET", {**own, "origin": "https://evil.example"}, 403),
        ("a page without an origin reads", "GET", {**own, "origin": "null"}, 403),
        ("a page of ours changes", "POST", {**own, **CONSOLE, "origin": origin}, 201),
        ("a page of ours forgets the header", "POST", {**own, "origin": origin}, 403),
        ("a stranger adds the header", "POST", {**cookie, **CONSOLE, "origin": "https://evil.example"}, 403),
        ("another port changes", "POST", {**own, **CONSOLE, "origin": f"{origin}0"}, 403),
        ("another scheme changes", "POST", {**own, **CONSOLE, "origin": origin.replace("http", "ftp")}, 403),
        ("a change that proves nothing", "POST", {**cookie, **CONSOLE}, 403),
        ("the cookie twice", "GET", {**own, "cookie": f"{own['cookie']}; {own['cookie']}"}, 401),
        ("a cookie of another name", "GET", {**own, "cookie": own["cookie"].replace("__Host-", "")}, 401),
        ("a wrong token in the cookie", "GET", {**own, "cookie": f"{COOKIE}=mrgs_{'0' * 43}"}, 401),
        ("a token counts without any of it", "GET", bearer, 200),
    ]
    seen = []
    for name, method, headers, _ in rows:
        address = WHO if method == "GET" else "/api/v1/tokens"
        answer = await client.request(method, address, headers=headers, json=create if method == "POST" else None)
        seen.append((name, answer.status_code))
    assert seen == [(name, status) for name, _, _, status in rows]


async def test_a_websocket_takes_the_cookie_of_the_platforms_own_pages_only(world: World) -> None:
    client, own, origin = await browser(world)
    who = (await client.get(WHO, headers=own)).json()
    path = f"/api/v1/projects/{next(iter(who['project_actions']))}/events/ws"
    rows = {"none": None, "stranger": "https://evil.example", "own": origin}
    seen: dict[str, int] = {}
    for name, page in rows.items():
        headers = {"Cookie": own["cookie"]} | ({} if page is None else {"Origin": page})
        try:
            async with connect(world.running.url, path, **headers):
                seen[name] = 101
        except Refused as refused:
            seen[name] = refused.status
    assert seen == {"none": 403, "stranger": 403, "own": 101}


async def test_signing_out_ends_the_session_and_removes_the_cookie(world: World) -> None:
    client, own, origin = await browser(world)
    refused = await client.delete(SESSION, headers={**own, "origin": "https://evil.example", **CONSOLE})
    assert refused.json()["code"] == "cross_site_request"
    ended = await client.delete(SESSION, headers={**own, "origin": origin, **CONSOLE})
    assert (ended.status_code, ended.json()["revoked_at"] is not None) == (200, True)
    assert ended.headers["set-cookie"].startswith(f"{COOKIE}=; Max-Age=0; Path=/; Secure; HttpOnly")
    assert (await client.get(WHO, headers=own)).status_code == 401


async def test_a_public_endpoint_answers_whatever_the_cookie(world: World) -> None:
    client, own, _ = await browser(world)
    stale = {**own, "sec-fetch-site": "cross-site", "cookie": f"{COOKIE}=gone"}
    assert (await client.get("/api/v1/reference", headers=stale)).status_code == 200
