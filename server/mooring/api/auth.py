"""From a bearer token to a caller, with a cache of a few seconds.

A token that was revoked on another replica may stay valid for the cache's lifetime at most; in this process, and as
soon as the event arrives from another one, it is dropped at once. Unknown tokens are not cached: the limits on
guesses (`api/guess_limits.py`) count them instead.
"""

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Final

from mooring.core.identity.caller import Caller, caller_of
from mooring.core.kernel.decision import PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event import Event
from mooring.core.kernel.event_types import EventType
from mooring.gateways.clock import Clock
from mooring.gateways.passwords import digest
from mooring.storage.identity import token as tokens
from mooring.storage.kernel.database import Database

CACHE_MAX: Final = 20_000
TOKEN_LENGTH_MAX: Final = 200
NODE_CACHE_TIME: Final = timedelta(minutes=5)
"""Thousands of agents poll every half minute: a look-up for each poll would cost more than everything else it does.

A node's token is never revoked on its own; the node's retirement is an event, which drops the cache.
"""
CHANGES_AUTHORITY: Final = frozenset(
    {
        EventType.TENANT_UPDATED,
        EventType.TOKEN_REVOKED,
        EventType.MEMBERSHIP_CREATED,
        EventType.MEMBERSHIP_DELETED,
        EventType.PROJECT_DELETED,
        EventType.USER_UPDATED,
        EventType.SERVICE_ACCOUNT_UPDATED,
        EventType.SERVICE_ACCOUNT_DISABLED,
        EventType.SERVICE_ACCOUNT_ENABLED,
        EventType.SERVICE_ACCOUNT_DELETED,
        EventType.SERVICE_ACCOUNT_KEY_REVOKED,
        EventType.NODE_RETIRED,
    }
)


class Authenticator:
    """Finds the caller of a token."""

    def __init__(self, database: Database, clock: Clock, cache_seconds: float) -> None:
        self._database = database
        self._clock = clock
        self._cache_time = timedelta(seconds=cache_seconds)
        self._cache: OrderedDict[bytes, tuple[datetime, Caller]] = OrderedDict()
        self._cleared = 0
        self._used: set[str] = set()

    def forget(self, event: Event) -> None:
        """Drop the cache if the event changes anybody's authority."""
        self.forget_after(event.type)

    def forget_after(self, event_type: str) -> None:
        """Drop the cache if events of this type change anybody's authority."""
        if event_type in CHANGES_AUTHORITY:
            self.clear()

    def clear(self) -> None:
        """Drop the cache."""
        self._cache.clear()
        self._cleared += 1

    def remembered(self, hashed: bytes, *, share: float = 1.0) -> Caller | None:
        """The cached caller of the token with this digest, if the entry is younger than that share of its lifetime."""
        cached = self._cache.get(hashed)
        if cached is None:
            return None
        now = self._clock.now()
        looked_up, caller = cached
        lifetime = NODE_CACHE_TIME if caller.actor.kind is PrincipalKind.NODE else self._cache_time * share
        fresh = looked_up + lifetime > now
        return caller if fresh and (caller.expires_at is None or caller.expires_at > now) else None

    async def caller(self, token: str, *, share: float = 1.0) -> Caller:
        """The caller with this token, or a refusal; `share` is the part of the cache's lifetime that is accepted."""
        if len(token) > TOKEN_LENGTH_MAX:
            raise _unknown()
        hashed = digest(token)
        remembered = self.remembered(hashed, share=share)
        if remembered is not None:
            return remembered
        now, cleared = self._clock.now(), self._cleared
        found = await tokens.facts(self._database, hashed)
        known = None if found is None else caller_of(found, now)
        if known is None:
            self._cache.pop(hashed, None)
            raise _unknown()
        if cleared == self._cleared:  # otherwise this was read before the change that cleared the cache
            self._cache[hashed] = (now, known)
            self._cache.move_to_end(hashed)
            if len(self._cache) > CACHE_MAX:
                self._cache.popitem(last=False)
        self._used.add(str(known.actor.token_id))
        return known

    async def flush_last_used(self) -> None:
        """Persist which tokens were used since the last flush."""
        if self._used:
            used, self._used = self._used, set()
            await tokens.touch(self._database, sorted(used), self._clock.now())


def bearer(authorization: str | None) -> str | None:
    if authorization is None:
        return None
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Refusal(
            Code.UNAUTHENTICATED,
            "the Authorization header must be `Bearer <token>`",
            {"header": "Authorization"},
        )
    return token.strip()


def _unknown() -> Refusal:
    return Refusal(Code.UNAUTHENTICATED, "the token is unknown, expired or revoked")
