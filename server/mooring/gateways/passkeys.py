"""Verifies what authenticators answer, with `webauthn`; decision 56 says why."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mooring.core.identity.passkey import ALGORITHMS, NewCredential, Passkey, encode
from mooring.gateways.lazy_import import lazy_module

if TYPE_CHECKING:
    import webauthn
    from webauthn.helpers import cose, exceptions
else:
    webauthn, cose, exceptions = (
        lazy_module(name) for name in ("webauthn", "webauthn.helpers.cose", "webauthn.helpers.exceptions")
    )

Verified = TypeVar("Verified")
CHALLENGE_LENGTH_MAX: Final = 200


class AnswerRefused(Exception):
    """An authenticator's answer is not accepted; the reason may be shown."""


@dataclass(frozen=True, slots=True)
class ClientData:
    """What the browser says about the page, which the authenticator signed: the challenge and the page's origin."""

    challenge: str
    origin: str


def read_client_data(client_data: bytes) -> ClientData:
    """What the browser says about the page; nothing of it is proven yet."""
    try:
        document = json.loads(client_data)
        challenge, origin = document["challenge"], document["origin"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise AnswerRefused("the client data cannot be read") from error
    if not isinstance(challenge, str) or not isinstance(origin, str) or len(challenge) > CHALLENGE_LENGTH_MAX:
        raise AnswerRefused("the client data has no challenge and origin")
    return ClientData(challenge, origin)


def verify_registration(
    *, credential_id: bytes, client_data: bytes, attestation: bytes, host: str, transports: list[str]
) -> NewCredential:
    """The new credential, if an authenticator that verified its user made it for this page and challenge."""
    said = read_client_data(client_data)
    answer = _answer(credential_id, clientDataJSON=client_data, attestationObject=attestation)
    verified = _verified(
        lambda: webauthn.verify_registration_response(
            credential=answer,
            expected_challenge=decode(said.challenge),
            expected_rp_id=host,
            expected_origin=said.origin,
            require_user_verification=True,
            supported_pub_key_algs=[cose.COSEAlgorithmIdentifier(each) for each in ALGORITHMS],
        )
    )
    if verified.credential_id != credential_id:
        raise AnswerRefused("the answer is about another credential")
    return NewCredential(credential_id, verified.credential_public_key, verified.sign_count, transports)


def verify_sign_in(
    passkey: Passkey, *, client_data: bytes, authenticator_data: bytes, signature: bytes, host: str
) -> int:
    """The passkey's new counter, if it signed this page and challenge after it verified its user."""
    said = read_client_data(client_data)
    answer = _answer(
        passkey.credential_id,
        clientDataJSON=client_data,
        authenticatorData=authenticator_data,
        signature=signature,
    )
    return _verified(
        lambda: webauthn.verify_authentication_response(
            credential=answer,
            expected_challenge=decode(said.challenge),
            expected_rp_id=host,
            expected_origin=said.origin,
            credential_public_key=passkey.public_key,
            credential_current_sign_count=passkey.sign_count,
            require_user_verification=True,
        )
    ).new_sign_count


def decode(text: str) -> bytes:
    """The bytes of base64url without padding."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise AnswerRefused("not base64url") from error


def _answer(credential_id: bytes, **response: bytes) -> dict[str, Any]:
    named = encode(credential_id)
    encoded = {name: encode(value) for name, value in response.items()}
    return {"id": named, "rawId": named, "type": "public-key", "response": encoded}


def _verified(verify: Callable[[], Verified]) -> Verified:
    """The library's result; whatever it makes of hostile bytes is a refusal."""
    try:
        return verify()
    except exceptions.WebAuthnException as error:
        raise AnswerRefused(str(error)[:200]) from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise AnswerRefused("the authenticator's answer cannot be read") from error
