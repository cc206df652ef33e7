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
from datetime import UTC, datetime
from json.encoder import encode_basestring
from operator import attrgetter
from typing import Any, Final

from mooring.core.records.audit import AuditRow

PLATFORM_CHAIN: Final = "platform"
FIRST_PREVIOUS: Final = bytes(32)
LINK_CONTEXT: Final = "mooring-audit-link-v1"
HEAD_CONTEXT: Final = "mooring-audit-head-v1"
_NAMES: Final = sorted(each.name for each in fields(AuditRow))
_STARTS: Final = tuple(f'"{name}":' for name in _NAMES)
_SORTED_VALUES: Final = attrgetter(*_NAMES)
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


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
    document["occurred_at"] = _instant(row.occurred_at)
    return document


def canonical(row: AuditRow) -> bytes:
    """The document of a row as JSON with sorted keys and without white space.

    Written by hand, because every mutation pays for it: the standard library's encoder takes longer for the short texts
    that most values are. Values with a structure are still its own.
    """
    parts = []
    for start, value in zip(_STARTS, _SORTED_VALUES(row), strict=True):
        if isinstance(value, str):
            parts.append(start + encode_basestring(value))
        elif value is None:
            parts.append(start + "null")
        elif isinstance(value, dict):
            parts.append(start + _plain(value))
        elif isinstance(value, datetime):
            parts.append(f'{start}"{_instant(value)}"')
        else:
            parts.append(start + str(value))
    return ("{" + ",".join(parts) + "}").encode()


def _plain(document: dict[str, object]) -> str:
    """The JSON of `before` or `after`, most of which have one short text."""
    if len(document) == 1:
        ((name, value),) = document.items()
        if type(value) is str:
            return "{" + encode_basestring(name) + ":" + encode_basestring(value) + "}"
    return _ENCODER.encode(document)


def _instant(value: datetime) -> str:
    return (value if value.tzinfo is UTC else value.astimezone(UTC)).isoformat(timespec="microseconds")


def link_of(chain: str, position: int, previous: bytes, row: AuditRow) -> bytes:
    digest = hashlib.sha256(canonical(row)).hexdigest()
    return hashlib.sha256(f"{LINK_CONTEXT}\n{chain}\n{position}\n{previous.hex()}\n{digest}".encode()).digest()


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
        heads[chain] = ChainHead(position, link_of(chain, position, before.link, row))
        made.append((row, chain, heads[chain]))
    for row, chain, head in made:
        yield NewLink(row, chain, head, closes=heads[chain].position == head.position)
