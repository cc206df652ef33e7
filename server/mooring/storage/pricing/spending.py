"""Reads the limits of a place, and what a tenant has and has spent."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.pricing.budget import Budget
from mooring.core.pricing.prepaid import PrepaidAccount
from mooring.core.pricing.quota import Quota
from mooring.core.pricing.rating import ClockTerms
from mooring.core.pricing.spending import Figures, Ledger, RunningClock
from mooring.storage.kernel.database import Acting, RowReader

QUOTA_COLUMNS: Final = ", ".join(f"q.{name}" for name in Quota.__slots__)
BUDGET_COLUMNS: Final = ", ".join(f"b.{name}" for name in Budget.__slots__)
ACCOUNT_COLUMNS: Final = ", ".join(f"p.{name}" for name in PrepaidAccount.__slots__)
LIMITED: Final = """
SELECT EXISTS (SELECT FROM quota q WHERE q.tenant_id = $1 AND (q.project_id IS NULL OR q.project_id = $2))
    OR EXISTS (SELECT FROM budget b WHERE b.tenant_id = $1 AND (b.project_id IS NULL OR b.project_id = $2))
    OR EXISTS (SELECT FROM prepaid_account p WHERE p.tenant_id = $1)"""
QUOTAS: Final = f"""
SELECT {QUOTA_COLUMNS} FROM quota q WHERE q.tenant_id = $1 AND (q.project_id IS NULL OR q.project_id = $2)
 ORDER BY q.project_id NULLS FIRST"""
BUDGETS: Final = f"""
SELECT {BUDGET_COLUMNS} FROM budget b WHERE b.tenant_id = $1 AND (b.project_id IS NULL OR b.project_id = $2)
 ORDER BY b.project_id NULLS FIRST"""
BUDGETS_OF: Final = f"""
SELECT {BUDGET_COLUMNS} FROM budget b
 WHERE b.tenant_id = $1 AND b.id > $2 AND ($4::text IS NULL OR b.project_id = $4) ORDER BY b.id LIMIT $3"""
ACCOUNT: Final = f"SELECT {ACCOUNT_COLUMNS} FROM prepaid_account p WHERE p.tenant_id = $1"
WATCHED: Final = """
SELECT tenant_id FROM budget UNION SELECT tenant_id FROM prepaid_account ORDER BY tenant_id"""
CLOCKS: Final = """
SELECT a.project_id, a.status, a.gpu_count, a.price_minor_per_gpu_hour, a.currency,
       coalesce(p.granularity_seconds, 1), coalesce(p.minimum_seconds, 0), a.activated_at, a.releasing_at,
       coalesce(h.amount_minor, 0)
  FROM allocation a LEFT JOIN price p ON p.id = a.price_id LEFT JOIN hold h ON h.allocation_id = a.id
 WHERE a.tenant_id = $1
   AND (a.status IN ('requested', 'provisioning', 'active') OR (a.activated_at IS NOT NULL AND a.releasing_at > $2))"""
LEDGER: Final = """
SELECT e.project_id, e.currency, coalesce(sum(e.amount) FILTER (WHERE t.hour >= $2), 0), sum(e.amount)
  FROM ledger_entry e JOIN ledger_transaction t ON t.id = e.transaction_id
 WHERE e.tenant_id = $1 AND e.account = 'receivable' AND (t.hour >= $2 OR $3)
 GROUP BY e.project_id, e.currency"""
PAID: Final = """
SELECT e.currency, -sum(e.amount), max(e.transaction_id) FROM ledger_entry e
 WHERE e.tenant_id = $1 AND e.account = 'prepaid' GROUP BY e.currency"""
INSTANCES: Final = """
SELECT i.project_id, count(*)::int FROM instance i WHERE i.tenant_id = $1 AND i.status <> 'stopped'
 GROUP BY i.project_id"""
GUARD: Final = """
SELECT g.revision, (SELECT max(hour) + interval '1 hour' FROM billing_hour) AS booked_until
  FROM spending_guard g WHERE g.id = $1"""
FIRED: Final = "SELECT c.budget_id, c.percent FROM budget_crossing c WHERE c.tenant_id = $1 AND c.period = $2"
LEVELS: Final = "SELECT c.level FROM balance_crossing c WHERE c.account_id = $1 AND c.payment_id = $2"


@dataclass(frozen=True, slots=True)
class Limits:
    """What is set for a project and its tenant."""

    quotas: list[Quota]
    budgets: list[Budget]
    prepaid: PrepaidAccount | None


async def are_limited(reader: RowReader, acting: Acting, tenant_id: str, project_id: str) -> bool:
    """Whether anything limits this project: one quick statement, for everybody who has no limits."""
    row = await reader.fetchrow(acting, LIMITED, tenant_id, project_id)
    return row is not None and bool(row[0])


async def limits(reader: RowReader, acting: Acting, tenant_id: str, project_id: str | None) -> Limits:
    """The limits of a project and its tenant; without a project those of the tenant alone."""
    return Limits(
        [Quota(*row) for row in await reader.fetch(acting, QUOTAS, tenant_id, project_id)],
        [Budget(*row) for row in await reader.fetch(acting, BUDGETS, tenant_id, project_id)],
        await account(reader, acting, tenant_id),
    )


async def account(reader: RowReader, acting: Acting, tenant_id: str) -> PrepaidAccount | None:
    row = await reader.fetchrow(acting, ACCOUNT, tenant_id)
    return None if row is None else PrepaidAccount(*row)


async def budgets_of(
    reader: RowReader, acting: Acting, tenant_id: str, project_id: str | None, *, after: str, limit: int
) -> list[Budget]:
    """The budgets of a tenant and of all its projects, or of one project."""
    return [Budget(*row) for row in await reader.fetch(acting, BUDGETS_OF, tenant_id, after, limit, project_id)]


async def watched(reader: RowReader, acting: Acting) -> list[str]:
    """The tenants with budgets, and those that pay in advance."""
    return [str(row[0]) for row in await reader.fetch(acting, WATCHED)]


async def fired(reader: RowReader, acting: Acting, tenant_id: str, month: datetime) -> dict[str, set[int]]:
    """Budget → the thresholds that fired in this month."""
    found: dict[str, set[int]] = {}
    for budget_id, percent in await reader.fetch(acting, FIRED, tenant_id, month.date()):
        found.setdefault(budget_id, set()).add(percent)
    return found


async def levels(reader: RowReader, acting: Acting, account_id: str, payment_id: str) -> frozenset[str]:
    """The levels of a balance that fired since this payment."""
    return frozenset(row[0] for row in await reader.fetch(acting, LEVELS, account_id, payment_id))


async def figures(reader: RowReader, acting: Acting, tenant_id: str, now: datetime, *, ever: bool) -> Figures:
    """What the tenant has and has spent, in this month or `ever`; read it in one snapshot."""
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    guard = await reader.fetchrow(acting, GUARD, tenant_id)
    booked_until = month if guard is None or guard["booked_until"] is None else guard["booked_until"]
    paid = await reader.fetch(acting, PAID, tenant_id)
    return Figures(
        now,
        month,
        booked_until,
        0 if guard is None else guard["revision"],
        [_clock(row) for row in await reader.fetch(acting, CLOCKS, tenant_id, booked_until)],
        [
            Ledger(row[0], row[1], int(row[2]), int(row[3]))
            for row in await reader.fetch(acting, LEDGER, tenant_id, month, ever)
        ],
        {row[0]: row[1] for row in await reader.fetch(acting, INSTANCES, tenant_id)},
        {row[0]: int(row[1]) for row in paid},
        max((str(row[2]) for row in paid), default=""),
    )


def _clock(row: asyncpg.Record) -> RunningClock:
    project_id, status, gpus, minor, currency, granularity, minimum, activated_at, releasing_at, hold = tuple(row)
    terms = ClockTerms(granularity, minimum)
    return RunningClock(project_id, status, gpus, minor, currency, terms, activated_at, releasing_at, hold)
