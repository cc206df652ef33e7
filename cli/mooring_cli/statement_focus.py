"""A statement in the FinOps Open Cost and Usage Specification (FOCUS) 1.2 or 1.3: one row for each line.

`BilledCost` is the integer of the ledger, so that the rows of an invoice add up to its total exactly. A unit price
times the quantity is that amount before rounding: they differ by less than two units of the ledger's last digit. A row
without one price for all its units (tiers, included units, a minimum) has no unit price.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from typing import IO, Any

from mooring_cli.money import MICRO_DIGITS, PRECISION, exact, minor_digits

Line = Mapping[str, Any]
Row = dict[str, Any]

VERSIONS = ("1.2", "1.3")
TIMES = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")
COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
NUMBERS = (
    *COSTS, "PricingQuantity", "ConsumedQuantity", "ListUnitPrice", "ContractedUnitPrice", "x_covered_cost",
    "x_gpu_count",
)  # fmt: skip
MANDATORY = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodStart", "BillingPeriodEnd",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodStart", "ChargePeriodEnd", "ContractedCost",
    "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
    "ServiceCategory", "ServiceName",
)  # fmt: skip
FURTHER = (
    "BillingAccountType", "CapacityReservationId", "CapacityReservationStatus", "ChargeFrequency", "ConsumedQuantity",
    "ConsumedUnit", "ContractedUnitPrice", "InvoiceId", "ListUnitPrice", "PricingCategory", "RegionId", "RegionName",
    "ResourceId", "ResourceName", "ResourceType", "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId", "SubAccountId",
    "SubAccountName", "SubAccountType", "Tags",
)  # fmt: skip
OWN = (
    "x_app_slug", "x_instance_id", "x_member_id", "x_component", "x_correlation_id", "x_covered_cost", "x_gpu_model",
    "x_gpu_count",
)  # fmt: skip
SINCE_1_3 = (
    "AllocatedMethodDetails", "AllocatedMethodId", "AllocatedResourceId", "AllocatedResourceName", "AllocatedTags",
    "ContractApplied", "HostProviderName", "ServiceProviderName",
)  # fmt: skip
COVERED = "covered"
GPU_SECOND = "gpu_second"
HOUR_SECONDS = 3600
NO_PRICE: Decimal | None = None
PLACES = Decimal(1).scaleb(-12)
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that a spreadsheet would compute."""


@dataclass(frozen=True)
class FocusOptions:
    """What the rows say that is not in the statement."""

    account_name: str  # the tenant's
    provider: str = "Mooring"
    version: str = "1.2"


def columns(version: str) -> tuple[str, ...]:
    return (*MANDATORY, *FURTHER, *(SINCE_1_3 if version == "1.3" else ()), *OWN)


def rows(statement: Line, lines: Iterable[Line], options: FocusOptions) -> Iterator[Row]:
    """One row for each line, made one after the other."""
    common = _of_statement(statement, options)
    for line in lines:
        with localcontext() as context:
            context.prec = PRECISION
            found = common | _of_line(statement, line) | _prices(statement, line)
        if options.version == "1.3":
            found |= _allocated(line) | {"HostProviderName": options.provider, "ServiceProviderName": options.provider}
        yield found


def write_csv(found: Iterable[Row], target: IO[str], version: str) -> None:
    writer = csv.writer(target)
    names = columns(version)
    writer.writerow(names)
    for row in found:
        writer.writerow([cell(name, row.get(name)) for name in names])


def cell(name: str, value: Any) -> str:
    """A value as CSV has it: null is empty, and a text never begins like a formula."""
    if value is None:
        return ""
    if name in NUMBERS:
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    if name in TIMES:
        return f"{value:%Y-%m-%dT%H:%M:%SZ}"
    text = str(value)
    return "'" + text if text.startswith(FORMULA) else text


def _of_statement(statement: Line, options: FocusOptions) -> Row:
    return {
        "BillingAccountId": statement["tenant_id"],
        "BillingAccountName": options.account_name,
        "BillingAccountType": "Tenant",
        "BillingCurrency": statement["currency"],
        "BillingPeriodStart": _time(statement["started_at"]),
        "BillingPeriodEnd": _time(statement["ended_at"]),
        "InvoiceId": None if statement["preview"] else statement["id"],
        "InvoiceIssuerName": options.provider,
        "ProviderName": options.provider,
        "PublisherName": options.provider,
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "SubAccountType": "Project",
    }


def _of_line(statement: Line, line: Line) -> Row:
    of_allocation = line["source"] == "allocation"
    start, end = charge_period(line)
    late = start < _time(statement["started_at"])
    tags = {name: line[name] for name in ("attached_project_id",) if line[name]}
    return {
        "ChargeCategory": "Adjustment" if line["source"] == "correction" else "Usage",
        "ChargeClass": "Correction" if line["correction"] and late else None,
        "ChargeDescription": _description(line),
        "ChargePeriodStart": start,
        "ChargePeriodEnd": end,
        "ConsumedQuantity": Decimal(line["quantity_micro"]).scaleb(-MICRO_DIGITS),
        "ConsumedUnit": unit_name(line["unit"]),
        "PricingCategory": "Other" if line["billing"] == COVERED else "Standard",
        "RegionId": line["region"],
        "RegionName": line["region"],
        "ResourceId": line["allocation_id"] if of_allocation else line["instance_id"],
        "ResourceName": line["allocation_name"] if of_allocation else line["instance_name"],
        "ResourceType": "GPU Allocation" if of_allocation else "App Instance",
        "ServiceCategory": "Compute" if of_allocation else "AI and Machine Learning",
        "ServiceName": "GPU Allocations" if of_allocation else line["app_slug"] or "Apps",
        "SkuId": sku_of(line),
        "SkuMeter": unit_name(line["unit"]),
        "SkuPriceDetails": _as_json({"x_gpu_model": line["gpu_model"]} if line["gpu_model"] else {}),
        "SkuPriceId": line["price_id"],
        "SubAccountId": line["project_id"],
        "SubAccountName": line["project_name"],
        "Tags": _as_json(tags),
        "x_app_slug": line["app_slug"],
        "x_instance_id": line["instance_id"],
        "x_member_id": line["member_id"],
        "x_component": line["component_key"],
        "x_correlation_id": line["correlation_id"],
        "x_covered_cost": exact(line["shadow_micro"], statement["currency"]),
        "x_gpu_model": line["gpu_model"],
        "x_gpu_count": line["gpu_count"],
    }


def _prices(statement: Line, line: Line) -> Row:
    currency = statement["currency"]
    billed = exact(line["amount_micro"], currency)
    amount = Decimal(line["quantity_micro"]).scaleb(-MICRO_DIGITS)
    per = line["price_per"] or 1
    covered = line["billing"] == COVERED
    flat = line["price_is_flat"] and not covered
    listed, found = billed, dict.fromkeys(("ContractedUnitPrice", "ListUnitPrice"), NO_PRICE)
    if flat and line["list_per"] == per:
        unit, list_unit = _major(line["price_minor"], currency), _major(line["list_minor"], currency)
        found = {"ContractedUnitPrice": unit, "ListUnitPrice": list_unit}
        if list_unit != unit:
            listed = (amount / per * list_unit).quantize(PLACES)
    return found | {
        "BilledCost": billed,
        "EffectiveCost": billed,
        "ContractedCost": billed,
        "ListCost": listed,
        "PricingQuantity": (amount / per).quantize(PLACES),
        "PricingUnit": pricing_unit(line["unit"], per),
    }


def _allocated(line: Line) -> Row:
    """Usage of an instance that another project pays for: its share of the owner's cost."""
    if line["billing"] != COVERED or not line["attached_project_id"]:
        return {}
    return {
        "AllocatedMethodId": "covered-usage",
        "AllocatedMethodDetails": _as_json({"unit": line["unit"]}),
        "AllocatedResourceId": line["instance_id"],
        "AllocatedResourceName": line["instance_name"],
    }


def charge_period(line: Line) -> tuple[datetime, datetime]:
    """When the line was used, in whole seconds; the whole hour for usage that has one moment."""
    start, end = (datetime.fromisoformat(line[name]).astimezone(UTC) for name in ("started_at", "ended_at"))
    first = start.replace(microsecond=0)
    last = end.replace(microsecond=0) + timedelta(seconds=1 if end.microsecond else 0)
    if first < last:
        return first, last
    hour = _time(line["hour"])
    return hour, hour + timedelta(seconds=HOUR_SECONDS)


def unit_name(unit: str) -> str:
    """A unit as the specification writes it: `GPU-Seconds`, `Token In`."""
    return "GPU-Seconds" if unit == GPU_SECOND else " ".join(word.capitalize() for word in unit.split("_"))


def pricing_unit(unit: str, per: int) -> str:
    if unit == GPU_SECOND and per == HOUR_SECONDS:
        return "GPU-Hours"
    return unit_name(unit) if per == 1 else f"{per} {unit_name(unit)}"


def sku_of(line: Line) -> str | None:
    if line["source"] == "allocation":
        return str(line["sku_id"] or line["sku_slug"])
    return f"{line['app_slug']}/{line['unit']}" if line["price_id"] else None


def _description(line: Line) -> str:
    if line["source"] == "allocation":
        return f"{line['gpu_count']} × {line['gpu_model']} ({line['sku_slug']}), allocation {line['allocation_name']}"
    paid = ", covered by its allocation" if line["billing"] == COVERED else ""
    return f"{unit_name(line['unit'])} of {line['app_slug']}, instance {line['instance_name']}{paid}"


def _major(minor: int, currency: str) -> Decimal:
    return Decimal(minor).scaleb(-minor_digits(currency))


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC).replace(microsecond=0)


def _as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
