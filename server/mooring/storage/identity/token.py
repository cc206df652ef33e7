"""Reads tokens: by hash, for every request that the cache cannot answer, and lists for their holders."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.identity.caller import GrantedRole, TokenFacts
from mooring.core.identity.token import Token
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = """id, kind, name, tenant_id, user_id, service_account_id, key_id, break_glass_id, actions, revision,
       created_at, expires_at, revoked_at, last_used_at, node_id, remote_address, user_agent"""
_PREFIXED: Final = ", ".join(f"t.{column.strip()}" for column in _COLUMNS.split(","))

_IS_VALID: Final = """(u.tokens_from IS NULL OR t.created_at >= u.tokens_from
        OR (t.id = u.tokens_except AND t.kind = 'session'))
   AND (t.kind <> 'session' OR u.sessions_from IS NULL OR t.created_at >= u.sessions_from
        OR t.id = u.sessions_except)"""
"""Whether the user's token is not one of those that a new password, a reset or the end of other sessions ended."""

FACTS: Final = f"""
SELECT t.id AS token_id, t.kind, t.tenant_id, t.user_id, t.service_account_id, t.break_glass_id,
       b.role AS break_glass_role, t.actions AS token_actions, t.expires_at,
       u.disabled_at IS NOT NULL AS user_disabled,
       a.status AS account_status, a.project_id AS account_project_id, a.actions AS account_actions,
       (k.id IS NOT NULL AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())) AS key_counts,
       held.roles, held.role_projects, home.source_networks, t.node_id,
       coalesce(n.status = 'retired', true) AS node_retired
  FROM token t
  LEFT JOIN "user" u ON u.id = t.user_id
  LEFT JOIN service_account a ON a.id = t.service_account_id
  LEFT JOIN service_account_key k ON k.id = t.key_id
  LEFT JOIN break_glass b ON b.id = t.break_glass_id
  LEFT JOIN tenant home ON home.id = t.tenant_id AND t.kind <> 'break_glass'
  LEFT JOIN node n ON n.id = t.node_id
 CROSS JOIN LATERAL (
   SELECT coalesce(array_agg(m.role ORDER BY m.id), '{{}}') AS roles,
          coalesce(array_agg(m.project_id ORDER BY m.id), '{{}}') AS role_projects
     FROM membership m LEFT JOIN project p ON p.id = m.project_id
    WHERE m.user_id = t.user_id AND p.deleted_at IS NULL) held
 WHERE t.hash = $1 AND t.revoked_at IS NULL AND t.expires_at > now() AND {_IS_VALID}"""
FIND_OWN: Final = f"SELECT {_COLUMNS} FROM token WHERE id = $1 AND (user_id = $2 OR service_account_id = $2)"
LIST_OWN: Final = f"""
SELECT {_PREFIXED} FROM token t LEFT JOIN "user" u ON u.id = t.user_id
 WHERE (t.user_id = $1 OR t.service_account_id = $1) AND t.revoked_at IS NULL AND t.expires_at > $2 AND {_IS_VALID}
   AND t.id > $3
 ORDER BY t.id LIMIT $4"""
_OF_USERS: Final = """
  FROM token t JOIN "user" u ON u.id = t.user_id
 WHERE coalesce(t.tenant_id, '') = coalesce($1, '') AND u.tenant_id IS NOT DISTINCT FROM $1
   AND t.kind IN ('session', 'personal')"""
FIND_OF_USERS: Final = f"SELECT {_PREFIXED}{_OF_USERS} AND t.id = $2"
LIST_OF_USERS: Final = f"""
SELECT {_PREFIXED}{_OF_USERS} AND t.revoked_at IS NULL AND t.expires_at > $2 AND u.disabled_at IS NULL AND {_IS_VALID}
   AND t.user_id = coalesce($3, t.user_id) AND t.id > $4
 ORDER BY t.id LIMIT $5"""
COUNT_PERSONAL: Final = """
SELECT count(*) FROM token WHERE user_id = $1 AND kind = 'personal' AND revoked_at IS NULL AND expires_at > $2"""
TOUCH: Final = "UPDATE token SET last_used_at = $2 WHERE id = ANY ($1::text[])"


async def facts(database: Database, token_hash: bytes) -> TokenFacts | None:
    """The facts about a token and its holder; None when the token is unknown, expired or revoked."""
    row = await database.fetchrow(PLATFORM, FACTS, token_hash)
    return None if row is None else facts_of(row)


def facts_of(row: asyncpg.Record) -> TokenFacts:
    fields = dict(row)
    projects = fields.pop("role_projects")
    fields["roles"] = tuple(GrantedRole(*each) for each in zip(fields["roles"], projects, strict=True))
    fields["source_networks"] = tuple(fields["source_networks"] or ())
    return TokenFacts(**fields)


async def find_own(database: Database, acting: Acting, token_id: str, holder_id: str) -> Token | None:
    row = await database.fetchrow(acting, FIND_OWN, token_id, holder_id)
    return None if row is None else token_of(row)


async def list_own(
    database: Database, acting: Acting, holder_id: str, now: datetime, window: PageWindow
) -> list[Token]:
    """The holder's tokens that are neither revoked nor expired."""
    return [token_of(row) for row in await database.fetch(acting, LIST_OWN, holder_id, now, window.after, window.limit)]


async def find_of_users(database: Database, acting: Acting, token_id: str) -> Token | None:
    """A session or personal token of a user of the tenant, or of the platform."""
    row = await database.fetchrow(acting, FIND_OF_USERS, acting.tenant_id, token_id)
    return None if row is None else token_of(row)


async def list_of_users(
    database: Database, acting: Acting, now: datetime, window: PageWindow, *, user_id: str | None
) -> list[Token]:
    """The valid sessions and personal tokens of the users of the tenant, or of the platform; or of one of them."""
    listed = await database.fetch(acting, LIST_OF_USERS, acting.tenant_id, now, user_id, window.after, window.limit)
    return [token_of(row) for row in listed]


async def count_personal(database: Database, acting: Acting, user_id: str, now: datetime) -> int:
    return int(await database.fetchval(acting, COUNT_PERSONAL, user_id, now))


async def touch(database: Database, token_ids: Sequence[str], now: datetime) -> None:
    """Store when these tokens were last used. Callers batch many tokens and do not call it for each request."""
    await database.fetchval(PLATFORM, TOUCH, list(token_ids), now)


def token_of(row: asyncpg.Record) -> Token:
    return Token(**dict(row))
