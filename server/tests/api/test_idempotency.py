"""The same Idempotency-Key: one effect and one answer, however often and however many at once ask for it."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import httpx
import pytest

from mooring.api.routes import ROUTES
from mooring.core.kernel.permissions import Scope
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM
from mooring.workers.janitor import Janitor
from server.tests.conftest import PASSWORD, World, running_platform
from server.tests.support import made_things
from server.tests.support.endpoint_rows import an_endpoint
from server.tests.support.lifecycle_rows import ProjectRows
from server.tests.support.root_key import ROOT_KEY
from server.tests.support.route_requests import RECEIVER, Home, fresh_name, fresh_public_key

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

AT_ONCE: Final = 30


@dataclass
class IdempotencyTenant:
    """A tenant with a project, and its admin's client."""

    home: Home
    client: httpx.AsyncClient

    @property
    def world(self) -> World:
        return self.home.world

    @property
    def tenant(self) -> str:
        return f"/api/v1/tenants/{self.home.tenant.id}"

    @property
    def project(self) -> str:
        return f"/api/v1/projects/{self.home.project_id}"

    async def count(self, statement: str, *arguments: object) -> int:
        """One number, as the platform sees it."""
        return int(await self.world.running.platform.services.database.fetchval(PLATFORM, statement, *arguments))

    async def account(self, actions: tuple[str, ...] = ()) -> str:
        body = {"name": fresh_name("account"), "actions": list(actions)}
        return str((await self.client.post(f"{self.project}/service-accounts", json=body)).json()["id"])


@pytest.fixture(scope="module")
async def site(shared_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[IdempotencyTenant]:
    settings = Settings(
        database_url=shared_database_url,
        master_key_file=str(tmp_path_factory.mktemp("keys") / "keys" / "master.key"),
        rate_limit_per_second=100_000,
        rate_limit_burst=100_000,
        sign_in_limit_per_minute=100_000,
        webhook_allow_networks="127.0.0.0/8",
        registry_url="http://127.0.0.1:9",  # nothing is pushed there
        database_connections=8,
        root_key=ROOT_KEY,
    )
    async with running_platform(settings) as running:
        world = World(running, running.client())
        admin = await world.sign_in("admin@mooring.local", running.code)
        world.admin.headers["Authorization"] = f"Bearer {admin}"
        tenant = await world.tenant("acme")
        home = Home(world, world.client(), tenant, await world.project(tenant, "train"))
        yield IdempotencyTenant(home, world.client(tenant.token))
        await world.close()


@dataclass(frozen=True)
class Mutation:
    """A request of one shape, and how to see that it took effect exactly once."""

    method: str
    path: str
    body: dict[str, Any] | None
    effect: str  # counts the effect; $1 is what to look for
    of: str


async def _create(site: IdempotencyTenant) -> Mutation:
    slug = fresh_name("project")
    body = {"slug": slug, "display_name": "A project"}
    return Mutation("POST", f"{site.tenant}/projects", body, "SELECT count(*) FROM project WHERE slug = $1", slug)


async def _create_with_secret(site: IdempotencyTenant) -> Mutation:
    name = fresh_name("token")
    return Mutation("POST", "/api/v1/tokens", {"name": name}, "SELECT count(*) FROM token WHERE name = $1", name)


async def _update(site: IdempotencyTenant) -> Mutation:
    project = await site.world.project(site.home.tenant, fresh_name("project"))
    effect = "SELECT revision FROM project WHERE id = $1"
    return Mutation("PATCH", f"/api/v1/projects/{project}", {"display_name": "Renamed"}, effect, project)


async def _transition(site: IdempotencyTenant) -> Mutation:
    account = await site.account()
    effect = "SELECT generation FROM service_account WHERE id = $1"
    return Mutation("POST", f"{site.project}/service-accounts/{account}/disable", None, effect, account)


async def _delete(site: IdempotencyTenant) -> Mutation:
    webhook = (await site.client.post(f"{site.project}/webhooks", json={"url": RECEIVER})).json()["id"]
    effect = "SELECT 1 - count(*) FROM webhook WHERE id = $1"
    return Mutation("DELETE", f"{site.project}/webhooks/{webhook}", None, effect, webhook)


SHAPES: Final[dict[str, Callable[[IdempotencyTenant], Awaitable[Mutation]]]] = {
    "create": _create,
    "create_with_secret": _create_with_secret,
    "update": _update,
    "transition": _transition,
    "delete": _delete,
}
every_shape = pytest.mark.parametrize("shape", SHAPES)


async def send(site: IdempotencyTenant, wanted: Mutation, key: str, correlation_id: str = "") -> httpx.Response:
    headers = {"Idempotency-Key": key}
    if correlation_id:
        headers["X-Correlation-ID"] = correlation_id
    return await site.client.request(wanted.method, wanted.path, json=wanted.body, headers=headers)


@every_shape
async def test_a_repeat_gets_the_first_answer_and_changes_nothing(site: IdempotencyTenant, shape: str) -> None:
    wanted, key = await SHAPES[shape](site), fresh_name("key")
    first = await send(site, wanted, key)
    assert first.status_code in (200, 201, 204), first.text
    assert "idempotency-replayed" not in first.headers
    for _ in range(2):
        again = await send(site, wanted, key)
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        assert again.headers["x-correlation-id"] != first.headers["x-correlation-id"]
    assert await site.count(wanted.effect, wanted.of) == 1


@every_shape
async def test_of_many_equal_requests_at_once_one_has_an_effect_and_all_have_one_answer(
    site: IdempotencyTenant, shape: str
) -> None:
    wanted, key, correlation_id = await SHAPES[shape](site), fresh_name("key"), fresh_name("at-once")
    answers = await asyncio.gather(*(send(site, wanted, key, correlation_id) for _ in range(AT_ONCE)))
    assert {each.status_code for each in answers} <= {200, 201, 204}, answers[0].text
    assert len({(each.status_code, each.content) for each in answers}) == 1
    assert sum("idempotency-replayed" not in each.headers for each in answers) == 1
    assert await site.count(wanted.effect, wanted.of) == 1
    for table in ("event", "audit", "idempotency"):
        assert await site.count(f"SELECT count(*) FROM {table} WHERE correlation_id = $1", correlation_id) == 1, table


async def test_another_body_under_the_same_key_is_refused_and_names_the_first(site: IdempotencyTenant) -> None:
    wanted, key = await _create(site), fresh_name("key")
    first = await send(site, wanted, key)
    other = await site.client.post(
        wanted.path, json={**(wanted.body or {}), "display_name": "Another"}, headers={"Idempotency-Key": key}
    )
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert other.json()["details"] == {"first_correlation_id": first.headers["x-correlation-id"]}
    assert (await send(site, wanted, key)).status_code == 201


async def test_the_same_body_in_other_bytes_is_another_request(site: IdempotencyTenant) -> None:
    """The bytes of the requests are compared: a client that repeats a request sends the same bytes."""
    wanted, key = await _create(site), fresh_name("key")
    await send(site, wanted, key)
    spaced = json.dumps(wanted.body, indent=2).encode()
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    assert (await site.client.post(wanted.path, content=spaced, headers=headers)).status_code == 409


async def test_a_key_counts_for_one_principal(site: IdempotencyTenant) -> None:
    key, name = fresh_name("key"), fresh_name("token")
    other = site.world.client(await site.home.new_person(Scope.TENANT, "tenant_admin"))
    headers = {"Idempotency-Key": key}
    mine = await site.client.post("/api/v1/tokens", json={"name": name}, headers=headers)
    theirs = await other.post("/api/v1/tokens", json={"name": name}, headers=headers)
    assert (mine.status_code, theirs.status_code) == (201, 201)
    assert mine.json()["token"] != theirs.json()["token"]
    assert "idempotency-replayed" not in theirs.headers


async def test_a_key_counts_for_one_route(site: IdempotencyTenant) -> None:
    key = fresh_name("key")
    for wanted in (await _create(site), await _create_with_secret(site), await _transition(site)):
        answer = await send(site, wanted, key)
        assert answer.status_code in (200, 201)
        assert "idempotency-replayed" not in answer.headers


async def test_on_one_route_a_key_counts_for_one_address(site: IdempotencyTenant) -> None:
    key = fresh_name("key")
    first, second = await _transition(site), await _transition(site)
    assert (await send(site, first, key)).status_code == 200
    refused = await send(site, second, key)
    assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_conflict")
    assert await site.count(second.effect, second.of) == 0


async def test_a_refused_request_is_evaluated_again(site: IdempotencyTenant) -> None:
    taken = await _create(site)
    project = (await send(site, taken, fresh_name("key"))).json()["id"]
    key = fresh_name("key")
    refused = await send(site, taken, key)
    assert (refused.status_code, refused.json()["code"]) == (409, "name_taken")
    assert (await site.client.delete(f"/api/v1/projects/{project}")).status_code == 204
    accepted = await send(site, taken, key)
    assert accepted.status_code == 201
    assert "idempotency-replayed" not in accepted.headers
    assert (await send(site, taken, key)).headers["idempotency-replayed"] == "true"


async def test_what_was_denied_leaves_nothing_under_its_key(site: IdempotencyTenant) -> None:
    key = fresh_name("key")
    denied = await site.client.post("/api/v1/tenants", json={}, headers={"Idempotency-Key": key})
    assert denied.status_code == 403
    assert await site.count("SELECT count(*) FROM idempotency WHERE key = $1", key) == 0


@pytest.mark.parametrize("key", ["", "a" * 201, "a\tb", "schl\u00fcssel"])
async def test_a_key_that_is_not_well_formed_is_refused(site: IdempotencyTenant, key: str) -> None:
    wanted = await _create(site)
    headers = {b"Idempotency-Key": key.encode("latin-1")}
    refused = await site.client.post(wanted.path, json=wanted.body, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (400, "header_invalid")
    assert refused.json()["details"] == {"header": "Idempotency-Key"}
    assert await site.count(wanted.effect, wanted.of) == 0


async def test_a_key_on_a_read_is_passed_over(site: IdempotencyTenant) -> None:
    answer = await site.client.get("/api/v1/whoami", headers={"Idempotency-Key": "x" * 500})
    assert answer.status_code == 200


async def test_without_a_key_each_request_is_one_of_its_own(site: IdempotencyTenant) -> None:
    name = fresh_name("token")
    for _ in range(2):
        assert (await site.client.post("/api/v1/tokens", json={"name": name})).status_code == 201
    assert await site.count("SELECT count(*) FROM token WHERE name = $1", name) == 2


async def requests_with_secrets(
    site: IdempotencyTenant,
) -> dict[str, tuple[httpx.AsyncClient, str, dict[str, Any], str]]:
    """Every request whose answer tells something once, and under which name it tells it."""
    slug, admin = fresh_name("tenant"), site.world.admin
    user = (await site.home.new_user(Scope.TENANT))["user_id"]
    webhook = (await site.client.post(f"{site.project}/webhooks", json={"url": RECEIVER})).json()["id"]
    first_admin = {"email": f"a@{slug}.example", "display_name": "A"}
    tenant = {"slug": slug, "display_name": "A tenant", "first_admin": first_admin}
    person = {"email": f"{fresh_name('user')}@acme.example", "display_name": "A"}
    entry = {"tenant_id": site.home.tenant.id, "reason": "the tenant asked for help"}
    project_rows = ProjectRows(site.world.running.platform.services.database, site.home.tenant.id, site.home.project_id)
    app = await an_endpoint(project_rows)
    endpoint = f"{site.project}/endpoints/{app.endpoint_id}"
    command = f"{site.project}/allocations/{app.allocation_id}/exec"
    terminal = f"{site.project}/app-instances/{await made_things.new_terminal(site.home)}/exec"
    opens = await made_things.new_secret(site.home, Scope.PROJECT)
    secret = f"{site.project}/app-instances/{opens['instance_id']}/secrets/{opens['secret_name']}/reveal"
    return {
        "reveal_instance_secret": (site.client, secret, {}, "value"),
        "connect_endpoint": (site.client, f"{endpoint}/connect", {}, "ticket"),
        "open_endpoint": (site.client, f"{endpoint}/open", {}, "url"),
        "exec_allocation": (site.client, command, {"argv": ["id"]}, "ticket"),
        "exec_instance": (site.client, terminal, {"argv": ["id"]}, "ticket"),
        "create_tenant": (admin, "/api/v1/tenants", tenant, "one_time_code"),
        "create_tenant_user": (site.client, f"{site.tenant}/users", person, "one_time_code"),
        "reset_tenant_user": (site.client, f"{site.tenant}/users/{user}/reset", {}, "one_time_code"),
        "create_enrolment_token": (admin, "/api/v1/platform/nodes/enrolment-tokens", {"region": "local"}, "token"),
        "create_token": (site.client, "/api/v1/tokens", {"name": "shown once"}, "token"),
        "open_break_glass": (admin, "/api/v1/platform/break-glass", entry, "token"),
        "publish_project_artifact": (
            site.client,
            f"{site.project}/artifacts/publish",
            {"name": "shown-once"},
            "registry_token",
        ),
        "create_tenant_webhook": (site.client, f"{site.tenant}/webhooks", {"url": RECEIVER}, "signing_key"),
        "rotate_project_webhook_key": (
            site.client,
            f"{site.project}/webhooks/{webhook}/rotate-key",
            {},
            "signing_key",
        ),
    }


async def test_a_secret_is_shown_again_under_its_key_and_is_nowhere_in_the_database(site: IdempotencyTenant) -> None:
    secrets = {PASSWORD, site.home.tenant.token, site.world.admin.headers["Authorization"].removeprefix("Bearer ")}
    requests = await requests_with_secrets(site)
    asked = {each.handler for each in ROUTES if each.name in requests}
    assert asked == {each.handler for each in ROUTES if each.one_time_secret}, "another one tells something once"
    for client, path, body, field in requests.values():
        headers = {"Idempotency-Key": fresh_name("key")}
        first = await client.post(path, json=body or None, headers=headers)
        assert first.status_code in (200, 201), first.text
        again = await client.post(path, json=body or None, headers=headers)
        assert (again.content, again.headers["idempotency-replayed"]) == (first.content, "true")
        secrets.add(str(first.json()[field]).rpartition("code=")[2])
    account = {"name": fresh_name("account"), "actions": [], "public_key": fresh_public_key()}
    await site.client.post(f"{site.project}/service-accounts", json=account)
    found = await _search(site, secrets)
    assert found == []


async def _search(site: IdempotencyTenant, secrets: set[str]) -> list[tuple[str, str]]:
    """Where in the whole database one of the secrets stands, as it is or in base64 or hexadecimal."""
    forms: list[bytes] = []
    for secret in secrets:
        assert len(secret) >= 12
        raw = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
        forms += [secret.encode(), raw, base64.b64encode(raw), raw.hex().encode()]
    database = site.world.running.platform.services.database
    columns = await database.fetch(
        PLATFORM,
        "SELECT table_name, column_name FROM information_schema.columns c JOIN information_schema.tables t "
        "USING (table_schema, table_name) WHERE table_schema = 'public' AND t.table_type = 'BASE TABLE' "
        "AND (data_type IN ('text', 'bytea', 'jsonb', 'json', 'ARRAY') OR data_type LIKE 'character%')",
    )
    assert len(columns) > 100
    found = []
    for table, column in columns:
        kind = await database.fetchval(PLATFORM, f'SELECT pg_typeof("{column}")::text FROM "{table}" LIMIT 1')
        shown = f'"{column}"' if kind == "bytea" else f"convert_to(\"{column}\"::text, 'UTF8')"
        asked = (
            f'SELECT count(*) FROM "{table}", unnest($1::bytea[]) sought (bytes_) WHERE position(bytes_ IN {shown}) > 0'
        )
        if kind is not None and await database.fetchval(PLATFORM, asked, forms):
            found.append((table, column))
    return found


async def test_the_search_for_secrets_finds_what_is_there(site: IdempotencyTenant) -> None:
    """The check itself can fail: what is kept in the open is found."""
    name = fresh_name("a-name-in-the-open")
    await site.client.post("/api/v1/tokens", json={"name": name}, headers={"Idempotency-Key": name})
    places = await _search(site, {name})
    assert {("token", "name"), ("idempotency", "key")} <= set(places)


async def test_an_answer_is_kept_for_the_retention_and_not_for_ever(site: IdempotencyTenant) -> None:
    wanted, key = await _create(site), fresh_name("key")
    assert (await send(site, wanted, key)).status_code == 201
    services = site.world.running.platform.services
    kept = timedelta(hours=services.settings.idempotency_retention_hours)
    assert kept >= timedelta(hours=24)
    aged = "UPDATE idempotency SET created_at = created_at - $2::interval WHERE key = $1 RETURNING 1"
    await site.count(aged, key, kept - timedelta(minutes=1))
    await Janitor(services).sweep()
    assert (await send(site, wanted, key)).headers["idempotency-replayed"] == "true"
    await site.count(aged, key, timedelta(minutes=2))
    await Janitor(services).sweep()
    assert (await send(site, wanted, key)).json()["code"] == "name_taken"
