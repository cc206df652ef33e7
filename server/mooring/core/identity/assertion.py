"""Assertions (RFC 7523): a signed JWT that says "I am this account" (or node), valid once and for a few minutes.

This module parses an assertion and checks its claims. A gateway verifies the signature over the received bytes before
any claim is trusted.
"""

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mooring.core.kernel.errors import Code, Refusal

LIFETIME_MAX: Final = timedelta(minutes=5)
CLOCK_SKEW: Final = timedelta(seconds=60)
LENGTH_MAX: Final = 4_000
JTI_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class Assertion:
    """A parsed assertion whose signature is not verified yet."""

    holder_id: str
    key_id: str
    audience: tuple[str, ...]
    issued_at: datetime
    expires_at: datetime
    jti: str
    signed: bytes  # the bytes that the signature is over
    signature: bytes


def refused(detail: str) -> Refusal:
    return Refusal(Code.ASSERTION_REFUSED, detail)


def read_assertion(text: str) -> Assertion:
    """Parse a compact JWT that is signed with EdDSA; the signature is not verified here."""
    if len(text) > LENGTH_MAX or text.count(".") != 2:
        raise refused("the assertion is not a compact JWT")
    head, claims, signature = text.split(".")
    header, payload = _object(head), _object(claims)
    if header.get("alg") != "EdDSA":
        raise refused("the assertion must be signed with EdDSA (Ed25519)")
    if payload.get("iss") != payload.get("sub"):
        raise refused("iss and sub must both be the id of the service account or the node")
    audience = payload.get("aud")
    return Assertion(
        holder_id=_text(payload, "sub"),
        key_id=_text(header, "kid"),
        audience=(audience,) if isinstance(audience, str) else _texts(audience),
        issued_at=_time(payload, "iat"),
        expires_at=_time(payload, "exp"),
        jti=_text(payload, "jti"),
        signed=f"{head}.{claims}".encode(),
        signature=_decoded(signature),
    )


def check_assertion(assertion: Assertion, audiences: Iterable[str], now: datetime) -> None:
    """Check that the assertion is addressed to this platform, is valid now, and has a short lifetime."""
    wanted = tuple(audiences)
    if not set(wanted) & set(assertion.audience):
        raise refused(f"aud must be {wanted[0]}" if wanted else "this platform does not know its own address")
    if assertion.expires_at <= now - CLOCK_SKEW:
        raise refused("the assertion has expired")
    if assertion.issued_at > now + CLOCK_SKEW:
        raise refused("the assertion was issued in the future: check the clock")
    if assertion.expires_at - assertion.issued_at > LIFETIME_MAX:
        raise refused(f"an assertion may be valid for at most {int(LIFETIME_MAX.total_seconds())} s")
    if assertion.expires_at - now > LIFETIME_MAX + CLOCK_SKEW:
        raise refused("exp is too far in the future")


def _object(part: str) -> dict[str, Any]:
    try:
        value = json.loads(_decoded(part))
    except (ValueError, RecursionError) as error:
        raise refused("the assertion is not a compact JWT") from error
    if not isinstance(value, dict):
        raise refused("the assertion is not a compact JWT")
    return value


def _decoded(part: str) -> bytes:
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise refused("the assertion is not a compact JWT") from error


def _text(value: dict[str, Any], name: str) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not 1 <= len(text) <= JTI_MAX or not text.isascii() or not text.isprintable():
        raise refused(f"{name} must be text of 1 to {JTI_MAX} printable ASCII characters")
    return text


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise refused("aud must be text, or a list of texts")
    return tuple(value)


def _time(value: dict[str, Any], name: str) -> datetime:
    seconds = value.get(name)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e11:
        raise refused(f"{name} must be a time in seconds since 1970")
    return datetime.fromtimestamp(seconds, UTC)
