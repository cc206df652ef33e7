"""Signing in at an identity provider: with the mock of a package, and at one that attacks."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwk
from oidc_provider_mock import User, run_server_in_thread  # type: ignore[import-untyped]

from mooring.api.browser_session import FLOW_COOKIE
from mooring.core.kernel.address import Reach, read_networks
from mooring.gateways.egress import EgressClient
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support.oidc_peers import (
    CLIENT,
    CONSOLE,
    SECRET,
    HostileProvider,
    begin_sign_in,
    hostile_provider,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

WHO = "/api/v1/whoami"


@pytest.fixture
def hostile() -> Iterator[HostileProvider]:
    with hostile_provider() as made:
        yield made


@dataclass
class Home:
    """A tenant whose people sign in at a provider."""

    acme: TenantWithAdmin
    admin: httpx.AsyncClient
    project: str

    @property
    def path(self) -> str:
        return f"/api/v1/tenants/{self.acme.id}/identity-providers"

    async def provider(self, issuer: str, **more: Any) -> str:
        body = {"name": "Corp", "issuer": issuer, "client_id": CLIENT, "client_secret": SECRET} | more
        answer = await self.admin.post(self.path, json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])


@pytest.fixture
async def home(world: World) -> AsyncIterator[Home]:
    beside = EgressClient(Reach(allowed=read_networks("127.0.0.0/8"), own_allowed=True))  # providers on loopback
    object.__setattr__(world.running.platform.services, "outbound", beside)
    acme = await world.tenant("acme")
    yield Home(acme, world.client(acme.token), await world.project(acme, "lab"))
    await beside.close()


def problem(answer: httpx.Response) -> str:
    """The reason with which the browser is sent to the sign-in page."""
    assert answer.status_code == 303, answer.text
    target = urlsplit(answer.headers["location"])
    if target.path != "/console/sign-in":
        return f"went on to {answer.headers['location']}"
    said = parse_qs(target.query)
    assert said["correlation"] == [answer.headers["x-correlation-id"]]
    return said["problem"][0]


async def who(world: World, answer: httpx.Response) -> dict[str, Any]:
    """Who the browser is, with the session that the answer stored."""
    cookie = answer.headers["set-cookie"].partition(";")[0]
    assert cookie.startswith("__Host-mooring-session="), problem(answer)
    found = await world.client().get(WHO, headers={"cookie": cookie, "sec-fetch-site": "same-origin"})
    return dict(found.json())


async def test_the_mock_of_a_package_signs_a_new_person_in_with_the_roles_of_their_groups(
    world: World, home: Home
) -> None:
    claims = {"email": "Ada@corp.example", "email_verified": True, "name": "Ada", "groups": ["ml", "nobody"]}
    with run_server_in_thread(user_claims=[User(sub="ada-1", claims=claims)]) as mock:
        roles = [{"group": "ml", "role": "project_member", "project_id": home.project}]
        provider = await home.provider(f"http://localhost:{mock.server_port}", group_roles=roles)
        attempt = await begin_sign_in(world.client(), provider)
        async with httpx.AsyncClient() as browser:
            chosen = await browser.post(attempt.authorization_url, data={"sub": "ada-1"})
        back = {name: values[0] for name, values in parse_qs(urlsplit(chosen.headers["location"]).query).items()}
        answer = await attempt.finish(back)
    assert answer.headers["location"] == "/console/workloads?q=a"
    attributes = answer.headers["set-cookie"].split("; ")[1:]
    assert attributes == ["Max-Age=43200", "Path=/", "Secure", "HttpOnly", "SameSite=Strict"]
    person = await who(world, answer)
    assert person["roles"] == [{"role": "project_member", "project_id": home.project}]
    users = (await home.admin.get(f"/api/v1/tenants/{home.acme.id}/users")).json()["items"]
    assert [(each["email"], each["display_name"]) for each in users if each["id"] == person["id"]] == [
        ("ada@corp.example", "Ada")
    ]
    offered = (await world.client().get("/api/v1/sign-in/methods", params={"tenant": home.acme.slug})).json()
    assert offered["identity_providers"] == [{"id": provider, "name": "Corp"}]


async def test_groups_give_and_take_roles_at_each_sign_in_and_touch_no_role_that_a_person_gave(
    world: World, home: Home, hostile: HostileProvider
) -> None:
    project, acme = home.project, home.acme
    roles = [
        {"group": "ml", "role": "project_member", "project_id": project},
        {"group": "boss", "role": "tenant_admin", "project_id": None},
    ]
    provider = await home.provider(hostile.issuer, group_roles=roles)
    by_hand = {"role": "project_viewer", "project_id": project}
    seen = []
    for groups in (["ml", "boss"], ["ml"], "boss", []):
        hostile.claims = {"groups": groups}
        attempt = await begin_sign_in(world.client(), provider)
        person = await who(world, await attempt.finish(hostile.code_for(attempt.authorization_url)))
        seen.append(sorted(each["role"] for each in person["roles"]))
        if len(seen) == 1:
            body = {"user_id": person["id"], "role": by_hand["role"]}
            assert (await home.admin.post(f"/api/v1/projects/{project}/memberships", json=body)).status_code == 201
    assert seen == [
        ["project_member", "tenant_admin"],
        ["project_member", "project_viewer"],
        ["project_viewer", "tenant_admin"],
        ["project_viewer"],
    ]
    trail = (await home.admin.get(f"/api/v1/tenants/{acme.id}/audit?action=membership.delete")).json()["items"]
    assert {row["before"]["identity_provider"] for row in trail} == {provider}


async def test_a_user_is_linked_by_an_address_only_where_an_admin_says_so_and_the_provider_vouches(
    world: World, home: Home, hostile: HostileProvider
) -> None:
    made = {"email": "ada@corp.example", "display_name": "Ada"}
    user = (await home.admin.post(f"/api/v1/tenants/{home.acme.id}/users", json=made)).json()["id"]
    provider = await home.provider(hostile.issuer)

    async def attempted(**claims: Any) -> httpx.Response:
        hostile.claims = claims
        attempt = await begin_sign_in(world.client(), provider)
        return await attempt.finish(hostile.code_for(attempt.authorization_url))

    assert problem(await attempted()) == "email_taken"
    await home.admin.patch(f"{home.path}/{provider}", json={"link_by_email": True, "email_domains": ["corp.example"]})
    assert problem(await attempted(email_verified=False)) == "email_domain"
    assert problem(await attempted(email="eve@corp.example.evil.example")) == "email_domain"
    assert (await who(world, await attempted()))["id"] == user
    assert problem(await attempted(sub="subject-2")) != "email_taken", "linked once more by the same address"
    await home.admin.patch(f"{home.path}/{provider}", json={"create_users": False})
    assert problem(await attempted(sub="subject-3", email="new@corp.example")) == "user_unknown"
    assert (await home.admin.post(f"/api/v1/tenants/{home.acme.id}/users/{user}/disable")).status_code == 200
    assert problem(await attempted()) == "user_disabled"
    await home.admin.patch(f"{home.path}/{provider}", json={"disabled": True})
    headers = {**CONSOLE, "origin": world.running.url}
    begun = await world.client().post(
        "/api/v1/sign-in/providers", json={"identity_provider_id": provider}, headers=headers
    )
    assert begun.status_code == 404


async def test_an_answer_that_is_not_wholly_right_signs_nobody_in(
    world: World, home: Home, hostile: HostileProvider
) -> None:
    provider = await home.provider(hostile.issuer)
    stranger = jwk.ECKey.generate_key("P-256", {"kid": "one"})
    shared = jwk.OctKey.import_key(SECRET)
    refused = "id_token_refused"
    attacks: dict[str, tuple[dict[str, Any], str]] = {
        "another nonce": ({"claims": {"nonce": "of another sign-in"}}, refused),
        "no nonce": ({"claims": {"nonce": None}}, refused),
        "another audience": ({"claims": {"aud": "another"}}, refused),
        "a second audience that asked": ({"claims": {"aud": [CLIENT, "another"], "azp": "another"}}, refused),
        "another issuer": ({"claims": {"iss": "https://evil.example"}}, refused),
        "expired": ({"claims": {"exp": 1_700_000_000}}, refused),
        "no expiry": ({"claims": {"exp": None}}, refused),
        "from the future": ({"claims": {"iat": 4_000_000_000, "exp": 4_000_000_300}}, refused),
        "alg none": ({"unsigned": True}, refused),
        "signed with the client's secret": ({"signs": shared, "header": {"alg": "HS256", "kid": "one"}}, refused),
        "a stranger's key": ({"signs": stranger}, refused),
        "an unknown key": ({"signs": stranger, "header": {"alg": "ES256", "kid": "two"}}, refused),
        "no subject": ({"claims": {"sub": None}}, "provider_answer_invalid"),
        "an address that nobody verified": ({"claims": {"email_verified": False}}, "email_missing"),
        "the person of another token": (
            {"claims": {"email": None}, "userinfo": {"sub": "subject-2", "email": "root@corp.example"}},
            "provider_answer_invalid",
        ),
    }
    seen = {}
    honest = {name: getattr(hostile, name) for name in ("claims", "unsigned", "signs", "header", "userinfo")}
    for name, (how, _) in attacks.items():
        vars(hostile).update(honest | how)
        attempt = await begin_sign_in(world.client(), provider)
        seen[name] = problem(await attempt.finish(hostile.code_for(attempt.authorization_url)))
    assert seen == {name: reason for name, (_, reason) in attacks.items()}
    assert hostile.keys_read == 1, "a stranger's token made the platform ask for the keys again"
    trail = (await home.admin.get(f"/api/v1/tenants/{home.acme.id}/audit?action=sign_in&outcome=refused")).json()
    assert {row["subject_id"] for row in trail["items"]} == {provider}


async def test_an_answer_counts_once_and_only_in_the_browser_that_began(
    world: World, home: Home, hostile: HostileProvider
) -> None:
    provider = await home.provider(hostile.issuer)
    with hostile_provider() as second:
        other = await home.provider(second.issuer)
        attempt = await begin_sign_in(world.client(), provider)
        attackers = await begin_sign_in(world.client(), provider)
        back = hostile.code_for(attempt.authorization_url)
        theirs = hostile.code_for(attackers.authorization_url)
        elsewhere = await begin_sign_in(world.client(), other)
        seen = {
            "without the cookie": problem(await attempt.finish(back, cookie="")),
            "the attacker's answer in the victim's browser": problem(await attempt.finish(theirs)),
            "the attacker's code with the victim's state": problem(
                await attempt.finish({"code": theirs["code"], "state": back["state"]})
            ),
            "the same state again": problem(await attempt.finish(back)),
            "an answer that names another issuer": problem(
                await attackers.finish({**theirs, "iss": "https://evil.example"})
            ),
        }
        elsewhere.provider_id = provider
        seen["another provider's flow at this provider's address"] = problem(
            await elsewhere.finish(second.code_for(elsewhere.authorization_url))
        )
    assert seen == {
        "without the cookie": "flow_unknown",
        "the attacker's answer in the victim's browser": "flow_unknown",
        "the attacker's code with the victim's state": "provider_answer_invalid",
        "the same state again": "flow_over",
        "an answer that names another issuer": "id_token_refused",
        "another provider's flow at this provider's address": "flow_unknown",
    }


async def test_the_way_back_leads_only_to_pages_of_the_console(
    world: World, home: Home, hostile: HostileProvider
) -> None:
    provider = await home.provider(hostile.issuer)
    headers = {**CONSOLE, "origin": world.running.url}
    client = world.client()
    for to in ("//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nx: y", "evil", "/@/../\t"):
        body = {"identity_provider_id": provider, "to": to}
        refused = await client.post("/api/v1/sign-in/providers", json=body, headers=headers)
        assert (to, refused.status_code) == (to, 422)
    for wrong in ({"origin": "https://evil.example"}, {"origin": "null"}, {"x-mooring-console": None}):
        sent = {name: value for name, value in (headers | wrong).items() if value is not None}
        body = {"identity_provider_id": provider, "to": "/"}
        refused = await client.post("/api/v1/sign-in/providers", json=body, headers=sent)
        assert (refused.status_code, refused.json()["code"]) == (403, "cross_site_request")
    attempt = await begin_sign_in(world.client(), provider)
    secret, address, _ = attempt.cookie.removeprefix(f"{FLOW_COOKIE}=").split(".")
    elsewhere = f"{FLOW_COOKIE}={secret}.{address}.Ly9ldmlsLmV4YW1wbGU"  # //evil.example
    answer = await attempt.finish(hostile.code_for(attempt.authorization_url), cookie=elsewhere)
    assert answer.headers["location"] == "/console/"


async def test_a_provider_that_is_not_what_the_admin_said_is_a_page_and_not_a_crash(
    world: World, home: Home, hostile: HostileProvider
) -> None:
    rows: dict[str, dict[str, Any]] = {
        "another issuer": {"issuer": "https://evil.example"},
        "no address to go to": {"authorization_endpoint": "javascript:alert(1)"},
        "a token endpoint that is none": {"token_endpoint": ["http://127.0.0.1"]},
        "keys with a user": {"jwks_uri": "https://user@evil.example/keys"},
    }
    headers = {**CONSOLE, "origin": world.running.url}
    provider = await home.provider(hostile.issuer)
    for name, metadata in rows.items():
        hostile.metadata = metadata
        begun = await world.client().post(
            "/api/v1/sign-in/providers", json={"identity_provider_id": provider}, headers=headers
        )
        assert (name, begun.json().get("details", {}).get("reason")) == (name, "provider_answer_invalid")
    beyond = {"name": "Corp", "issuer": "http://127.0.0.1:9", "client_id": "x"}
    beyond["group_roles"] = [{"group": "g", "role": "platform_admin", "project_id": None}]  # type: ignore[assignment]
    assert (await home.admin.post(home.path, json=beyond)).status_code == 422
    shown = (await home.admin.get(f"{home.path}/{provider}")).json()
    assert shown["has_secret"] is True
    assert SECRET not in str(shown)
    assert (await home.admin.delete(f"{home.path}/{provider}")).status_code == 204
