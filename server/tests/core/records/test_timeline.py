"""Entries of the timeline, in one line each."""

from datetime import UTC, datetime
from typing import Any

from mooring.core.kernel.event import StreamPosition
from mooring.core.kernel.event_types import EventType
from mooring.core.records.timeline import AUDIT, TimelineRow, text_of
from tests.support.rows import every_row

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def entry(kind: str, event: str, /, **data: Any) -> TimelineRow:
    return TimelineRow(
        StreamPosition(1, 2, 3),
        "evt_1",
        kind,
        event,
        kind,
        "sub_1",
        "ins_1",
        "user",
        "usr_1",
        "cor_1",
        "a" * 32,
        NOW,
        data,
    )


@every_row(
    ("row", "text"),
    [
        (entry("instance", EventType.INSTANCE_RUNNING, name="web", status="running"), "instance web is running"),
        (
            entry("instance", EventType.INSTANCE_FAILED, name="web", status="failed", failure_code="node_lost"),
            "instance web is failed; node_lost",
        ),
        (
            entry("instance", EventType.INSTANCE_DELETED, name="web", status="stopped", teardown_proof="receipt"),
            "instance web is stopped; proof: receipt",
        ),
        (
            entry("member", EventType.MEMBER_CHANGED, name="worker-0", status="removing", blocker="node-1 is silent"),
            "member worker-0 is removing; waits: node-1 is silent",
        ),
        (
            entry("operation", EventType.OPERATION_CHANGED, kind="deploy", status="running", steps=3, step="join"),
            "operation deploy is running; 0/3 steps; now: join",
        ),
        (
            entry("operation", EventType.OPERATION_CHANGED, kind="remove", status="running", phase="platform"),
            "operation remove is running; the platform tears down",
        ),
        (entry("task", EventType.TASK_QUEUED, type="image.pull"), "task image.pull queued"),
        (
            entry("task", EventType.TASK_FINISHED, type="image.pull", status="failed", failure_code="pull_failed"),
            "task image.pull failed pull_failed",
        ),
        (
            entry("allocation", EventType.ALLOCATION_WAITING, name="one", blocker="no free machine"),
            "allocation one waiting no free machine",
        ),
        (entry(AUDIT, "instance.create", outcome="done"), "user usr_1 done instance.create"),
        (entry("receipt", EventType.RECEIPT_ADDED), "receipt sub_1 added"),
        (
            entry("attachment", EventType.ATTACHMENT_CHANGED, account_name="p-a", status="detaching", blocker="3 run"),
            "attachment p-a is detaching; waits: 3 run",
        ),
        (
            entry("attachment", EventType.ATTACHMENT_ACTION_CHANGED, action="queue.submit", status="succeeded"),
            "action queue.submit is succeeded",
        ),
    ],
)
def test_each_kind_of_entry_says_what_happened(row: TimelineRow, text: str) -> None:
    assert text_of(row) == text
