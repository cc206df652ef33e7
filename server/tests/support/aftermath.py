"""What a mutation left behind: counted, and compared with what it leaves when nothing goes wrong.

The whole state of the database is summed up by table: rows, revisions and generations. A mutation changes that sum in
one way; one that was killed and repeated must have changed it in the same way, neither less nor more. Beside that
stand the events and audit rows of its correlation id, and what the answer says.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import asyncpg

from server.tests.support.http_wire import WireAnswer, WireClient
from server.tests.support.mutations import Prepared
from tests.support.waiting import until

SUMMED: Final = ("revision", "generation")
COLUMNS: Final = """
SELECT c.table_name, array_agg(c.column_name::text) FROM information_schema.columns c
  JOIN information_schema.tables t USING (table_schema, table_name)
 WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE' GROUP BY c.table_name"""
SESSION_NAME: Final = "mooring-doomed"
"""What the connections of a server that dies on request are called."""
NOT_BUSY: Final = f"""
SELECT count(*) = 0 FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = '{SESSION_NAME}' AND state <> 'idle'"""
NOT_THERE: Final = f"""
SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = '{SESSION_NAME}'"""
State = dict[str, tuple[int, ...]]


async def survived(connection: asyncpg.Connection) -> None:
    """Wait until all that a dead server sent is done: its connections end after that, and not before."""
    await until(lambda: connection.fetchval(NOT_THERE))


SUMMING: Final[WeakKeyDictionary[asyncpg.Connection, str]] = WeakKeyDictionary()
"""The statement that sums every table up, by connection: to ask which columns there are takes longer than the sums."""


async def state_of(connection: asyncpg.Connection) -> State:
    """The sum of every table, once nothing that a dead server sent is still being done."""
    await until(lambda: connection.fetchval(NOT_BUSY))
    if connection not in SUMMING:
        SUMMING[connection] = _summing(await connection.fetch(COLUMNS))
    return {table: tuple(sums) for table, sums in await connection.fetch(SUMMING[connection])}


def _summing(tables: list[asyncpg.Record]) -> str:
    parts = []
    for table, columns in tables:
        sums = [f"coalesce(sum({name}), 0)" if name in columns else "0" for name in SUMMED]
        parts.append(f"SELECT '{table}', array[count(*), {', '.join(sums)}]::bigint[] FROM \"{table}\"")
    return " UNION ALL ".join(parts)


def difference(before: State, after: State) -> State:
    """What changed between two states, by table."""
    changes = {table: tuple(b - a for a, b in zip(before[table], after[table], strict=True)) for table in after}
    return {table: change for table, change in changes.items() if any(change)}


@dataclass(frozen=True)
class Outcome:
    """How a mutation went, in what does not depend on the particular subject."""

    status: int
    fields: frozenset[str]
    changed: State
    events: tuple[str, ...]
    audits: tuple[tuple[str, str], ...]


EVENTS: Final = "SELECT type, subject_id, data::text FROM event WHERE correlation_id = $1 ORDER BY epoch, tx, seq"
AUDITS: Final = "SELECT action, outcome FROM audit WHERE correlation_id = $1 ORDER BY epoch, tx, seq"


def headers_of(correlation_id: str, doom: str | None = None) -> dict[str, str]:
    """The headers of one mutation and of all its repetitions: one correlation id, one Idempotency-Key."""
    headers = {"X-Correlation-ID": correlation_id, "Idempotency-Key": correlation_id}
    return headers if doom is None else {**headers, "X-Doom": doom}


async def repeated(
    caller: WireClient, prepared: Prepared, correlation_id: str, connection: asyncpg.Connection, before: State
) -> tuple[Outcome, bool]:
    """Send a mutation (again), and once more; returns how it went and whether the first was a replay."""
    request = (prepared.route.method, prepared.path, prepared.body, headers_of(correlation_id))
    first, second = await caller.call(*request), await caller.call(*request)
    assert (second.status, second.body) == (first.status, first.body), f"{first} {second}"
    assert second.headers.get("idempotency-replayed") == "true", f"{first} {second}"
    events = await connection.fetch(EVENTS, correlation_id)
    shown = first.json if first.body else {}
    if "id" in shown:
        assert any(shown["id"] == event["subject_id"] or shown["id"] in event["data"] for event in events)
    await check_secrets(caller.url, connection, shown)
    outcome = Outcome(
        first.status,
        frozenset(shown),
        difference(before, await state_of(connection)),
        tuple(event["type"] for event in events),
        tuple((row["action"], row["outcome"]) for row in await connection.fetch(AUDITS, correlation_id)),
    )
    return outcome, first.headers.get("idempotency-replayed") == "true"


async def check_secrets(url: str, connection: asyncpg.Connection, shown: dict[str, Any]) -> None:
    """A secret that is shown once counts, also when a repeat shows it again."""
    if str(shown.get("token", "")).startswith("mrge_"):
        stored = await connection.fetchval("SELECT hash FROM enrolment_token WHERE id = $1", shown["id"])
        assert stored == hashlib.sha256(shown["token"].encode()).digest()
    elif "token" in shown:
        async with WireClient(url, shown["token"]) as holder:
            await holder.get("/api/v1/whoami")
    if "one_time_code" in shown:
        user_id = shown.get("first_admin", shown)["id"]
        stored = await connection.fetchval('SELECT one_time_hash FROM "user" WHERE id = $1', user_id)
        assert stored == hashlib.sha256(shown["one_time_code"].encode()).digest()


async def send_doomed(caller: WireClient, prepared: Prepared, correlation_id: str, doom: str) -> WireAnswer:
    """Send the request that kills the server; one of BROKEN, unless it came through after all."""
    headers = headers_of(correlation_id, doom)
    return await caller.call(prepared.route.method, prepared.path, prepared.body, headers)
