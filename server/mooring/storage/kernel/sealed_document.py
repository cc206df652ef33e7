"""Seals and opens documents on their way to and from rows.

Rows become objects far from any service, so the ciphers that open them are in a table of this process, by the id of
their key. Ids are fingerprints: platforms with different keys in one process do not disturb each other.
"""

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from mooring.core.kernel.decision import Decision, Insert, Update, Write
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.sealed_document import SEALED, SEALED_COLUMNS, DocumentCipher, SealedColumn, bound_to

_CIPHERS: Final[dict[str, DocumentCipher]] = {}
SEALED_BODY: Final = b"\0sealed1 "
"""How a sealed answer begins; no answer of the API begins with a NUL."""


def know(cipher: DocumentCipher) -> None:
    """From now on documents of this cipher's key can be opened."""
    _CIPHERS[cipher.key_id] = cipher


def seal_writes(cipher: DocumentCipher, decision: Decision[Any]) -> Decision[Any]:
    """The decision with its secret documents sealed."""
    if not any(isinstance(each, Insert | Update) and each.noun in SEALED_COLUMNS for each in decision.writes):
        return decision
    return replace(decision, writes=tuple(_sealed(cipher, each) for each in decision.writes))


def _sealed(cipher: DocumentCipher, write: Write) -> Write:
    if not isinstance(write, Insert | Update) or write.noun not in SEALED_COLUMNS:
        return write
    column = SEALED_COLUMNS[write.noun]
    document = (write.row if isinstance(write, Insert) else write.set).get(column.name)
    if not isinstance(document, Mapping) or not column.needs_seal(document):
        return write
    if isinstance(write, Update):
        if write.tenant_id is None:
            raise ValueError(f"a change of {column.name} must name the tenant that the document is bound to")
        stored = seal_document(cipher, column, document, write.tenant_id, write.id)
        return replace(write, set={**write.set, column.name: stored})
    stored = seal_document(cipher, column, document, write.row["tenant_id"], write.row["id"])
    return replace(write, row={**write.row, column.name: stored})


def seal_document(
    cipher: DocumentCipher, column: SealedColumn, document: Mapping[str, Any], tenant_id: object, id: object
) -> dict[str, Any]:
    """The document as it is stored."""
    sealed = cipher.seal(msgspec.json.encode(document), bound_to(column.purpose, tenant_id, id))
    return {**column.readable_part(document), SEALED: f"{cipher.key_id}:{base64.b64encode(sealed).decode()}"}


def open_document(stored: Mapping[str, Any], purpose: str, tenant_id: object, id: object) -> dict[str, Any]:
    """The document as it was before it was sealed."""
    text = stored.get(SEALED)
    if not isinstance(text, str):
        return dict(stored)
    key_id, _, encoded = text.partition(":")
    opened: dict[str, Any] = msgspec.json.decode(
        _cipher(key_id).open(base64.b64decode(encoded), bound_to(purpose, tenant_id, id))
    )
    return opened


def seal_body(cipher: DocumentCipher | None, body: bytes, bound: str) -> bytes:
    """Encrypt a response body, which may contain a secret, to store it under its idempotency key."""
    return body if cipher is None or not body else SEALED_BODY + f"{cipher.key_id}:".encode() + cipher.seal(body, bound)


def open_body(stored: bytes, bound: str) -> bytes:
    if not stored.startswith(SEALED_BODY):
        return stored
    key_id, _, sealed = stored[len(SEALED_BODY) :].partition(b":")
    return _cipher(key_id.decode()).open(sealed, bound)


def _cipher(key_id: str) -> DocumentCipher:
    cipher = _CIPHERS.get(key_id)
    if cipher is None:
        raise Refusal(Code.TEMPORARILY_UNAVAILABLE, f"stored documents need the key {key_id}, which is not loaded")
    return cipher
