"""Hashing of passwords and tokens.

Passwords are hashed with argon2id in a small thread pool, so that many sign-ins at once do not block other work; when
the queue of the pool is full, sign-ins are refused for a few seconds. Tokens and one-time codes have enough random bits
for a fast hash: SHA-256.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Final

from mooring.core.fleet.enrolment import TOKEN_PREFIX as ENROLMENT_PREFIX
from mooring.core.identity.token import TOKEN_PREFIX, TokenKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.visit import TICKET_PREFIX
from mooring.gateways.lazy_import import lazy_module

if TYPE_CHECKING:
    import argon2
else:
    argon2 = lazy_module("argon2")
from mooring.gateways.password_strength import weakness_of

WAITING_MAX: Final = 32


class Passwords:
    """Hashes and verifies passwords, a bounded number at once."""

    def __init__(self, *, threads: int = 2, hasher: argon2.PasswordHasher | None = None) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="argon2")
        if hasher is not None:
            self._hasher = hasher
        self._decoy = ""
        self._waiting = 0

    @cached_property
    def _hasher(self) -> argon2.PasswordHasher:
        return argon2.PasswordHasher()

    async def hash(self, password: str) -> str:
        """The argon2id hash to store."""
        return str(await self._run(self._hasher.hash, password))

    async def verify(self, stored: str | None, password: str) -> bool:
        """Whether the password is correct. A `stored` of None (there is no such user) takes just as long."""
        # The first call makes the decoy, whether the user exists or not, so that it does not delay the start.
        self._decoy = self._decoy or str(await self._run(self._hasher.hash, secrets.token_hex(16)))
        return bool(await self._run(self._verify, stored or self._decoy, password)) and stored is not None

    async def weakness(self, password: str, known: tuple[str, ...]) -> str | None:
        """Why the password is too easy to guess for somebody who knows these words; None when it is not."""
        found = await self._run(weakness_of, password, known)
        return None if found is None else str(found)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _verify(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
            return False

    async def _run(self, function: object, *arguments: object) -> object:
        if self._waiting >= WAITING_MAX:
            raise Refusal(Code.RATE_LIMITED, "too many sign-ins at once", {"retry_after_seconds": 5})
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)  # type: ignore[arg-type]
        finally:
            self._waiting -= 1


def new_token(kind: TokenKind) -> str:
    """A new token; the caller shows it once and never stores it."""
    return TOKEN_PREFIX[kind] + secrets.token_urlsafe(32)


def new_one_time_code() -> str:
    return "mrg1_" + secrets.token_urlsafe(24)


def new_enrolment_token() -> str:
    """A new token with which one machine can enrol."""
    return ENROLMENT_PREFIX + secrets.token_urlsafe(32)


def new_visit_ticket() -> str:
    """A new ticket, link or session of a visit."""
    return TICKET_PREFIX + secrets.token_urlsafe(32)


def digest(token: str) -> bytes:
    """The hash that is stored for a token or a code."""
    return hashlib.sha256(token.encode()).digest()
