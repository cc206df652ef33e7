"""What of a request reaches an app, and what of its answer reaches a browser: heads, as pure functions.

The platform's own session and tokens stop here; so does what belongs to one hop, what would let two parsers disagree
about where a body ends, and what an app could say about names that are not its own.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Final

import h11

from mooring.core.kernel.errors import Code, Refusal
from mooring.relay.http import Headers, words_of

COOKIE: Final = "mooring_endpoint"
SECURE_COOKIE: Final = f"__Host-{COOKIE}"
COOKIES: Final = frozenset((COOKIE, SECURE_COOKIE))
HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    )
)
OURS_TO_SAY: Final = frozenset((b"expect", b"forwarded", b"x-real-ip"))
"""What the relay answers or says itself: whether a body may come, and who asks."""
NOT_BACK: Final = frozenset((b"strict-transport-security", b"alt-svc", b"public-key-pins", b"clear-site-data"))
"""What an app would say about more than its own name: the port beside it, the domain above it."""
TOKEN: Final = re.compile(rb"mrg[a-z1]_[A-Za-z0-9_\-]{20}")


def check(request: h11.Request) -> None:
    """Refuse what two readers could read in two ways, and what asks for more than a page of this app."""
    if request.method == b"CONNECT" or not (request.target.startswith(b"/") or _asks_for_all(request)):
        raise Refusal(Code.HEADER_INVALID, "a request names a path of this endpoint, and no other address")
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise Refusal(Code.HEADER_INVALID, "a body has a length, or comes in chunks, and not both")


def inward(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The request's headers without what is the platform's, or of the hop alone."""
    listed = list(headers)
    dropped = HOP | OURS_TO_SAY | {word.encode("latin-1") for word in words_of(listed, b"connection")}
    kept: Headers = []
    for name, value in listed:
        plain = name.replace(b"_", b"-")  # many an app reads both as one
        if plain in dropped or plain.startswith(b"x-forwarded-"):
            continue
        if plain == b"authorization" and is_platforms(value):
            continue
        if name == b"cookie":
            theirs = [pair for pair in cookies([(name, value)]) if pair.partition("=")[0].strip() not in COOKIES]
            if not theirs:
                continue
            value = "; ".join(theirs).encode("latin-1")
        kept.append((name, value))
    return kept


def outward(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The answer's headers; a cookie of the app's stays on the app's own host."""
    listed = list(headers)
    dropped = HOP | NOT_BACK | {word.encode("latin-1") for word in words_of(listed, b"connection")}
    kept: Headers = []
    for name, value in listed:
        if name in dropped:
            continue
        if name == b"set-cookie":
            value = at_home(value)
            # A cookie without a name is sent back as its value alone, which may look like one of ours.
            if value.strip(b" =").partition(b"=")[0].strip().decode("latin-1") in COOKIES:
                continue
        kept.append((name, value))
    return kept


def cookies(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Every pair of every cookie header."""
    joined = "; ".join(value.decode("latin-1") for name, value in headers if name == b"cookie")
    return [pair.strip() for pair in joined.split(";") if pair.strip()]


def is_platforms(value: bytes) -> bool:
    """Whether an Authorization holds one of the platform's tokens, plainly or as the password of a name."""
    if TOKEN.search(value):
        return True
    try:
        return TOKEN.search(base64.b64decode(value.partition(b" ")[2].strip(), validate=True)) is not None
    except binascii.Error:
        return False


def at_home(value: bytes) -> bytes:
    """A cookie without its domain: it goes back to the host that set it and to no sibling."""
    first, *attributes = value.split(b";")
    kept = [each for each in attributes if each.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join((first, *kept))


def _asks_for_all(request: h11.Request) -> bool:
    return (request.method, request.target) == (b"OPTIONS", b"*")
