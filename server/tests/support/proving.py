"""Proofs for tests: all steps of one, added up by law, on the database or inside of a transaction."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from mooring.commands.money.proof import Period, prove
from mooring.core.money.proof import Proven
from mooring.storage.kernel.database import PLATFORM, Acting, Database, ReadSnapshot, RowReader
from mooring.storage.kernel.pool import PooledConnection


@dataclass(frozen=True)
class InTransaction:
    """A database whose snapshots are what an open transaction sees, with what it changed itself."""

    connection: PooledConnection

    async def in_snapshot(self, acting: Acting, read: Callable[[RowReader], Awaitable[Any]]) -> Any:
        return await read(ReadSnapshot(self.connection, acting))


async def proof(
    database: Database | InTransaction, since: datetime | None = None, acting: Acting = PLATFORM
) -> dict[str, Proven]:
    """What a whole proof says about each law."""
    found: dict[str, Proven] = {}
    cursor: str | None = ""
    while cursor is not None:
        step = await prove(cast(Database, database), acting, Period(since, None), cursor)
        for law in step.laws:
            before = found.get(law.key, Proven(0))
            counts = {
                name: before.counts.get(name, 0) + law.proven.counts.get(name, 0)
                for name in (*before.counts, *law.proven.counts)
            }
            found[law.key] = Proven(
                before.checked + law.proven.checked,
                before.broken + law.proven.broken,
                before.counterexample or law.proven.counterexample,
                counts,
            )
        cursor = step.following
    return found


def broken(found: dict[str, Proven]) -> dict[str, str]:
    """The broken laws with their counterexamples."""
    return {key: each.counterexample or "" for key, each in found.items() if each.broken}
