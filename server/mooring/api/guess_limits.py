"""Limits on guessing credentials, which never lock out the person whose credential is guessed.

Unknown tokens, sign-ins, assertions, enrolments and changes of a password each have buckets of their own, so that a
flood of one kind leaves the others alone. Inside a kind a guess counts for its address and for the subject that it
names, so that a neighbour behind the same address is not slowed down by somebody who guesses at another account.

Tokens, one-time codes, assertions and enrolment tokens cannot be guessed within the age of the universe, and checking
one is cheap. They are checked first and counted only if they are wrong: the right one is never refused. The limit then
bounds the audit rows and turns 401 into 429.

A password can be guessed, and checking it is expensive. So it is counted before it is checked, for the address with the
account, for the address alone (against one password tried at many accounts) and for the account alone (against one
account tried from many addresses). Decision 30 says who passes nevertheless.

Buckets are per process, and the least recently used one is dropped first.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from mooring.api.limits import RateLimit
from mooring.core.kernel.errors import Refusal

BURST_MIN: Final = 5.0
ADDRESS_FACTOR: Final = 10
"""How many times more wrong guesses one address may make at all subjects together than at one."""
ACCOUNT_BURST_FACTOR: Final = 2
ACCOUNT_RATE_FACTOR: Final = 0.1
"""An account gets slow after twice as many wrong passwords from all addresses, and then takes a tenth as many."""
IPV6_SITE_BITS: Final = 64
"""One caller usually has a whole /64 of IPv6, so that is one address here."""


class GuessKind(StrEnum):
    """What is guessed at."""

    TOKEN = "token"
    SIGN_IN = "sign_in"
    ASSERTION = "assertion"
    ENROLMENT = "enrolment"
    PASSWORD_CHANGE = "password_change"
    SOURCE = "source"  # a right credential from an address that the tenant does not allow


class GuessLimits:
    """Counts wrong credentials. One per process."""

    def __init__(self, per_minute: float) -> None:
        burst = max(BURST_MIN, per_minute)
        per_second = per_minute / 60
        self._pairs = {kind: RateLimit(per_second, burst) for kind in GuessKind}
        self._addresses = {kind: RateLimit(per_second * ADDRESS_FACTOR, burst * ADDRESS_FACTOR) for kind in GuessKind}
        self._accounts = RateLimit(per_second * ACCOUNT_RATE_FACTOR, burst * ACCOUNT_BURST_FACTOR)

    def wrong(self, kind: GuessKind, address: str | None, subject: str = "") -> None:
        """Count a credential that turned out to be wrong; a refusal if there were too many."""
        site = site_of(address)
        self._addresses[kind].take(site)
        self._pairs[kind].take(f"{site} {subject}")

    def begin(self, kind: GuessKind, subject: str) -> Callable[[], None]:
        """Count an attempt of a caller who is known already, wherever it comes from; the result undoes it."""
        self._pairs[kind].take(subject)
        return lambda: self._pairs[kind].give_back(subject)

    def begin_password(self, address: str | None, account: str, *, address_known: bool) -> Callable[[], None]:
        """Count a password before it is checked; the result undoes it. The account's own limit is for strangers."""
        site = site_of(address)
        kind = GuessKind.SIGN_IN
        buckets = [(self._addresses[kind], site), (self._pairs[kind], f"{site} {account}")]
        if not address_known:
            buckets.append((self._accounts, account))
        taken: list[tuple[RateLimit, str]] = []

        def undo() -> None:
            for bucket, key in taken:
                bucket.give_back(key)

        try:
            for bucket, key in buckets:
                bucket.take(key)
                taken.append((bucket, key))
        except Refusal:
            undo()
            raise
        return undo


@lru_cache(maxsize=10_000)
def site_of(address: str | None) -> str:
    """The key under which an address is counted."""
    try:
        parsed = ip_address((address or "").partition("%")[0])
    except ValueError:
        return str(address)
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        shift = 128 - IPV6_SITE_BITS
        return f"{IPv6Address(int(parsed) >> shift << shift)}/{IPV6_SITE_BITS}"
    return str(parsed)
