"""Admission: what a request's address and its caller decide, before anything of its body is read.

Admission is a pure consequence of the route table, the address and the caller. So whoever asks for the same thing
again is admitted again without working it out anew, for as long as the caller itself is remembered: the token cache's
time at the most, and no longer than until an event changes what somebody holds. Who was not admitted is looked at anew
each time.
"""

from typing import Any, Final, NamedTuple

from mooring.api.auth import Authenticator
from mooring.api.route import Route
from mooring.core.identity.caller import ANONYMOUS, Caller
from mooring.core.kernel.permissions import Place
from mooring.gateways.passwords import digest
from mooring.storage.kernel.database import Acting

KEPT_MAX: Final = 20_000
SCHEME: Final = "Bearer "

Key = tuple[bytes, str, str, bytes]


class AuthorizedRequest(NamedTuple):
    """A request that its caller may make."""

    route: Route
    caller: Caller
    place: Place
    acting: Acting
    arguments: dict[str, Any]  # of the handler, but for the body


class AuthCache:
    """Requests that were admitted a moment ago."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._kept: dict[Key, AuthorizedRequest] = {}

    def before(self, scope: dict[str, Any], authorization: str | None) -> AuthorizedRequest | None:
        """How such a request was admitted before, if its caller is still the one that it was."""
        key = _key(scope, authorization)
        admitted = None if key is None else self._kept.get(key)
        if key is None or admitted is None or self._authenticator.remembered(key[0]) is not admitted.caller:
            return None
        return admitted

    def keep(self, scope: dict[str, Any], authorization: str | None, admitted: AuthorizedRequest) -> None:
        """Remember how a request was admitted."""
        key = _key(scope, authorization)
        if key is not None and admitted.caller is not ANONYMOUS:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[key] = admitted


def _key(scope: dict[str, Any], authorization: str | None) -> Key | None:
    """The token's digest and the address; none for what carries no token."""
    if authorization is None or not authorization.startswith(SCHEME):
        return None
    return digest(authorization[len(SCHEME) :]), scope["method"], scope["path"], scope["query_string"]
