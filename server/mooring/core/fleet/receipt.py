"""Receipts: a node's signed statement of what it found after a teardown.

The body is canonical JSON (sorted keys, no white space, ASCII, whole numbers only), so that anybody can reproduce its
bytes. The receipts of a node are one chain: `sequence` counts from 1, and `previous` is the hash of the body before.
This module checks the form, that `clean` agrees with the rest, the task, and the place in the chain. The command that
takes the report (`commands/fleet/task_report.py`) verifies the signature before any of that.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from mooring.core.fleet.task import Task
from mooring.core.fleet.task_family import CLOSING
from mooring.core.kernel.decision import DecisionContext, Insert
from mooring.core.kernel.finding import bounded
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.json_schema import depth_exceeds, findings_of

RECEIPT_CONTEXT: Final = b"mooring-receipt-v1\n"
FIRST_PREVIOUS: Final = "0" * 64
BODY_BYTES_MAX: Final = 1_048_576
KINDS: Final = (
    "processes", "namespaces", "mounts", "links", "sockets", "ports", "cgroups", "files", "containers", "secrets",
)  # fmt: skip
DEVICES_MAX: Final = 64
THINGS_MAX: Final = 500
DEPTH_MAX: Final = 4


class ReceiptFault(StrEnum):
    MISSING = "receipt_missing"
    INVALID = "receipt_invalid"
    SIGNATURE = "receipt_signature"
    OTHER_TASK = "receipt_other_task"
    GAP = "receipt_gap"
    FORK = "receipt_fork"


class ReceiptRefused(Exception):
    """A refused receipt; `fault` says why, `detail` where."""

    def __init__(self, fault: ReceiptFault, detail: str) -> None:
        super().__init__(f"{fault}: {detail}")
        self.fault = fault
        self.detail = detail


def _text(longest: int) -> Mapping[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": longest}


_COUNT: Final = {"type": "integer", "minimum": 0, "maximum": 1 << 53}
_THINGS: Final = {
    "type": "array",
    "maxItems": THINGS_MAX,
    "items": {
        "type": "object",
        "properties": {"kind": {"type": "string", "enum": list(KINDS)}, "name": {"type": "string", "maxLength": 400}},
        "required": ["kind", "name"],
        "additionalProperties": False,
    },
}
_REQUIRED: Final = (
    "v", "node_id", "sequence", "previous", "task_id", "task_type", "tenant_id", "project_id", "allocation_id", "owner",
    "host", "looked_at", "looked", "found", "removed", "remaining", "truncated", "clean",
)  # fmt: skip
SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": list(_REQUIRED),
    "additionalProperties": False,
    "properties": {
        "v": {"const": 1},
        "node_id": _text(64),
        "sequence": {"type": "integer", "minimum": 1, "maximum": 1 << 53},
        "previous": {"type": "string", "pattern": "^[0-9a-f]{64}$", "maxLength": 64},
        "task_id": _text(64),
        "task_type": {"type": "string", "enum": list(CLOSING)},
        "tenant_id": _text(64),
        "project_id": _text(64),
        "allocation_id": _text(64),
        "owner": _text(160),
        "host": {"type": "string", "enum": ["namespace", "process", "simulated"]},
        "looked_at": {"type": "integer", "minimum": 0, "maximum": 10**11},
        "looked": {
            "type": "object",
            "additionalProperties": _COUNT,
            "propertyNames": {"type": "string", "enum": list(KINDS)},
            "maxProperties": len(KINDS),
        },
        "not_looked": {"type": "array", "maxItems": len(KINDS), "items": {"type": "string", "enum": list(KINDS)}},
        "found": _THINGS,
        "removed": _THINGS,
        "remaining": _THINGS,
        "truncated": {"type": "boolean"},
        "clean": {"type": "boolean"},
        "devices": {
            "type": "array",
            "maxItems": DEVICES_MAX,
            "items": {
                "type": "object",
                "properties": {
                    "name": _text(64),
                    "state": {"type": "string", "enum": ["reset", "simulated", "unverified"]},
                    "detail": {"type": "string", "maxLength": 400},
                },
                "required": ["name", "state"],
                "additionalProperties": False,
            },
        },
    },
}


@dataclass(frozen=True, slots=True)
class SignedReceipt:
    """A receipt as the agent sent it, nothing of it verified."""

    body: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Receipt:
    """A verified receipt."""

    id: str
    tenant_id: str
    project_id: str
    task_id: str
    task_type: str
    node_id: str
    allocation_id: str
    owner: str
    sequence: int
    previous: str
    digest: str
    clean: bool
    late: bool
    body: bytes
    signature: bytes
    looked_at: datetime
    created_at: datetime

    def insert(self) -> Insert:
        return Insert("receipt", {name: getattr(self, name) for name in Receipt.__slots__})


@dataclass(frozen=True, slots=True)
class ReceiptChainLink:
    """A position in a node's chain, and the hash of the receipt there."""

    sequence: int
    digest: str


def digest_of(body: bytes) -> str:
    """The hash that the next receipt has as `previous`."""
    return hashlib.sha256(body).hexdigest()


def canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def read_body(body: bytes) -> dict[str, Any]:
    """Parse a receipt; refuses a wrong form, and `clean` where something remains or was not checked."""
    if len(body) > BODY_BYTES_MAX:
        raise ReceiptRefused(ReceiptFault.INVALID, f"it is larger than {BODY_BYTES_MAX} bytes")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ReceiptRefused(ReceiptFault.INVALID, "it is not JSON") from error
    if depth_exceeds(document, DEPTH_MAX):
        raise ReceiptRefused(ReceiptFault.INVALID, "it is nested too deeply")
    findings = bounded(findings_of(document, SCHEMA))
    if findings:
        raise ReceiptRefused(ReceiptFault.INVALID, f"{findings[0].pointer}: {findings[0].reason}")
    if canonical(document) != body:
        raise ReceiptRefused(ReceiptFault.INVALID, "it is not in its canonical form")
    all_checked = set(KINDS) <= document["looked"].keys() and not document.get("not_looked")
    if document["clean"] and (document["remaining"] or not all_checked):
        raise ReceiptRefused(ReceiptFault.INVALID, "it says clean, but something remains or was not checked")
    result: dict[str, Any] = document
    return result


def check_subject(document: Mapping[str, Any], task: Task) -> None:
    """Refuse a receipt about another task than the one that it came with."""
    wanted = {
        "task_id": task.id,
        "task_type": task.type,
        "node_id": task.node_id,
        "tenant_id": task.tenant_id,
        "project_id": task.project_id,
        "allocation_id": task.allocation_id,
        "owner": task.owner,
    }
    wrong = sorted(name for name, value in wanted.items() if document[name] != value)
    if wrong:
        raise ReceiptRefused(ReceiptFault.OTHER_TASK, f"its {wrong[0]} is not that of the task")


def check_place(document: Mapping[str, Any], last: ReceiptChainLink | None) -> None:
    """Refuse a receipt that does not follow the last one of its node's chain."""
    expected = ReceiptChainLink(0, FIRST_PREVIOUS) if last is None else last
    sequence, previous = document["sequence"], document["previous"]
    if sequence > expected.sequence + 1:
        raise ReceiptRefused(
            ReceiptFault.GAP, f"the last receipt is {expected.sequence} and this is {sequence}: some are missing"
        )
    if sequence <= expected.sequence or previous != expected.digest:
        raise ReceiptRefused(ReceiptFault.FORK, f"the chain has another receipt at {min(sequence, expected.sequence)}")


def receipt_of(
    context: DecisionContext, task: Task, document: Mapping[str, Any], signed: SignedReceipt, *, late: bool
) -> Receipt:
    return Receipt(
        id=context.mint(Prefix.RECEIPT),
        tenant_id=task.tenant_id,
        project_id=task.project_id,
        task_id=task.id,
        task_type=task.type,
        node_id=task.node_id,
        allocation_id=task.allocation_id,
        owner=task.owner,
        sequence=document["sequence"],
        previous=document["previous"],
        digest=digest_of(signed.body),
        clean=document["clean"],
        late=late,
        body=signed.body,
        signature=signed.signature,
        looked_at=datetime.fromtimestamp(document["looked_at"], UTC),
        created_at=context.now,
    )
