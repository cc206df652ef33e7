"""Passkeys: registering and signing in, with an authenticator in software that also attacks."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from server.tests.conftest import TenantWithAdmin, World
from server.tests.support.oidc_peers import CONSOLE
from server.tests.support.soft_authenticator import PRESENT, SoftAuthenticator, encode

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

OWN = "/api/v1/whoami/passkeys"


def page(world: World, **more: str) -> dict[str, str]:
    """The headers of a page of the console, at a host that has a name."""
    host = world.running.url.replace("127.0.0.1", "localhost")
    return {**CONSOLE, "origin": host, "host": host.removeprefix("http://"), **more}


def authenticator(world: World) -> SoftAuthenticator:
    return SoftAuthenticator(page(world)["origin"], "localhost")


async def person(world: World) -> tuple[TenantWithAdmin, httpx.AsyncClient]:
    acme = await world.tenant("acme")
    return acme, world.client(await world.member(acme, None, "tenant_admin", "vera"))


async def registered(world: World, client: httpx.AsyncClient, device: SoftAuthenticator) -> httpx.Response:
    begun = (await client.post(f"{OWN}/options", headers=page(world))).json()["public_key"]
    assert (begun["rp"]["id"], begun["authenticatorSelection"]["userVerification"]) == ("localhost", "required")
    return await client.post(OWN, json=device.registration(begun), headers=page(world))


async def options(world: World) -> dict[str, Any]:
    answer = await world.client().post("/api/v1/sign-in/passkey", headers=page(world))
    return dict(answer.json()["public_key"])


async def signed_in(world: World, body: dict[str, Any], **headers: str) -> httpx.Response:
    return await world.client().post("/api/v1/browser-session/passkey", json=body, headers=page(world, **headers))


async def test_a_passkey_signs_its_owner_in_and_not_after_it_was_deleted(world: World) -> None:
    _, vera = await person(world)
    device = authenticator(world)
    made = await registered(world, vera, device)
    assert made.status_code == 201, made.text
    answer = await signed_in(world, device.sign_in(await options(world)))
    assert answer.status_code == 200, answer.text
    who = (await vera.get("/api/v1/whoami")).json()
    assert answer.json()["user"]["id"] == who["id"]
    assert answer.headers["set-cookie"].endswith("HttpOnly; SameSite=Strict")
    one = f"{OWN}/{made.json()['id']}"
    assert (await vera.patch(one, json={"name": "key on the desk"})).json()["name"] == "key on the desk"
    listed = (await vera.get(OWN)).json()["items"]
    assert [(each["name"], each["last_used_at"] is not None) for each in listed] == [("key on the desk", True)]
    assert (await vera.delete(one)).status_code == 204
    gone = await signed_in(world, device.sign_in(await options(world)))
    assert (gone.status_code, gone.json()["details"]["reason"]) == (401, "passkey_refused")


async def test_an_answer_that_is_not_wholly_right_signs_nobody_in(world: World) -> None:
    _, vera = await person(world)
    device = authenticator(world)
    assert (await registered(world, vera, device)).status_code == 201
    honest = dict(vars(device))
    stranger = authenticator(world)

    def with_(**how: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def answered(begun: dict[str, Any]) -> dict[str, Any]:
            vars(device).update(honest | {"count": device.count} | how)
            return device.sign_in(begun)

        return answered

    used = await options(world)
    assert (await signed_in(world, device.sign_in(used))).status_code == 200
    attacks: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "the same challenge again": lambda _: with_()(used),
        "a challenge of one's own": lambda _: with_()({"challenge": "A" * 43}),
        "a page of somebody else": with_(origin="https://evil.example"),
        "another port": with_(origin="http://localhost:1"),
        "for another host": with_(host="evil.example"),
        "without verifying the person": with_(flags=PRESENT),
        "a counter that goes back": with_(count=0),
        "another key": with_(key=stranger.key),
        "an unknown passkey": with_(credential_id=stranger.credential_id),
        "another user's handle": lambda begun: with_()(begun) | {"user_handle": encode(b"usr_other")},
        "a broken signature": lambda begun: with_()(begun) | {"signature": "AAAA"},
        "no authenticator data": lambda begun: with_()(begun) | {"authenticator_data": "AAAA"},
    }
    seen = {}
    for name, answer in attacks.items():
        refused = await signed_in(world, answer(await options(world)))
        seen[name] = (refused.status_code, refused.json()["code"], "set-cookie" in refused.headers)
    assert seen == dict.fromkeys(attacks, (401, "sign_in_refused", False))
    foreign = await signed_in(world, with_()(await options(world)), **{"x-mooring-console": ""})
    assert foreign.status_code == 200, "an empty header is one"
    headers = {name: value for name, value in page(world).items() if name != "x-mooring-console"}
    body = with_()(await options(world))
    unasked = await world.client().post("/api/v1/browser-session/passkey", json=body, headers=headers)
    assert (unasked.status_code, unasked.json()["code"]) == (403, "cross_site_request")


async def test_a_registration_counts_for_its_own_user_page_and_challenge_once(world: World) -> None:
    _, vera = await person(world)
    other = world.client((await world.tenant("other")).token)
    device, second = authenticator(world), authenticator(world)
    begun = (await vera.post(f"{OWN}/options", headers=page(world))).json()["public_key"]
    evil = SoftAuthenticator("https://evil.example", "localhost")
    hasty = authenticator(world)
    hasty.flags = PRESENT
    rows = {
        "another user": (other, device),
        "another page": (vera, evil),
        "without verifying the person": (vera, hasty),
        "its user": (vera, device),
        "the challenge again": (vera, second),
    }
    seen = {}
    for name, (caller, made) in rows.items():
        answer = await caller.post(OWN, json=made.registration(begun), headers=page(world))
        seen[name] = answer.status_code
    assert seen == dict.fromkeys(rows, 422) | {"its user": 201}
    token = (await vera.post("/api/v1/tokens", json={"name": "laptop"})).json()["token"]
    refused = await registered(world, world.client(token), second)
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    again = await registered(world, vera, device)
    assert (again.status_code, again.json()["code"]) == (409, "name_taken")


async def test_a_reset_of_the_user_removes_their_passkeys(world: World) -> None:
    acme, vera = await person(world)
    device = authenticator(world)
    assert (await registered(world, vera, device)).status_code == 201
    who = (await vera.get("/api/v1/whoami")).json()["id"]
    assert (await world.client(acme.token).post(f"/api/v1/tenants/{acme.id}/users/{who}/reset")).status_code == 200
    assert (await signed_in(world, device.sign_in(await options(world)))).status_code == 401
