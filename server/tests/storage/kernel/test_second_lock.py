"""The second lock: with the program's own checks switched off, a tenant's session finds nothing of another's.

Which tables there are is read from the database's catalog, so that a new table with a tenant is covered on the day it
is made: it must have the lock, and rows of both tenants must be put into it here. The references that cannot cross
tenants are read from the catalog as well.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any, Final
from unittest.mock import patch

import asyncpg
import pytest

from mooring.api.project_tenant_cache import ProjectTenantCache
from mooring.api.routes import ROUTES
from mooring.core.kernel.decision import Insert
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import AccessDecision, Authority, Scope
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM, TENANT_ROLE, WITH_KEPT_PLANS, Acting, Database
from server.tests.conftest import World, running_platform
from server.tests.support.endpoint_rows import a_visit, an_endpoint
from server.tests.support.lifecycle_rows import CLOCK, HOMES, ProjectRows, refused_by
from server.tests.support.root_key import ROOT_KEY
from server.tests.support.route_bodies import body_of
from server.tests.support.route_requests import MAKERS, Home, fresh_name
from server.tests.support.service_accounts import make_account
from server.tests.support.task_rows import every_row
from server.tests.support.tenant_rows import (
    allocation_rows,
    app_rows,
    artifact_rows,
    instance_rows,
    limit_rows,
    measured_minute,
    money_rows,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

TABLES: Final = """
SELECT c.relname AS name, c.relrowsecurity AS locked,
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id') AS owned
  FROM pg_class c WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relnamespace = 'public'::regnamespace ORDER BY 1"""
COLUMNS: Final = """
SELECT attname AS name FROM pg_attribute
 WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attidentity = ''"""
CROSSING: Final = """
SELECT c.conname AS name, s.relname AS source, t.relname AS target,
       (SELECT array_agg(a.attname::text ORDER BY k.place) FROM unnest(c.conkey) WITH ORDINALITY k(number, place)
          JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.number) AS columns,
       (SELECT array_agg(a.attname::text ORDER BY k.place) FROM unnest(c.confkey) WITH ORDINALITY k(number, place)
          JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.number) AS named
  FROM pg_constraint c JOIN pg_class s ON s.oid = c.conrelid JOIN pg_class t ON t.oid = c.confrelid
 WHERE c.contype = 'f' AND c.connamespace = 'public'::regnamespace AND NOT c.condeferrable"""

REFUSED: Final = r"row-level security|permission denied"
LOCK: Final = "(tenant_id = current_setting('mooring.tenant'::text, true))"
APPEND_ONLY: Final = (
    "audit", "audit_link", "audit_checkpoint", "event", "transition", "closing_record", "ledger_entry",
    "ledger_transaction", "price", "rated_usage", "budget_crossing", "balance_crossing",
)  # fmt: skip
USAGE_AND_LEDGER: Final = (
    "usage_record", "ledger_transaction", "ledger_entry", "rated_usage", "meter_batch", "meter_reading",
    "budget_crossing", "balance_crossing", "hold",
)  # fmt: skip
SHARED: Final = {
    "app", "app_version", "app_version_artifact", "app_word", "artifact", "artifact_check", "artifact_evidence",
    "artifact_source", "policy", "price", "signer_key",
}  # fmt: skip
"""Where every tenant reads what is the platform's, and writes only what is its own."""
SHARED_LOCK: Final = "((tenant_id IS NULL) AND (current_setting('mooring.tenant'::text, true) <> ''::text))"
OF_THE_PLATFORM: Final = {"node"}
"""Has a tenant column, for its lifecycle, and never a tenant."""
READ_BY_ALL: Final = {"lifecycle_edge", "event_epoch", "promotion_need", "sku", "sku_price", "meter", "billing_hour"}
"""What belongs to no tenant, says nothing of any, and is read by every session."""


@dataclass
class Two:
    """Two tenants with rows in every table, on one running platform."""

    world: World
    own: Home
    foreign: Home
    printing: str = field(default="", init=False)  # the statement of a fingerprint

    @property
    def database(self) -> Database:
        return self.world.running.platform.services.database

    @property
    def acting(self) -> Acting:
        return Acting(self.own.tenant.id)

    async def tables(self) -> list[str]:
        """Every table whose rows belong to tenants."""
        rows = await self.database.fetch(PLATFORM, TABLES)
        return [row["name"] for row in rows if row["owned"] and row["name"] not in OF_THE_PLATFORM]

    async def rows(self, table: str, tenant_id: str) -> list[dict[str, Any]]:
        """All of a tenant's rows, as the platform sees them."""
        found = await self.database.fetch(
            PLATFORM, f'SELECT to_jsonb(t) AS row FROM "{table}" t WHERE tenant_id = $1 ORDER BY 1', tenant_id
        )
        return [row["row"] for row in found]

    async def fingerprint(self, tenant_id: str) -> dict[str, str]:
        """What all rows of a tenant are, table by table; when a token was last used is written by the clock."""
        row = "(to_jsonb(t) - 'last_used_at')::text"
        self.printing = self.printing or " UNION ALL ".join(
            f"SELECT '{table}' AS name, md5(coalesce(string_agg({row}, ' ' ORDER BY {row}), '')) AS print"
            f' FROM "{table}" t WHERE tenant_id = $1'
            for table in await self.tables()
        )
        # Planned once, and not for each of some hundreds of looks.
        found = await self.database.fetch(WITH_KEPT_PLANS, self.printing, tenant_id)
        return {row["name"]: row["print"] for row in found}


@pytest.fixture(scope="module")
async def two(shared_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Two]:
    settings = Settings(
        database_url=shared_database_url,
        master_key_file=str(tmp_path_factory.mktemp("keys") / "keys" / "master.key"),
        rate_limit_per_second=100_000,
        rate_limit_burst=100_000,
        database_connections=4,
        root_key=ROOT_KEY,
        webhook_allow_networks="127.0.0.0/8",
    )
    async with running_platform(settings) as running:
        world = World(running, running.client())
        admin = await world.sign_in("admin@mooring.local", running.code)
        world.admin.headers["Authorization"] = f"Bearer {admin}"
        homes = [await _home(world, slug) for slug in ("own-things", "their-things")]
        yield Two(world, *homes)
        await world.close()


async def _home(world: World, slug: str) -> Home:
    """A tenant with at least one row in every table."""
    tenant = await world.tenant(slug)
    home = Home(world, world.client(), tenant, await world.project(tenant, f"{slug}-project"))
    for each in ROUTES:
        leaves = set(each.path_parameters) - {"tenant_id", "project_id"}
        if each.scope in (Scope.TENANT, Scope.PROJECT) and leaves & set(MAKERS):
            await home.ids(each, fresh=False)
    assert await (await make_account(home, [])).token(home.client)
    webhook_id = (await home.new_webhook(Scope.PROJECT))["webhook_id"]
    await home.post(Scope.PROJECT, f"/webhooks/{webhook_id}/rotate-key")
    sealed = {"Authorization": f"Bearer {tenant.token}", "Idempotency-Key": fresh_name("key")}
    made = await home.client.post("/api/v1/tokens", json={"name": "sealed"}, headers=sealed)
    assert made.status_code == 201
    entry = {"tenant_id": tenant.id, "reason": "to have such a row"}
    await home.post(Scope.PLATFORM, "/break-glass", entry)
    project_rows = ProjectRows(world.running.platform.services.database, tenant.id, home.project_id)
    project_rows = replace(
        project_rows, node_id=await project_rows.birth("node"), allocation_id=await project_rows.birth("allocation")
    )
    project_rows = replace(
        project_rows, app_id=await project_rows.app(), account_id=await project_rows.birth("service_account")
    )
    project_rows = replace(project_rows, version_id=await project_rows.birth("app_version"))
    project_rows = replace(project_rows, instance_id=await project_rows.birth("instance"))
    for noun in {noun for noun, _ in HOMES} - {"node", "allocation", "instance", "member", "task"}:
        await project_rows.birth(noun)
    await measured_minute(project_rows)
    member = await project_rows.birth("member", allocation_id=project_rows.allocation_id)
    await project_rows.birth("task", member_id=member)
    other = await project_rows.birth("member")
    await project_rows.write(Insert("closing_record", project_rows.receipt(other)))
    await artifact_rows(project_rows)
    await app_rows(project_rows)
    await allocation_rows(project_rows)
    await every_row(project_rows)
    await instance_rows(project_rows)
    await money_rows(project_rows)
    await limit_rows(project_rows)
    await a_visit(project_rows, await an_endpoint(project_rows), "tok_any", tenant.admin_id)
    # The last ones are named by nobody yet, so that naming them breaks no rule but the one that is tried.
    await project_rows.birth("member")
    await project_rows.birth("artifact")
    await home.new_user(Scope.TENANT)
    await _chain_rows(project_rows)
    await _identity_rows(home, project_rows)
    return home


async def _identity_rows(home: Home, project_rows: ProjectRows) -> None:
    """Somebody whom an identity provider knows, with a role of their groups, and a challenge of theirs."""
    user = await home.new_user(Scope.TENANT)
    provider = await home.ids(next(each for each in ROUTES if each.name == "get_tenant_identity_provider"), fresh=True)
    named = {**user, "tenant_id": home.tenant.id, "created_at": CLOCK.now()}
    named["identity_provider_id"] = provider["identity_provider_id"]
    identity = {"id": CLOCK.mint(Prefix.USER_IDENTITY), "subject": home.tenant.id}
    role = {"id": CLOCK.mint(Prefix.MEMBERSHIP), "role": "project_viewer", "project_id": home.project_id}
    own_passkey = {"id": CLOCK.mint(Prefix.PASSKEY), "tenant_id": home.tenant.id, "created_at": CLOCK.now()}
    own_passkey |= {"credential_id": home.tenant.id.encode(), "public_key": b"k", "sign_count": 0, "name": "laptop"}
    own_passkey["transports"] = []
    challenge = {"id": home.tenant.id, "purpose": "any", "expires_at": CLOCK.now(), "tenant_id": home.tenant.id}
    await project_rows.write(
        Insert("user_identity", named | identity),
        Insert("membership", named | role),
        Insert("sign_in_challenge", challenge | user),
        Insert("passkey", own_passkey | user),
    )


async def _chain_rows(project_rows: ProjectRows) -> None:
    """A link of the audit trail, and a checkpoint."""
    key_id = await project_rows.database.fetchval(PLATFORM, "SELECT id FROM platform_key WHERE algorithm = 'ed25519'")
    link = {"tenant_id": project_rows.tenant_id, "position": 1, "link": bytes(32), "key_id": key_id, "signature": b""}
    for number, table in enumerate(("audit_checkpoint", "audit_link")):
        row = {**link, "epoch": 0, "tx": 0, "seq": sum(project_rows.tenant_id.encode()) * 10 + number}
        if table == "audit_checkpoint":
            row["made_at"] = CLOCK.now()
        listed = ", ".join(row)
        values = ", ".join(f"${index}" for index in range(1, len(row) + 1))
        await project_rows.database.fetch(PLATFORM, f"INSERT INTO {table} ({listed}) VALUES ({values})", *row.values())


async def tenant_session(two: Two) -> asyncpg.Connection:
    """A session with the tenants' role that has named no tenant."""
    connection = await asyncpg.connect(two.world.running.settings.database_url)
    await connection.execute(f"SET ROLE {TENANT_ROLE}")
    return connection


async def test_every_table_with_a_tenant_has_the_lock(two: Two) -> None:
    tables = await two.database.fetch(PLATFORM, TABLES)
    owned = [row["name"] for row in tables if row["owned"]]
    assert len(owned) > 15
    assert [row["name"] for row in tables if row["owned"] and not row["locked"]] == []
    policies = await two.database.fetch(PLATFORM, "SELECT * FROM pg_policies WHERE schemaname = 'public'")
    of_tenants = [row for row in policies if row["policyname"] != "shared_lock"]
    assert sorted(row["tablename"] for row in of_tenants) == sorted(owned), "one policy for each, and no other"
    shared = [row for row in policies if row["policyname"] == "shared_lock"]
    assert {row["tablename"] for row in shared} == SHARED
    for row in shared:
        assert (row["permissive"], row["cmd"], row["roles"]) == ("PERMISSIVE", "SELECT", [TENANT_ROLE])
        assert (row["qual"], row["with_check"]) == (SHARED_LOCK, None), row["tablename"]
    for row in of_tenants:
        assert (row["policyname"], row["permissive"], row["cmd"]) == ("tenant_lock", "PERMISSIVE", "ALL")
        assert row["roles"] == [TENANT_ROLE]
        assert row["qual"] == row["with_check"] == LOCK, row["tablename"]


async def test_there_is_something_to_protect_in_every_table(two: Two) -> None:
    for table in await two.tables():
        for home in (two.own, two.foreign):
            assert await two.rows(table, home.tenant.id), f"put a row of a tenant's into {table}, in _home"


async def test_a_tenants_session_reads_its_own_rows_and_no_other(two: Two) -> None:
    async with two.database.connection(two.acting) as connection:
        for table in await two.tables():
            seen = await connection.fetch(f'SELECT tenant_id FROM "{table}"')
            if table in SHARED:
                seen = [row for row in seen if row["tenant_id"] is not None]
            assert {row["tenant_id"] for row in seen} == {two.own.tenant.id}, table
            assert len(seen) == len(await two.rows(table, two.own.tenant.id))
            asked = f'SELECT count(*) FROM "{table}" WHERE tenant_id = $1'
            assert await connection.fetchval(asked, two.foreign.tenant.id) == 0


async def test_a_session_that_names_no_tenant_sees_nothing(two: Two) -> None:
    connection = await tenant_session(two)
    try:
        for named in (None, "", "ten_00000000000000000000000000"):
            if named is not None:
                await connection.execute("SELECT set_config('mooring.tenant', $1, false)", named)
            for table in await two.tables():
                mine = " WHERE tenant_id IS NOT NULL" if named and table in SHARED else ""
                assert await connection.fetchval(f'SELECT count(*) FROM "{table}"{mine}') == 0, (table, named)
    finally:
        await connection.close()


async def test_a_tenants_session_inserts_no_row_for_another(two: Two) -> None:
    async with two.database.connection(two.acting) as connection:
        for table in await two.tables():
            listed = await _columns(two, table)
            row = (await two.rows(table, two.foreign.tenant.id))[0]
            copied = f'SELECT {listed} FROM jsonb_populate_record(NULL::"{table}", $1)'
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match=REFUSED):
                await connection.execute(f'INSERT INTO "{table}" ({listed}) {copied}', row)


async def test_a_tenants_session_changes_and_deletes_no_row_of_another(two: Two) -> None:
    before = await two.fingerprint(two.foreign.tenant.id)
    async with two.database.connection(two.acting) as connection:
        for table in await two.tables():
            column = (await _columns(two, table)).split(", ")[0]
            own = len(await two.rows(table, two.own.tenant.id))
            for statement in (
                f'UPDATE "{table}" SET {column} = {column}',
                f"UPDATE \"{table}\" SET {column} = {column} WHERE tenant_id = '{two.foreign.tenant.id}'",
                f"DELETE FROM \"{table}\" WHERE tenant_id = '{two.foreign.tenant.id}'",
            ):
                try:
                    done = int((await connection.execute(statement)).split()[1])
                except asyncpg.InsufficientPrivilegeError:
                    continue
                assert done == (own if "WHERE" not in statement else 0), statement
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(f'TRUNCATE "{table}" CASCADE')
    assert await two.fingerprint(two.foreign.tenant.id) == before


async def test_a_tenants_session_gives_no_row_of_its_own_away(two: Two) -> None:
    async with two.database.connection(two.acting) as connection:
        for table in await two.tables():
            if '"tenant_id"' in await _columns(two, table):
                with pytest.raises(asyncpg.InsufficientPrivilegeError, match=REFUSED):
                    await connection.execute(f'UPDATE "{table}" SET tenant_id = $1', two.foreign.tenant.id)


async def test_no_row_names_a_thing_of_another_tenant_in_whatever_role_it_is_written(two: Two) -> None:
    """Even the platform's own sessions, which no policy binds, cannot write such a reference down."""
    owned = set(await two.tables())
    keys = await two.database.fetch(PLATFORM, CROSSING)
    meant = {key["name"] for key in keys} | {
        "membership_stays_home",
        "app_version_is_immutable",
        "artifact_hold_digest_is_there",
        "artifact_upload_location_is_own",
        "entitlement_app_is_in_sight",
        "instance_version_is_of_app",
        "version_is_in_sight",
        "instance_claim_pkey",
        "receipt_is_immutable",
        "task_owner_of_allocation",
        "visit_owner_of_allocation",
        "allocation_keeps_its_price",
        "late_usage_is_resolved_once",
        *(f"{table}_is_append_only" for table in USAGE_AND_LEDGER),
    }
    tried = set()
    async with two.database.connection(PLATFORM) as connection:
        for key in keys:
            named = [
                (column, name)
                for column, name in zip(key["columns"], key["named"], strict=True)
                if name not in ("tenant_id", "machine")
            ]
            if not {key["source"], key["target"]} <= owned or key["target"] in ("tenant", "transition"):
                continue
            filled = " AND ".join(f's."{column}" IS NOT NULL' for column, _ in named)
            sets = ", ".join(f'"{column}" = t."{name}"' for column, name in named)
            mine = f'SELECT s.ctid FROM "{key["source"]}" s WHERE s.tenant_id = $1 AND {filled} LIMIT 1'
            theirs = f'SELECT * FROM "{key["target"]}" WHERE tenant_id = $2 ORDER BY id DESC LIMIT 1'
            statement = f'UPDATE "{key["source"]}" s SET {sets} FROM ({theirs}) t WHERE s.ctid = ({mine})'
            name = await refused_by(connection.execute(statement, two.own.tenant.id, two.foreign.tenant.id))
            assert name in meant, f"{key['name']} is refused by {name or 'nothing'}"
            tried.add((key["source"], named[-1][0]))
    assert {
        ("membership", "user_id"),
        ("membership", "project_id"),
        ("service_account", "project_id"),
        ("token", "user_id"),
        ("token", "service_account_id"),
        ("webhook", "project_id"),
        ("webhook", "secret_id"),
        ("member", "allocation_id"),
        ("task", "member_id"),
    } <= tried


async def test_the_tenants_role_can_do_nothing_but_its_work(two: Two) -> None:
    role = await two.database.fetchrow(PLATFORM, "SELECT * FROM pg_roles WHERE rolname = $1", TENANT_ROLE)
    assert role is not None
    powers = ("rolsuper", "rolbypassrls", "rolcreaterole", "rolcreatedb", "rolreplication", "rolcanlogin")
    assert [power for power in powers if role[power]] == []
    owns = "SELECT count(*) FROM pg_shdepend WHERE refobjid = $1 AND deptype = 'o'"
    assert await two.database.fetchval(PLATFORM, owns, role["oid"]) == 0
    becomes = "SELECT count(*) FROM pg_auth_members WHERE member = $1"
    assert await two.database.fetchval(PLATFORM, becomes, role["oid"]) == 0
    makes = "SELECT has_schema_privilege($1, 'public', 'CREATE')"
    assert await two.database.fetchval(PLATFORM, makes, TENANT_ROLE) is False


async def test_a_session_with_the_tenants_role_can_take_no_other(two: Two) -> None:
    """A login of its own, which is a member of nothing else: it becomes the tenants' role and nobody besides."""
    login = fresh_name("login").replace("-", "_")
    owner = await two.database.fetchval(PLATFORM, "SELECT current_user")
    async with two.database.connection(PLATFORM) as platform:
        await platform.execute(f"CREATE ROLE {login} NOLOGIN IN ROLE {TENANT_ROLE}")
        try:
            connection = await asyncpg.connect(two.world.running.settings.database_url)
            try:
                await connection.execute(f"SET SESSION AUTHORIZATION {login}")
                await connection.execute(f"SET ROLE {TENANT_ROLE}")
                for other in (owner, "pg_read_all_data", "pg_write_all_data"):
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await connection.execute(f'SET ROLE "{other}"')
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute("SET row_security = off; SELECT count(*) FROM project")
            finally:
                await connection.close()
        finally:
            await platform.execute(f"DROP ROLE {login}")


async def test_what_happened_is_never_rewritten_by_a_tenants_session(two: Two) -> None:
    asked = """SELECT has_table_privilege($1, $2, $3) OR
                      ($3 IN ('UPDATE', 'REFERENCES') AND has_any_column_privilege($1, $2, $3))"""
    for table in APPEND_ONLY:
        for right in ("UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"):
            assert await two.database.fetchval(PLATFORM, asked, TENANT_ROLE, table, right) is False, (table, right)


async def test_a_tenants_session_reads_of_rows_without_a_tenant_only_harmless_ones(two: Two) -> None:
    tables = {row["name"] for row in await two.database.fetch(PLATFORM, TABLES)} - set(await two.tables())
    for table in sorted(tables):
        for right in ("SELECT", "INSERT", "UPDATE", "DELETE"):
            held = await two.database.fetchval(
                PLATFORM, "SELECT has_table_privilege($1, $2, $3)", TENANT_ROLE, f'"{table}"', right
            )
            assert held is (right == "SELECT" and table in READ_BY_ALL), (table, right)


async def test_what_runs_with_the_owners_rights_cannot_be_called(two: Two) -> None:
    """A trigger's function runs only as a trigger; any other one with the owner's rights would be a way around."""
    functions = await two.database.fetch(
        PLATFORM,
        "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef "
        "AND prorettype <> 'trigger'::regtype",
    )
    assert [row["proname"] for row in functions] == []


async def test_with_every_check_of_the_api_switched_off_a_tenant_reaches_nothing_of_another(two: Two) -> None:
    theirs = await _marks(two)
    headers = {"Authorization": f"Bearer {two.own.tenant.token}"}
    answered = []
    with (
        patch.object(Authority, "access", lambda *_: AccessDecision.ALLOWED),
        patch.object(ProjectTenantCache, "is_foreign", _never),
    ):
        for each in ROUTES:
            if each.scope in (Scope.PUBLIC, Scope.SELF) or each.media_type == "text/event-stream":
                continue
            ids = await two.foreign.ids(each, fresh=False)
            body = await body_of(each, two.foreign)
            sent = {**headers, "Content-Type": "application/json"} if body is not None else headers
            before = await two.fingerprint(two.foreign.tenant.id)
            answer = await two.own.client.request(each.method, each.path.format(**ids), content=body, headers=sent)
            leaked = [mark for mark in theirs if mark in answer.text and mark not in (body or b"").decode()]
            assert leaked == [], f"{each.key} answered {answer.status_code}: {answer.text[:300]}"
            assert await two.fingerprint(two.foreign.tenant.id) == before, f"{each.key} changed something"
            answered.append(answer.status_code)
    assert len(answered) > 50


async def _never(*_: object, **__: object) -> bool:
    return False


async def _columns(two: Two, table: str) -> str:
    """The columns of a table that can be written, quoted and listed."""
    return ", ".join(f'"{row["name"]}"' for row in await two.database.fetch(PLATFORM, COLUMNS, f'"{table}"'))


async def _marks(two: Two) -> list[str]:
    """Words that only the other tenant's rows have: ids, names, addresses."""
    marks = {two.foreign.tenant.slug, f"admin@{two.foreign.tenant.slug}.example"}
    for table in await two.tables():
        for row in await two.rows(table, two.foreign.tenant.id):
            marks |= {str(row[column]) for column in ("id", "hash", "correlation_id") if row.get(column)}
    return sorted(marks)
