"""Lines of a statement, with everything that an export says about them, and sums over them."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class GroupBy(StrEnum):
    """What a statement is broken down by."""

    PROJECT = "project"
    APP = "app"
    INSTANCE = "instance"
    MEMBER = "member"
    SKU = "sku"
    UNIT = "unit"


@dataclass(frozen=True, slots=True)
class StatementLine:
    """One rated line, with the names of what it is for."""

    id: str
    project_id: str
    project_slug: str
    project_name: str
    source: str
    source_id: str
    transaction_id: str | None
    correction: bool
    correlation_id: str | None
    hour: datetime
    started_at: datetime
    ended_at: datetime
    unit: str
    billing: str
    quantity_micro: int
    amount_micro: int
    shadow_micro: int
    currency: str | None
    price_id: str | None
    price_minor: int | None
    price_per: int | None
    price_is_flat: bool | None  # one price for all units: no tiers, included units, steps or minimum
    list_minor: int | None  # the price of the list at that time
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


@dataclass(frozen=True, slots=True)
class StatementGroup:
    """The sum over the lines of one project, app, instance, member, SKU or unit, in one unit and billing."""

    id: str
    key: str | None
    name: str | None
    unit: str
    billing: str
    line_count: int
    quantity_micro: int
    amount_micro: int
    shadow_micro: int
