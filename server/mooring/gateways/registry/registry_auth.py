"""Authentication at a registry: by a password, by a token from its token service, or by a token that we issue.

Credentials are sent only after the registry has asked for them, and only to the registry's own origin. A registry may
name a token service; it is used only if it is the registry's own origin or an explicitly allowed host, and never over
plain http unless the registry uses it too. The requested scope is what this call needs and not what the registry
suggests, so that a registry cannot obtain a wider token. Redirects of a token service are not followed.
"""

import base64
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Protocol
from urllib.parse import urlencode

import msgspec

from mooring.core.kernel.address import Target, read_url
from mooring.core.kernel.errors import Refusal
from mooring.gateways.registry.source_refusals import auth_refused, malformed
from mooring.gateways.registry.source_stream import (
    Dialer,
    RedirectPolicy,
    SourceReader,
    SourceRequest,
    SourceTimeouts,
    is_named,
    same_origin,
)

CHALLENGE_LENGTH_MAX: Final = 8_192
TOKEN_LENGTH_MAX: Final = 16_384
SCOPES_MAX: Final = 1_024  # cached tokens
LIFETIME_SECONDS_DEFAULT: Final = 60
EARLY_SECONDS: Final = 10.0  # a token is not used in its last seconds
_TOKEN: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_PART: Final = re.compile(
    rf'\s*(?:(?P<key>{_TOKEN})\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>{_TOKEN}))|(?P<scheme>{_TOKEN}))'
    r"(?P<end>\s*,|\s+|$)"
)


@dataclass(frozen=True, slots=True)
class RegistryPassword:
    """A name and a password, sent by basic authentication to a registry or to its token service."""

    username: str
    password: str = field(repr=False)

    @property
    def header(self) -> str:
        """The value of the Authorization header."""
        pair = f"{self.username}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode('ascii')}"


class TokenSource(Protocol):
    """Issues tokens for a registry that trusts this platform."""

    def token(self, repository: str, actions: Sequence[str]) -> str:
        """A token for these actions on this repository."""
        ...


Credentials = RegistryPassword | TokenSource


@dataclass(frozen=True, slots=True)
class Challenge:
    """A challenge of a registry."""

    scheme: str
    parameters: dict[str, str]


class _Issued(msgspec.Struct):
    token: Annotated[str, msgspec.Meta(max_length=TOKEN_LENGTH_MAX)] = ""
    access_token: Annotated[str, msgspec.Meta(max_length=TOKEN_LENGTH_MAX)] = ""
    expires_in: int = LIFETIME_SECONDS_DEFAULT


class RegistryAuthorizer:
    """Finds the Authorization header for each repository of one registry."""

    def __init__(
        self,
        origin: Target,
        dialer: Dialer,
        *,
        credentials: Credentials | None = None,
        token_hosts: frozenset[str] = frozenset(),
        patience: SourceTimeouts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._origin = origin
        self._credentials = credentials
        self._token_hosts = token_hosts
        self._reader = SourceReader(dialer, redirects=RedirectPolicy(hops=0), patience=patience)
        self._clock = clock
        self._known: dict[str, tuple[str, float]] = {}

    async def current(self, scope: str) -> str | None:
        """The header that is known to work, None if there is none; our own tokens are always available."""
        if self._credentials is not None and not isinstance(self._credentials, RegistryPassword):
            return self._own_token(self._credentials, scope)
        header, until = self._known.get(scope, ("", 0.0))
        return header if self._clock() < until else None

    async def answer(self, scope: str, challenge: str | None) -> str:
        """The header to send after a 401; a Refusal when there are no credentials, or no allowed host for them."""
        self._known.pop(scope, None)
        if self._credentials is not None and not isinstance(self._credentials, RegistryPassword):
            raise auth_refused(self._origin.authority, "the token that the platform issued is not accepted")
        asked = read_challenges(challenge or "")
        bearer = next((each for each in asked if each.scheme == "bearer"), None)
        if bearer is not None:
            header, lifetime = await self._fetch(scope, bearer)
        elif any(each.scheme == "basic" for each in asked):
            if self._credentials is None:
                raise auth_refused(self._origin.authority, "it requires a password, but none is configured")
            header, lifetime = self._credentials.header, float("inf")
        else:
            raise auth_refused(self._origin.authority, "it requires an unknown kind of authentication")
        if len(self._known) >= SCOPES_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[scope] = header, self._clock() + lifetime
        return header

    @staticmethod
    def _own_token(issuer: TokenSource, scope: str) -> str | None:
        kind, _, rest = scope.partition(":")
        name, _, actions = rest.rpartition(":")
        return f"Bearer {issuer.token(name, actions.split(','))}" if kind == "repository" else None

    async def _fetch(self, scope: str, bearer: Challenge) -> tuple[str, float]:
        realm = self._realm(bearer)
        query = {
            name: value for name, value in (("service", bearer.parameters.get("service")), ("scope", scope)) if value
        }
        headers = {"accept": "application/json"}
        if isinstance(self._credentials, RegistryPassword):
            headers["authorization"] = self._credentials.header
        url = f"{realm.url}{'&' if '?' in realm.path else '?'}{urlencode(query)}"
        answer = await self._reader.ask(SourceRequest("GET", url, headers))
        if answer.status != 200:
            raise auth_refused(realm.authority, f"it issued no token (HTTP {answer.status})")
        try:
            issued = msgspec.json.decode(answer.body, type=_Issued)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise malformed(realm.authority, "no token") from error
        token = issued.token or issued.access_token
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise malformed(realm.authority, "no token")
        return f"Bearer {token}", max(0.0, min(issued.expires_in, 86_400) - EARLY_SECONDS)

    def _realm(self, bearer: Challenge) -> Target:
        """The URL of the token service; a Refusal when it must not be used."""
        try:
            realm = read_url(bearer.parameters.get("realm", ""))
        except Refusal as error:
            raise auth_refused(self._origin.authority, "its token service URL is invalid") from error
        if self._origin.scheme == "https" and realm.scheme != "https":
            raise auth_refused(self._origin.authority, "its token service would be used without TLS")
        if not same_origin(realm, self._origin) and not is_named(realm, self._token_hosts):
            raise auth_refused(
                self._origin.authority, f"its token service is on {realm.authority}, which is not allowed for it"
            )
        return realm


def read_challenges(text: str) -> list[Challenge]:
    """The challenges of a `WWW-Authenticate` header; unreadable ones are left out."""
    found: list[Challenge] = []
    place, text = 0, text[:CHALLENGE_LENGTH_MAX].strip()
    while place < len(text):
        part = _PART.match(text, place)
        if part is None or part.end() == place:
            break
        place = part.end()
        if part["scheme"] is not None:
            found.append(Challenge(part["scheme"].lower(), {}))
        elif found:
            quoted = part["quoted"]
            value = part["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            found[-1].parameters.setdefault(part["key"].lower(), value)
    return found
