"""The cache of authorized requests: what a request's URL and its caller decide, before its body is read.

Authorization depends only on the route table, the URL and the caller. So a repeated request is authorized from this
cache as long as the caller itself is cached: at most for the token cache's lifetime, and only until an event changes
anybody's authority. Refused requests are checked again each time.
"""

from typing import Any, Final, NamedTuple

from mooring.api.auth import Authenticator
from mooring.api.route import Route
from mooring.core.identity.caller import ANONYMOUS, Caller
from mooring.core.kernel.permissions import Place
from mooring.gateways.passwords import digest
from mooring.storage.kernel.database import Acting

ENTRIES_MAX: Final = 20_000
SCHEME: Final = "Bearer "

Key = tuple[bytes, str, str, bytes]


class AuthorizedRequest(NamedTuple):
    """A request that its caller may make."""

    route: Route
    caller: Caller
    place: Place
    acting: Acting
    arguments: dict[str, Any]  # of the handler, without the body


class AuthCache:
    """Requests that were authorized a moment ago."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._entries: dict[Key, AuthorizedRequest] = {}

    def get(self, scope: dict[str, Any], authorization: str | None) -> AuthorizedRequest | None:
        """The authorized request of this URL and token, if the cached caller is still the same."""
        key = _key(scope, authorization)
        authorized = None if key is None else self._entries.get(key)
        if key is None or authorized is None or self._authenticator.remembered(key[0]) is not authorized.caller:
            return None
        return authorized

    def store(self, scope: dict[str, Any], authorization: str | None, authorized: AuthorizedRequest) -> None:
        """Remember an authorized request; anonymous ones are not stored."""
        key = _key(scope, authorization)
        if key is not None and authorized.caller is not ANONYMOUS:
            if len(self._entries) >= ENTRIES_MAX:
                self._entries.clear()
            self._entries[key] = authorized


def _key(scope: dict[str, Any], authorization: str | None) -> Key | None:
    """The token's digest and the URL; None if the request has no token."""
    if authorization is None or not authorization.startswith(SCHEME):
        return None
    return digest(authorization[len(SCHEME) :]), scope["method"], scope["path"], scope["query_string"]
