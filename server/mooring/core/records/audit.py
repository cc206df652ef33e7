"""Rows of the audit trail: who did what, or was refused."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One line of the audit trail; it is never changed."""

    id: str
    occurred_at: datetime
    outcome: str
    action: str
    noun: str | None
    subject_id: str | None
    tenant_id: str | None
    project_id: str | None
    actor_kind: str
    actor_id: str
    token_id: str | None
    break_glass_id: str | None
    correlation_id: str
    trace_id: str
    before: dict[str, object] | None
    after: dict[str, object] | None
    reason: str | None
    route: str | None
    remote_address: str | None
    app_instance_id: str | None = None
    count: int = 1  # how many equal refusals the row stands for
