"""Artifacts end to end by the public API, with Debian's docker-registry as the platform's own."""

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from mooring.core.kernel.errors import Refusal
from mooring.gateways.egress import EgressClient
from mooring.gateways.registry.registry_client import RegistryClient, RegistryPlace
from mooring.gateways.registry.registry_push import RegistryPusher
from mooring.gateways.signing.cosign_keys import new_signing_key
from mooring.gateways.signing.cosign_sign import sign_as_tag
from mooring.settings import Settings
from server.tests.conftest import TenantWithAdmin, World, running_platform
from server.tests.gateways.registry.conftest import BRIEF
from server.tests.support.images import image, push
from server.tests.support.registry_process import RunningRegistry, running_registry

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("registry"), pytest.mark.real_part("postgresql")]

WHY = "because the tests say so"


@dataclass(frozen=True)
class ConstantToken:
    """Always the same token."""

    fixed: str

    def token(self, repository: str, actions: Sequence[str]) -> str:
        return self.fixed


@dataclass(frozen=True)
class PlatformWithRegistry:
    """A platform with a registry of its own, a tenant and a project."""

    world: World
    registry: RunningRegistry
    tenant: TenantWithAdmin
    project_id: str
    files: Path
    dialer: EgressClient

    @property
    def client(self) -> httpx.AsyncClient:
        return self.world.client(self.tenant.token)

    @property
    def place(self) -> str:
        return f"/api/v1/tenants/{self.tenant.id}"

    @property
    def project(self) -> str:
        return f"/api/v1/projects/{self.project_id}"

    async def ask(self, method: str, path: str, body: object = None, *, token: str | None = None) -> httpx.Response:
        async with self.world.running.client(token or self.tenant.token) as client:
            return await client.request(method, path, json=body)

    async def do(self, method: str, path: str, body: object = None, *, token: str | None = None) -> Any:
        answer = await self.ask(method, path, body, token=token)
        assert answer.status_code < 300, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    async def refused(self, method: str, path: str, body: object = None) -> str:
        answer = await self.ask(method, path, body)
        assert answer.status_code >= 400, answer.text
        return str(answer.json()["code"])

    def pusher(self, credentials: Any) -> RegistryPusher:
        place = RegistryPlace(
            self.registry.url, credentials=credentials, token_hosts=frozenset({"127.0.0.1"}), patience=BRIEF
        )
        return RegistryPusher(RegistryClient(place, self.dialer))

    async def published(self, name: str = "app", **about: Any) -> tuple[Any, str, RegistryPusher]:
        """An image pushed by the right that publishing gives: the intent, the digest, and the pusher."""
        intent = await self.do("POST", f"{self.place}/artifacts/publish", {"name": name})
        pusher = self.pusher(ConstantToken(intent["registry_token"]))
        return intent, await push(pusher, intent["repository"], image(**about)), pusher

    async def registered(self, name: str = "app") -> tuple[Any, Any, RegistryPusher]:
        intent, digest, pusher = await self.published(name)
        body = {"kind": "oci", "location": intent["location"], "digest": digest}
        return await self.do("POST", f"{self.place}/artifacts", body), intent, pusher

    def move(self, artifact: Any, move: str, **further: object) -> tuple[str, str, dict[str, object]]:
        return "POST", f"{self.place}/artifacts/{artifact['id']}/promote", {"move": move, "reason": WHY, **further}


@pytest.fixture
async def platform(settings: Settings, tmp_path: Path, dialer: EgressClient) -> AsyncIterator[PlatformWithRegistry]:
    files = tmp_path / "files"
    files.mkdir()
    settings = replace(settings, promotion_grace_days=0.0, source_file_directory=str(files))
    async with running_platform(settings) as first:
        admin = World(first, first.client())
        token = await admin.sign_in("admin@mooring.local", first.code)
        about = (await first.client(token).get("/api/v1/platform/registry")).json()
        await admin.close()
    directory = tmp_path / "registry"
    directory.mkdir()
    (directory / "bundle.pem").write_text(about["certificate"])
    auth = {
        "realm": "http://127.0.0.1:9/api/v1/registry/token",
        "service": about["service"],
        "issuer": about["issuer"],
        "rootcertbundle": str(directory / "bundle.pem"),
    }
    with ExitStack() as stack:
        registry = stack.enter_context(running_registry(directory, {"token": auth}))
        async with running_platform(replace(settings, registry_url=registry.url)) as running:
            world = World(running, running.client(token))
            tenant = await world.tenant("acme")
            yield PlatformWithRegistry(world, registry, tenant, await world.project(tenant, "train"), files, dialer)
            await world.close()


async def test_the_whole_way_from_publishing_to_retirement(platform: PlatformWithRegistry) -> None:
    key = new_signing_key()
    trusted = key.trusted("k")
    await platform.do("POST", f"{platform.place}/signer-keys", {"name": "release", "public_key_pem": trusted.pem})
    artifact, intent, pusher = await platform.registered()
    assert (artifact["promotion"], artifact["visibility"]) == ("draft", "tenant")
    await sign_as_tag(pusher, intent["repository"], artifact["digest"], key)
    verified = await platform.do("POST", f"{platform.place}/artifacts/{artifact['id']}/verify")
    assert (verified["trust"], verified["doubts"]) == ("verified", [])
    evidence = await platform.do("GET", f"{platform.place}/artifacts/{artifact['id']}/evidence")
    assert trusted.fingerprint in {each["key_fingerprint"] for each in evidence["evidence"]}
    for move, state in (("stage", "staged"), ("canary", "canary"), ("activate", "active")):
        assert (await platform.do(*platform.move(artifact, move)))["promotion"] == state
    deprecated = await platform.do(
        *platform.move(artifact, "deprecate", no_successor_because="nobody needs it any more")
    )
    assert deprecated["promotion"] == "deprecated"
    assert (await platform.do(*platform.move(artifact, "retire")))["promotion"] == "retired"
    history = (await platform.do("GET", f"{platform.place}/artifacts/{artifact['id']}/history"))["items"]
    moves = [(each["before"], each["after"], each["reason"]) for each in history if each["machine"] == "promotion"]
    assert moves[0][:2] == ("", "draft")
    assert moves[1:] == [
        ("draft", "staged", WHY),
        ("staged", "canary", WHY),
        ("canary", "active", WHY),
        ("active", "deprecated", WHY),
        ("deprecated", "retired", WHY),
    ]
    assert all(each["actor_id"] == platform.tenant.admin_id for each in history)


async def test_moves_that_the_table_does_not_have_are_refused(platform: PlatformWithRegistry) -> None:
    artifact, _, _ = await platform.registered()
    for move in ("canary", "activate", "rollback", "deprecate", "retire"):
        assert await platform.refused(*platform.move(artifact, move)) == "illegal_transition", move
    await platform.do(*platform.move(artifact, "stage"))
    await platform.do(*platform.move(artifact, "canary"))
    assert (await platform.do(*platform.move(artifact, "rollback")))["promotion"] == "staged"
    assert (await platform.do(*platform.move(artifact, "withdraw")))["promotion"] == "retired"


async def test_a_digest_that_is_not_at_its_source_is_not_registered(platform: PlatformWithRegistry) -> None:
    intent, _, _ = await platform.published()
    body = {"kind": "oci", "location": intent["location"], "digest": f"sha256:{'0' * 64}"}
    assert await platform.refused("POST", f"{platform.place}/artifacts", body) == "artifact_not_found_at_source"
    elsewhere = body | {"location": f"oci://{platform.registry.authority}/platform/app"}
    assert await platform.refused("POST", f"{platform.place}/artifacts", elsewhere) == "source_denied"
    unlisted = body | {"location": "oci://registry.example/team/app"}
    assert await platform.refused("POST", f"{platform.place}/artifacts", unlisted) == "source_denied"


async def test_a_tampered_layer_is_not_staged_and_the_failed_check_is_kept(platform: PlatformWithRegistry) -> None:
    artifact, _, _ = await platform.registered()
    for digest in image().blobs:
        place = platform.registry.file_of(digest)
        place.write_bytes(b"x" * place.stat().st_size)
    assert await platform.refused(*platform.move(artifact, "stage")) == "digest_mismatch"
    evidence = await platform.do("GET", f"{platform.place}/artifacts/{artifact['id']}/evidence")
    assert [each["passed"] for each in evidence["checks"]] == [False]
    kept = await platform.do("GET", f"{platform.place}/artifacts/{artifact['id']}")
    assert kept["promotion"] == "draft"


async def test_what_is_revoked_is_refused_from_then_on(platform: PlatformWithRegistry) -> None:
    artifact, _, _ = await platform.registered()
    path = f"{platform.place}/artifacts/{artifact['id']}"
    assert (await platform.do("POST", f"{path}/revoke", {"reason": WHY}))["trust"] == "revoked"
    assert await platform.refused(*platform.move(artifact, "stage")) == "artifact_revoked"
    assert (await platform.do("POST", f"{path}/verify"))["trust"] == "revoked"
    assert await platform.refused("POST", f"{path}/revoke", {"reason": WHY}) == "illegal_transition"


async def test_a_blob_from_the_platforms_directory_is_hashed_whole(platform: PlatformWithRegistry) -> None:
    content = b"weights" * 1000
    (platform.files / "model.bin").write_bytes(content)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    body = {"kind": "blob", "location": "file:model.bin", "digest": digest}
    assert await platform.refused("POST", f"{platform.project}/artifacts", body) == "source_denied"
    mine = {"name": "files", "pattern": "file:*"}
    assert await platform.refused("POST", f"{platform.place}/artifact-sources", mine) == "validation_failed"
    everywhere = {"name": "all", "pattern": "*"}
    await platform.do("POST", f"{platform.place}/artifact-sources", everywhere)
    assert await platform.refused("POST", f"{platform.project}/artifacts", body) == "source_denied"
    admin_token = str(platform.world.admin.headers["Authorization"]).removeprefix("Bearer ")
    source = await platform.do("POST", "/api/v1/platform/artifact-sources", mine, token=admin_token)
    wrong = body | {"digest": f"sha256:{'1' * 64}"}
    assert await platform.refused("POST", f"{platform.project}/artifacts", wrong) == "digest_mismatch"
    made = await platform.do("POST", f"{platform.project}/artifacts", body)
    assert (made["size_bytes"], made["trust"], made["visibility"]) == (len(content), "verified", "project")
    assert await platform.refused("POST", f"{platform.project}/artifacts", body) == "name_taken"
    await platform.do("DELETE", f"/api/v1/platform/artifact-sources/{source['id']}", token=admin_token)
    seen = await platform.do("GET", f"{platform.project}/artifacts/{made['id']}")
    assert (seen["trust"], [each["code"] for each in seen["doubts"]]) == ("rejected", ["source_denied"])
    listed = await platform.do("GET", f"{platform.project}/artifacts?digest={digest}")
    assert [each["id"] for each in listed["items"]] == [made["id"]]
    assert (await platform.do("GET", f"{platform.place}/artifacts"))["items"] == []


async def test_the_token_endpoint_gives_what_the_caller_may_have(platform: PlatformWithRegistry) -> None:
    intent, digest, _ = await platform.published()
    other = await platform.world.tenant("other")
    scope = f"repository:{intent['repository']}:pull,push"
    query = {"service": "mooring-registry", "scope": ["repository:platform/tools:pull", scope]}

    async def token(password: str) -> httpx.Response:
        async with platform.world.running.client() as client:
            return await client.get("/api/v1/registry/token", params=query, auth=("anybody", password))

    assert (await token("wrong")).status_code == 401
    mine = (await token(platform.tenant.token)).json()
    reading = RegistryClient(
        RegistryPlace(platform.registry.url, credentials=ConstantToken(mine["token"]), patience=BRIEF), platform.dialer
    )
    assert (await reading.manifest(intent["repository"], digest)).digest == digest
    await push(RegistryPusher(reading), intent["repository"], image())
    theirs = (await token(other.token)).json()
    stranger = RegistryClient(
        RegistryPlace(platform.registry.url, credentials=ConstantToken(theirs["token"]), patience=BRIEF),
        platform.dialer,
    )
    with pytest.raises(Refusal, match=r"refused|not accepted"):
        await stranger.manifest(intent["repository"], digest)


async def test_where_a_signature_is_required_each_lack_of_one_has_its_own_code(platform: PlatformWithRegistry) -> None:
    await platform.do("PUT", f"{platform.place}/policy", {"rules": {"signatures": "images"}, "reason": WHY})
    artifact, intent, pusher = await platform.registered()
    path = f"{platform.place}/artifacts/{artifact['id']}"

    async def verified() -> tuple[str, list[str]]:
        seen = await platform.do("POST", f"{path}/verify")
        return seen["trust"], [each["code"] for each in seen["doubts"]]

    assert await verified() == ("unverified", ["signature_missing"])
    assert await platform.refused(*platform.move(artifact, "stage")) == "signature_missing"
    stranger, key = new_signing_key(), new_signing_key()
    await sign_as_tag(pusher, intent["repository"], artifact["digest"], stranger)
    assert await verified() == ("unverified", ["signature_key_unknown"])
    pem = {"name": "release", "public_key_pem": key.trusted("k").pem}
    trusted = await platform.do("POST", f"{platform.place}/signer-keys", pem)
    await sign_as_tag(pusher, intent["repository"], artifact["digest"], key)
    assert await verified() == ("verified", [])
    await platform.do(*platform.move(artifact, "stage"))
    await platform.do("DELETE", f"{platform.place}/signer-keys/{trusted['id']}")
    assert (await platform.do("GET", path))["trust"] == "unverified"
    assert await platform.refused(*platform.move(artifact, "canary")) == "signature_key_unknown"
    await platform.do("POST", f"{platform.place}/signer-keys", pem)
    assert (await platform.do("GET", path))["trust"] == "verified"
    await platform.do(*platform.move(artifact, "canary"))


async def test_a_signature_that_was_made_for_another_repository_does_not_count(platform: PlatformWithRegistry) -> None:
    await platform.do("PUT", f"{platform.place}/policy", {"rules": {"signatures": "images"}, "reason": WHY})
    key = new_signing_key()
    pem = {"name": "release", "public_key_pem": key.trusted("k").pem}
    await platform.do("POST", f"{platform.place}/signer-keys", pem)
    artifact, intent, pusher = await platform.registered()
    named = f"{platform.registry.authority}/elsewhere/app"
    await sign_as_tag(pusher, intent["repository"], artifact["digest"], key, name=named)
    seen = await platform.do("POST", f"{platform.place}/artifacts/{artifact['id']}/verify")
    assert (seen["trust"], [each["code"] for each in seen["doubts"]]) == ("rejected", ["signature_replayed"])
    assert await platform.refused(*platform.move(artifact, "stage")) == "signature_replayed"
