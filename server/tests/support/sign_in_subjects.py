"""Identity providers and passkeys, and the bodies of requests about them, for the tests of every mutation."""

import itertools
from typing import Any, Final

from server.tests.support.http_wire import WireClient
from server.tests.support.soft_authenticator import SoftAuthenticator

PASSKEYS: Final = "/api/v1/whoami/passkeys"
BODIES: Final = frozenset({"CreateIdentityProvider", "UpdateIdentityProvider", "RegisterPasskey", "RenamePasskey"})
_NUMBERS: Final = itertools.count(1)


async def made(url: str, name: str, place: str, token: str) -> str:
    """A provider at this place, or a passkey of the caller; its id."""
    kind = {"identity_provider_id": "CreateIdentityProvider", "passkey_id": "RegisterPasskey"}[name]
    path = f"{place}/identity-providers" if name == "identity_provider_id" else PASSKEYS
    sent = await body(url, kind, token)
    async with WireClient(url, token) as caller:
        return str((await caller.post(path, sent, status=201))["id"])


async def body(url: str, kind: str, token: str) -> dict[str, Any]:
    """A body of this type that would succeed now; the places have room for ten providers, so an old one goes first."""
    number = next(_NUMBERS)
    if kind == "RegisterPasskey":
        async with WireClient(url, token) as caller:
            begun = await caller.post(f"{PASSKEYS}/options", None, status=200)
            await _make_room(caller, PASSKEYS)
        return SoftAuthenticator(url, "127.0.0.1").registration(begun["public_key"], f"device {number}")
    if kind == "CreateIdentityProvider":
        async with WireClient(url, token) as caller:
            who = await caller.get("/api/v1/whoami")
            place = "platform" if who["tenant_id"] is None else f"tenants/{who['tenant_id']}"
            await _make_room(caller, f"/api/v1/{place}/identity-providers")
        return {"name": "made", "issuer": f"https://idp-{number}.invalid", "client_id": "mooring"}
    return {"name": f"renamed {number}"}


async def _make_room(caller: WireClient, path: str) -> None:
    listed = (await caller.get(path))["items"]
    if len(listed) > 5:
        (await caller.call("DELETE", f"{path}/{listed[0]['id']}", None)).expect(204)
