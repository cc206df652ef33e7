"""An agent as far as the platform sees it: it polls, believes or not, reports, and signs receipts in a chain.

It does nothing on any machine. It verifies its tasks as the page about the node plane says, with code of its own,
so that a change of the platform's side that an agent would not take is found here.
"""

import base64
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from server.tests.conftest import NO_AUTHORITIES
from server.tests.support.agents import MachineKeys, encoded

CLAIMS: Final = "/api/v1/agent/claims"
REPORTS: Final = "/api/v1/agent/reports"
KINDS: Final = (
    "processes", "namespaces", "mounts", "links", "sockets", "ports", "cgroups", "files", "containers", "secrets",
)  # fmt: skip


def decoded(text: str) -> bytes:
    """The bytes of base64url without padding."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass
class AgentDouble:
    """A joined machine whose agent is played."""

    machine: MachineKeys
    client: httpx.AsyncClient  # with the node's token
    keys: dict[str, bytes]
    audience: str
    sequence: int = 0
    previous: str = "0" * 64
    now: Callable[[], float] = time.time

    @property
    def node_id(self) -> str:
        """Whose agent it is."""
        return self.machine.node_id

    # Claims -----------------------------------------------------------------------------------------------------------

    async def poll(
        self, free: int = 8, wait_seconds: float = 30.0, running: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        """One poll; its answer."""
        body = {"free": free, "wait_seconds": wait_seconds, "running": running or [], "health": {"version": "double"}}
        answer = await self.client.post(CLAIMS, json=body, timeout=wait_seconds + 60)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def claim(self, free: int = 8, running: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Wait for tasks; each as it was signed."""
        return [self.believe(each) for each in (await self.poll(free, running=running))["tasks"]]

    async def claim_one(self) -> dict[str, Any]:
        """Wait for the one task that there is."""
        (task,) = await self.claim()
        return task

    def believe(self, envelope: dict[str, Any], context: bytes = b"mooring-task-v1\n") -> dict[str, Any]:
        """What the platform signed for this node, now; anything else raises."""
        payload = decoded(envelope["payload"])
        key = Ed25519PublicKey.from_public_bytes(self.keys[envelope["key_id"]])
        key.verify(decoded(envelope["signature"]), context + payload)
        task: dict[str, Any] = json.loads(payload)
        assert (task["v"], task["node_id"], task["audience"]) == (1, self.node_id, self.audience)
        assert task["issued_at"] <= self.now() + 60
        assert task["fence"] >= 1
        return task

    def unseal(self, task: dict[str, Any], secret: dict[str, Any]) -> bytes:
        """A secret of a task, opened with this machine's key."""
        info = f"mooring-seal-v1\n{self.node_id}\n{task['task_id']}\n{secret['purpose']}\n{secret['name']}".encode()
        shared = self.machine.sealing.exchange(X25519PublicKey.from_public_bytes(decoded(secret["ephemeral_key"])))
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(shared)
        return AESGCM(key).decrypt(decoded(secret["nonce"]), decoded(secret["ciphertext"]), info)

    # Reports ----------------------------------------------------------------------------------------------------------

    async def report(self, *reports: dict[str, Any]) -> list[dict[str, Any]]:
        """Tell these things; the answer to each."""
        answer = await self.client.post(REPORTS, json={"reports": list(reports)})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["results"])

    async def finish(self, task: dict[str, Any], **how: Any) -> dict[str, Any]:
        """Tell that a task succeeded, or what `how` says; the answer."""
        (verdict,) = await self.report(self.result(task, **how))
        return verdict

    def result(self, task: dict[str, Any], **how: Any) -> dict[str, Any]:
        """The report of a task's end; one that needs a receipt gets a clean one."""
        said: dict[str, Any] = {
            "kind": "result",
            "task_id": task["task_id"],
            "fence": task["fence"],
            "outcome": "succeeded",
            "result": _result(task),
            "last_lines": [],
        }
        if task["type"] in ("sandbox.destroy", "teardown.verify") and "receipt" not in how:
            said["receipt"] = self.receipt(task)
        return {key: value for key, value in (said | how).items() if value is not None}

    def receipt(self, task: dict[str, Any], *, advance: bool = True, **other: Any) -> dict[str, str]:
        """The next receipt of this node's chain; `other` says what is different about it."""
        body = {
            "v": 1,
            "node_id": self.node_id,
            "sequence": self.sequence + 1,
            "previous": self.previous,
            "task_id": task["task_id"],
            "task_type": task["type"],
            "tenant_id": task["tenant_id"],
            "project_id": task["project_id"],
            "allocation_id": task["allocation_id"],
            "owner": task["owner"],
            "host": "simulated",
            "looked_at": int(self.now()),
            "looked": dict.fromkeys(KINDS, 0),
            "not_looked": [],
            "found": [],
            "removed": [],
            "remaining": [],
            "truncated": False,
            "clean": True,
        } | other
        signed = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
        if advance:
            self.sequence, self.previous = body["sequence"], hashlib.sha256(signed).hexdigest()
        return {
            "body": encoded(signed),
            "signature": encoded(self.machine.signing.sign(b"mooring-receipt-v1\n" + signed)),
        }


def held(task: dict[str, Any]) -> dict[str, Any]:
    """How a poll names a task that it holds."""
    return {"task_id": task["task_id"], "fence": task["fence"]}


def _result(task: dict[str, Any]) -> dict[str, Any]:
    """A result that the family's schema takes."""
    by_type: dict[str, dict[str, Any]] = {
        "sandbox.create": {"isolation": "simulated", "host": "simulated", "address": "10.0.0.2", "limits": {}},
        "files.write": {"written": 1},
        "process.run": {"exit_code": 0},
        "service.stop": {"stopped": True},
        "service.inspect": {"state": "running"},
        "log.read": {"content_base64": "", "offset": 0, "next_offset": 0, "size": 0, "truncated_before": False},
        "container.launch": {"container_id": "double"},
        "container.control": {"state": "running"},
        "container.remove": {"removed": True},
        "artifact.fetch": {"bytes": 0, "from_cache": True},
        "probe.tcp": {"latency_milliseconds": 1},
        "probe.http": {"latency_milliseconds": 1},
        "probe.exec": {"latency_milliseconds": 1},
    }
    return by_type.get(task["type"], {})


async def joined_agent(client: httpx.AsyncClient, admin: httpx.AsyncClient, **other: Any) -> AgentDouble:
    """A machine that has joined and reported its inventory, and whose agent may poll; `client` has no token."""
    machine = MachineKeys()
    enrolled = await machine.enrol(client, admin, **other)
    await machine.report(client)
    return await agent_of(machine, client, enrolled)


async def agent_of(machine: MachineKeys, client: httpx.AsyncClient, enrolled: dict[str, Any]) -> AgentDouble:
    """The agent of a machine that has joined; it goes on with the client, under the node's token."""
    token = await machine.token(client)
    headers = {"Authorization": f"Bearer {token}"}
    own = httpx.AsyncClient(base_url=client.base_url, headers=headers, timeout=60, verify=NO_AUTHORITIES)
    keys = {each["key_id"]: decoded(each["public_key"]) for each in enrolled["platform_keys"]}
    return AgentDouble(machine, own, keys, enrolled["audience"])
