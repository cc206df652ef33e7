"""Requests of the ways in that need a proof from elsewhere, for the authorization matrix."""

import json
from typing import Final

import httpx

from server.tests.support.soft_authenticator import SoftAuthenticator

PASSKEYS: Final = "/api/v1/whoami/passkeys"
UNPROVEN: Final = frozenset(
    {
        "begin_provider_sign_in",
        "finish_provider_sign_in",
        "begin_passkey_sign_in",
        "open_browser_session_with_passkey",
    }
)
"""Public ways in that need a proof from elsewhere; `identity/test_identity_providers.py` and `test_passkeys.py` ask
them."""


async def passkey_request(
    client: httpx.AsyncClient, origin: str, verb: str, token: str
) -> tuple[dict[str, str], bytes | None]:
    """The ids and the body of a request about a passkey of this caller's own."""
    headers = {"Authorization": f"Bearer {token}"}
    begun = await client.post(f"{PASSKEYS}/options", headers=headers)
    if begun.status_code != 200:  # not a person, who has none and only lists them
        return {}, None
    made = SoftAuthenticator(origin, "127.0.0.1").registration(begun.json()["public_key"])
    if verb == "register":
        return {}, json.dumps(made).encode()
    if verb not in ("rename", "delete"):
        return {}, None
    registered = await client.post(PASSKEYS, json=made, headers=headers)
    body = b'{"name": "desk"}' if verb == "rename" else None
    return {"passkey_id": str(registered.json()["id"])}, body
