"""Verify the hash chain of an audit trail, online or from an exported file.

Each link is the SHA-256 over the chain's name, the position, the link before it and the row. The platform signs some of
the links, the last of each batch. A verified chain proves that no row between its first and its last position was
changed, removed or added after it was chained, as long as the signing key was not in the attacker's hands. It proves
nothing about rows after the last position: compare it with the position of an earlier export. That the keys belong to
the platform is the platform's own word, unless you name the key that you got in another way.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

KIND: Final = "mooring-audit-export"
FIRST_PREVIOUS: Final = "0" * 64
LINK_CONTEXT: Final = "mooring-audit-link-v1"
HEAD_CONTEXT: Final = "mooring-audit-head-v1"


class ChainBroken(Exception):
    """The chain does not hold; the message names the first position at which it is broken, and why."""


@dataclass(frozen=True, slots=True)
class VerifiedChain:
    """What was verified: the rows after `after` and up to `position`; links up to `signed` have a valid signature."""

    chain: str
    after: int
    position: int
    link: str
    signed: int

    @property
    def rows(self) -> int:
        return self.position - self.after


class AuditChainVerifier:
    """Takes the parts of an export one after another; raises ChainBroken at the first thing that does not fit."""

    def __init__(self, trusted_key: str | None = None) -> None:
        self._trusted = trusted_key
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._chain = ""
        self._after = self._position = self._signed = 0
        self._link = FIRST_PREVIOUS

    @property
    def position(self) -> int:
        return self._position

    def begin(self, header: Mapping[str, Any]) -> None:
        """Take the header of an export; a further one must continue exactly where the last part ended."""
        try:
            chain, after, link = str(header["chain"]), int(header["after"]), str(header["after_link"])
            keys = {str(each["id"]): str(each["public_key"]) for each in header["keys"]}
            checkpoint = header["checkpoint"]
        except (KeyError, TypeError, ValueError) as error:
            raise ChainBroken(f"this is not the header of an audit export: {error}") from error
        if self._trusted is not None and _bytes(self._trusted) not in {_bytes(each) for each in keys.values()}:
            raise ChainBroken("the chain is not signed by the key that you trust")
        self._keys |= {key_id: _key(text) for key_id, text in keys.items()}
        if self._chain and (chain, after, link) != (self._chain, self._position, self._link):
            raise ChainBroken(f"the next part does not follow position {self._position} of {self._chain}")
        if not self._chain:
            self._chain, self._after, self._position, self._link = chain, after, after, link
            if checkpoint is not None and after == checkpoint["position"]:
                self._check_signature(checkpoint)
                if checkpoint["link"] != link:
                    raise ChainBroken(f"position {after}: the chain does not begin at its checkpoint")
            elif after == 0 and link != FIRST_PREVIOUS:
                raise ChainBroken("position 0: the chain does not begin at its beginning")

    def take(self, each: Mapping[str, Any]) -> None:
        """Take the next link with its row."""
        expected = self._position + 1
        try:
            position, link, row = each["position"], each["link"], each["row"]
        except (KeyError, TypeError) as error:
            raise ChainBroken(f"position {expected}: this is not a link: {error}") from error
        if position != expected:
            raise ChainBroken(f"position {expected} is missing; {position} follows {self._position}")
        if row is None:
            raise ChainBroken(f"position {expected}: the row was deleted")
        if link != link_of(self._chain, expected, self._link, row):
            raise ChainBroken(
                f"position {expected}: the row {row.get('id')} or its link was changed after it was chained"
            )
        self._position, self._link = expected, link
        if each.get("signature") is not None:
            self._check_signature(each)

    def end(self) -> VerifiedChain:
        return VerifiedChain(self._chain, self._after, self._position, self._link, self._signed)

    def _check_signature(self, each: Mapping[str, Any]) -> None:
        key = self._keys.get(str(each.get("key_id")))
        message = f"{HEAD_CONTEXT}\n{self._chain}\n{each['position']}\n{each['link']}".encode()
        try:
            if key is None:
                raise ChainBroken(f"position {each['position']}: it is signed by an unknown key, {each.get('key_id')}")
            key.verify(_bytes(str(each["signature"])), message)
        except InvalidSignature as error:
            raise ChainBroken(f"position {each['position']}: the platform did not sign this link") from error
        self._signed = int(each["position"])


def link_of(chain: str, position: int, previous: str, row: Mapping[str, Any]) -> str:
    """The link of a row, in hexadecimal."""
    text = json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return hashlib.sha256(f"{LINK_CONTEXT}\n{chain}\n{position}\n{previous}\n{digest}".encode()).hexdigest()


def _key(text: str) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(_bytes(text))
    except ValueError as error:
        raise ChainBroken("a key of the export is not an Ed25519 public key") from error


def _bytes(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error) as error:
        raise ChainBroken("a key or a signature is not base64url") from error
