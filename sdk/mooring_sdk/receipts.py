"""Verify receipts offline: what a node signed after a teardown, and what that proves.

A bundle holds receipts as one node signed them, the node's public key, and a part of the node's chain. A signature
proves who signed a receipt and that it was not changed; the chain proves that the node neither left a receipt out nor
signed two different ones for the same position. That the key belongs to the node is only the platform's word: compare
its fingerprint with one that you got in another way.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

CONTEXT: Final = b"mooring-receipt-v1\n"
FIRST_PREVIOUS: Final = "0" * 64
RECEIPTS_MAX: Final = 10_000
KINDS: Final = (
    "processes",
    "namespaces",
    "mounts",
    "links",
    "sockets",
    "ports",
    "cgroups",
    "files",
    "containers",
    "secrets",
)


class BundleRefused(Exception):
    """The bundle proves nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class VerifiedReceipt:
    """A receipt whose signature, form and position in the chain are valid."""

    id: str
    sequence: int
    digest: str
    document: Mapping[str, Any]
    previous_is_known: bool  # the previous receipt is in the bundle, whole or by its hash

    @property
    def clean(self) -> bool:
        """Whether the node checked everything and found nothing left."""
        return bool(self.document["clean"])


@dataclass(frozen=True, slots=True)
class VerifiedBundle:
    """What a bundle proves."""

    receipt: VerifiedReceipt  # the one that the bundle was exported for
    receipts: tuple[VerifiedReceipt, ...]
    node_id: str
    fingerprint: str  # of the node's public key
    links_signed: int  # links of the chain whose two receipts are both in the bundle
    links_by_hash: int  # links to a receipt of another owner, of which only the hash is in the bundle

    def proves(self) -> list[str]:
        """What the bundle proves, in sentences."""
        said, seen = self.receipt.document, self.receipt
        what = "everything" if said["task_type"] == "sandbox.destroy" else "one owner"
        lines = [
            f"The key {self.fingerprint} signed this receipt, and it was not changed since.",
            f"It is number {seen.sequence} in the chain of node {self.node_id}, which signed no other for that number.",
            f"The node ended {what} of {said['owner']} and then checked {len(said['looked'])} kinds of resources.",
            f"It had found {len(said['found'])}, removed {len(said['removed'])}, and "
            + ("nothing is left: it is clean." if seen.clean else f"{len(said['remaining'])} remain: it is NOT clean."),
        ]
        reset = [each["name"] for each in said.get("devices", ()) if each["state"] == "reset"]
        if reset:
            lines.append(f"It reset {', '.join(reset)} when nothing used them any more.")
        if self.links_signed:
            lines.append(f"{self.links_signed} links of the chain are proven by both of their receipts.")
        return lines

    def does_not_prove(self) -> list[str]:
        """What the bundle leaves open, in sentences."""
        said = self.receipt.document
        lines = [
            f"That this key belongs to node {self.node_id} is only the platform's word: compare the fingerprint with "
            "one that you got in another way."
        ]
        if said["host"] == "simulated":
            lines.append("The host is simulated: nothing ran on a machine, and nothing was checked on one.")
        if said["host"] == "process":
            lines.append("The host is `process`: there was no isolation from other processes on the machine.")
        if said.get("not_looked"):
            lines.append(f"The node could not check: {', '.join(said['not_looked'])}.")
        for each in said.get("devices", ()):
            if each["state"] == "unverified":
                lines.append(f"{each['name']} was not reset: {each.get('detail', 'no reason is given')}.")
            elif each["state"] == "simulated":
                lines.append(f"{each['name']} is simulated: there was no memory to clear.")
        if said["truncated"]:
            lines.append("The lists are truncated at their limit: there were more entries.")
        if self.links_by_hash:
            lines.append(
                f"{self.links_by_hash} links of the chain lead to receipts of others; the bundle has only their hashes."
            )
        return lines


def verify_bundle(bundle: Mapping[str, Any]) -> VerifiedBundle:
    """Verify a bundle; raises `BundleRefused` if it is not valid."""
    try:
        return _verify(bundle)
    except (KeyError, TypeError, AttributeError) as error:
        raise BundleRefused(f"this is not a bundle of receipts: {error!r}") from error


def _verify(bundle: Mapping[str, Any]) -> VerifiedBundle:
    if bundle["v"] != 1:
        raise BundleRefused(f"the bundle has version {bundle['v']!r}; this program supports 1")
    raw = _decoded(bundle["signing_key"], "signing_key")
    if len(raw) != 32:
        raise BundleRefused("signing_key is not the 32 bytes of an Ed25519 key")
    listed: Sequence[Mapping[str, Any]] = bundle["receipts"]
    if not 1 <= len(listed) <= RECEIPTS_MAX:
        raise BundleRefused(f"it has {len(listed)} receipts; 1 to {RECEIPTS_MAX} are allowed")
    chain = _chain(bundle["chain"])
    key, node_id = Ed25519PublicKey.from_public_bytes(raw), str(bundle["node_id"])
    receipts = tuple(_receipt(key, node_id, each, chain) for each in listed)
    whole = {each.sequence for each in receipts}
    if len(whole) != len(receipts):
        raise BundleRefused("two receipts have the same position in the chain")
    asked = [each for each in receipts if each.id == bundle["receipt_id"]]
    if len(asked) != 1:
        raise BundleRefused("the receipt that it was exported for is missing")
    signed = sum(sequence - 1 in whole for sequence in whole)
    known = sum(each.previous_is_known for each in receipts)
    return VerifiedBundle(
        asked[0], receipts, node_id, f"sha256:{hashlib.sha256(raw).hexdigest()}", signed, known - signed
    )


def _chain(listed: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """The hashes by position; a part of a chain has no gap."""
    chain = {each["sequence"]: each["digest"] for each in listed}
    if len(chain) != len(listed) or (chain and sorted(chain) != list(range(min(chain), max(chain) + 1))):
        raise BundleRefused("the chain has a gap, or two entries for one position")
    return chain


def _receipt(
    key: Ed25519PublicKey, node_id: str, signed: Mapping[str, Any], chain: Mapping[int, str]
) -> VerifiedReceipt:
    body, signature = _decoded(signed["body"], "body"), _decoded(signed["signature"], "signature")
    name = str(signed["id"])
    try:
        key.verify(signature, CONTEXT + body)
    except InvalidSignature as error:
        raise BundleRefused(f"{name}: the node's key did not sign this receipt, or it was changed") from error
    document = _document(name, body)
    if document["node_id"] != node_id:
        raise BundleRefused(f"{name}: this is a receipt of node {document['node_id']}")
    sequence, digest = document["sequence"], hashlib.sha256(body).hexdigest()
    if chain.get(sequence) != digest:
        raise BundleRefused(f"{name}: the chain has another receipt at {sequence}")
    before = FIRST_PREVIOUS if sequence == 1 else chain.get(sequence - 1)
    if before is not None and before != document["previous"]:
        raise BundleRefused(f"{name}: it does not follow the receipt at {sequence - 1}")
    return VerifiedReceipt(name, sequence, digest, document, sequence > 1 and before is not None)


def _document(name: str, body: bytes) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(body)
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    except (ValueError, RecursionError) as error:
        raise BundleRefused(f"{name}: it is not JSON") from error
    if canonical != body or document["v"] != 1:
        raise BundleRefused(f"{name}: it is not in the form in which receipts are signed")
    looked = set(KINDS) <= document["looked"].keys() and not document.get("not_looked")
    if document["clean"] and (document["remaining"] or not looked):
        raise BundleRefused(f"{name}: it says clean, but something remains or was not checked")
    return document


def _decoded(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise BundleRefused(f"{name} is not base64url") from error
