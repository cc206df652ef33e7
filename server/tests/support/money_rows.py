"""Prices, logs and usage for tests of money."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from mooring.core.money.charge import MeteredUsage
from mooring.core.money.interval import LogStep, MeteredAllocation
from mooring.core.pricing.meter import Billing
from mooring.core.pricing.price import Item, Price

START: Final = datetime(2026, 3, 1, 10, tzinfo=UTC)


def price(name: str, minor: int = 250, **changed: Any) -> Price:
    values: dict[str, Any] = {
        "tenant_id": None,
        "item": Item.SKU.value,
        "item_key": "sku_1",
        "currency": "EUR",
        "minor": minor,
        "per": 3600,
        "granularity_seconds": 1,
        "minimum_seconds": 0,
        "included": 0,
        "tiers": [],
        "valid_from": START,
        "existing_from": None,
        "reason": "a price for a test",
        "created_by": "usr_1",
        "created_at": START,
    }
    return Price(id=name, **(values | changed))


def log(*steps: tuple[str, float]) -> tuple[LogStep, ...]:
    """The log of an allocation: states, with the seconds after START at which they began."""
    return tuple(
        LogStep(number, state, START + timedelta(seconds=seconds)) for number, (state, seconds) in enumerate(steps)
    )


def allocation(of: Price, steps: tuple[LogStep, ...], name: str = "alc_1", gpus: int = 1) -> MeteredAllocation:
    return MeteredAllocation(name, "ten_a", "prj_a", gpus, of, steps)


def usage(name: str, of: Price | None, quantity: str, at: float, billing: Billing = Billing.CHARGED) -> MeteredUsage:
    """A usage record that was reported `at` seconds after START."""
    moment = START + timedelta(seconds=at)
    return MeteredUsage(name, "ten_a", "prj_a", "tokens", billing.value, of, Decimal(quantity), moment, moment, moment)
