"""The timeline of an instance, or of one correlation id: its events and audit rows in one order.

Events and audit rows are stored separately, because they are for different readers. Both have a position in the stream,
which gives the order. An entry is either of them, with one line of text for people.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from mooring.core.kernel.event import StreamPosition
from mooring.core.kernel.event_types import EventType

AUDIT: Final = "audit"
"""The kind of an entry that is an audit row; every other kind is the noun of an event."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    position: StreamPosition
    id: str
    kind: str
    type: str
    noun: str | None
    subject_id: str | None
    app_instance_id: str | None
    actor_kind: str
    actor_id: str
    correlation_id: str
    trace_id: str
    occurred_at: datetime
    data: dict[str, Any]


def text_of(entry: TimelineRow) -> str:
    """The line of text for people."""
    data = entry.data
    if entry.kind == AUDIT:
        return _sentence(entry.actor_kind, entry.actor_id, data.get("outcome"), entry.type, data.get("reason"))
    if entry.type == EventType.OPERATION_CHANGED:
        return _operation(data)
    if entry.kind == "attachment":
        return _attachment(entry, data)
    if entry.kind in ("instance", "member"):
        name = data.get("name") or entry.subject_id
        failed = _joined(data.get("failure_code"), data.get("failure_detail"))
        blocked = f"waits: {data['blocker']}" if data.get("blocker") else None
        proof = f"proof: {data['teardown_proof']}" if data.get("teardown_proof") else None
        return _sentence(entry.kind, name, "is", data.get("status"), _health(data), failed, blocked, proof)
    if entry.kind == "task":
        verb = entry.type.rpartition(".")[2] if data.get("status") is None else data["status"]
        receipt = f"receipt {data['receipt_id']}" if data.get("receipt_id") else None
        return _sentence("task", data.get("type"), verb, data.get("failure_code"), receipt)
    if entry.kind == "allocation":
        why = data.get("blocker") or data.get("failure_detail") or data.get("failure_code")
        return _sentence("allocation", data.get("name") or entry.subject_id, entry.type.rpartition(".")[2], why)
    return _sentence(entry.kind, entry.subject_id, entry.type.rpartition(".")[2])


def _attachment(entry: TimelineRow, data: Mapping[str, Any]) -> str:
    if entry.type == EventType.ATTACHMENT_ACTION_CHANGED:
        return _sentence("action", data.get("action"), "is", data.get("status"), data.get("failure_code"))
    blocked = f"waits: {data['blocker']}" if data.get("blocker") else None
    named = data.get("account_name") or entry.subject_id
    return _sentence("attachment", named, "is", data.get("status"), blocked, data.get("refusal_reason"))


def _operation(data: Mapping[str, Any]) -> str:
    steps = f"{data.get('steps_done', 0)}/{data['steps']} steps" if data.get("steps") else None
    step = f"now: {data['step']}" if data.get("step") else None
    blocked = f"waits: {data['blocker']}" if data.get("blocker") else None
    failed = _joined(data.get("failure_code"), data.get("failure_detail"))
    turn = "the platform tears down" if data.get("phase") == "platform" and data.get("status") == "running" else None
    return _sentence("operation", data.get("kind"), "is", data.get("status"), steps, step, turn, blocked, failed)


def _health(data: Mapping[str, Any]) -> str | None:
    health = data.get("health")
    return f"({health})" if health and health != "unknown" else None


def _joined(*parts: object) -> str | None:
    return ": ".join(str(part) for part in parts if part) or None


def _sentence(*parts: object) -> str:
    """Join the non-empty parts: the first four with spaces, the rest with semicolons."""
    texts = [str(part) for part in parts if part]
    head, rest = texts[:4], texts[4:]
    return "; ".join([" ".join(head), *rest])
