"""Reading visits and the endpoints that they lead to."""

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Final

from mooring.core.identity.caller import Caller, caller_of
from mooring.core.runtime.visit import OpenCommands, Visit, VisitEndpoint, endpoint_of
from mooring.storage.fleet.task import COLUMNS, task_of
from mooring.storage.identity import token as tokens
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_VISIT: Final = ", ".join(each.name for each in fields(Visit))
_OPEN: Final = f"""
SELECT {COLUMNS} FROM task t JOIN allocation a ON a.id = t.allocation_id
 WHERE t.project_id = $1 AND t.arguments ? 'endpoint' AND t.status = 'succeeded' AND a.status = 'active'
   AND NOT EXISTS (SELECT FROM closed_owner c WHERE c.owner IN (t.owner, t.allocation_id))
   AND NOT EXISTS (
     SELECT FROM task later
      WHERE later.allocation_id = t.allocation_id AND later.owner = t.owner AND later.id > t.id
        AND later.type IN ('service.stop', 'container.remove') AND later.status = 'succeeded'
        AND later.arguments ->> 'name' = t.arguments ->> 'name')"""
ENDPOINTS: Final = f"{_OPEN} AND t.id > $2 ORDER BY t.id LIMIT $3"
ENDPOINT: Final = f"{_OPEN} AND t.id = $2"
BY_TICKET: Final = f"SELECT {_VISIT} FROM visit WHERE ticket_hash = $1 AND expires_at > now()"
_HELD: Final = "kind = 'exec' AND held_until IS NOT NULL AND ended_at IS NULL"
TERMINALS: Final = f"""
SELECT {_VISIT} FROM visit
 WHERE project_id = $1 AND principal_id = $2 AND {_HELD} AND held_until > now() AND id > $3 ORDER BY id LIMIT $4"""
TERMINAL: Final = f"SELECT {_VISIT} FROM visit WHERE project_id = $1 AND principal_id = $2 AND {_HELD} AND id = $3"
COMMAND: Final = "SELECT 1 FROM visit WHERE project_id = $1 AND id = $2 AND kind = 'exec'"
HOLD: Final = f"UPDATE visit SET held_until = $2 WHERE id = ANY($1) AND {_HELD} RETURNING id"
OPEN_COMMANDS: Final = """
SELECT count(*), count(*) FILTER (WHERE t.allocation_id = $2) FROM task t
 WHERE t.project_id = $1 AND t.type = 'tunnel.open' AND t.status IN ('queued', 'claimed', 'cancelling')
   AND NOT t.arguments ? 'ports'"""
STANDS: Final = """
SELECT 1 FROM allocation a
 WHERE a.id = $1 AND a.status = 'active'
   AND NOT EXISTS (SELECT FROM closed_owner c WHERE c.owner IN ($2, $1))"""
_COUNTS: Final = "t.hash = $1 AND t.revoked_at IS NULL AND t.expires_at > now()"
FACTS_BY_ID: Final = tokens.FACTS.replace(_COUNTS, "t.id = $1 AND t.revoked_at IS NULL")
"""What a visit's token gives now; the token may have expired, since the visit has its own expiry."""


async def endpoints(database: Database, acting: Acting, project_id: str, window: PageWindow) -> list[VisitEndpoint]:
    """The next endpoints of a project that can be reached."""
    rows = await database.fetch(acting, ENDPOINTS, project_id, window.after, window.limit)
    return [endpoint_of(task_of(row)) for row in rows]


async def endpoint(database: Database, acting: Acting, project_id: str, endpoint_id: str) -> VisitEndpoint | None:
    """One endpoint, if it can still be reached."""
    row = await database.fetchrow(acting, ENDPOINT, project_id, endpoint_id)
    return None if row is None else endpoint_of(task_of(row))


async def by_ticket(database: Database, ticket_hash: bytes) -> Visit | None:
    """The visit of a ticket, link or session that has not expired."""
    row = await database.fetchrow(PLATFORM, BY_TICKET, ticket_hash)
    return None if row is None else Visit(*row)


async def terminals(
    database: Database, acting: Acting, project_id: str, principal_id: str, window: PageWindow
) -> list[Visit]:
    """The next terminals of a principal in a project that some process of the platform holds."""
    rows = await database.fetch(acting, TERMINALS, project_id, principal_id, window.after, window.limit)
    return [Visit(*row) for row in rows]


async def terminal(
    database: Database, acting: Acting, project_id: str, principal_id: str, terminal_id: str
) -> Visit | None:
    """One terminal of a principal that has not ended; the process that held it may be gone."""
    row = await database.fetchrow(acting, TERMINAL, project_id, principal_id, terminal_id)
    return None if row is None else Visit(*row)


async def has_command(database: Database, acting: Acting, project_id: str, visit_id: str) -> bool:
    """Whether this is a command of the project, started or not."""
    return await database.fetchval(acting, COMMAND, project_id, visit_id) is not None


async def hold(database: Database, terminal_ids: Sequence[str], until: datetime) -> None:
    """Say that this process holds these terminals, at least until then."""
    await database.fetch(PLATFORM, HOLD, list(terminal_ids), until)


async def stands(database: Database, visit: Visit) -> bool:
    """Whether the visited endpoint or allocation still exists."""
    return await database.fetchval(PLATFORM, STANDS, visit.allocation_id, visit.owner) is not None


async def open_commands(database: Database, project_id: str, allocation_id: str) -> OpenCommands:
    """The interactive commands of a project, and of one of its allocations, that are open or about to be."""
    row = await database.fetchrow(PLATFORM, OPEN_COMMANDS, project_id, allocation_id)
    return OpenCommands(0, 0) if row is None else OpenCommands(*row)


async def holder(database: Database, visit: Visit) -> Caller | None:
    """The visitor with their current authority; None if their account or token is no longer valid."""
    row = await database.fetchrow(PLATFORM, FACTS_BY_ID, visit.token_id)
    if row is None:
        return None
    return caller_of(replace(tokens.facts_of(row), expires_at=visit.expires_at), visit.created_at)
