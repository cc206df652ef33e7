"""Response bodies of the operator's view across tenants: numbers only."""

from typing import Annotated

import msgspec
from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown

Counts = dict[str, int]
HOURS_MAX = 168


class OverviewView(Shown):
    """How many of each there are on the platform, by their state."""

    tenants: int
    projects: int
    nodes: Counts
    nodes_unreachable: int
    nodes_cordoned: int
    slots: Counts
    allocations: Counts
    instances: Counts
    health: Annotated[Counts, Meta(description="Of the running instances.")]
    operations: Annotated[Counts, Meta(description="Those that are not finished, by kind.")]


class AppOverviewQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How far back failures count."""

    hours: Annotated[int, Meta(ge=1, le=HOURS_MAX, description="Failures of so many last hours.")] = 24


class AppOverviewView(Shown):
    """The instances of one app over all tenants."""

    app: Annotated[str | None, Meta(description="None: all apps of tenants together, without their names.")]
    instances: Counts
    health: Counts
    failures: Annotated[Counts, Meta(description="Failed operations by their code; `failed` for apps of tenants.")]


class CapacityOverviewView(Shown):
    """The slots of one GPU model in one region."""

    region: str
    gpu_model: str
    nodes: int
    slots: int
    free: Annotated[int, Meta(description="Free slots of nodes that take work now.")]
    claimed: int
    blocked: int
