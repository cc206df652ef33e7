"""Passkeys: WebAuthn credentials with which a user signs in without a password.

The authenticator verifies the person (a finger, a code) and signs the platform's challenge together with the address of
the page. The platform stores public keys only.
"""

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

from mooring.core.identity.token import FreshToken, Token, issue, session_token
from mooring.core.identity.user import User
from mooring.core.kernel import validation
from mooring.core.kernel.decision import (
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    Remove,
    Update,
)
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix

PASSKEYS_MAX: Final = 20
NAME_LENGTH_MAX: Final = 100
RELYING_PARTY: Final = "Mooring"
TIMEOUT_MILLISECONDS: Final = 300_000
ALGORITHMS: Final = (-7, -8, -257)
"""ES256, EdDSA and RS256: what authenticators have."""


@dataclass(frozen=True, slots=True)
class Passkey:
    """A passkey of a user: what the platform knows of it."""

    id: str
    tenant_id: str | None
    user_id: str
    credential_id: bytes
    public_key: bytes
    sign_count: int
    name: str
    transports: list[str]
    revision: int
    created_at: datetime
    last_used_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NewCredential:
    """A credential whose registration was verified."""

    credential_id: bytes
    public_key: bytes
    sign_count: int
    transports: Sequence[str]


@dataclass(frozen=True, slots=True)
class PasskeyContext:
    """The user who registers a passkey, how many they have, and the challenge that this one answers."""

    user: User
    present: int
    challenge_id: str


def register_passkey(
    context: DecisionContext, known: PasskeyContext, name: str, credential: NewCredential
) -> Decision[Passkey]:
    """Store a passkey; its challenge is taken with it, so that no second one answers it."""
    if known.present >= PASSKEYS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"a user has at most {PASSKEYS_MAX} passkeys", {"limit": PASSKEYS_MAX})
    passkey = Passkey(
        id=context.mint(Prefix.PASSKEY),
        tenant_id=known.user.tenant_id,
        user_id=known.user.id,
        credential_id=credential.credential_id,
        public_key=credential.public_key,
        sign_count=credential.sign_count,
        name=validation.display_name(name, "name", NAME_LENGTH_MAX),
        transports=list(credential.transports),
        revision=0,
        created_at=context.now,
    )
    return Decision(
        result=passkey,
        writes=(Remove("sign_in_challenge", known.challenge_id, 0), Insert("passkey", asdict(passkey))),
        events=(_happened(passkey, "registered"),),
        audits=(_audited(passkey, after={"change": "passkey_registered", "name": passkey.name}),),
    )


def rename_passkey(context: DecisionContext, passkey: Passkey, name: str) -> Decision[Passkey]:
    """Give a passkey another name, by which its owner recognises it."""
    wanted = validation.display_name(name, "name", NAME_LENGTH_MAX)
    if wanted == passkey.name:
        return Decision(result=passkey)
    return Decision(
        result=replace(passkey, name=wanted, revision=passkey.revision + 1),
        writes=(Update("passkey", passkey.id, passkey.revision, {"name": wanted}),),
        events=(_happened(passkey, "renamed"),),
        audits=(_audited(passkey, before={"name": passkey.name}, after={"change": "passkey_renamed", "name": wanted}),),
    )


def delete_passkey(context: DecisionContext, passkey: Passkey) -> Decision[Passkey]:
    """Forget a passkey; sessions that began with it stay until they end."""
    return Decision(
        result=passkey,
        writes=(Remove("passkey", passkey.id, passkey.revision),),
        events=(_happened(passkey, "deleted"),),
        audits=(_audited(passkey, before={"name": passkey.name}, after={"change": "passkey_deleted"}),),
    )


def sign_in_with_passkey(
    context: DecisionContext, user: User, passkey: Passkey, sign_count: int, fresh: FreshToken
) -> Decision[Token]:
    """A session in a browser for the user whose passkey answered."""
    if user.disabled_at is not None:
        raise Refusal(Code.SIGN_IN_REFUSED, "the user is disabled", {"reason": "user_disabled"})
    token = session_token(context, fresh, user.id, user.tenant_id, in_browser=True)
    issued = issue(token, fresh, action="sign_in")
    used = Update("passkey", passkey.id, passkey.revision, {"sign_count": sign_count, "last_used_at": context.now})
    return replace(issued, writes=(used, *issued.writes))


def creation_options(user: User, challenge: str, host: str, present: Sequence[Passkey]) -> dict[str, Any]:
    """What `navigator.credentials.create` needs, in WebAuthn's own JSON (`PublicKeyCredentialCreationOptionsJSON`)."""
    return {
        "rp": {"id": host, "name": RELYING_PARTY},
        "user": {"id": encode(user.id.encode()), "name": user.email, "displayName": user.display_name},
        "challenge": challenge,
        "pubKeyCredParams": [{"type": "public-key", "alg": each} for each in ALGORITHMS],
        "timeout": TIMEOUT_MILLISECONDS,
        "excludeCredentials": [{"type": "public-key", "id": encode(each.credential_id)} for each in present],
        "authenticatorSelection": {"residentKey": "required", "userVerification": "required"},
        "attestation": "none",
    }


def request_options(challenge: str, host: str) -> dict[str, Any]:
    """What `navigator.credentials.get` needs: the authenticator shows which passkeys it has for this host."""
    return {
        "rpId": host,
        "challenge": challenge,
        "timeout": TIMEOUT_MILLISECONDS,
        "allowCredentials": [],
        "userVerification": "required",
    }


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _happened(passkey: Passkey, change: str) -> EventRecord:
    data = {"change": change, "user_id": passkey.user_id}
    return EventRecord(EventType.PASSKEY_CHANGED, "passkey", passkey.id, passkey.tenant_id, data=data)


def _audited(
    passkey: Passkey, *, before: dict[str, object] | None = None, after: dict[str, object] | None = None
) -> AuditRecord:
    return AuditRecord("self.update", "passkey", passkey.id, passkey.tenant_id, before=before, after=after)
