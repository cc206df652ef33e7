"""Machines that join: an agent as far as its keys and its requests go, over the public API."""

import base64
import hashlib
import itertools
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

TOKENS: Final = "/api/v1/platform/nodes/enrolment-tokens"
ENROLMENTS: Final = "/api/v1/agent/enrolments"
INVENTORY: Final = "/api/v1/agent/inventory"
_NUMBERS: Final = itertools.count(1)


def encoded(part: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


@dataclass
class MachineKeys:
    """A machine with two keys."""

    signing: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    sealing: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)
    name: str = field(default_factory=lambda: f"machine-{next(_NUMBERS)}")
    node_id: str = ""

    @property
    def signing_key(self) -> str:
        return encoded(self.signing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    @property
    def sealing_key(self) -> str:
        return encoded(self.sealing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    def request(self, token: str, **other: Any) -> dict[str, Any]:
        """The body by which it joins."""
        signed = "\n".join(
            ("mooring-enrol-v1", hashlib.sha256(token.encode()).hexdigest(), self.signing_key, self.sealing_key)
        )
        body = {
            "token": token,
            "name": self.name,
            "host": "simulated",
            "signing_key": self.signing_key,
            "sealing_key": self.sealing_key,
            "proof": encoded(self.signing.sign(signed.encode())),
        }
        return body | other

    async def enrol(
        self, client: httpx.AsyncClient, admin: httpx.AsyncClient, token: dict[str, Any] | None = None, **other: Any
    ) -> dict[str, Any]:
        """Join with a new token of which `token` says what is not as usual."""
        answer = await client.post(ENROLMENTS, json=self.request(await new_token(admin, **(token or {})), **other))
        assert answer.status_code == 201, answer.text
        self.node_id = answer.json()["node_id"]
        return dict(answer.json())

    def assertion(self, audience: str, **claims: Any) -> str:
        """A signed assertion that was never used before."""
        now = int(time.time())
        said = {
            "iss": self.node_id,
            "sub": self.node_id,
            "aud": audience,
            "iat": now,
            "exp": now + 120,
            "jti": f"jti-{next(_NUMBERS)}",
        } | claims
        parts = [encoded(json.dumps(part).encode()) for part in ({"alg": "EdDSA", "kid": "signing"}, said)]
        signed = ".".join(parts)
        return f"{signed}.{encoded(self.signing.sign(signed.encode()))}"

    async def exchange(self, client: httpx.AsyncClient, assertion: str | None = None) -> httpx.Response:
        """Ask for a token in exchange for an assertion."""
        audience = f"{client.base_url}".rstrip("/") + "/api/v1/oauth/token"
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": assertion or self.assertion(audience),
        }
        return await client.post("/api/v1/oauth/token", data=form)

    async def token(self, client: httpx.AsyncClient) -> str:
        """A token, which it must get."""
        answer = await self.exchange(client)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["access_token"])

    async def report(self, client: httpx.AsyncClient, gpus: int = 2, **other: Any) -> dict[str, Any]:
        """Report an inventory with so many made-up GPUs."""
        headers = {"Authorization": f"Bearer {await self.token(client)}"}
        answer = await client.post(INVENTORY, json=an_inventory(gpus, **other), headers=headers)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


def an_inventory(gpus: int = 2, **other: Any) -> dict[str, Any]:
    """What a machine with so many made-up GPUs reports."""
    listed = [
        {"index": index, "numa": index % 2, "model": "made-up", "memory_bytes": 80 * 2**30, "simulated": True}
        for index in range(gpus)
    ]
    inventory = {
        "agent_version": "1.0.0",
        "host": "simulated",
        "cpus": 16,
        "memory_bytes": 64 * 2**30,
        "gpus": listed,
        "numa": [{"index": index, "cpus": 8, "memory_bytes": 32 * 2**30} for index in range(2)],
        "facts": {"rdma": True, "kernel": "6.1"},
        "addresses": ["192.0.2.7"],
        "limits": {"concurrency": 8},
    }
    return inventory | other


async def new_token(admin: httpx.AsyncClient, **body: Any) -> str:
    """A one-time token, by an admin of the platform."""
    answer = await admin.post(TOKENS, json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


async def joined(client: httpx.AsyncClient, admin: httpx.AsyncClient, **other: Any) -> MachineKeys:
    machine = MachineKeys()
    await machine.enrol(client, admin, **other)
    return machine
