"""Passwords and tokens: what is hashed how.

Passwords get argon2id in a small pool of threads of their own, so that a storm of sign-ins holds up nothing else;
when the pool's queue is full the caller is told to wait. Tokens and one-time codes are 256 random bits and need no
slow hash: SHA-256.
"""

import asyncio
import hashlib
import secrets as chance
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from mooring.core.fleet.enrolment import TOKEN_PREFIX as ENROLMENT_PREFIX
from mooring.core.identity.token import TOKEN_PREFIX, TokenKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.visit import TICKET_PREFIX

WAITING_MAX: Final = 32


class Passwords:
    """Hashes and checks passwords, a bounded number at once."""

    def __init__(self, *, threads: int = 2, hasher: PasswordHasher | None = None) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="argon2")
        self._hasher = hasher or PasswordHasher()
        self._decoy = ""
        self._waiting = 0

    async def hash(self, password: str) -> str:
        """The argon2id hash to be stored."""
        return str(await self._run(self._hasher.hash, password))

    async def verify(self, stored: str | None, password: str) -> bool:
        """Whether the password fits; takes as long when there is no such user."""
        # The decoy is made by the first who asks, whether there is such a user or not, and by no start.
        self._decoy = self._decoy or str(await self._run(self._hasher.hash, chance.token_hex(16)))
        return bool(await self._run(self._verify, stored or self._decoy, password)) and stored is not None

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _verify(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
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
    """A new token: told once, kept nowhere."""
    return TOKEN_PREFIX[kind] + chance.token_urlsafe(32)


def new_one_time_code() -> str:
    """A new one-time sign-in code."""
    return "mrg1_" + chance.token_urlsafe(24)


def new_enrolment_token() -> str:
    """A new token by which one machine joins."""
    return ENROLMENT_PREFIX + chance.token_urlsafe(32)


def new_visit_ticket() -> str:
    """A new ticket, link or session of a visit."""
    return TICKET_PREFIX + chance.token_urlsafe(32)


def digest(token: str) -> bytes:
    """What is kept of a token or a code."""
    return hashlib.sha256(token.encode()).digest()
