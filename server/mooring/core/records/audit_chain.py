"""The hash chain of the audit trail.

Each tenant has a chain, and the platform has one for the rows that belong to no tenant. A link is the SHA-256 over the
chain's name, the position, the link before it and the row, so a row that was changed, removed or put in between breaks
every link after it. The platform signs the last link of each batch. Somebody who can write the database, and has not
the signing key, can therefore not recompute the chain.

The SDK has the same functions, for auditors who verify without the platform; a test compares them.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC
from typing import Any, Final

from mooring.core.records.audit import AuditRow

PLATFORM_CHAIN: Final = "platform"
FIRST_PREVIOUS: Final = bytes(32)
LINK_CONTEXT: Final = "mooring-audit-link-v1"
HEAD_CONTEXT: Final = "mooring-audit-head-v1"


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last link of a chain."""

    position: int = 0
    link: bytes = FIRST_PREVIOUS


@dataclass(frozen=True, slots=True)
class NewLink:
    """The link of one row; `closes` marks the last one of its chain in the batch, which is signed."""

    row: AuditRow
    chain: str
    head: ChainHead
    closes: bool


def chain_of(tenant_id: str | None) -> str:
    return PLATFORM_CHAIN if tenant_id is None else tenant_id


def document_of(row: AuditRow) -> dict[str, Any]:
    """The row as it is hashed and exported."""
    document: dict[str, Any] = {each.name: getattr(row, each.name) for each in fields(row)}
    document["occurred_at"] = row.occurred_at.astimezone(UTC).isoformat(timespec="microseconds")
    return document


def canonical(document: dict[str, Any]) -> bytes:
    """JSON with sorted keys and without white space."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def link_of(chain: str, position: int, previous: bytes, document: dict[str, Any]) -> bytes:
    row = hashlib.sha256(canonical(document)).hexdigest()
    return hashlib.sha256(f"{LINK_CONTEXT}\n{chain}\n{position}\n{previous.hex()}\n{row}".encode()).digest()


def head_message(chain: str, head: ChainHead) -> bytes:
    """What the platform signs."""
    return f"{HEAD_CONTEXT}\n{chain}\n{head.position}\n{head.link.hex()}".encode()


def extend(heads: dict[str, ChainHead], rows: Iterable[AuditRow]) -> Iterator[NewLink]:
    """The links of the next rows, which come in the order of the stream; a chain that has no head begins."""
    heads, made = dict(heads), []
    for row in rows:
        chain = chain_of(row.tenant_id)
        before = heads.get(chain, ChainHead())
        position = before.position + 1
        heads[chain] = ChainHead(position, link_of(chain, position, before.link, document_of(row)))
        made.append((row, chain, heads[chain]))
    for row, chain, head in made:
        yield NewLink(row, chain, head, closes=heads[chain].position == head.position)
