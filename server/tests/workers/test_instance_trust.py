"""The worker of trust on a real database: what lost its trust is marked, drained or stopped, and taken back."""

from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState
from mooring.core.catalog.trust_lifecycle import TRUST
from mooring.core.kernel.decision import AuditRecord, Decision, Insert, StateChange
from mooring.core.kernel.ids import Prefix
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM, Database, PoolSettings
from mooring.storage.kernel.unit_of_work import apply
from mooring.workers.instance_reconciler import InstanceReconciler
from mooring.workers.instance_trust import TrustWorker
from server.tests.api.catalog.test_apps import DIGEST, REASON, AppPublisher
from server.tests.api.catalog.test_apps import publisher as bare_publisher
from server.tests.conftest import World
from server.tests.support.launching import Launching, make_launching
from server.tests.support.lifecycle_rows import CLOCK, artifact_columns, context, path
from server.tests.support.route_requests import fresh_public_pem
from server.tests.workers.test_allocation_reconciler_dies import ReconcilerDied
from server.tests.workers.test_instance_reconciler_dies import DyingAtWrites
from tests.support.waiting import until

__all__ = ["bare_publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

LOST, RESTORED = "apps.instance.trust_lost", "apps.instance.trust_restored"


@dataclass
class Fleet:
    """Running instances of one tenant's app, and the artifact that they run."""

    launching: Launching
    artifact_id: str
    instances: list[str] = field(default_factory=list)

    @property
    def client(self) -> httpx.AsyncClient:
        return self.launching.client

    @property
    def services(self) -> Any:
        return self.launching.services

    async def run(self, count: int) -> list[str]:
        for _ in range(count):
            self.instances.append((await self.launching.running())["id"])
        return self.instances

    async def revoke(self) -> None:
        place = self.launching.publisher.place
        answer = await self.client.post(f"{place}/artifacts/{self.artifact_id}/revoke", json={"reason": REASON})
        assert answer.status_code == 200, answer.text

    async def policy(self, reaction: str) -> None:
        body = {"rules": {"untrusted_instances": reaction}, "reason": REASON}
        answer = await self.client.put(f"/api/v1/projects/{self.launching.publisher.project_id}/policy", json=body)
        assert answer.status_code == 200, answer.text

    async def source(self, *, allowed: bool) -> None:
        """Put the artifact's source on the tenant's list, or take it off."""
        place = f"{self.launching.publisher.place}/artifact-sources"
        if allowed:
            body = {"name": "any", "pattern": "oci://registry.example/*"}
            assert (await self.client.post(place, json=body)).status_code == 201
            return
        for each in (await self.client.get(place)).json()["items"]:
            assert (await self.client.delete(f"{place}/{each['id']}")).status_code in (200, 204)

    async def look(self) -> None:
        await TrustWorker(self.services).tick()

    async def get(self, instance_id: str, *more: str) -> dict[str, Any]:
        return await self.launching.get("/".join((instance_id, *more)))

    async def heard(self, *types: str) -> list[tuple[str, str]]:
        """Type and instance of each such event that the project can read, once the stream has come so far."""
        project_id = self.launching.publisher.project_id
        counted = "SELECT count(*) FROM event WHERE project_id = $1 AND type = ANY ($2)"
        stored: int = await self.services.database.fetchval(PLATFORM, counted, project_id, list(types))
        found: list[tuple[str, str]] = []

        async def readable() -> bool:
            answer = await self.client.get(f"/api/v1/projects/{project_id}/events?limit=500")
            assert answer.status_code == 200, answer.text
            items = answer.json()["items"]
            found[:] = [(each["type"], each["subject_id"]) for each in items if each["type"] in types]
            return len(found) >= stored

        await until(readable)
        return found

    async def statuses(self) -> list[str]:
        return [(await self.get(each))["status"] for each in self.instances]


@pytest.fixture
async def fleet(world: World, bare_publisher: AppPublisher) -> Fleet:
    launching = await make_launching(world, bare_publisher)
    found = await launching.client.get(f"{bare_publisher.place}/artifacts?digest={DIGEST}")
    return Fleet(launching, found.json()["items"][0]["id"])


async def test_a_revocation_reaches_the_instance_its_events_its_verbs_and_why(fleet: Fleet) -> None:
    (instance_id,) = await fleet.run(1)
    await fleet.look()
    assert (await fleet.get(instance_id))["distrust"] is None
    await fleet.revoke()
    await fleet.look()
    await fleet.look()
    seen = await fleet.get(instance_id)
    (artifact,) = seen["distrust"]["artifacts"]
    assert (artifact["digest"], artifact["trust"], artifact["owner"]) == (DIGEST, "revoked", "tenant")
    assert (seen["distrust"]["reaction"], seen["status"]) == ("refuse", "running")
    assert seen["allowed_verbs"] == ["connect", "stop", "upgrade"]
    (member,) = (await fleet.get(instance_id, "members"))["items"]
    assert member["allowed_verbs"] == ["drain", "exec", "remove"]
    assert await fleet.heard(LOST) == [(LOST, instance_id)], "said once"
    why = await fleet.get(instance_id, "why")
    cause = next(each for each in why["chain"] if each["noun"] == "artifact")
    assert (cause["name"], cause["code"]) == (DIGEST, "artifact_revoked")
    admin = fleet.launching.publisher.tenant.admin_id
    assert f"by {admin}: {REASON}" in cause["text"]
    assert why["next"]["command"] == f"mooring instances upgrade {instance_id}"
    rows = await fleet.services.database.fetch(
        PLATFORM, "SELECT actor_id, reason FROM audit WHERE subject_id = $1 AND after ? 'distrust'", instance_id
    )
    assert [tuple(row) for row in rows] == [("trust", REASON)]


async def test_what_the_platform_revoked_names_no_person_of_the_platform(fleet: Fleet) -> None:
    (instance_id,) = await fleet.run(1)
    row: dict[str, Any] = {"id": CLOCK.mint(Prefix.ARTIFACT), "created_at": CLOCK.now(), **artifact_columns(DIGEST)}
    writes: list[Any] = [Insert("artifact", row | {"visibility": "platform"}, (PROMOTION, TRUST))]
    for number, edge in enumerate(path(PROMOTION, PromotionState.ACTIVE)):
        writes.append(StateChange("artifact", row["id"], PROMOTION, edge, number, None))
    for each in writes:
        decision = Decision(None, (each,), audits=(AuditRecord("test", "test", None, None),))
        await apply(fleet.services.database, PLATFORM, context(), decision)
    admin = fleet.launching.publisher.world.admin
    revoked = await admin.post(f"/api/v1/platform/artifacts/{row['id']}/revoke", json={"reason": REASON})
    assert revoked.status_code == 200, revoked.text
    await fleet.look()
    cause = next(each for each in (await fleet.get(instance_id, "why"))["chain"] if each["noun"] == "artifact")
    assert f"by the platform: {REASON}" in cause["text"]


async def test_trust_that_returns_lifts_the_refusal_and_puts_drained_members_back_to_work(fleet: Fleet) -> None:
    (instance_id,) = await fleet.run(1)
    await fleet.policy("drain")
    await fleet.source(allowed=False)
    await fleet.look()
    (member,) = (await fleet.get(instance_id, "members"))["items"]
    assert (member["status"], [each["owner"] for each in member["holds"]]) == ("draining", ["trust"])
    assert "resume" not in member["allowed_verbs"]
    resumed = await fleet.client.post(f"{fleet.launching.path}/{instance_id}/members/{member['id']}/resume", json={})
    assert resumed.json()["code"] == "source_denied", resumed.text
    (drain,) = [each for each in (await fleet.get(instance_id, "operations"))["items"] if each["kind"] == "drain"]
    assert (drain["requested_by"], drain["request"]["untrusted"]) == ("trust", [DIGEST])
    await fleet.source(allowed=True)
    await fleet.look()
    (member,) = (await fleet.get(instance_id, "members"))["items"]
    assert (member["status"], member["holds"]) == ("ready", [])
    assert (await fleet.get(instance_id))["distrust"] is None
    assert await fleet.heard(LOST, RESTORED) == [(LOST, instance_id), (RESTORED, instance_id)]
    assert (await fleet.launching.post(f"{instance_id}/restart"))["kind"] == "restart"


async def test_instances_are_stopped_a_few_at_a_time_until_all_are(fleet: Fleet) -> None:
    await fleet.run(5)
    await fleet.policy("stop")
    await fleet.revoke()
    await fleet.look()
    await fleet.look()
    assert sorted(await fleet.statuses()) == ["running"] * 3 + ["stopping"] * 2, "the budget of the tenant is two"
    at_once = []
    while "running" in await fleet.statuses():
        await InstanceReconciler(fleet.services).tick()
        await fleet.look()
        at_once.append((await fleet.statuses()).count("stopping"))
    assert at_once == [2, 1]


async def test_an_upgrade_to_trusted_bytes_is_not_ended_by_the_reaction(fleet: Fleet) -> None:
    (instance_id,) = await fleet.run(1)
    other = f"sha256:{'b' * 64}"
    await fleet.launching.publisher.artifact("active", other)
    await fleet.launching.publish("1.1.0", artifacts={"main": other})
    await fleet.policy("stop")
    await fleet.launching.post(f"{instance_id}/upgrade", {"version": "1.1.0"})
    await fleet.revoke()
    await fleet.look()
    seen = await fleet.get(instance_id)
    assert (seen["status"], seen["operation"]["kind"]) == ("running", "upgrade")


async def test_a_signer_key_says_before_its_removal_what_would_lose_its_trust_and_its_return_heals(
    fleet: Fleet,
) -> None:
    publisher = fleet.launching.publisher
    (instance_id,) = await fleet.run(1)
    keys = f"{publisher.place}/signer-keys"
    pem = {"name": "release", "public_key_pem": fresh_public_pem()}
    key = (await fleet.client.post(keys, json=pem)).json()
    signature = {
        "id": CLOCK.mint(Prefix.ARTIFACT_EVIDENCE),
        "tenant_id": publisher.tenant.id,
        "artifact_id": fleet.artifact_id,
        "kind": "signature",
        "digest": DIGEST,
        "observed_at": CLOCK.now(),
        "repository": "registry.example/team/app",
        "key_fingerprint": key["fingerprint"],
    }
    await publisher.write(Insert("artifact_evidence", signature))
    rules = {"rules": {"signatures": "images"}, "reason": REASON}
    assert (await fleet.client.put(f"{publisher.place}/policy", json=rules)).status_code == 200
    await fleet.look()
    assert (await fleet.get(instance_id))["distrust"] is None
    impact = (await fleet.client.get(f"{keys}/{key['id']}/impact")).json()
    assert impact["counts"] == {"tenants": 1, "projects": 1, "instances": 1}
    assert impact["reactions"]["refuse"] == 1
    assert [each["id"] for each in impact["instances"]] == [instance_id]
    assert (await fleet.client.delete(f"{keys}/{key['id']}")).status_code == 200
    await fleet.look()
    (artifact,) = (await fleet.get(instance_id))["distrust"]["artifacts"]
    assert (artifact["trust"], artifact["code"]) == ("unverified", "signature_key_unknown")
    assert (await fleet.client.post(keys, json=pem)).status_code == 201
    await fleet.look()
    assert (await fleet.get(instance_id))["distrust"] is None


async def test_a_pass_takes_as_many_statements_for_many_instances_as_for_one(fleet: Fleet, settings: Settings) -> None:
    await fleet.run(1)
    one = await _statements(fleet, settings)
    await fleet.run(4)
    assert await _statements(fleet, settings) == one


@pytest.mark.parametrize("after", [False, True], ids=["before the statement", "after it"])
@pytest.mark.parametrize("reaction", ["drain", "stop"])
async def test_whenever_the_worker_dies_another_one_does_what_is_left_and_nothing_twice(
    fleet: Fleet, settings: Settings, reaction: str, after: bool
) -> None:
    await fleet.run(2)
    await fleet.policy(reaction)
    await fleet.revoke()
    deaths = 0
    for writes in range(1, 20):
        if not await _dies(fleet, settings, writes, after=after):
            break
        deaths += 1
    assert deaths >= 2, "it dies at every write that is left"
    await fleet.look()
    assert sorted(await fleet.heard(LOST)) == [(LOST, each) for each in sorted(fleet.instances)]
    kind = {"drain": "drain", "stop": "decommission"}[reaction]
    for each in fleet.instances:
        operations = (await fleet.get(each, "operations"))["items"]
        assert [one["kind"] for one in operations if one["requested_by"] == "trust"] == [kind]


class CountingDatabase(Database):
    """Counts the statements that only the worker sends."""

    count = 0

    async def fetch(self, *arguments: Any, **options: Any) -> Any:
        self.count += 1
        return await super().fetch(*arguments, **options)


async def _statements(fleet: Fleet, settings: Settings) -> int:
    """How many statements a pass sends that finds nothing to do."""
    database = CountingDatabase(PoolSettings(settings.database_url, 4))
    await database.open()
    try:
        await TrustWorker(replace(fleet.services, database=database)).tick()
    finally:
        await database.close()
    return database.count


async def _dies(fleet: Fleet, settings: Settings, writes: int, *, after: bool) -> bool:
    """One look of a worker that dies at this write; whether it did."""
    database = DyingAtWrites(PoolSettings(settings.database_url, 4), writes, after=after)
    await database.open()
    try:
        await TrustWorker(replace(fleet.services, database=database)).tick()
    except ReconcilerDied:
        return True
    finally:
        await database.close()
    return False
