"""Bodies of the endpoints of recorded exec sessions."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.core.runtime.exec_recording import ExecRecording, RecordingPart


class ReadExecRecording(Strict):
    """Which part to read."""

    after: Annotated[int, Meta(ge=0, le=2**31 - 1, description="`next_after` of the previous part; 0 begins.")] = 0


class ExecRecordingView(Shown):
    """A recorded session, without its content."""

    id: str
    tenant_id: str
    project_id: str
    allocation_id: str
    visit_id: str
    principal_id: str
    correlation_id: str
    started_at: Time
    ended_at: Time | None
    bytes: int


class ExecRecordingPartView(Shown):
    """A part of what the session showed; the parts one after another are an asciicast v2 file."""

    recording: ExecRecordingView
    asciicast: str
    next_after: int | None


def recording_view(recording: ExecRecording) -> ExecRecordingView:
    return ExecRecordingView(**{name: getattr(recording, name) for name in ExecRecording.__slots__})


def part_view(part: RecordingPart) -> ExecRecordingPartView:
    return ExecRecordingPartView(
        recording=recording_view(part.recording), asciicast=part.asciicast, next_after=part.next_after
    )
