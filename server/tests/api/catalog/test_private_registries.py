"""A tenant's private registry: its source has a credential, and nodes pull with what that gives them.

The registries are Debian's docker-registry over TLS: one with passwords, one that sends clients to a token service.
"""

import base64
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from mooring.core.fleet.allocation import ALLOCATION, AllocationState
from mooring.core.kernel.address import Reach, read_networks
from mooring.gateways.egress import EgressClient
from mooring.gateways.registry.image_manifest import OCI_MANIFEST
from mooring.gateways.registry.registry_auth import RegistryPassword
from mooring.gateways.registry.registry_client import RegistryClient, RegistryPlace
from mooring.gateways.registry.registry_push import RegistryPusher
from server.tests.conftest import World
from server.tests.support.adapter_site import AdapterSite, open_adapter_site
from server.tests.support.agent_double import AgentDouble, joined_agent
from server.tests.support.images import image, push
from server.tests.support.registry_process import running_registry
from server.tests.support.token_service import BASIC, HTPASSWD, LIFETIME_SECONDS, PASSWORD, USER, running_token_service
from tests.support.certificates import TestAuthority

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.real_part("registry")]
REPOSITORY = "team/app"
LAUNCH = {"type": "container.launch", "arguments": {"name": "web", "image": {"artifact": "main"}}}


@dataclass
class PrivateRegistry:
    """A registry that lets nobody in without a password, with one image."""

    authority: str
    digest: str
    trusted: ssl.SSLContext
    token_host: str | None = None
    answers: threading.Event = field(default_factory=threading.Event)  # clear: the token service says nothing


async def pushed(authority: str, token_host: str | None) -> str:
    """The digest of an image that its owner pushed."""
    dialer = EgressClient(Reach(allowed=read_networks("127.0.0.0/8"), own_allowed=True))
    hosts = frozenset() if token_host is None else frozenset({token_host})
    place = RegistryPlace(f"https://{authority}", RegistryPassword(USER, PASSWORD), hosts)
    try:
        return await push(RegistryPusher(RegistryClient(place, dialer)), REPOSITORY, image())
    finally:
        await dialer.close()


@asynccontextmanager
async def with_passwords(directory: Path, authority: TestAuthority) -> AsyncIterator[PrivateRegistry]:
    (directory / "htpasswd").write_text(HTPASSWD)
    auth = {"htpasswd": {"realm": "tests", "path": str(directory / "htpasswd")}}
    with running_registry(directory, auth, tls=authority.issue()) as started:
        yield PrivateRegistry(started.authority, await pushed(started.authority, None), authority.trusted)


@asynccontextmanager
async def with_token_service(directory: Path, authority: TestAuthority) -> AsyncIterator[PrivateRegistry]:
    files, listening = authority.issue(), socket.create_server(("127.0.0.1", 0))
    with (
        running_token_service(directory, files, listening) as service,
        running_registry(directory, service.auth, tls=files) as started,
    ):
        digest = await pushed(started.authority, service.host)
        yield PrivateRegistry(started.authority, digest, authority.trusted, service.host, service.answers)


@pytest.fixture(params=[with_passwords, with_token_service], ids=["passwords", "token service"])
async def registry(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PrivateRegistry]:
    authority = TestAuthority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))
    async with request.param(tmp_path, authority) as started:
        yield started


@asynccontextmanager
async def reached(world: World) -> AsyncIterator[tuple[AdapterSite, AgentDouble]]:
    """A tenant whose sources may be on loopback here, with an adapter and a node."""
    reader = world.running.platform.services.artifacts
    dialer = EgressClient(Reach(allowed=read_networks("127.0.0.0/8"), own_allowed=True))
    reader._public = dialer
    async with open_adapter_site(world) as site:
        agent = await joined_agent(world.client(), world.admin)
        agent.now = lambda: site.clock.now().timestamp()
        project_rows = replace(site.project_rows, node_id=agent.node_id)
        allocation_id = (await project_rows.subject("allocation", ALLOCATION, AllocationState.ACTIVE)).id
        site.project_rows = replace(project_rows, allocation_id=allocation_id)
        yield site, agent
    await dialer.close()


async def secret_of(site: AdapterSite, value: str = PASSWORD) -> str:
    people = site.world.client(site.tenant.token)
    body = {"name": "registry-password", "value": value}
    answer = await people.post(f"/api/v1/projects/{site.project_id}/secrets", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def source_body(registry: PrivateRegistry, secret_id: str, **changes: Any) -> dict[str, Any]:
    credential = {"username": USER, "secret_id": secret_id, "token_host": registry.token_host}
    return {"name": "private", "pattern": f"oci://{registry.authority}/*", "credential": credential} | changes


async def launcher(site: AdapterSite, digest: str) -> Callable[..., Awaitable[httpx.Response]]:
    """Makes tasks of an instance that is pinned to the digest, by the name of the step."""
    pin = site.made(1)[0].pin | {"artifacts": {"main": digest}}
    instance, (member, _), operation = await site.launch(1, pin=pin)
    adapter = site.adapter()
    fence = await adapter.claim(instance.id)
    await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)

    async def launched(step: str, task: dict[str, Any] = LAUNCH) -> httpx.Response:
        body = {"member_id": member.id, "step": step, "operation_id": operation.id, **task}
        return await adapter.send(instance.id, "tasks", fence, **body)

    return launched


async def test_the_platform_reads_and_nodes_pull_with_the_credential_of_the_source(
    world: World, registry: PrivateRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    async with reached(world) as (site, agent):
        people, place = world.client(site.tenant.token), f"/api/v1/tenants/{site.tenant.id}"
        location = f"oci://{registry.authority}/{REPOSITORY}"
        artifact = {"kind": "oci", "location": location, "digest": registry.digest}
        open_source = {"name": "without", "pattern": f"oci://{registry.authority}/*"}
        without = (await people.post(f"{place}/artifact-sources", json=open_source)).json()
        refused = await people.post(f"{place}/artifacts", json=artifact)
        assert refused.json()["code"] == "registry_auth_refused", refused.text
        await people.delete(f"{place}/artifact-sources/{without['id']}")

        secret_id = await secret_of(site)
        source = await people.post(f"{place}/artifact-sources", json=source_body(registry, secret_id))
        assert source.json()["credential"]["username"] == USER, source.text
        made = await people.post(f"{place}/artifacts", json=artifact)
        assert made.status_code == 201, made.text

        launched = await launcher(site, registry.digest)
        answer = await launched("pull")
        assert answer.status_code == 200, answer.text
        task = await agent.claim_one()
        (sealed,) = task["secrets"]
        assert (task["arguments"]["image"]["secret"], sealed["purpose"]) == ("mooring-pull", "artifact_pull")
        given = agent.unseal(task, sealed).decode()
        if registry.token_host is None:
            assert given == BASIC, "without a token service, the node gets the password"
        else:
            claims = json.loads(base64.urlsafe_b64decode(given.split(".")[1] + "=="))
            assert claims["access"] == [{"type": "repository", "name": REPOSITORY, "actions": ["pull"]}]
            assert claims["exp"] - claims["iat"] == LIFETIME_SECONDS
        header = given if given.startswith("Basic ") else f"Bearer {given}"
        async with httpx.AsyncClient(verify=registry.trusted) as node:
            url = f"https://{registry.authority}/v2/{REPOSITORY}/manifests/{registry.digest}"
            pulled = await node.get(url, headers={"Authorization": header, "Accept": OCI_MANIFEST})
        assert pulled.status_code == 200, pulled.text

        path = f"/api/v1/projects/{site.project_id}/secrets/{secret_id}"
        in_use = await people.delete(path)
        assert (in_use.json()["code"], in_use.json()["details"]["sources"]) == ("secret_in_use", ["private"])
        await people.post(f"{path}/rotate", json={"value": "a wrong one"})
        wrong = await launched("again")
        assert (wrong.status_code, wrong.json()["code"]) == (422, "registry_auth_refused"), wrong.text
        assert (await people.delete(f"{path}?force=true")).status_code == 204
        (left,) = [
            each for each in (await people.get(f"{place}/artifact-sources")).json()["items"] if each["credential"]
        ]
        assert left["credential"]["secret_id"] is None
        trail = (await people.get(f"{place}/audit?limit=500")).text
        assert "credential" in trail
        assert PASSWORD not in trail + caplog.text + source.text + wrong.text


async def test_a_credential_is_for_one_registry_of_a_tenant_with_a_secret_of_its_own(world: World) -> None:
    async with open_adapter_site(world) as site:
        people, place = world.client(site.tenant.token), f"/api/v1/tenants/{site.tenant.id}/artifact-sources"
        registry = PrivateRegistry("registry.example", "", ssl.create_default_context())
        secret_id = await secret_of(site)
        other = await world.tenant("other")
        theirs = await world.client(other.token).post(
            f"/api/v1/tenants/{other.id}/artifact-sources", json=source_body(registry, secret_id)
        )
        assert theirs.status_code == 404
        for changes in (
            {"pattern": "*"},
            {"pattern": "oci://*"},
            {"pattern": "https://registry.example/*"},
            {"credential": {"username": "a:b", "secret_id": secret_id}},
            {"credential": {"username": USER, "secret_id": secret_id, "token_host": "https://elsewhere/x"}},
        ):
            answer = await people.post(place, json=source_body(registry, secret_id, **changes))
            assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), changes
        platforms = await world.admin.post("/api/v1/platform/artifact-sources", json=source_body(registry, secret_id))
        assert platforms.status_code in (403, 404, 422), platforms.text
        assert (await people.post(place, json=source_body(registry, secret_id))).status_code == 201


@pytest.mark.parametrize("registry", [with_token_service], indirect=True)
async def test_a_token_service_that_is_silent_delays_no_other_task(world: World, registry: PrivateRegistry) -> None:
    async with reached(world) as (site, agent):
        people, place = world.client(site.tenant.token), f"/api/v1/tenants/{site.tenant.id}"
        await people.post(f"{place}/artifact-sources", json=source_body(registry, await secret_of(site)))
        location = f"oci://{registry.authority}/{REPOSITORY}"
        artifact = {"kind": "oci", "location": location, "digest": registry.digest}
        assert (await people.post(f"{place}/artifacts", json=artifact)).status_code == 201
        launched = await launcher(site, registry.digest)
        assert (await launched("pull")).status_code == 200
        registry.answers.clear()
        plain = {"type": "process.run", "arguments": {"argv": ["true"]}}
        assert (await launched("plain", plain)).status_code == 200
        (first,) = await agent.claim()
        assert first["type"] == "process.run"
        registry.answers.set()
        (second,) = await agent.claim()
        assert [each["name"] for each in second["secrets"]] == ["mooring-pull"]
