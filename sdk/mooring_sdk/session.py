"""The state that the calls of one client share: the server's address, the settings and the token.

A token is used until shortly before it expires, or until the server refuses it. The credentials fetch a new one; the
drivers make sure that only one caller at a time does.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

from mooring_sdk.flow import Flow, Request, Response
from mooring_sdk.secret import Secret
from mooring_sdk.settings import ClientSettings, Exchange

RENEW_BEFORE_SECONDS: Final = 60.0
RENEW_BEFORE_SHARE: Final = 0.2


class AddressRefusedHere(ValueError):
    """The SDK does not send a token to this address."""


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token and its lifetime; `lifetime_seconds` is None if it is unknown."""

    secret: Secret
    lifetime_seconds: float | None = None


class Credentials(Protocol):
    """A way to get a token."""

    @property
    def is_renewable(self) -> bool:
        """Whether another token can be fetched."""

    def obtain(self, session: "Session") -> Flow[AccessToken]:
        """The flow that fetches a token."""


@dataclass(slots=True)
class Session:
    """The state of one client; only the token changes."""

    url: str
    settings: ClientSettings
    credentials: Credentials | None = None
    _held: Secret | None = field(default=None, repr=False)
    _renew_at: float | None = None

    def __post_init__(self) -> None:
        self.url = checked_url(self.url, allow_plain_http=self.settings.allow_plain_http)

    @property
    def can_renew(self) -> bool:
        """Whether a refused token can be replaced."""
        return self.credentials is not None and self.credentials.is_renewable

    def current(self) -> Secret | None:
        """The current token, unless it is due for renewal."""
        if self._renew_at is not None and self.settings.timing.monotonic() >= self._renew_at:
            return None
        return self._held

    def authorize(self, stale: Secret | None) -> Flow[Secret | None]:
        """The token to use instead of the stale one; fetched unless another caller has just done so."""
        held = self.current()
        if self.credentials is None or (held is not None and held is not stale):
            return held
        token = yield from self.credentials.obtain(self)
        self._held = token.secret
        self._renew_at = self._renewal(token.lifetime_seconds)
        return self._held

    def _renewal(self, lifetime_seconds: float | None) -> float | None:
        if lifetime_seconds is None:
            return None
        margin = min(RENEW_BEFORE_SECONDS, lifetime_seconds * RENEW_BEFORE_SHARE)
        return self.settings.timing.monotonic() + lifetime_seconds - margin

    def watch(self, request: Request, attempt: int) -> Callable[[Response | str], None]:
        """Start timing one attempt; the callback ends it with the response, or with the failure."""
        observe, monotonic = self.settings.observe, self.settings.timing.monotonic
        begun = monotonic()

        def ended(outcome: Response | str) -> None:
            if observe is None:
                return
            answer = outcome if isinstance(outcome, Response) else None
            headers = answer.headers if answer else {}
            observe(
                Exchange(
                    method=request.method,
                    target=request.target,
                    attempt=attempt,
                    status=answer.status if answer else None,
                    correlation_id=headers.get("x-correlation-id"),
                    replayed=headers.get("idempotency-replayed") == "true",
                    seconds=monotonic() - begun,
                    failure=outcome if isinstance(outcome, str) else None,
                )
            )

        return ended


def checked_url(url: str, *, allow_plain_http: bool) -> str:
    """The address without a trailing slash; refused if a token should not go there."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressRefusedHere("the server's address must look like https://mooring.example.org")
    if parts.username or parts.password:
        raise AddressRefusedHere("the server's address must not contain a user or password: they would appear in logs")
    if parts.query or parts.fragment:
        raise AddressRefusedHere("the server's address must not have a query or a fragment")
    if parts.scheme == "http" and not allow_plain_http and not is_this_machine(parts.hostname):
        raise AddressRefusedHere(
            f"http://{parts.hostname} is another machine, and plain http shows every token to the network; use https. "
            "On a network that nobody else uses, allow plain http explicitly: MOORING_ALLOW_PLAIN_HTTP=1 or "
            "--allow-plain-http, in the SDK ClientSettings(allow_plain_http=True)"
        )
    return url.rstrip("/")


def is_this_machine(host: str) -> bool:
    """Whether a host name is a loopback address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
