"""Which headers of a request reach an app, and which headers of its answer reach a browser, as pure functions.

The platform's own session and tokens stop here. So do hop-by-hop headers, headers that could make two parsers disagree
about the end of a body, and headers by which an app could affect other hosts.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Final

import h11

from mooring.core.kernel.errors import Code, Refusal
from mooring.relay.http import Headers, list_items

COOKIE: Final = "mooring_endpoint"
SECURE_COOKIE: Final = f"__Host-{COOKIE}"
SESSION_COOKIE: Final = "__Host-mooring-session"
"""The console's; `api/browser_session.py` sets it, and a test compares the two."""
COOKIES: Final = frozenset((COOKIE, SECURE_COOKIE, SESSION_COOKIE))
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
ESSENTIAL: Final = frozenset((b"host", b"content-length", b"transfer-encoding"))
"""Headers that say who is asked and where the body ends: left out, the app would read another request."""
RELAY_ONLY: Final = frozenset((b"expect", b"forwarded", b"x-real-ip"))
"""Headers that the relay itself answers or sets: whether the body may be sent, and who the client is."""
NOT_FORWARDED: Final = frozenset((b"strict-transport-security", b"alt-svc", b"public-key-pins", b"clear-site-data"))
"""Answer headers that would affect more than the app's own host, such as another port or the parent domain."""
TOKEN: Final = re.compile(rb"mrg[a-z1]_[A-Za-z0-9_\-]{20}")


def check(request: h11.Request) -> None:
    """Refuse ambiguous requests, and those for anything but a path of this endpoint."""
    if request.method == b"CONNECT" or not (request.target.startswith(b"/") or _asks_for_all(request)):
        raise Refusal(Code.HEADER_INVALID, "the request target must be a path of this endpoint")
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise Refusal(Code.HEADER_INVALID, "a body has a length or is chunked, not both")
    if ESSENTIAL & {word.encode("latin-1") for word in list_items(request.headers, b"connection")}:
        raise Refusal(Code.HEADER_INVALID, "Connection must not name the host or the length of the body")


def request_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The request's headers without hop-by-hop headers and without the platform's credentials."""
    listed = list(headers)
    dropped = HOP | RELAY_ONLY | {word.encode("latin-1") for word in list_items(listed, b"connection")}
    kept: Headers = []
    for name, value in listed:
        plain = name.replace(b"_", b"-")  # many apps treat the two as one
        if plain in dropped or plain.startswith(b"x-forwarded-"):
            continue
        if plain == b"authorization" and has_platform_token(value):
            continue
        if name == b"cookie":
            own = [pair for pair in cookies([(name, value)]) if pair.partition("=")[0].strip() not in COOKIES]
            if not own:
                continue
            value = "; ".join(own).encode("latin-1")
        kept.append((name, value))
    return kept


def response_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The answer's headers; a cookie of the app is limited to the app's own host."""
    listed = list(headers)
    dropped = HOP | NOT_FORWARDED | {word.encode("latin-1") for word in list_items(listed, b"connection")}
    kept: Headers = []
    for name, value in listed:
        if name in dropped:
            continue
        if name == b"set-cookie":
            value = without_domain(value)
            # Browsers send a cookie without a name as its value alone, which may look like one of ours.
            if value.strip(b" =").partition(b"=")[0].strip().decode("latin-1") in COOKIES:
                continue
        kept.append((name, value))
    return kept


def cookies(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """The name=value pairs of all cookie headers."""
    joined = "; ".join(value.decode("latin-1") for name, value in headers if name == b"cookie")
    return [pair.strip() for pair in joined.split(";") if pair.strip()]


def has_platform_token(value: bytes) -> bool:
    """Whether an Authorization header has a token of the platform, as a bearer token or in basic credentials."""
    if TOKEN.search(value):
        return True
    try:
        return TOKEN.search(base64.b64decode(value.partition(b" ")[2].strip(), validate=True)) is not None
    except binascii.Error:
        return False


def without_domain(value: bytes) -> bytes:
    """The cookie without its domain, so that the browser sends it only to the host that set it."""
    first, *attributes = value.split(b";")
    kept = [each for each in attributes if each.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join((first, *kept))


def _asks_for_all(request: h11.Request) -> bool:
    return (request.method, request.target) == (b"OPTIONS", b"*")
