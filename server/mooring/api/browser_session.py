"""The session of a browser: a token in a cookie that no script can read.

A browser sends the cookie with every request to the platform, also with one that a page of somebody else makes it send.
So the cookie counts only for requests that a page of the platform itself made. The browser says so in headers that
no script can set: `Origin` where the request has one, `Sec-Fetch-Site` otherwise. A request that changes something also
needs a header of our own, which a page of another origin cannot add without asking first, and nobody there says yes.

A request with an `Authorization` header never looks at the cookie.
"""

import base64
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from mooring.api.request_cycle import wants_websocket
from mooring.core.kernel.errors import Code, Refusal

COOKIE: Final = "__Host-mooring-session"
"""The prefix makes browsers accept it only from this very host, over TLS or loopback, for all of its paths."""
FLOW_COOKIE: Final = "__Host-mooring-sign-in"
"""Binds a sign-in at an identity provider to the browser that began it."""
FLOW_ATTRIBUTES: Final = "Path=/; Secure; HttpOnly; SameSite=Lax"
"""The browser comes back from another site, and has to bring this cookie, but only in a navigation."""
FLOW_SECONDS: Final = 600
COOKIE_HEADER_MAX: Final = 16_384
CONSOLE_HEADER: Final = "X-Mooring-Console"
ATTRIBUTES: Final = "Path=/; Secure; HttpOnly; SameSite=Strict"
SAFE_METHODS: Final = ("GET", "HEAD")
_RETURN: Final = re.compile(r"/([A-Za-z0-9_.~!$&'()*+,;=:@?%-][A-Za-z0-9_.~!$&'()*+,;=:@?%/-]*)?")
OWN_SITE: Final = ("same-origin", "none")
"""What `Sec-Fetch-Site` says of a page of the same origin, and of what a person typed or opened by themselves."""


def set_cookie(token: str, seconds: int) -> dict[str, str]:
    """The header that stores the session in the browser."""
    return {"set-cookie": f"{COOKIE}={token}; Max-Age={seconds}; {ATTRIBUTES}"}


def clear_cookie() -> dict[str, str]:
    """The header that removes the session from the browser."""
    return {"set-cookie": f"{COOKIE}=; Max-Age=0; {ATTRIBUTES}"}


class SignInFlow(NamedTuple):
    """A sign-in that this browser began: its secret, the platform's address then, and the page to come back to."""

    secret: str = ""
    address: str = ""
    to: str = "/"


def flow_cookie(secret: str, address: str, to: str) -> dict[str, str]:
    """The header that stores a sign-in that begins in the browser."""
    parts = (base64.urlsafe_b64encode(each.encode()).decode().rstrip("=") for each in (address, to))
    return {"set-cookie": f"{FLOW_COOKIE}={'.'.join((secret, *parts))}; Max-Age={FLOW_SECONDS}; {FLOW_ATTRIBUTES}"}


def clear_flow_cookie() -> dict[str, str]:
    return {"set-cookie": f"{FLOW_COOKIE}=; Max-Age=0; {FLOW_ATTRIBUTES}"}


def read_flow(headers: Mapping[str, str]) -> SignInFlow:
    """The sign-in that this browser began; an empty one if there is none. Its page is one of the console's."""
    secret, _, rest = (_cookie(headers.get("cookie", ""), FLOW_COOKIE) or "").partition(".")
    address, _, to = rest.partition(".")
    try:
        decoded = [base64.urlsafe_b64decode(each + "=" * (-len(each) % 4)).decode("ascii") for each in (address, to)]
    except ValueError:
        return SignInFlow()
    return SignInFlow(secret, decoded[0], decoded[1] if _RETURN.fullmatch(decoded[1]) else "/")


def session_authorization(
    scope: Mapping[str, Any], headers: Mapping[str, str], addresses: Collection[str]
) -> str | None:
    """What the `Authorization` header would say if the browser could set it; None if there is no session."""
    token = _cookie(headers.get("cookie", ""), COOKIE)
    if token is None:
        return None
    _require_own_page(scope, headers, addresses)
    if scope["method"] not in SAFE_METHODS:
        require_console_header(headers)
    return f"Bearer {token}"


def require_console_header(headers: Mapping[str, str]) -> None:
    """Refuse a change without the header that a page of another origin cannot add."""
    if CONSOLE_HEADER.lower() not in headers:
        raise _cross_site(f"a browser's session needs the header {CONSOLE_HEADER} for this; its value does not matter")


def _require_own_page(scope: Mapping[str, Any], headers: Mapping[str, str], addresses: Collection[str]) -> None:
    """Refuse a request that a page of another origin made."""
    origin = headers.get("origin")
    if origin is not None:
        if origin not in addresses and origin != f"{scope.get('scheme', 'http')}://{headers.get('host', '')}":
            raise _cross_site(f"the request comes from a page of {origin[:200]!r}, not of this platform")
        return
    site = headers.get("sec-fetch-site")
    needs_proof = scope["method"] not in SAFE_METHODS or wants_websocket(dict(scope))
    if site not in OWN_SITE and (needs_proof or site is not None):
        raise _cross_site("the request does not say that it comes from a page of this platform")


def _cookie(header: str, cookie: str) -> str | None:
    """The value of a cookie; one that occurs twice is ignored, because somebody else may have set it."""
    if cookie not in header or len(header) > COOKIE_HEADER_MAX:
        return None
    pairs = (part.strip().partition("=") for part in header.split(";"))
    found = [value for name, _, value in pairs if name == cookie]
    return found[0] if len(found) == 1 and found[0] else None


def _cross_site(detail: str) -> Refusal:
    return Refusal(Code.CROSS_SITE_REQUEST, detail)
