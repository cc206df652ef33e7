"""Ways to get a token: an existing one, signing in, or the key of a service account.

A service account holds an Ed25519 key pair. It signs a short assertion (RFC 7523) and exchanges it for a token; the
private key never leaves the process. Every exchange signs a new assertion, so a retry is never a replay.
"""

import base64
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mooring_sdk.calls import Call, PreparedCall, perform, read_answer, retrying
from mooring_sdk.flow import Flow, Request
from mooring_sdk.operation import Operation
from mooring_sdk.secret import Secret
from mooring_sdk.session import AccessToken, Session

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

TOKEN_PATH: Final = "/api/v1/oauth/token"
SIGN_IN: Final = Operation("sign_in", "POST", "/api/v1/sign-in", is_public=True)
EXCHANGE: Final = Operation("exchange_assertion", "POST", TOKEN_PATH, is_public=True, takes_form=True)
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION_SECONDS: Final = 120


class KeyUnusable(ValueError):
    """The given key is not an Ed25519 private key."""


class _SignedIn(msgspec.Struct):
    token: str
    expires_at: datetime | None = None


class _Granted(msgspec.Struct):
    access_token: str
    expires_in: float | None = None


class TokenCredentials:
    """An existing token."""

    is_renewable: Final = False

    def __init__(self, token: str) -> None:
        self._secret = Secret(token)

    def obtain(self, session: Session) -> Flow[AccessToken]:
        yield from ()  # a flow must be a generator
        return AccessToken(self._secret)

    def __repr__(self) -> str:
        return "TokenCredentials(…)"


@dataclass(frozen=True, slots=True)
class SignInCredentials:
    """A person's e-mail address and password; `tenant` is the slug of their home tenant, None for the platform."""

    email: str
    password: Secret = field(repr=False)
    tenant: str | None = None
    is_renewable: bool = field(default=True, init=False)

    def obtain(self, session: Session) -> Flow[AccessToken]:
        body: dict[str, Any] = {"email": self.email, "password": self.password.reveal()}
        if self.tenant is not None:
            body["tenant"] = self.tenant
        response = yield from perform(session, Call(SIGN_IN, body=body))
        answer: _SignedIn = read_answer(response, _SignedIn)
        lifetime = None
        if answer.expires_at is not None:
            now = datetime.fromtimestamp(session.settings.timing.wall(), UTC)
            lifetime = max((answer.expires_at - now).total_seconds(), 0.0)
        return AccessToken(Secret(answer.token), lifetime)


class ServiceAccountCredentials:
    """The key of a service account. `audience` is needed only if the server is known by another address."""

    is_renewable: Final = True

    def __init__(
        self,
        service_account_id: str,
        key_id: str,
        private_key: "bytes | Ed25519PrivateKey",
        *,
        audience: str | None = None,
    ) -> None:
        self.service_account_id = service_account_id
        self.key_id = key_id
        self.audience = audience
        self._key = private_key_from(private_key) if isinstance(private_key, bytes) else private_key

    @classmethod
    def from_file(
        cls, service_account_id: str, key_id: str, path: str | Path, *, audience: str | None = None
    ) -> "ServiceAccountCredentials":
        """Read the private key from a PEM file."""
        return cls(service_account_id, key_id, Path(path).read_bytes(), audience=audience)

    def __repr__(self) -> str:
        return f"ServiceAccountCredentials({self.service_account_id!r}, {self.key_id!r}, …)"

    def obtain(self, session: Session) -> Flow[AccessToken]:
        timing = session.settings.timing

        def request(remaining_seconds: float) -> Request:
            body = {"grant_type": GRANT, "assertion": self.assertion(session.url, timing.wall())}
            return PreparedCall(session, Call(EXCHANGE, body=body)).request(None, remaining_seconds)

        deadline = timing.monotonic() + session.settings.deadline_seconds
        response = yield from retrying(session, request, deadline, repeatable=True)
        answer: _Granted = read_answer(response, _Granted)
        return AccessToken(Secret(answer.access_token), answer.expires_in)

    def assertion(self, url: str, now: float) -> str:
        """A signed statement of who this is, valid for a short time and for one use."""
        claims = {
            "iss": self.service_account_id,
            "sub": self.service_account_id,
            "aud": self.audience or url + TOKEN_PATH,
            "iat": int(now),
            "exp": int(now) + ASSERTION_SECONDS,
            "jti": uuid.uuid4().hex,
        }
        head = {"alg": "EdDSA", "typ": "JWT", "kid": self.key_id}
        signed = f"{_segment(msgspec.json.encode(head))}.{_segment(msgspec.json.encode(claims))}"
        return f"{signed}.{_segment(self._key.sign(signed.encode('ascii')))}"


def _segment(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")


def private_key_from(content: bytes) -> "Ed25519PrivateKey":
    """An Ed25519 private key from PEM, or from its 32 raw bytes."""
    # Imported here because most programs use a token, and this library is slow to import.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if len(content) == 32:
        return Ed25519PrivateKey.from_private_bytes(content)
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        # The library's message could repeat a part of the key.
        raise KeyUnusable("this is not a private key in PEM without a passphrase") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyUnusable("the key is not an Ed25519 key; make one with `openssl genpkey -algorithm ed25519`")
    return key
