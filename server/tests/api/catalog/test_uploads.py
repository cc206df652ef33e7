"""Publishing by a service account alone: small blobs are uploaded, and a version goes through its whole promotion."""

import base64
import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import asyncpg
import httpx
import pytest

from mooring.core.kernel.permissions import PUBLISH, PUBLISHING
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.records import retention
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support.manifests import launchable
from server.tests.support.route_requests import Home
from server.tests.support.service_accounts import make_account

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

REASON: Final = "the pipeline publishes it"
SCRIPT: Final = b"#!/bin/sh\nexec sleep 60\n"
FILL: Final = """
INSERT INTO artifact_upload (id, tenant_id, location, digest, content, created_at)
SELECT 'upl_' || n || $1, $1, 'upload:' || $1 || '/' || encode(sha256(c), 'hex'),
       'sha256:' || encode(sha256(c), 'hex'), c, now()
  FROM (SELECT n, convert_to(n::text, 'UTF8') c FROM generate_series(1, 499) n) made"""


@dataclass
class Publisher:
    """A tenant with an app, and a service account that may publish."""

    world: World
    tenant: TenantWithAdmin
    project_id: str
    home: Home
    client: httpx.AsyncClient  # the account's

    @property
    def place(self) -> str:
        return f"/api/v1/tenants/{self.tenant.id}"

    @property
    def database(self) -> Database:
        return self.world.running.platform.services.database

    async def upload(self, content: bytes, place: str | None = None, **more: Any) -> httpx.Response:
        body = {"content_base64": base64.b64encode(content).decode(), **more}
        return await self.client.post(f"{place or self.place}/artifacts/upload", json=body)


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json().get("code"))


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture
async def publisher(world: World) -> Publisher:
    tenant = await world.tenant("acme")
    project_id = await world.project(tenant, "ship")
    home = Home(world, world.client(), tenant, project_id)
    account = await make_account(home, sorted(PUBLISHING))
    return Publisher(world, tenant, project_id, home, world.client(await account.token(home.client)))


async def test_a_service_account_publishes_a_version_and_rolls_it_back(publisher: Publisher) -> None:
    admin = publisher.world.client(publisher.tenant.token)
    card = {"slug": "web-tool", "display_name": "Web tool", "category": "tool"}
    app = (await admin.post(f"{publisher.place}/apps", json=card)).json()
    uploaded = (await publisher.upload(SCRIPT, digest=digest_of(SCRIPT))).json()
    assert (uploaded["trust"], uploaded["source_type"], uploaded["size_bytes"]) == ("verified", "upload", len(SCRIPT))
    versions = f"{publisher.place}/apps/{app['id']}/versions"
    manifest = launchable(artifacts={"main": uploaded["digest"], "weights": uploaded["digest"]})
    made = await publisher.client.post(versions, json={"manifest": manifest})
    assert made.status_code == 201, made.text
    artifact, version = f"{publisher.place}/artifacts/{uploaded['id']}", f"{versions}/{made.json()['id']}"
    for path, move in (
        (artifact, "stage"),
        (version, "stage"),
        (artifact, "canary"),
        (version, "canary"),
        (version, "rollback"),
        (version, "canary"),
        (artifact, "activate"),
        (version, "activate"),
    ):
        more = {"canary_percentage": 10} if (path, move) == (version, "canary") else {}
        answer = await publisher.client.post(f"{path}/promote", json={"move": move, "reason": REASON, **more})
        assert answer.status_code == 200, answer.text
    seen = (await publisher.client.get(f"{versions}/{made.json()['id']}/history")).json()["items"]
    assert [each["after"] for each in seen][-1] == "active"
    refused = await publisher.client.post(f"{publisher.place}/apps", json=card | {"slug": "other-tool"})
    assert problem(refused) == (403, "permission_denied"), "apps are registered by people"


async def test_only_a_tenants_admin_makes_a_publisher_and_others_stay_in_their_project(publisher: Publisher) -> None:
    plain = await make_account(publisher.home, sorted(PUBLISHING - {PUBLISH}))
    client = publisher.world.client(await plain.token(publisher.home.client))
    body = {"content_base64": base64.b64encode(SCRIPT).decode()}
    assert problem(await client.post(f"{publisher.place}/artifacts/upload", json=body))[0] == 403
    own = await client.post(f"/api/v1/projects/{publisher.project_id}/artifacts/upload", json=body)
    assert (own.status_code, own.json()["visibility"]) == (201, "project"), own.text
    lead = await publisher.world.member(publisher.tenant, publisher.project_id, "project_admin", "lead")
    made = await publisher.world.client(lead).post(
        f"/api/v1/projects/{publisher.project_id}/service-accounts", json={"name": "sly", "actions": [PUBLISH]}
    )
    assert problem(made) == (403, "grant_exceeds_ceiling")
    sibling = await publisher.world.project(publisher.tenant, "sibling")
    assert (await publisher.upload(SCRIPT, f"/api/v1/projects/{sibling}")).status_code == 404


async def test_an_upload_is_of_one_place_bounded_checked_and_repeatable(publisher: Publisher) -> None:
    first, again = await publisher.upload(SCRIPT), await publisher.upload(SCRIPT)
    assert first.json()["id"] == again.json()["id"]
    location = first.json()["location"]
    assert problem(await publisher.upload(SCRIPT, digest=digest_of(b"other"))) == (422, "digest_mismatch")
    assert problem(await publisher.upload(b"x" * (128 * 1024 + 1))) == (422, "validation_failed")
    assert problem(await publisher.upload(b"")) == (422, "validation_failed")
    foe = await publisher.world.tenant("foe")
    client = publisher.world.client(foe.token)
    body = {"kind": "blob", "location": location, "digest": digest_of(SCRIPT)}
    taken = await client.post(f"/api/v1/tenants/{foe.id}/artifacts", json=body)
    assert problem(taken) == (403, "source_denied"), taken.text
    read = "SELECT count(*) FROM artifact_upload WHERE location = $1"
    assert await publisher.database.fetchval(Acting(foe.id), read, location) == 0, "the second lock"
    assert await publisher.database.fetchval(Acting(publisher.tenant.id), read, location) == 1


async def test_a_place_keeps_so_many_uploads_and_those_that_nothing_uses_go(publisher: Publisher) -> None:
    await publisher.database.fetch(PLATFORM, FILL, publisher.tenant.id)
    uploaded = await publisher.upload(SCRIPT)
    assert uploaded.status_code == 201, uploaded.text
    refused = await publisher.upload(b"one more")
    assert (problem(refused), refused.json()["details"]["scope"]) == ((409, "limit_reached"), "project")
    with pytest.raises(asyncpg.CheckViolationError) as past:
        await publisher.database.fetch(PLATFORM, FILL.replace("(1, 499)", "(500, 500)"), publisher.tenant.id)
    assert past.value.constraint_name == "artifact_upload_fits"
    body = {"move": "stage", "reason": REASON}
    staged = await publisher.client.post(f"{publisher.place}/artifacts/{uploaded.json()['id']}/promote", json=body)
    assert staged.status_code == 200, staged.text
    later = publisher.world.running.platform.services.clock.now() + timedelta(days=1)
    await retention.delete(publisher.database, retention.RetentionRule("artifact_upload", later), 1_000)
    kept = await publisher.database.fetch(
        PLATFORM, "SELECT digest FROM artifact_upload WHERE tenant_id = $1", publisher.tenant.id
    )
    assert [row["digest"] for row in kept] == [digest_of(SCRIPT)], "it is staged"
