"""The challenges of sign-ins that are under way: each is taken once, by its hash, before it expires."""

import hashlib
from datetime import datetime
from typing import Final

from mooring.storage.kernel.database import PLATFORM, Acting, Database

STORE: Final = """
INSERT INTO sign_in_challenge (id, purpose, expires_at, tenant_id, user_id) VALUES ($1, $2, $3, $4, $5)"""
TAKE: Final = """
DELETE FROM sign_in_challenge
 WHERE id = $1 AND purpose = $2 AND expires_at > $3 AND user_id IS NULL RETURNING true"""
OF_USER: Final = """
SELECT EXISTS (SELECT FROM sign_in_challenge WHERE id = $1 AND purpose = $2 AND expires_at > $3 AND user_id = $4)"""


def challenge_id(challenge: str) -> str:
    """How a challenge is stored: what is in the table answers none."""
    return hashlib.sha256(challenge.encode()).hexdigest()


async def store(
    database: Database,
    acting: Acting,
    challenge: str,
    purpose: str,
    expires_at: datetime,
    *,
    user_id: str | None = None,
) -> None:
    await database.fetchval(acting, STORE, challenge_id(challenge), purpose, expires_at, acting.tenant_id, user_id)


async def take(database: Database, challenge: str, purpose: str, now: datetime) -> bool:
    """Take a challenge that nobody in particular has, so that it cannot be taken again; whether there was one."""
    return bool(await database.fetchval(PLATFORM, TAKE, challenge_id(challenge), purpose, now))


async def is_of_user(
    database: Database, acting: Acting, challenge: str, purpose: str, now: datetime, *, user_id: str
) -> bool:
    """Whether the user has this challenge and may still answer it; the decision then removes it."""
    return bool(await database.fetchval(acting, OF_USER, challenge_id(challenge), purpose, now, user_id))
