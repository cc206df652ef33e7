"""Apps and versions through the public API on a real database: from draft to retired, and each forbidden move."""

from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from mooring.core.catalog.artifact_check import ARTIFACT_CHECK, CheckState
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState
from mooring.core.catalog.trust_lifecycle import TRUST
from mooring.core.kernel.decision import AuditRecord, Decision, Insert, StateChange
from mooring.core.kernel.error_code import Code
from mooring.core.kernel.ids import Prefix
from mooring.storage.kernel.database import PLATFORM, Acting
from mooring.storage.kernel.unit_of_work import apply
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support.lifecycle_rows import CLOCK, artifact_columns, check_columns, context, path
from server.tests.support.route_requests import a_manifest

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

REASON: Final = "the tests ask for it"
DIGEST: Final = f"sha256:{'a' * 64}"


@dataclass
class AppPublisher:
    """A tenant with an app, and its admin's client."""

    world: World
    tenant: TenantWithAdmin
    client: httpx.AsyncClient
    project_id: str
    app: dict[str, Any]

    @property
    def place(self) -> str:
        return f"/api/v1/tenants/{self.tenant.id}"

    @property
    def versions(self) -> str:
        return f"{self.place}/apps/{self.app['id']}/versions"

    async def publish(self, number: str = "1.0.0", **changes: Any) -> dict[str, Any]:
        """A new draft of the app."""
        manifest = a_manifest(self.app["slug"]) | {"version": number, **changes}
        answer = await self.client.post(self.versions, json={"manifest": manifest})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def move(self, version: dict[str, Any], move: str, **more: Any) -> httpx.Response:
        """Ask for a move of a version."""
        body = {"move": move, "reason": REASON, **more}
        return await self.client.post(f"{self.versions}/{version['id']}/promote", json=body)

    async def moved(self, version: dict[str, Any], *moves: str) -> dict[str, Any]:
        """The version after moves that must succeed."""
        for each in moves:
            more = {"canary_percentage": 10} if each == "canary" else {}
            answer = await self.move(version, each, **more)
            assert answer.status_code == 200, answer.text
            version = answer.json()
        return version

    async def artifact(self, state: str = "active", digest: str = DIGEST, *, smoked: bool = True) -> str:
        """A verified artifact of the tenant's, written past the API: the bytes of these tests are nowhere."""
        row: dict[str, Any] = {
            "id": CLOCK.mint(Prefix.ARTIFACT),
            "created_at": CLOCK.now(),
            "tenant_id": self.tenant.id,
            **artifact_columns(digest),
            "visibility": "tenant" if self.tenant.id else "platform",
        }
        await self.write(Insert("artifact", row, (PROMOTION, TRUST)))
        verify = next(edge for edge in TRUST.edges if edge.source == "unverified" and edge.target == "verified")
        await self.write(StateChange("artifact", row["id"], TRUST, verify, 0, self.tenant.id))
        for generation, edge in enumerate(path(PROMOTION, PromotionState(state))):
            await self.write(StateChange("artifact", row["id"], PROMOTION, edge, generation, self.tenant.id))
        seen = {
            "id": CLOCK.mint(Prefix.ARTIFACT_EVIDENCE),
            "tenant_id": self.tenant.id,
            "artifact_id": row["id"],
            "kind": "presence",
            "digest": digest,
            "observed_at": CLOCK.now(),
            "size_bytes": row["size_bytes"],
        }
        await self.write(Insert("artifact_evidence", seen))
        if smoked:
            await self.smoke(row["id"], CheckState.SUCCEEDED, digest)
        return str(row["id"])

    async def smoke(self, artifact_id: str, state: CheckState, digest: str = DIGEST) -> None:
        """A smoke check of an artifact that has come so far."""
        check: dict[str, Any] = {
            "id": CLOCK.mint(Prefix.ARTIFACT_CHECK),
            "tenant_id": self.tenant.id,
            "artifact_id": artifact_id,
            "created_at": CLOCK.now(),
            **check_columns(),
            "subject": digest,
        }
        await self.write(Insert("artifact_check", check, (ARTIFACT_CHECK,)))
        for generation, edge in enumerate(path(ARTIFACT_CHECK, state)):
            columns: dict[str, Any] = {"started_at": CLOCK.now(), "lease_expires_at": CLOCK.now()}
            if edge.target in (CheckState.SUCCEEDED, CheckState.FAILED):
                passed = edge.target is CheckState.SUCCEEDED
                code = None if passed else Code.SMOKE_FAILED.value
                columns = {"finished_at": CLOCK.now(), "passed": passed, "failure_code": code}
            elif edge.target is CheckState.CANCELLED:
                columns = {"finished_at": CLOCK.now()}
            await self.write(
                StateChange(
                    "artifact_check", check["id"], ARTIFACT_CHECK, edge, generation, self.tenant.id, set=columns
                )
            )

    async def write(self, write: Insert | StateChange) -> None:
        decision = Decision(result=None, writes=(write,), audits=(AuditRecord("test", "test", None, self.tenant.id),))
        await apply(self.world.running.platform.services.database, Acting(self.tenant.id), context(), decision)


@pytest.fixture
async def publisher(world: World) -> AppPublisher:
    tenant = await world.tenant("acme")
    client = world.client(tenant.token)
    body = {"slug": "web-tool", "display_name": "Web tool", "category": "tool", "description": "Shows\nthings"}
    made = await client.post(f"/api/v1/tenants/{tenant.id}/apps", json=body)
    assert made.status_code == 201, made.text
    made_publisher = AppPublisher(world, tenant, client, await world.project(tenant, "train"), made.json())
    source = {
        "id": CLOCK.mint(Prefix.ARTIFACT_SOURCE),
        "tenant_id": tenant.id,
        "name": "any",
        "created_at": CLOCK.now(),
        "pattern": "oci://registry.example/*",
    }
    await made_publisher.write(Insert("artifact_source", source))
    return made_publisher


def problem(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal."""
    return answer.status_code, answer.json()["code"]


async def test_an_app_is_registered_read_and_its_card_changed(publisher: AppPublisher) -> None:
    one = f"{publisher.place}/apps/{publisher.app['id']}"
    assert publisher.app["allowed_actions"] == ["app.update", "app_version.create"]
    changed = (await publisher.client.patch(one, json={"display_name": "New name", "revision": 0})).json()
    assert (changed["display_name"], changed["description"], changed["revision"]) == ("New name", "Shows\nthings", 1)
    assert problem(await publisher.client.patch(one, json={"icon": "", "revision": 0})) == (409, "revision_conflict")
    assert (await publisher.client.get(one)).json() == changed
    assert [each["id"] for each in (await publisher.client.get(f"{publisher.place}/apps")).json()["items"]] == [
        publisher.app["id"]
    ]
    again = {"slug": "web-tool", "display_name": "Again", "category": "tool"}
    assert problem(await publisher.client.post(f"{publisher.place}/apps", json=again)) == (409, "name_taken")
    assert problem(await publisher.world.admin.post("/api/v1/platform/apps", json=again)) == (409, "name_taken")
    borrowed = again | {"slug": "another", "category": "tenant"}
    assert problem(await publisher.client.post(f"{publisher.place}/apps", json=borrowed)) == (422, "validation_failed")


async def test_from_draft_to_retired_with_each_forbidden_move(publisher: AppPublisher) -> None:
    version = await publisher.publish()
    assert (version["status"], version["allowed_moves"]) == ("draft", ["stage", "withdraw"])
    refused = await publisher.move(version, "stage")
    assert problem(refused) == (409, "version_ahead_of_artifact")
    assert refused.json()["details"]["artifacts"][0]["detail"] == "no such artifact is registered"
    assert problem(await publisher.move(version, "activate")) == (409, "illegal_transition")
    await publisher.artifact("active")
    version = await publisher.moved(version, "stage")
    assert problem(await publisher.move(version, "canary")) == (422, "validation_failed")
    version = await publisher.moved(version, "canary")
    assert version["canary_percentage"] == 10
    wider = (await publisher.move(version, "canary", canary_percentage=25.5)).json()
    assert (wider["status"], wider["canary_percentage"], wider["revision"]) == ("canary", 25.5, 1)
    version = await publisher.moved(version, "rollback", "canary", "activate")
    assert (version["status"], version["canary_percentage"]) == ("active", None)
    newer = await publisher.moved(await publisher.publish("1.1.0"), "stage", "canary", "activate")
    assert problem(await publisher.move(version, "deprecate")) == (422, "validation_failed")
    version = (await publisher.move(version, "deprecate", superseded_by=newer["id"])).json()
    assert (version["status"], version["superseded_by"]) == ("deprecated", newer["id"])
    refused = await publisher.move(version, "retire")
    assert problem(refused) == (409, "grace_period")
    history = (await publisher.client.get(f"{publisher.versions}/{version['id']}/history")).json()["items"]
    assert [each["move"] for each in history] == [
        "birth",
        "stage",
        "canary",
        "rollback",
        "canary",
        "activate",
        "deprecate",
    ]
    assert {each["reason"] for each in history[1:]} == {REASON}
    assert {each["actor_kind"] for each in history} == {"user"}


async def test_the_grace_period_over_a_deprecated_version_is_retired(publisher: AppPublisher) -> None:
    await publisher.artifact("active")
    version = await publisher.moved(await publisher.publish(), "stage", "canary", "activate")
    stated = await publisher.move(version, "deprecate", no_successor_because="nobody needs it any more")
    assert stated.json()["deprecation_reason"] == "nobody needs it any more"
    database = publisher.world.running.platform.services.database
    await database.fetch(PLATFORM, "UPDATE app_version SET deprecated_at = deprecated_at - interval '31 days'")
    retired = await publisher.moved(version, "retire")
    assert (retired["status"], retired["allowed_moves"], retired["allowed_actions"]) == ("retired", [], [])


async def test_a_manifest_changes_while_its_version_is_a_draft(publisher: AppPublisher) -> None:
    version = await publisher.publish()
    path_ = f"{publisher.versions}/{version['id']}/manifest"
    manifest = version["manifest"] | {"release_notes": "better"}
    replaced = (await publisher.client.put(path_, json={"manifest": manifest, "revision": 0})).json()
    assert replaced["manifest"]["release_notes"] == "better"
    assert replaced["manifest_digest"] != version["manifest_digest"]
    other = manifest | {"version": "9.0.0"}
    assert problem(await publisher.client.put(path_, json={"manifest": other})) == (422, "validation_failed")
    foreign = manifest | {"app": "another"}
    assert problem(await publisher.client.put(path_, json={"manifest": foreign})) == (422, "manifest_invalid")
    await publisher.artifact("active")
    await publisher.moved(version, "stage")
    assert problem(await publisher.client.put(path_, json={"manifest": version["manifest"]})) == (
        409,
        "version_immutable",
    )
    assert (await publisher.client.get(f"{publisher.versions}/{version['id']}")).json()["manifest"] == manifest
    again = await publisher.client.post(publisher.versions, json={"manifest": manifest})
    assert problem(again) == (409, "name_taken")


async def test_required_actions_are_corrected_while_a_version_is_staged_and_unused(publisher: AppPublisher) -> None:
    await publisher.artifact("active")
    version = await publisher.moved(await publisher.publish(required_actions=["runtime.claim"]), "stage")
    path_ = f"{publisher.versions}/{version['id']}/manifest"
    corrected = version["manifest"] | {"required_actions": ["runtime.claim", "runtime.report"]}
    also_more = corrected | {"release_notes": "other"}
    assert problem(await publisher.client.put(path_, json={"manifest": also_more})) == (409, "version_immutable")
    unknown = corrected | {"required_actions": ["tenant.create"]}
    assert problem(await publisher.client.put(path_, json={"manifest": unknown})) == (422, "manifest_invalid")
    database = publisher.world.running.platform.services.database
    answer = await publisher.client.put(path_, json={"manifest": corrected, "revision": version["revision"]})
    assert answer.status_code == 200, answer.text
    after = answer.json()
    assert (after["status"], after["manifest"]) == ("staged", corrected)
    rows = await database.fetch(
        PLATFORM,
        "SELECT name FROM app_version_check WHERE version_id = $1 AND subject = $2 AND passed ORDER BY name",
        version["id"],
        after["manifest_digest"],
    )
    assert [row["name"] for row in rows] == ["lint", "smoke"], "the checks of the corrected manifest"
    await publisher.moved(version, "canary", "rollback")
    assert (await publisher.client.put(path_, json={"manifest": version["manifest"]})).status_code == 200, (
        "unused again"
    )
    await publisher.moved(version, "canary")
    assert problem(await publisher.client.put(path_, json={"manifest": corrected})) == (409, "version_immutable")


async def test_staging_needs_lint_and_smoke_and_keeps_their_results(publisher: AppPublisher) -> None:
    controller = await publisher.publish("2.0.0", artifact_kind="controller")
    refused = await publisher.move(controller, "stage")
    assert problem(refused) == (422, "manifest_invalid")
    rules = {each["rule"] for each in refused.json()["details"]["findings"]}
    assert {"lifecycle_missing", "runbook_missing"} <= rules
    await publisher.artifact("active", smoked=False)
    version = await publisher.publish()
    refused = await publisher.move(version, "stage")
    assert problem(refused) == (409, "promotion_refused")
    assert refused.json()["details"]["missing"][0]["check"] == "smoke"
    second = f"sha256:{'b' * 64}"
    await publisher.artifact("active", second)
    staged = await publisher.moved(await publisher.publish("1.2.0", artifacts={"main": second}), "stage")
    database = publisher.world.running.platform.services.database
    rows = await database.fetch(
        PLATFORM,
        "SELECT name, subject, passed FROM app_version_check WHERE version_id = $1 ORDER BY name",
        staged["id"],
    )
    digest = staged["manifest_digest"]
    assert [tuple(row) for row in rows] == [("lint", digest, True), ("smoke", digest, True)]


@pytest.mark.parametrize("state", [CheckState.CANCELLED, CheckState.RUNNING])
async def test_a_check_without_a_result_does_not_hide_the_one_before(
    publisher: AppPublisher, state: CheckState
) -> None:
    good = await publisher.artifact("active")
    await publisher.smoke(good, state)
    await publisher.moved(await publisher.publish(), "stage")
    second = f"sha256:{'b' * 64}"
    bad = await publisher.artifact("active", second)
    await publisher.smoke(bad, CheckState.FAILED, second)
    await publisher.smoke(bad, state, second)
    refused = await publisher.move(await publisher.publish("1.2.0", artifacts={"main": second}), "stage")
    assert problem(refused) == (409, "promotion_refused")


async def test_a_revoked_artifact_stops_its_versions(publisher: AppPublisher) -> None:
    artifact_id = await publisher.artifact("active")
    version = await publisher.moved(await publisher.publish(), "stage", "canary")
    revoke = next(edge for edge in TRUST.edges if edge.source == "verified" and edge.target == "revoked")
    stated = {"revoked_at": CLOCK.now(), "revocation_reason": "it was found to be bad"}
    await publisher.write(StateChange("artifact", artifact_id, TRUST, revoke, 1, publisher.tenant.id, set=stated))
    refused = await publisher.move(version, "activate")
    assert problem(refused) == (409, "version_ahead_of_artifact")
    assert refused.json()["details"]["artifacts"][0]["detail"] == "it is revoked"


async def test_a_platforms_app_is_nobody_elses_to_change(publisher: AppPublisher) -> None:
    body = {"slug": "shared", "display_name": "Shared", "category": "tool"}
    app = (await publisher.world.admin.post("/api/v1/platform/apps", json=body)).json()
    assert app["tenant_id"] is None
    below = f"{publisher.place}/apps/{app['id']}"
    assert problem(await publisher.client.get(below)) == (404, "not_found")
    assert problem(await publisher.client.patch(below, json={"display_name": "Mine"})) == (404, "not_found")
    manifest = {"manifest": a_manifest("shared")}
    assert problem(await publisher.client.post(f"{below}/versions", json=manifest)) == (404, "not_found")
    above = f"/api/v1/platform/apps/{app['id']}"
    assert problem(await publisher.client.get(above)) == (403, "permission_denied")
    assert (await publisher.world.admin.post(f"{above}/versions", json=manifest)).status_code == 201


async def test_the_schema_is_public_and_lint_reports_places_reasons_and_fixes(publisher: AppPublisher) -> None:
    schema = await publisher.world.running.client().get("/api/v1/schemas/manifest")
    assert schema.status_code == 200
    assert "artifacts" in schema.json()["properties"]
    good = await publisher.client.post("/api/v1/manifests/lint", json={"manifest": a_manifest("web-tool")})
    assert (good.status_code, good.json()["stageable"]) == (200, True)
    wrong = a_manifest("web-tool") | {"artifacts": {"main": "latest"}, "unknown": 1}
    linted = (await publisher.client.post("/api/v1/manifests/lint", json={"manifest": wrong})).json()
    assert (linted["stageable"], linted["manifest_digest"]) == (False, None)
    assert {"/artifacts/main", "/unknown"} <= {each["pointer"] for each in linted["findings"]}
    assert all(each["reason"] and each["fix"] for each in linted["findings"])
    odds: tuple[Any, ...] = (None, [], "text", 7, {"manifest_version": 1})
    for odd in odds:
        answer = await publisher.client.post("/api/v1/manifests/lint", json={"manifest": odd})
        assert (answer.status_code, answer.json()["stageable"]) == (200, False)
    anonymous = await publisher.world.running.client().post("/api/v1/manifests/lint", json={"manifest": {}})
    assert anonymous.status_code == 401
