"""Trust reaches what runs: every use of an instance asks whether its artifacts are trusted at that moment."""

from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState
from mooring.core.catalog.trust_lifecycle import TRUST
from mooring.core.kernel.decision import AuditRecord, Decision, Insert, StateChange
from mooring.core.kernel.ids import Prefix
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import apply
from server.tests.api.catalog.test_apps import DIGEST, REASON, AppPublisher, problem
from server.tests.api.catalog.test_apps import publisher as bare_publisher
from server.tests.conftest import World
from server.tests.support.launching import Launching, make_launching
from server.tests.support.lifecycle_rows import CLOCK, artifact_columns, context, path
from tests.support.rows import every_row

__all__ = ["bare_publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

OTHER = f"sha256:{'b' * 64}"


@dataclass
class Trusted:
    """A running instance, and the artifact that it runs."""

    launching: Launching
    instance: dict[str, Any]
    artifact_id: str
    revoked: bool = False

    @property
    def client(self) -> httpx.AsyncClient:
        return self.launching.client

    async def revoke(self) -> None:
        """Revoke the artifact, unless an earlier row of the table did."""
        if self.revoked:
            return
        self.revoked = True
        place = self.launching.publisher.place
        answer = await self.client.post(f"{place}/artifacts/{self.artifact_id}/revoke", json={"reason": REASON})
        assert answer.status_code == 200, answer.text

    async def policy(self, place: str, **rules: Any) -> httpx.Response:
        return await self.client.put(f"/api/v1/{place}/policy", json={"rules": rules, "reason": REASON})

    async def ask(self, what: str, body: Any = None) -> httpx.Response:
        path_ = f"{self.launching.path}/{self.instance['id']}/{what}"
        return await self.client.post(path_, json=body if body is not None else {})


@pytest.fixture
async def trusted(world: World, bare_publisher: AppPublisher) -> Trusted:
    launching = await make_launching(world, bare_publisher)
    found = await launching.client.get(f"{bare_publisher.place}/artifacts?digest={DIGEST}")
    return Trusted(launching, await launching.running(), found.json()["items"][0]["id"])


async def platform_artifact(launching: Launching) -> str:
    """The same bytes, registered by the platform and never verified."""
    row: dict[str, Any] = {
        "id": CLOCK.mint(Prefix.ARTIFACT),
        "created_at": CLOCK.now(),
        **artifact_columns(DIGEST),
        "visibility": "platform",
    }
    writes: list[Any] = [Insert("artifact", row, (PROMOTION, TRUST))]
    writes += [
        StateChange("artifact", row["id"], PROMOTION, edge, number, None)
        for number, edge in enumerate(path(PROMOTION, PromotionState.ACTIVE))
    ]
    for each in writes:
        decision = Decision(None, (each,), audits=(AuditRecord("test", "test", None, None),))
        await apply(launching.services.database, PLATFORM, context(), decision)
    return str(row["id"])


SUBMIT = ("actions/queue.submit", {"input": {"line": "hi"}})


@every_row(
    "what, body",
    [
        ("restart", None),
        ("reconcile", None),
        ("repair", {"scope": "whole_runtime"}),
        ("members", {"component": "worker", "count": 1}),
        ("members/{member_id}/replace", None),
        SUBMIT,
        ("actions/queue.list", None),
    ],
)
async def test_no_use_of_an_instance_succeeds_after_its_artifact_was_revoked(
    trusted: Trusted, what: str, body: Any
) -> None:
    (member, *_) = (await trusted.launching.get(f"{trusted.instance['id']}/members"))["items"]
    await trusted.revoke()
    answer = await trusted.ask(what.format(member_id=member["id"]), body)
    assert problem(answer) == (409, "artifact_revoked"), answer.text
    assert answer.json()["details"]["digest"] == DIGEST
    assert REASON in answer.json()["detail"]


async def test_an_untrusted_instance_can_still_be_stopped_and_upgraded_to_trusted_bytes(trusted: Trusted) -> None:
    await trusted.launching.publisher.artifact("active", OTHER)
    await trusted.launching.publish("1.1.0", artifacts={"main": OTHER})
    await trusted.revoke()
    upgrade = await trusted.ask("upgrade", {"version": "1.1.0"})
    assert upgrade.status_code == 202, upgrade.text
    assert (await trusted.ask("stop")).status_code == 202


@pytest.mark.usefixtures("private_platform")
async def test_with_notify_actions_go_on_and_what_starts_the_bytes_again_is_refused(trusted: Trusted) -> None:
    launching = trusted.launching
    refused = await trusted.policy(f"tenants/{launching.publisher.tenant.id}", untrusted_instances="notify")
    assert problem(refused) == (422, "policy_widens"), "the platform's default is stricter"
    world = launching.publisher.world
    rules = {"rules": {"untrusted_instances": "notify"}, "reason": REASON}
    assert (await world.admin.put("/api/v1/platform/policy", json=rules)).status_code == 200
    await trusted.revoke()
    assert problem(await trusted.ask("restart")) == (409, "artifact_revoked")
    assert (await trusted.ask(*SUBMIT)).status_code == 202
    stricter = await trusted.policy(f"projects/{launching.publisher.project_id}", untrusted_instances="refuse")
    assert stricter.status_code == 200
    assert problem(await trusted.ask(*SUBMIT)) == (409, "artifact_revoked")


@pytest.mark.usefixtures("private_platform")
async def test_a_tenant_cannot_use_what_the_platform_revoked_by_registering_it_itself(trusted: Trusted) -> None:
    launching = trusted.launching
    artifact_id = await platform_artifact(launching)
    assert (await trusted.ask(*SUBMIT)).status_code == 202, "their own is verified"
    revoked = await launching.publisher.world.admin.post(
        f"/api/v1/platform/artifacts/{artifact_id}/revoke", json={"reason": REASON}
    )
    assert revoked.status_code == 200, revoked.text
    assert problem(await trusted.ask(*SUBMIT)) == (409, "artifact_revoked")
    assert problem(await launching.client.post(launching.path, json=launching.body())) == (409, "artifact_revoked")


@pytest.mark.usefixtures("private_platform")
async def test_the_blast_radius_has_names_for_the_tenant_and_numbers_for_the_platform(trusted: Trusted) -> None:
    launching = trusted.launching
    publisher = launching.publisher
    await trusted.policy(f"projects/{publisher.project_id}", untrusted_instances="drain")
    seen = (await trusted.client.get(f"{publisher.place}/artifacts/{trusted.artifact_id}/impact")).json()
    assert [each["name"] for each in seen["instances"]] == [trusted.instance["name"]]
    assert seen["counts"] == {"tenants": 1, "projects": 1, "instances": 1, "members": 1, "versions": 1}
    assert seen["reactions"] == {"notify": 0, "refuse": 0, "drain": 1, "stop": 0}
    own = await platform_artifact(launching)
    answer = await publisher.world.admin.get(f"/api/v1/platform/artifacts/{own}/impact")
    counted = answer.json()
    assert (counted["counts"], counted["reactions"]) == (seen["counts"], seen["reactions"])
    assert (counted["instances"], counted["members"], counted["versions"]) == ([], [], [])
    for secret in (
        trusted.instance["name"],
        trusted.instance["id"],
        publisher.tenant.id,
        publisher.project_id,
        "web-tool",
    ):
        assert secret not in answer.text, "a platform role sees no tenant's data"
