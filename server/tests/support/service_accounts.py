"""Service accounts with their keys, as an outside program holds them."""

import base64
import json
import time
from dataclasses import dataclass

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mooring.core.kernel.permissions import Scope
from mooring.gateways.signing.signatures import new_key_pair
from server.tests.support.route_requests import Home, fresh_name


def assertion(account_id: str, key_id: str, private_key: bytes, audience: str) -> str:
    """A signed assertion that was never used before."""
    now = int(time.time())
    claims = {
        "iss": account_id,
        "sub": account_id,
        "aud": audience,
        "iat": now,
        "exp": now + 120,
        "jti": fresh_name("jti"),
    }
    parts = [encoded(json.dumps(part).encode()) for part in ({"alg": "EdDSA", "kid": key_id}, claims)]
    signed = ".".join(parts)
    return f"{signed}.{encoded(Ed25519PrivateKey.from_private_bytes(private_key).sign(signed.encode()))}"


def encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


@dataclass(frozen=True)
class AccountWithKey:
    """A service account with its key, outside."""

    id: str
    key_id: str
    private_key: bytes

    async def token(self, client: httpx.AsyncClient) -> str:
        """A new token in exchange for a new assertion."""
        audience = f"{client.base_url}".rstrip("/") + "/api/v1/oauth/token"
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": assertion(self.id, self.key_id, self.private_key, audience),
        }
        answer = await client.post("/api/v1/oauth/token", data=form)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["access_token"])


async def make_account(home: Home, actions: list[str]) -> AccountWithKey:
    """A service account of the home's project with this list, and a key."""
    private, public = new_key_pair()
    body = {"name": fresh_name("account"), "actions": actions, "public_key": base64.b64encode(public).decode()}
    made = await home.post(Scope.PROJECT, "/service-accounts", body)
    keys = await home.post(Scope.PROJECT, f"/service-accounts/{made['id']}/keys", method="GET")
    return AccountWithKey(made["id"], keys["items"][0]["id"], private)
