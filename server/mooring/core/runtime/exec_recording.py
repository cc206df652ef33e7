"""Recordings of exec sessions: what a session showed, as asciicast v2.

A recording is made when a policy layer of the project, the tenant or the platform asks for it (`record_exec`). It has
what the session showed, with times and window sizes, and nothing of what was typed unless the program echoed it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mooring.core.catalog.policy_change import Policy, read_rules
from mooring.core.kernel.decision import AuditRecord, Decision
from mooring.core.runtime.visit import Visit

RECORDING_BYTES_MAX: Final = 8 * 1_048_576
READ_ACTION: Final = "exec_recording.read"


@dataclass(frozen=True, slots=True)
class ExecRecording:
    id: str
    tenant_id: str
    project_id: str
    allocation_id: str
    visit_id: str
    principal_id: str
    correlation_id: str
    started_at: datetime
    ended_at: datetime | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class RecordingPart:
    """A part of a recording; `next_after` is None when it is the last."""

    recording: ExecRecording
    asciicast: str
    next_after: int | None


def must_record(policies: Iterable[Policy]) -> bool:
    """Whether a layer asks for it; no layer below can refuse."""
    return any(read_rules(each.rules).record_exec for each in policies)


def header_line(visit: Visit, started_at: datetime) -> str:
    """The first line of an asciicast; the command is in the audit trail and not repeated here."""
    return _line(
        {
            "version": 2,
            "width": visit.columns or 80,
            "height": visit.rows or 24,
            "timestamp": int(started_at.timestamp()),
        }
    )


def output_line(seconds: float, text: str) -> str:
    return _line([round(seconds, 6), "o", text])


def resize_line(seconds: float, columns: int, rows: int) -> str:
    return _line([round(seconds, 6), "r", f"{columns}x{rows}"])


def read_recording(recording: ExecRecording, part: RecordingPart, after: int) -> Decision[RecordingPart]:
    """Reading a recording is audited, each part."""
    details = {"visit_id": recording.visit_id, "after": after}
    audit = AuditRecord(
        READ_ACTION, "exec_recording", recording.id, recording.tenant_id, recording.project_id, after=details
    )
    return Decision(part, audits=(audit,))


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n"
