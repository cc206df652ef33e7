"""Attacks on artifacts by way of their sources, through the public API of a server process.

The source is the platform's own registry and its bucket, both in the hands of somebody who lies, or who is slow, or
who never ends. Each attack is refused by its own code; what is stored afterwards is read from the tables: nothing is or
ever was verified, and nothing came further than a draft.
"""

import asyncio
import base64
import hashlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec
import pytest

from mooring.gateways.registry.image_manifest import EMPTY_CONFIG, OCI_EMPTY, OCI_MANIFEST, read_manifest
from mooring.gateways.signing.cosign import SIGNATURE_ANNOTATION, SIMPLE_SIGNING_MEDIA_TYPE, signature_tag
from mooring.gateways.signing.cosign_keys import SigningKey, new_signing_key
from mooring.gateways.signing.cosign_sign import simple_signing_payload
from server.tests.support.http_wire import WireClient
from server.tests.support.images import SampleArtifact, archive, describe, image, layer, payload
from server.tests.support.registry_adversary import (
    CHUNK,
    Adversary,
    Asked,
    Handler,
    adversary,
    announces,
    drips,
    head,
    serve,
    silent,
    status,
)
from server.tests.support.server_process import (
    ProcessTenant,
    ServerGroup,
    ServerProcess,
    make_tenant,
    sign_in_first_admin,
)
from tests.support.waiting import linger

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

WHY: Final = "because the tests say so"
MIB: Final = 1_048_576
TEN_GIGABYTES: Final = 10 * 1024**3
LIMIT_BYTES: Final = 64 * MIB
MEMORY_BYTES_MAX: Final = 48 * MIB
"""How much more the server may take at any time of an attack; far less than what is sent to it."""
SENT_BYTES_MAX: Final = 2 * LIMIT_BYTES
CONTENT: Final = bytes(range(256)) * 2_000
_numbers = itertools.count(1)

STORED: Final = "SELECT digest, promotion, trust FROM artifact WHERE tenant_id = $1"
EVER_VERIFIED: Final = """
SELECT count(*) FROM transition
 WHERE tenant_id = $1 AND ((machine = 'trust' AND target = 'verified')
                        OR (machine = 'promotion' AND target <> 'draft'))"""
CHECKS: Final = "SELECT name, passed FROM artifact_check WHERE tenant_id = $1"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def signature(key: SigningKey, name: str, digest: str) -> SampleArtifact:
    """A signature of a digest, as it lies beside it."""
    signed = simple_signing_payload(name, digest)
    annotation = {SIGNATURE_ANNOTATION: base64.b64encode(key.sign(signed)).decode()}
    signed_layer = msgspec.structs.replace(describe(signed, SIMPLE_SIGNING_MEDIA_TYPE), annotations=annotation)
    config = describe(EMPTY_CONFIG, OCI_EMPTY)
    document = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [signed_layer]}
    blobs = {digest_of(signed): signed, digest_of(EMPTY_CONFIG): EMPTY_CONFIG}
    return SampleArtifact(read_manifest(msgspec.json.encode(document)), blobs)


@dataclass
class Flood:
    """Sends without end, and counts what it could send until somebody hung up."""

    announced: int | None = None
    sent: int = 0

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if self.announced is None:
            writer.write(head(200, transfer_encoding="chunked"))
        else:
            writer.write(head(200, content_length=self.announced))
        while asked.method != "HEAD" and self.sent < TEN_GIGABYTES:
            writer.write(CHUNK if self.announced is not None else b"10000\r\n" + CHUNK + b"\r\n")
            await writer.drain()
            self.sent += len(CHUNK)


def asked_by(first: Handler, then: Handler) -> Handler:
    """One answer to the question for the size, and another when the bytes are wanted."""

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (first if asked.method == "HEAD" else then)(asked, writer)

    return handler


@dataclass(frozen=True)
class AttackedServers:
    """Servers under attack: one with its usual patience, and one with very little."""

    hostile: Adversary
    witness: Adversary  # where nobody should ever be sent
    patient: ServerProcess
    hasty: ServerProcess
    admin_token: str
    connection: asyncpg.Connection


@dataclass(frozen=True)
class RegistryAttack:
    """One attack: a tenant of its own, and a repository."""

    servers: AttackedServers
    tenant: ProcessTenant
    repository: str

    @property
    def hostile(self) -> Adversary:
        return self.servers.hostile

    @property
    def name(self) -> str:
        """The repository as signers know it."""
        return f"{self.hostile.authority}/{self.repository}"

    @property
    def path(self) -> str:
        return f"{self.tenant.path}/artifacts"

    def manifest(self, reference: str) -> str:
        return f"/v2/{self.repository}/manifests/{reference}"

    def blob(self, digest: str) -> str:
        return f"/v2/{self.repository}/blobs/{digest}"

    async def ask(self, method: str, path: str, body: object = None, *, hasty: bool = False) -> tuple[int, Any]:
        """Ask, and where a check goes on for longer than an answer waits, ask again: what counts is how it ends."""
        url = self.servers.hasty.url if hasty else self.servers.patient.url
        async with WireClient(url, self.tenant.token) as caller, asyncio.timeout(60):
            while True:
                answer = await caller.call(method, path, body)
                content = answer.json
                check = content.get("check") if answer.status < 300 else None
                under_way = check is not None and check["status"] in ("accepted", "running")
                if not under_way and content.get("code") != "check_running":
                    return answer.status, content

    async def refused(self, path: str, body: object, *, hasty: bool = False) -> Any:
        code, content = await self.ask("POST", path, body, hasty=hasty)
        assert code >= 400, content
        return content

    async def registered(self, kind: str, digest: str) -> Any:
        body = {"kind": kind, "location": f"oci://{self.name}", "digest": digest}
        code, content = await self.ask("POST", self.path, body)
        assert code == 201, content
        return content

    async def not_registered(self, kind: str, digest: str, location: str = "", *, hasty: bool = False) -> str:
        body = {"kind": kind, "location": location or f"oci://{self.name}", "digest": digest}
        return str((await self.refused(self.path, body, hasty=hasty))["code"])

    async def verified(self, artifact: Any) -> tuple[str, list[str]]:
        code, content = await self.ask("POST", f"{self.path}/{artifact['id']}/verify")
        assert code == 200, content
        return content["trust"], [each["code"] for each in content["doubts"]]

    async def not_staged(self, artifact: Any) -> str:
        move = {"move": "stage", "reason": WHY}
        return str((await self.refused(f"{self.path}/{artifact['id']}/promote", move))["code"])

    async def require_signatures(self, key: SigningKey) -> None:
        """From now on this tenant takes what this key has signed."""
        async with WireClient(self.servers.patient.url, self.tenant.token) as caller:
            rules = {"rules": {"signatures": "images"}, "reason": WHY}
            (await caller.call("PUT", f"{self.tenant.path}/policy", rules)).expect(200)
            pem = {"name": "release", "public_key_pem": key.trusted("k").pem}
            await caller.post(f"{self.tenant.path}/signer-keys", pem)

    async def stored(self) -> list[tuple[str, str]]:
        """Promotion and trust of every artifact that there is; that none was ever better is seen to."""
        connection = self.servers.connection
        assert await connection.fetchval(EVER_VERIFIED, self.tenant.id) == 0
        return [(row["promotion"], row["trust"]) for row in await connection.fetch(STORED, self.tenant.id)]


@pytest.fixture(scope="module")
async def servers(shared_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AttackedServers]:
    directory: Path = tmp_path_factory.mktemp("attacked")
    async with AsyncExitStack() as stack:
        hostile, witness = [await stack.enter_async_context(adversary()) for _ in range(2)]
        environment = {
            "MOORING_DATABASE_URL": shared_database_url,
            "MOORING_LOG_LEVEL": "error",
            "MOORING_REGISTRY_URL": hostile.url,
            "MOORING_SOURCE_BUCKET_ENDPOINT": hostile.url,
            "MOORING_SOURCE_LIMIT_BYTES": str(LIMIT_BYTES),
        }
        fleet = ServerGroup(directory, environment)
        stack.push_async_callback(fleet.close)
        # Without workers each process reads what it was asked for itself, with its own patience.
        patient = await fleet.start("api")
        hasty = await fleet.start("api", MOORING_SOURCE_TIMEOUT_SECONDS="2")
        token = await sign_in_first_admin(patient)
        async with WireClient(patient.url, token) as admin:
            source = {"name": "models", "pattern": "s3://models/*", "reaches_private": True}
            await admin.post("/api/v1/platform/artifact-sources", source)
        connection = await asyncpg.connect(shared_database_url)
        stack.push_async_callback(connection.close)
        yield AttackedServers(hostile, witness, patient, hasty, token, connection)


@pytest.fixture
async def attacked(servers: AttackedServers) -> RegistryAttack:
    tenant = await make_tenant(servers.patient.url, servers.admin_token, f"besieged-{next(_numbers)}")
    return RegistryAttack(servers, tenant, f"{tenant.id}/app")


async def test_a_manifest_that_was_tampered_with_is_a_mismatch_and_nothing_is_stored(attacked: RegistryAttack) -> None:
    made = image()
    attacked.hostile.put(attacked.repository, made)
    attacked.hostile.routes[attacked.manifest(made.digest)] = serve(made.manifest.raw + b" ", OCI_MANIFEST)

    assert await attacked.not_registered("oci", made.digest) == "digest_mismatch"
    assert await attacked.stored() == []


async def test_a_part_that_was_tampered_with_is_a_mismatch_and_what_was_found_is_stored_as_rejected(
    attacked: RegistryAttack,
) -> None:
    made = payload({"weights": CONTENT})
    attacked.hostile.put(attacked.repository, made)
    part = made.manifest.layers[0]
    attacked.hostile.routes[attacked.blob(part.digest)] = serve(b"x" * part.size)

    assert await attacked.not_registered("blob", made.digest) == "digest_mismatch"
    assert await attacked.stored() == [("draft", "rejected")]


async def test_a_digest_that_does_not_exist_is_not_there(attacked: RegistryAttack) -> None:
    assert await attacked.not_registered("oci", f"sha256:{'0' * 64}") == "artifact_not_found_at_source"
    assert await attacked.not_registered("blob", f"sha256:{'0' * 64}") == "artifact_not_found_at_source"
    assert await attacked.stored() == []


def retouched(packed: bytes) -> bytes:
    """The same layer with another time in its head: as long, and unpacked the same, but other bytes."""
    return packed[:4] + b"time" + packed[8:]


def overwritten(packed: bytes) -> bytes:
    """As many bytes that unpack to nothing."""
    return b"x" * len(packed)


async def tampered_layer(attacked: RegistryAttack, tampered: Callable[[bytes], bytes] = retouched) -> str:
    """An image that is registered while all is well, and a layer that is exchanged then; how staging ends."""
    made = image()
    attacked.hostile.put(attacked.repository, made)
    artifact = await attacked.registered("oci", made.digest)
    digest = made.manifest.layers[0].digest
    attacked.hostile.routes[attacked.blob(digest)] = serve(tampered(made.blobs[digest]))
    return await attacked.not_staged(artifact)


@pytest.mark.parametrize("tampered", [retouched, overwritten])
async def test_a_layer_that_was_tampered_with_is_not_staged_and_the_failed_check_is_kept(
    attacked: RegistryAttack, tampered: Callable[[bytes], bytes]
) -> None:
    assert await tampered_layer(attacked, tampered) == "layer_mismatch"
    checks = await attacked.servers.connection.fetch(CHECKS, attacked.tenant.id)
    assert [(row["name"], row["passed"]) for row in checks] == [("smoke", False)]
    [row] = await attacked.servers.connection.fetch(STORED, attacked.tenant.id)
    assert row["promotion"] == "draft"


async def test_an_image_whose_layer_was_tampered_with_is_not_stored_as_verified(attacked: RegistryAttack) -> None:
    await tampered_layer(attacked)
    assert await attacked.stored() == [("draft", "unverified")]


async def test_a_signature_by_a_key_that_nobody_trusts_does_not_count(attacked: RegistryAttack) -> None:
    await attacked.require_signatures(new_signing_key())
    made = image()
    attacked.hostile.put(attacked.repository, made)
    artifact = await attacked.registered("oci", made.digest)
    attacked.hostile.put(
        attacked.repository, signature(new_signing_key(), attacked.name, made.digest), tag=signature_tag(made.digest)
    )

    assert await attacked.verified(artifact) == ("unverified", ["signature_key_unknown"])
    assert await attacked.not_staged(artifact) == "signature_key_unknown"
    assert await attacked.stored() == [("draft", "unverified")]


async def test_a_signature_that_was_made_for_another_repository_is_a_replay(attacked: RegistryAttack) -> None:
    key = new_signing_key()
    await attacked.require_signatures(key)
    made = image()
    attacked.hostile.put(attacked.repository, made)
    artifact = await attacked.registered("oci", made.digest)
    elsewhere = signature(key, f"{attacked.hostile.authority}/{attacked.tenant.id}/another", made.digest)
    attacked.hostile.put(attacked.repository, elsewhere, tag=signature_tag(made.digest))

    assert await attacked.verified(artifact) == ("rejected", ["signature_replayed"])
    assert await attacked.not_staged(artifact) == "signature_replayed"
    assert await attacked.stored() == [("draft", "rejected")]


async def test_a_tag_that_was_moved_to_the_signature_of_another_image_gives_nothing(attacked: RegistryAttack) -> None:
    key = new_signing_key()
    await attacked.require_signatures(key)
    good, bad = image(), image([layer(archive({"bin/program": b"another program"}))])
    attacked.hostile.put(attacked.repository, good, tag="latest")
    attacked.hostile.put(attacked.repository, bad, tag="latest")  # moved: from now on it means something else
    artifact = await attacked.registered("oci", bad.digest)
    attacked.hostile.put(attacked.repository, signature(key, attacked.name, good.digest), tag=signature_tag(bad.digest))

    assert await attacked.verified(artifact) == ("rejected", ["signature_replayed"])
    assert await attacked.not_staged(artifact) == "signature_replayed"
    assert await attacked.stored() == [("draft", "rejected")]


async def test_a_tag_is_not_taken_where_a_digest_is_meant(attacked: RegistryAttack) -> None:
    made = image()
    attacked.hostile.put(attacked.repository, made, tag="latest")

    assert await attacked.not_registered("oci", "latest") == "validation_failed"
    assert await attacked.not_registered("oci", made.digest, f"oci://{attacked.name}:latest") == "validation_failed"
    assert attacked.hostile.times(attacked.manifest("latest")) == 0
    assert await attacked.stored() == []


@pytest.mark.parametrize("target", ["{witness}", "http://10.0.0.1", "http://169.254.169.254", "http://[::1]:9"])
async def test_a_redirect_to_another_host_is_refused_and_nobody_is_asked_there(
    attacked: RegistryAttack, target: str
) -> None:
    witness = attacked.servers.witness
    place = target.format(witness=witness.url)
    made = image()
    attacked.hostile.routes[attacked.manifest(made.digest)] = status(307, location=f"{place}/v2/manifest")
    name = f"redirected-{next(_numbers)}"
    attacked.hostile.routes[f"/models/{name}"] = status(302, location=f"{place}/blob")

    assert await attacked.not_registered("oci", made.digest) == "redirect_refused"
    assert await attacked.not_registered("blob", digest_of(CONTENT), f"s3://models/{name}") == "redirect_refused"
    assert witness.asked == []
    assert await attacked.stored() == []


@pytest.mark.parametrize("host", ["{witness}", "localhost:9", "10.0.0.1", "169.254.169.254", "[::1]:9", "0.0.0.0:9"])
async def test_a_tenants_source_reaches_no_private_address(attacked: RegistryAttack, host: str) -> None:
    witness = attacked.servers.witness
    async with WireClient(attacked.servers.patient.url, attacked.tenant.token) as caller:
        await caller.post(f"{attacked.tenant.path}/artifact-sources", {"name": "any", "pattern": "*"})
    location = f"oci://{host.format(witness=witness.authority)}/team/app"

    assert await attacked.not_registered("oci", digest_of(CONTENT), location) == "address_refused"
    https = location.replace("oci://", "https://")
    assert await attacked.not_registered("blob", digest_of(CONTENT), https) == "address_refused"
    assert witness.asked == []
    assert await attacked.stored() == []


def peak(pid: int, *, reset: bool = False) -> int:
    """The most memory that a process had resident, in bytes; `reset` starts the count from now."""
    if reset:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


async def flooded(attacked: RegistryAttack, flood: Flood, attack: Awaitable[str]) -> str:
    """How an attack ends, during which the server takes little memory and most of the flood is never sent."""
    pid = attacked.servers.patient.process.pid
    before = peak(pid, reset=True)
    code = await attack
    assert peak(pid) - before < MEMORY_BYTES_MAX
    assert flood.sent < SENT_BYTES_MAX
    return code


async def test_ten_gigabytes_without_a_size_are_cut_off_at_the_limit(attacked: RegistryAttack) -> None:
    flood, name = Flood(), f"endless-{next(_numbers)}"
    attacked.hostile.routes[f"/models/{name}"] = asked_by(serve(CONTENT), flood)
    attack = attacked.not_registered("blob", digest_of(CONTENT), f"s3://models/{name}")

    assert await flooded(attacked, flood, attack) == "source_endless"
    assert flood.sent >= LIMIT_BYTES // 2, "it was read, up to the limit"
    assert await attacked.stored() == [("draft", "unverified")]


async def test_a_manifest_of_ten_gigabytes_without_a_size_is_cut_off(attacked: RegistryAttack) -> None:
    flood = Flood()
    attacked.hostile.routes[attacked.manifest(digest_of(CONTENT))] = flood

    assert await flooded(attacked, flood, attacked.not_registered("oci", digest_of(CONTENT))) == "source_endless"
    assert await attacked.stored() == []


@pytest.mark.parametrize("stated", [serve(CONTENT), announces(TEN_GIGABYTES)], ids=["small", "as large as it is"])
async def test_ten_gigabytes_that_are_announced_are_refused_unread_whatever_was_said_before(
    attacked: RegistryAttack, stated: Handler
) -> None:
    flood, name = Flood(TEN_GIGABYTES), f"announced-{next(_numbers)}"
    attacked.hostile.routes[f"/models/{name}"] = asked_by(stated, flood)
    attack = attacked.not_registered("blob", digest_of(CONTENT), f"s3://models/{name}")

    assert await flooded(attacked, flood, attack) == "source_too_large"
    assert {trust for _, trust in await attacked.stored()} <= {"unverified"}


async def test_a_layer_without_end_is_cut_off_where_its_manifest_says(attacked: RegistryAttack) -> None:
    flood, made = Flood(), payload({"weights": CONTENT})
    attacked.hostile.put(attacked.repository, made)
    attacked.hostile.routes[attacked.blob(made.manifest.layers[0].digest)] = flood

    assert await flooded(attacked, flood, attacked.not_registered("blob", made.digest)) == "source_endless"
    assert await attacked.stored() == [("draft", "unverified")]


async def test_a_registry_that_sends_its_head_a_line_at_a_time_is_too_slow(attacked: RegistryAttack) -> None:
    async def slow_head(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\n")
        while True:
            writer.write(b"x: y\r\n")
            await writer.drain()
            await linger(0.05)

    attacked.hostile.routes[attacked.manifest(digest_of(CONTENT))] = slow_head
    assert await attacked.not_registered("oci", digest_of(CONTENT), hasty=True) == "source_too_slow"
    attacked.hostile.routes[attacked.manifest(digest_of(CONTENT))] = silent
    assert await attacked.not_registered("oci", digest_of(CONTENT), hasty=True) == "source_too_slow"
    assert await attacked.stored() == []


async def test_a_registry_that_sends_a_byte_at_a_time_is_too_slow(attacked: RegistryAttack) -> None:
    name = f"dripping-{next(_numbers)}"
    dripping = drips(len(CONTENT), lambda: linger(0.05))
    attacked.hostile.routes[f"/models/{name}"] = asked_by(serve(CONTENT), dripping)

    stored: list[tuple[str, str]] = []
    async with asyncio.timeout(60):
        while not stored:  # a server that was held up itself may find the question for the size too slow already
            refused = await attacked.not_registered("blob", digest_of(CONTENT), f"s3://models/{name}", hasty=True)
            stored = await attacked.stored()
    # Which of the two depends on how long nothing came at the very last: test_source_pace.py tells them apart.
    assert refused in ("source_too_slow", "source_stalled")
    assert stored == [("draft", "unverified")]
