"""Opens and closes statements.

Every step is one write that is found done or not done: a worker may be killed after any of them, any number of replicas
may run, and of two that do the same one wins.
"""

import logging

from mooring.commands.kernel.apply import apply_once
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work, system_context
from mooring.commands.services import Services
from mooring.core.money.charge import HOUR
from mooring.core.money.statement import (
    Charged,
    Statement,
    StatementState,
    close,
    freeze,
    is_due,
    open_statement,
)
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.money import statement as statements

log = logging.getLogger("mooring.statements")


async def open_missing(services: Services) -> None:
    """Open a statement for each month in which the first charge was booked."""
    for key in await statements.missing(services.database):
        context = system_context(services)
        await apply_once(services, PLATFORM, context, open_statement(context, key))


async def close_due(services: Services) -> None:
    """Close the months that are over and charged, one step after the other, the oldest first."""
    charged: dict[object, Charged | None] = {}
    for statement in await statements.unclosed(services.database, services.clock.now()):
        last_hour = statement.ended_at - HOUR
        if last_hour not in charged:
            charged[last_hour] = await statements.charged(services.database, last_hour)
        due = is_due(statement, charged[last_hour], services.clock.now())
        if due or statement.status == StatementState.CLOSING:
            try:
                await _close(services, statement, charged[last_hour])
            except Exception:  # one tenant's month must not keep those of the others open
                log.exception("could not close statement %s; retrying, and going on with the others", statement.id)


async def _close(services: Services, statement: Statement, charged: Charged | None) -> None:
    if statement.status == StatementState.OPEN:
        earlier = await statements.before(services.database, statement)
        if earlier is not None and earlier.status == StatementState.OPEN:
            return  # its month comes first
        context = system_context(services)
        frozen = freeze(context, statement, charged, earlier)
        if not await apply_once(services, PLATFORM, context, frozen):
            return
        statement = frozen.result
    await _finish(services, statement)


async def _finish(services: Services, statement: Statement) -> None:
    """Close a frozen statement; does nothing while the one before it is not closed, whose digest this one contains."""
    earlier = await statements.before(services.database, statement)
    if earlier is not None and earlier.status != StatementState.CLOSED:
        return
    totals = await statements.totals(services.database, statement)
    context = system_context(services)
    await apply_once(services, PLATFORM, context, close(context, statement, totals, earlier))


async def close_statement(work: Work[Statement], tenant_id: str, statement_id: str) -> Answered:
    """Freeze a month by hand, without the wait; the worker computes the totals and closes it."""

    async def load() -> tuple[Statement, Charged | None, Statement | None]:
        found = await statements.find(work.database, work.acting, tenant_id, statement_id)
        statement = require(found, "statement")
        last_hour = statement.ended_at - HOUR
        charged = await statements.charged(work.database, last_hour)
        if charged is None:
            charged = await statements.charged(work.database)
        return statement, charged, await statements.before(work.database, statement)

    return await work.execute(load, lambda snapshot: freeze(work.context, *snapshot))
