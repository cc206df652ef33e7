"""Queries and views of statements. Amounts and quantities are integers: 10⁻⁶ of a minor unit, or of a unit."""

from typing import Annotated

from msgspec import Meta

from mooring.api.page import PageQuery
from mooring.api.schemas.kernel.fields import Shown, Time, allowed
from mooring.core.kernel.permissions import Authority, Place
from mooring.core.money.statement import STATEMENT, Statement, StatementState
from mooring.core.money.statement_line import GroupBy, StatementGroup, StatementLine

Micro = Annotated[int, Meta(description="Of 10⁻⁶ minor unit of the currency.")]
MicroQuantity = Annotated[int, Meta(description="Of 10⁻⁶ of the unit.")]


class StatementQuery(PageQuery):
    """Which statements to list."""

    status: StatementState | None = None


class BreakdownQuery(PageQuery):
    """What to sum by."""

    group_by: GroupBy = GroupBy.PROJECT


class StatementView(Shown):
    """What a tenant owes for a month in one currency."""

    id: str
    tenant_id: str
    month: str
    currency: str
    status: StatementState
    preview: Annotated[bool, Meta(description="True until the statement is closed: its figures may still change.")]
    started_at: Time
    ended_at: Time
    amount_micro: Micro
    shadow_micro: Annotated[int | None, Meta(description="What covered usage would have cost; known when closed.")]
    line_count: int | None
    digest: Annotated[str | None, Meta(description="Over the totals, the lines and the digest before.")]
    lines_digest: str | None
    previous_digest: str | None
    closing_at: Time | None
    closed_at: Time | None
    created_at: Time
    etag: str
    allowed_actions: list[str]


class StatementLineView(Shown):
    """One rated line: an allocation or a usage record, in one hour, at one price."""

    id: str
    project_id: str
    project_slug: str
    project_name: str
    source: str
    source_id: str
    transaction_id: str | None
    correction: bool
    correlation_id: str | None
    hour: Time
    started_at: Time
    ended_at: Time
    unit: str
    billing: Annotated[str, Meta(description="`charged`, or `covered`: the allocation pays for it.")]
    quantity_micro: MicroQuantity
    amount_micro: Micro
    shadow_micro: Micro
    currency: str | None
    price_id: str | None
    price_minor: int | None
    price_per: int | None
    price_is_flat: bool | None
    list_minor: int | None
    list_per: int | None
    sku_id: str | None
    sku_slug: str | None
    gpu_model: str | None
    gpu_count: int | None
    region: str | None
    allocation_id: str | None
    allocation_name: str | None
    app_slug: str | None
    instance_id: str | None
    instance_name: str | None
    member_id: str | None
    component_key: str | None
    attached_project_id: str | None


class StatementGroupView(Shown):
    """The sum over the lines of one group, in one unit."""

    key: str | None
    name: str | None
    unit: str
    billing: str
    currency: str
    line_count: int
    quantity_micro: MicroQuantity
    amount_micro: Micro
    shadow_micro: Micro


def statement_view(authority: Authority, place: Place, owed: int, statement: Statement) -> StatementView:
    """A statement; `owed` is what the ledger says as long as it has no totals."""
    status = StatementState(statement.status)
    closable = ["billing.statement.close"] if status is StatementState.OPEN else []
    return StatementView(
        id=statement.id,
        tenant_id=statement.tenant_id,
        month=statement.month,
        currency=statement.currency,
        status=status,
        preview=status not in STATEMENT.final,
        started_at=statement.started_at,
        ended_at=statement.ended_at,
        amount_micro=owed if statement.amount is None else statement.amount,
        shadow_micro=statement.shadow_amount,
        line_count=statement.line_count,
        digest=statement.digest,
        lines_digest=statement.lines_digest,
        previous_digest=statement.previous_digest,
        closing_at=statement.closing_at,
        closed_at=statement.closed_at,
        created_at=statement.created_at,
        etag=f"{statement.generation}.{statement.revision}",
        allowed_actions=allowed(authority, place, closable),
    )


def line_view(line: StatementLine) -> StatementLineView:
    return StatementLineView(**{name: getattr(line, name) for name in StatementLine.__slots__})


def group_view(currency: str, group: StatementGroup) -> StatementGroupView:
    shown = {name: getattr(group, name) for name in StatementGroup.__slots__ if name != "id"}
    return StatementGroupView(currency=currency, **shown)
