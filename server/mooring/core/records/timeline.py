"""The timeline: what happened around an instance, or under one correlation id, as one story.

Events and audit rows are kept apart, since they are for different readers, and stand in one order: both have a place
in the stream. An entry is either of them, with one line of text that a person can read.
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
    """One line of the timeline."""

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
    """An entry in one line."""
    told = entry.data
    if entry.kind == AUDIT:
        return _sentence(entry.actor_kind, entry.actor_id, told.get("outcome"), entry.type, told.get("reason"))
    if entry.type == EventType.OPERATION_CHANGED:
        return _operation(told)
    if entry.kind == "attachment":
        return _attachment(entry, told)
    if entry.kind in ("instance", "member"):
        name = told.get("name") or entry.subject_id
        failed = _joined(told.get("failure_code"), told.get("failure_detail"))
        blocked = f"waits: {told['blocker']}" if told.get("blocker") else None
        proof = f"proof: {told['teardown_proof']}" if told.get("teardown_proof") else None
        return _sentence(entry.kind, name, "is", told.get("status"), _health(told), failed, blocked, proof)
    if entry.kind == "task":
        verb = entry.type.rpartition(".")[2] if told.get("status") is None else told["status"]
        receipt = f"receipt {told['receipt_id']}" if told.get("receipt_id") else None
        return _sentence("task", told.get("type"), verb, told.get("failure_code"), receipt)
    if entry.kind == "allocation":
        why = told.get("blocker") or told.get("failure_detail") or told.get("failure_code")
        return _sentence("allocation", told.get("name") or entry.subject_id, entry.type.rpartition(".")[2], why)
    return _sentence(entry.kind, entry.subject_id, entry.type.rpartition(".")[2])


def _attachment(entry: TimelineRow, told: Mapping[str, Any]) -> str:
    if entry.type == EventType.ATTACHMENT_ACTION_CHANGED:
        return _sentence("action", told.get("action"), "is", told.get("status"), told.get("failure_code"))
    blocked = f"waits: {told['blocker']}" if told.get("blocker") else None
    named = told.get("account_name") or entry.subject_id
    return _sentence("attachment", named, "is", told.get("status"), blocked, told.get("refusal_reason"))


def _operation(told: Mapping[str, Any]) -> str:
    steps = f"{told.get('steps_done', 0)}/{told['steps']} steps" if told.get("steps") else None
    step = f"now: {told['step']}" if told.get("step") else None
    blocked = f"waits: {told['blocker']}" if told.get("blocker") else None
    failed = _joined(told.get("failure_code"), told.get("failure_detail"))
    turn = "the platform tears down" if told.get("phase") == "platform" and told.get("status") == "running" else None
    return _sentence("operation", told.get("kind"), "is", told.get("status"), steps, step, turn, blocked, failed)


def _health(told: Mapping[str, Any]) -> str | None:
    health = told.get("health")
    return f"({health})" if health and health != "unknown" else None


def _joined(*parts: object) -> str | None:
    return ": ".join(str(part) for part in parts if part) or None


def _sentence(*parts: object) -> str:
    """Words, and after the fourth of them whatever is said beside them."""
    said = [str(part) for part in parts if part]
    head, rest = said[:4], said[4:]
    return "; ".join([" ".join(head), *rest])
