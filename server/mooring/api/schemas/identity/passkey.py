"""Request and response bodies for passkeys. What authenticators make is in base64url, as browsers give it."""

from typing import Annotated, Any

from msgspec import Meta, field

from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.core.identity.passkey import NAME_LENGTH_MAX, Passkey

_BASE64URL = "^[A-Za-z0-9_-]+$"
PasskeyName = Annotated[
    str, Meta(min_length=1, max_length=NAME_LENGTH_MAX, description="What its owner recognises it by.")
]
CredentialId = Annotated[
    str, Meta(min_length=22, max_length=1_364, pattern=_BASE64URL, description="`rawId` of the credential.")
]
ClientData = Annotated[
    str, Meta(min_length=1, max_length=4_096, pattern=_BASE64URL, description="`clientDataJSON` of the answer.")
]
Transport = Annotated[str, Meta(max_length=20, pattern="^[a-z-]+$")]


class PasskeyOptions(Shown):
    """What the browser's `navigator.credentials` needs, in WebAuthn's own JSON."""

    public_key: dict[str, Any]


class RegisterPasskey(Strict):
    """What an authenticator answered to the options of a registration."""

    name: PasskeyName
    credential_id: CredentialId
    client_data: ClientData
    attestation: Annotated[
        str, Meta(min_length=1, max_length=16_384, pattern=_BASE64URL, description="`attestationObject` of the answer.")
    ]
    transports: Annotated[list[Transport], Meta(max_length=10)] = field(default_factory=list)


class RenamePasskey(Strict):
    """Another name for a passkey."""

    name: PasskeyName


class PasskeySignIn(Strict):
    """What an authenticator answered to the options of a sign-in."""

    credential_id: CredentialId
    client_data: ClientData
    authenticator_data: Annotated[
        str, Meta(min_length=1, max_length=4_096, pattern=_BASE64URL, description="`authenticatorData` of the answer.")
    ]
    signature: Annotated[str, Meta(min_length=1, max_length=2_048, pattern=_BASE64URL)]
    user_handle: Annotated[str, Meta(min_length=1, max_length=100, pattern=_BASE64URL)] | None = None


class PasskeyView(Shown):
    """A passkey of the caller."""

    id: str
    name: str
    transports: list[str]
    created_at: Time
    last_used_at: Time | None


def passkey_view(passkey: Passkey) -> PasskeyView:
    return PasskeyView(
        id=passkey.id,
        name=passkey.name,
        transports=passkey.transports,
        created_at=passkey.created_at,
        last_used_at=passkey.last_used_at,
    )
