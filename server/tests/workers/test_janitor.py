"""Retention on a real database: expired rows are deleted in batches, and nothing else is."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from mooring.commands.records.audit_chain import chain_next
from mooring.core.catalog.artifact_check import ARTIFACT_CHECK, CheckState
from mooring.core.fleet.task import TASK, TaskState
from mooring.core.runtime.member import MEMBER, MemberState
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.records.retention import LOCK_KEY, RetentionRule, delete
from mooring.workers.janitor import Janitor
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support.endpoint_rows import a_visit, an_endpoint
from server.tests.support.http_receiver import made
from server.tests.support.later_clock import ShiftedClock
from server.tests.support.lifecycle_rows import LifecycleSubject, ProjectRows, make_project_rows, path
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

DAY = timedelta(days=1)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Nothing of what the tests make is ever sent: nobody listens at the address."""
    return replace(settings, webhook_allow_networks="127.0.0.2/32")


class JanitorTenant:
    """A platform with some rows in it, and a janitor whose clock is as many days ahead as the test wants."""

    def __init__(self, world: World, tenant: TenantWithAdmin) -> None:
        self.world = world
        self.tenant = tenant
        self.client = world.client(tenant.token)
        self.place = f"/api/v1/tenants/{tenant.id}"
        self.services = world.running.platform.services

    def janitor(self, after: timedelta, *, batch: int = 1000, **settings: Any) -> Janitor:
        services = replace(
            self.services, clock=ShiftedClock(after), settings=replace(self.services.settings, **settings)
        )
        return Janitor(services, batch=batch, round_seconds=600)

    async def count(self, table: str, condition: str = "true") -> int:
        return int(await self.services.database.fetchval(PLATFORM, f"SELECT count(*) FROM {table} WHERE {condition}"))

    async def execute(self, statement: str, *arguments: object) -> None:
        await self.services.database.fetch(PLATFORM, statement, *arguments)

    async def settled(self) -> None:
        """Wait until every event is behind the horizon, which other databases of the cluster may hold for a moment."""
        async with asyncio.timeout(60):
            seen = ""
            while True:
                wanted = {"limit": "500", "cursor": seen}
                page = (await self.client.get(f"{self.place}/events", params=wanted)).json()
                seen = page["next_cursor"]
                newest = await self.services.database.fetchval(
                    PLATFORM, "SELECT id FROM event WHERE tenant_id = $1 ORDER BY seq DESC LIMIT 1", self.tenant.id
                )
                if any(each["id"] == newest for each in page["items"]):
                    return


@pytest.fixture
async def site(world: World) -> JanitorTenant:
    return JanitorTenant(world, await world.tenant("acme"))


async def test_nothing_goes_before_its_time(site: JanitorTenant) -> None:
    await made(site.client, site.place)
    await site.world.project(site.tenant, "train")
    tables = ("event", "audit", "delivery", "token", "secret", "idempotency", "assertion")
    before = {table: await site.count(table) for table in tables}
    assert await site.janitor(timedelta(minutes=5)).sweep()
    assert {table: await site.count(table) for table in tables} == before


async def test_answers_are_kept_for_the_retention_and_go_with_their_secrets(site: JanitorTenant) -> None:
    body = {"slug": "train", "display_name": "Train"}
    plain = await site.client.post(f"{site.place}/projects", json=body, headers={"Idempotency-Key": "plain"})
    secret = {"url": "http://127.0.0.2:9/"}
    with_secret = await site.client.post(f"{site.place}/webhooks", json=secret, headers={"Idempotency-Key": "secret"})
    assert (plain.status_code, with_secret.status_code) == (201, 201)
    assert await site.count("secret", "purpose = 'idempotent_answer'") == 1

    await site.janitor(timedelta(hours=47)).sweep()
    assert await site.count("idempotency") == 2
    again = await site.client.post(f"{site.place}/webhooks", json=secret, headers={"Idempotency-Key": "secret"})
    assert again.json() == with_secret.json()

    await site.janitor(timedelta(hours=49)).sweep()
    assert await site.count("idempotency") == 0
    assert await site.count("secret", "purpose = 'idempotent_answer'") == 0
    assert await site.count("secret", "purpose = 'webhook_key'") == 1, "a key in use never goes"


async def test_a_replaced_key_goes_when_it_no_longer_signs(site: JanitorTenant) -> None:
    webhook = await made(site.client, site.place)
    await site.client.post(f"{site.place}/webhooks/{webhook['id']}/rotate-key")
    assert await site.count("webhook", "previous_secret_id IS NOT NULL") == 1
    await site.janitor(timedelta(hours=25)).sweep()
    assert await site.count("webhook", "previous_secret_id IS NULL") == 1
    assert await site.count("secret", "purpose = 'webhook_key'") == 1


async def test_old_events_go_and_an_older_cursor_is_refused_as_expired(site: JanitorTenant) -> None:
    for number in range(5):
        await site.world.project(site.tenant, f"project-{number}")
    await site.settled()
    page = (await site.client.get(f"{site.place}/events", params={"limit": 2})).json()
    await site.execute("UPDATE event SET occurred_at = occurred_at - interval '91 days'")
    await site.world.project(site.tenant, "young")
    await site.settled()
    assert await site.janitor(timedelta(0), batch=2).sweep()

    assert await site.count("event") == 1
    expired = await site.client.get(f"{site.place}/events", params={"cursor": page["next_cursor"]})
    assert (expired.status_code, expired.json()["code"]) == (410, "cursor_expired")
    from_there = expired.json()["details"]["oldest_cursor"]
    rest = (await site.client.get(f"{site.place}/events", params={"cursor": from_there})).json()
    assert [each["data"]["slug"] for each in rest["items"]] == ["young"]
    from_the_beginning = (await site.client.get(f"{site.place}/events")).json()
    assert from_the_beginning["items"] == rest["items"]


async def test_an_event_stays_as_long_as_a_delivery_of_it_is_open(site: JanitorTenant) -> None:
    await made(site.client, site.place, event_types=["identity.project.*"])
    await site.world.project(site.tenant, "train")
    await site.world.project(site.tenant, "other")
    await site.settled()
    late = site.janitor(91 * DAY)
    assert await late.sweep()
    assert await site.count("event") == 2
    assert await site.count("delivery", "status = 'queued'") == 2

    await site.execute(
        "UPDATE delivery SET status = 'delivered', finished_at = $1",
        site.services.clock.now() + 90 * DAY,
    )
    assert await late.sweep()
    assert (await site.count("event"), await site.count("delivery")) == (0, 2)
    gone = (await site.client.get(f"{site.place}/deliveries")).json()["items"][0]
    replayed = await site.client.post(f"{site.place}/deliveries/{gone['id']}/replay")
    assert (replayed.status_code, replayed.json()["code"]) == (404, "not_found")
    assert (await site.client.post(f"{site.place}/deliveries/replay-dead")).json()["replayed"] == 0


async def test_ended_deliveries_go_and_open_ones_stay(site: JanitorTenant) -> None:
    await made(site.client, site.place, event_types=["identity.project.*"])
    for slug in ("one", "two", "three"):
        await site.world.project(site.tenant, slug)
    first = "(SELECT min(id) FROM delivery WHERE status = 'queued')"
    ended = f"UPDATE delivery SET status = $1, finished_at = $2 WHERE id = {first}"
    now = site.services.clock.now()
    await site.execute(ended, "delivered", now)
    await site.execute(ended, "dead", now)
    await site.janitor(29 * DAY).sweep()
    assert await site.count("delivery") == 3
    await site.janitor(31 * DAY).sweep()
    assert await site.count("delivery") == await site.count("delivery", "status = 'queued'") == 1


async def test_tokens_go_a_while_after_they_expired_or_were_revoked(site: JanitorTenant) -> None:
    for name in ("short", "long"):
        lifetime = 3600 if name == "short" else 80 * 86400
        body = {"name": name, "expires_in_seconds": lifetime}
        assert (await site.client.post("/api/v1/tokens", json=body)).status_code == 201
    listed = (await site.client.get("/api/v1/tokens")).json()["items"]
    long_id = next(each["id"] for each in listed if each["name"] == "long")
    await site.janitor(29 * DAY).sweep()
    assert await site.count("token", "kind = 'personal'") == 2
    await site.janitor(31 * DAY).sweep()
    assert await site.count("token", "kind = 'personal' AND name = 'long'") == 1
    assert await site.count("token", "kind = 'personal'") == 1
    await site.execute("UPDATE token SET revoked_at = now() WHERE id = $1", long_id)
    await site.janitor(31 * DAY).sweep()
    assert await site.count("token", "kind = 'personal'") == 0


async def test_assertions_that_could_not_be_used_again_go(site: JanitorTenant) -> None:
    project = await site.world.project(site.tenant, "train")
    body = {"name": "robot", "actions": [], "public_key": "A" * 43}
    account = await site.client.post(f"/api/v1/projects/{project}/service-accounts", json=body)
    assert account.status_code == 201, account.text
    expires_at = site.services.clock.now()
    await site.execute(
        "INSERT INTO assertion (key_id, jti, expires_at) SELECT id, 'once', $1 FROM service_account_key", expires_at
    )
    await site.janitor(timedelta(minutes=30)).sweep()
    assert await site.count("assertion") == 1
    await site.janitor(timedelta(hours=2)).sweep()
    assert await site.count("assertion") == 0


async def test_the_audit_trail_is_kept_for_ever_unless_a_time_is_set(site: JanitorTenant) -> None:
    rows = await site.count("audit")
    await site.janitor(10_000 * DAY).sweep()
    assert await site.count("audit") == rows
    await site.janitor(29 * DAY, audit_retention_days=30).sweep()
    assert await site.count("audit") == rows
    assert await until(lambda: chain_next(site.services), 60) == rows, "a row goes only when it is chained"
    await site.janitor(31 * DAY, audit_retention_days=30).sweep()
    assert await site.count("audit") == 0


async def test_one_statement_deletes_a_batch_at_the_most_and_says_whether_there_is_more(site: JanitorTenant) -> None:
    await site.execute("DELETE FROM assertion")
    project = await site.world.project(site.tenant, "train")
    body = {"name": "robot", "actions": [], "public_key": "A" * 43}
    await site.client.post(f"/api/v1/projects/{project}/service-accounts", json=body)
    await site.execute(
        "INSERT INTO assertion (key_id, jti, expires_at) "
        "SELECT id, n::text, now() - interval '1 day' FROM service_account_key, generate_series(1, 25) n"
    )
    rule, database = RetentionRule("assertion", site.services.clock.now()), site.services.database
    assert [await delete(database, rule, 10) for _ in range(3)] == [(10, True), (10, True), (5, False)]


async def test_a_round_ends_when_its_time_is_over_and_goes_on_soon(site: JanitorTenant) -> None:
    hurried = Janitor(site.services, round_seconds=0)
    assert not await hurried.sweep()
    assert await hurried.tick() == 1.0
    calm = site.janitor(timedelta(0))
    assert await calm.tick() == 60.0
    put_off = await calm.tick()
    assert put_off is not None
    assert 0 < put_off < 60, "hints do not make it work more often"


async def test_only_one_janitor_works_at_a_time(site: JanitorTenant) -> None:
    await site.settled()
    other = await asyncpg.connect(site.world.running.settings.database_url)
    try:
        await other.execute("SELECT pg_advisory_lock($1)", LOCK_KEY)
        assert await site.janitor(100 * DAY).sweep()
        assert await site.count("event") > 0
        await other.execute("SELECT pg_advisory_unlock($1)", LOCK_KEY)
        assert await site.janitor(100 * DAY).sweep()
        assert await site.count("event") == 0
    finally:
        await other.close()


async def test_visits_go_when_their_time_has_long_been_over(site: JanitorTenant) -> None:
    project_rows = ProjectRows(site.services.database, site.tenant.id, await site.world.project(site.tenant, "train"))
    await a_visit(project_rows, await an_endpoint(project_rows), "tok_any", site.tenant.admin_id)
    kept = timedelta(days=site.services.settings.token_retention_days)
    await site.janitor(kept).sweep()
    assert await site.count("visit") == 1
    await site.janitor(kept + timedelta(hours=2)).sweep()
    assert await site.count("visit") == 0


async def test_ended_tasks_and_their_output_go_and_what_proves_something_stays(site: JanitorTenant) -> None:
    database, settings = site.services.database, site.services.settings
    project_rows = await make_project_rows(database, "retained")
    standing = await project_rows.subject("member", MEMBER, MemberState.READY)
    plain, kept, made, proof = (
        await project_rows.subject("task", TASK, TaskState.SUCCEEDED),
        await project_rows.subject("task", TASK, TaskState.SUCCEEDED),
        await project_rows.subject("task", TASK, TaskState.SUCCEEDED),
        await project_rows.subject("task", TASK, TaskState.SUCCEEDED),
    )
    await project_rows.subject("task", TASK, TaskState.CLAIMED)
    await site.execute("UPDATE task SET member_id = $2 WHERE id = $1", kept.id, standing.id)
    await site.execute("UPDATE task SET type = 'sandbox.create' WHERE id = $1", made.id)
    await site.execute("UPDATE task SET type = 'sandbox.destroy' WHERE id = $1", proof.id)
    log = 'INSERT INTO task_log (task_id, "offset", tenant_id, project_id, chunk, received_at)'
    for each in (plain.id, kept.id):
        await site.execute(
            f"{log} VALUES ($1, 0, $2, $3, 'x', now())", each, project_rows.tenant_id, project_rows.project_id
        )
    log_days, task_days = (
        timedelta(days=settings.task_log_retention_days),
        timedelta(days=settings.task_retention_days),
    )
    await site.janitor(log_days - DAY).sweep()
    assert (await site.count("task"), await site.count("task_log")) == (5, 2)
    await site.janitor(log_days + DAY).sweep()
    assert (await site.count("task"), await site.count("task_log")) == (5, 0)
    await site.janitor(task_days + DAY).sweep()
    assert await site.count("task", f"id = '{plain.id}'") == 0
    assert await site.count("task") == 4, "of a member that stands, of a sandbox, and what is not over"
    assert await site.count("transition", f"subject_id = '{plain.id}'") == 0


async def test_ended_checks_of_artifacts_go_but_the_last_and_the_last_with_each_result(site: JanitorTenant) -> None:
    project_rows = await make_project_rows(site.services.database, "checked")
    good, bad, without = CheckState.SUCCEEDED, CheckState.FAILED, CheckState.CANCELLED
    for ends in (good, without, good, bad, bad, without, without):
        check_id = await project_rows.birth("artifact_check", artifact_id=project_rows.artifact_id)
        subject = LifecycleSubject("artifact_check", ARTIFACT_CHECK, check_id, ARTIFACT_CHECK.initial)
        for edge in path(ARTIFACT_CHECK, ends):
            ended = edge.target is ends
            result = {"passed": ends is good} if ended and ends is not without else {}
            subject = await project_rows.move(subject, edge, **result)
    days = timedelta(days=site.services.settings.check_retention_days)
    await site.janitor(days - DAY).sweep()
    assert await site.count("artifact_check") == 7
    await site.janitor(days + DAY).sweep()
    left = await site.services.database.fetch(PLATFORM, "SELECT status FROM artifact_check ORDER BY id")
    assert [row[0] for row in left] == ["succeeded", "failed", "cancelled"]
