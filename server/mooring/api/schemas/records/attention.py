"""Bodies of the list of what needs somebody."""

from typing import Annotated

from msgspec import Meta

from mooring.api.page import PageQuery
from mooring.api.schemas.kernel.fields import Shown, Time
from mooring.api.schemas.runtime.why import NextView
from mooring.core.records.attention import AttentionItem, AttentionKind, Severity


class AttentionQuery(PageQuery):
    """Which things are listed."""

    severity: Severity | None = None


class AttentionItemView(Shown):
    """One thing that does not continue by itself."""

    id: str
    severity: Severity
    kind: AttentionKind
    cause: str
    since: Annotated[Time, Meta(description="Since when; of a deadline or an expiry: the moment itself.")]
    subject_noun: str
    subject_id: str
    subject_name: Annotated[str | None, Meta(description="None on the platform for what belongs to a tenant.")]
    code: str | None
    count: int
    tenant_id: str | None
    project_id: str | None
    instance_id: Annotated[str | None, Meta(description="The instance that the subject belongs to.")]
    next_step: NextView


def attention_item_view(item: AttentionItem) -> AttentionItemView:
    facts = item.facts
    return AttentionItemView(
        id=item.id,
        severity=item.severity,
        kind=facts.kind,
        cause=item.cause,
        since=facts.since,
        subject_noun=facts.noun,
        subject_id=facts.subject_id,
        subject_name=facts.name,
        code=facts.code,
        count=facts.count,
        tenant_id=facts.tenant_id,
        project_id=facts.project_id,
        instance_id=facts.instance_id,
        next_step=NextView(who=item.next_step.who, what=item.next_step.what, command=item.next_step.command),
    )
