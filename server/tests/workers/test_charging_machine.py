"""The machine of charging on PostgreSQL: workers that die at any statement, and a proof after each run."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from mooring.commands.money.charge import settle
from mooring.commands.services import Services
from mooring.core.identity.project import create_project
from mooring.core.kernel.errors import Refusal
from mooring.core.money.charge import MeteredUsage
from mooring.core.money.correction import CorrectionSpec, correct
from mooring.core.money.interval import MeteredAllocation
from mooring.core.pricing.price import Price
from mooring.gateways.clock import SystemClock
from mooring.storage.kernel.database import PLATFORM, Acting, Database, PoolSettings
from mooring.storage.kernel.unit_of_work import apply
from mooring.storage.money import correction as corrections
from server.tests.support.charging_machine import GUEST, HOURS, OWNER, Books, ChargingMachine, Names, run
from server.tests.support.lifecycle_rows import ProjectRows, context, make_project_rows
from server.tests.support.money_rows import START
from server.tests.support.postgres import SOAK
from server.tests.support.proving import broken, proof
from server.tests.workers.test_allocation_reconciler_dies import DyingDatabase, ReconcilerDied
from tools.gates import ENVIRONMENT, SYSTEM

pytestmark = pytest.mark.real_part("postgresql")

RUNS = 1_000 if SOAK else 50 if os.environ.get(ENVIRONMENT) == SYSTEM else 5
Result = TypeVar("Result")
EMPTIED = ("rated_usage", "ledger_entry", "ledger_transaction", "usage_record", "price", "billing_hour")


class BooksInPostgres(Books):
    """One database for all runs; each begins with empty tables."""

    def __init__(self, site: "Site") -> None:
        self.site = site
        self.names = site.names
        site.run(self._empty())

    async def _empty(self) -> None:
        await self._behind_triggers(*(f"DELETE FROM {table}" for table in EMPTIED))
        await self._behind_triggers("DELETE FROM transition WHERE subject_id LIKE 'alc\\____'")
        await self._behind_triggers("DELETE FROM allocation")
        hours = """INSERT INTO billing_hour
                   SELECT $1::timestamptz + n * interval '1 hour', now() FROM generate_series(-1, $2) n"""
        await self.site.database.fetch(PLATFORM, hours, START, HOURS - 1)

    async def _behind_triggers(self, *statements: str, row: object = None) -> None:
        """Facts are put where they are without the rest of the platform around them."""
        async with self.site.database.connection(PLATFORM) as connection, connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            for statement in statements:
                await connection.execute(statement, *([] if row is None else [row]))

    async def _insert(self, table: str, *rows: Mapping[str, Any]) -> None:
        """Insert rows that are not there yet."""
        names = ", ".join(rows[0])
        statement = f"INSERT INTO {table} ({names}) SELECT {names} FROM jsonb_populate_recordset(NULL::{table}, $1)"
        await self._behind_triggers(f"{statement} ON CONFLICT DO NOTHING", row=[plain(each) for each in rows])

    def put_price(self, made: Price) -> None:
        row = {name: getattr(made, name) for name in Price.__slots__}
        self.site.run(self._insert("price", row))

    def put_allocation(self, mine: MeteredAllocation) -> None:
        times = {step.target: step.occurred_at for step in reversed(mine.log)}
        row = self.site.rows.row("allocation") | {
            "id": mine.id,
            "project_id": mine.project_id,
            "gpu_count": mine.gpu_count,
            "price_id": mine.price.id,
            "price_minor_per_gpu_hour": mine.price.minor,
            "currency": mine.price.currency,
            "name": mine.id.replace("_", "-"),
            "status": "requested",  # charging reads the log, and not the status
            "generation": 0,
            "revision": 0,
            "attempts": 0,
            "activated_at": times.get("active"),
            "releasing_at": times.get("releasing"),
        }
        steps = [
            {
                "machine": "allocation",
                "subject_id": mine.id,
                "tenant_id": mine.tenant_id,
                "generation": step.generation,
                "source": "" if number == 0 else mine.log[number - 1].target,
                "trigger": "test",
                "target": step.target,
                "occurred_at": step.occurred_at,
                "correlation_id": "cor_1",
            }
            for number, step in enumerate(mine.log)
        ]
        forget = (
            f"DELETE FROM transition WHERE subject_id = '{mine.id}'",
            f"DELETE FROM allocation WHERE id = '{mine.id}'",
        )
        self.site.run(self._behind_triggers(*forget))
        self.site.run(self._insert("allocation", row))
        self.site.run(self._insert("transition", *steps))

    def put_usage(self, made: MeteredUsage, attached: bool) -> None:
        row = {
            "id": made.id,
            "tenant_id": made.tenant_id,
            "project_id": made.project_id,
            "instance_id": "ins_1",
            "record_id": made.id,
            "unit": made.unit,
            "started_at": made.started_at,
            "ended_at": made.ended_at,
            "quantity": str(made.quantity),
            "attached_project_id": self.names.project(GUEST) if attached else None,
            "usage_source": "app_runtime",
            "app_slug": "app",
            "correlation_id": "cor_1",
            "trace_id": "a" * 32,
            "created_at": made.created_at,
            "covered_by_allocation": made.billing == "covered",
            "billing": made.billing,
            "price_id": None if made.price is None else made.price.id,
        }
        self.site.run(self._insert("usage_record", row))

    def settle(self, hour: datetime, dies_after: int | None) -> None:
        self.site.run(self._settle(hour, dies_after))

    async def _settle(self, hour: datetime, dies_after: int | None) -> None:
        if dies_after is None:
            while not await settle(services_on(self.site.database), hour):
                pass
            return
        dying = DyingDatabase(PoolSettings(self.site.url, 1), dies_after // 2 + 1, after=dies_after % 2 == 0)
        await dying.open()
        try:
            await settle(services_on(dying), hour)
        except ReconcilerDied:
            pass
        finally:
            await dying.close()

    def correct(self, choose: Callable[[int], int], micro: int) -> int:
        ids = self.site.all("SELECT id FROM ledger_transaction ORDER BY id")
        if not ids:
            return 0
        found = self.site.run(corrections.find(self.site.database, PLATFORM, str(ids[choose(len(ids))][0])))
        assert found is not None
        try:
            decision = correct(context(), CorrectionSpec(found.id, micro, "somebody asked for it"), found)
        except Refusal:
            return 0
        self.site.run(apply(self.site.database, PLATFORM, context(), decision))
        return micro

    def charged(self) -> Mapping[str, int]:
        rows = self.site.all("SELECT source_id, sum(amount) FROM rated_usage GROUP BY source_id")
        return {row[0]: int(row[1]) for row in rows}

    def owed(self) -> Mapping[str, int]:
        statement = "SELECT project_id, sum(amount) FROM ledger_entry WHERE account = 'receivable' GROUP BY project_id"
        return {row[0]: int(row[1]) for row in self.site.all(statement)}

    def check(self) -> None:
        """The database checks each transaction by itself."""

    def end(self) -> None:
        assert broken(self.site.run(proof(self.site.database, START))) == {}


class Site:
    """A database with a tenant of two projects, and an event loop to use it in."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._runner = asyncio.Runner()
        self.database = Database(PoolSettings(url, 2))
        self.run(self.database.open())
        self.rows: ProjectRows = self.run(make_project_rows(self.database))
        guest = create_project(context(), self.rows.tenant_id, "guest", "Guest")
        self.run(apply(self.database, Acting(self.rows.tenant_id), context(), guest))
        projects = {OWNER: self.rows.project_id, GUEST: guest.result.id}
        self.names = replace(Names(), tenant=self.rows.tenant_id, projects=projects)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(work)

    def all(self, statement: str) -> list[Any]:
        return self.run(self.database.fetch(PLATFORM, statement))

    def close(self) -> None:
        self.run(self.database.close())
        self._runner.close()


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}


def services_on(database: Database) -> Services:
    """What settling needs of the platform's services."""
    return cast(Services, SimpleNamespace(database=database, clock=SystemClock()))


@pytest.fixture
def site(private_database_url: str) -> Iterator[Site]:
    made = Site(private_database_url)
    yield made
    made.close()


def test_the_ledger_of_the_database_shows_the_exact_price_whatever_happens(site: Site) -> None:
    class ChargingInPostgres(ChargingMachine):
        @staticmethod
        def open_books() -> Books:
            return BooksInPostgres(site)

    run(ChargingInPostgres, RUNS)
