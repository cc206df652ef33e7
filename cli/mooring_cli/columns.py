"""The columns of a table: the most useful ones first, ids only with `-o wide`.

A terminal shows the first columns always, and of the others as many as fit; a table is never wider than the terminal.
A pipe gets every column but those of `-o wide`, and no text is shortened. A noun without an entry below gets its
columns from its fields, so that a new noun of the API needs no entry.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from mooring_cli import money

Row = Mapping[str, Any]

FIRST_MAX = 4
SHORT_DIGEST = len("sha256:") + 12
COLUMNS_MAX = 8
UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
NAME_FIELDS = ("slug", "name", "email")
STATES = ("status", "health", "promotion", "trust", "enabled", "launchable", "version", "hindrances")
"""Fields that a table always shows."""
BOOKKEEPING = frozenset(
    (
        "revision",
        "generation",
        "etag",
        "allowed_actions",
        "allowed_verbs",
        "allowed_moves",
        "tenant_id",
        "project_id",
        "org_id",
        "trace_id",
        "cursor",
        "correlation_id",
        "actor_kind",
        "source_type",
        "media_type",
    )
)


class Columns(NamedTuple):
    """The columns of one noun, by field or by the name of a derived value."""

    first: tuple[str, ...]  # always shown
    others: tuple[str, ...] = ()  # shown if there is room
    wide: tuple[str, ...] = ()  # shown with -o wide


OF_NOUN: dict[str, Columns] = {
    "payment": Columns(("reference", "kind", "currency", "minor", "age"), ("reason",), ("created_by", "id")),
    "quota": Columns(
        ("gpus_max", "instances_max", "minor_per_hour_max", "currency"), (), ("tenant_id", "project_id", "id")
    ),
    "allocation": Columns(
        ("name", "status", "age", "sku", "gpus"),
        ("address", "region", "reason"),
        ("gpu_model", "node_id", "group_id", "id"),
    ),
    "allocation group": Columns(("name", "status", "age", "allocation_count"), (), ("same_node", "id")),
    "app": Columns(("slug", "display_name", "category", "age"), ("description",), ("tenant_id", "id")),
    "artifact": Columns(
        ("short_digest", "kind", "promotion", "trust", "age"), ("location",), ("size_bytes", "digest", "id")
    ),
    "attachment": Columns(
        ("account_name", "status", "instance_name", "age"), ("app", "reason"), ("instance_id", "operation_id", "id")
    ),
    "closing record": Columns(("member_name", "kind", "receipt_id"), ("age", "reason"), ("node_id",)),
    "context": Columns(
        ("mark", "name", "url", "tenant", "project"),
        ("signed_in", "email", "token_expires_at"),
        ("ca_file", "token_id"),
    ),
    "audit entry": Columns(
        ("occurred_at", "outcome", "action", "actor_kind"),
        ("noun", "reason", "count"),
        ("subject_id", "actor_id", "correlation_id"),
    ),
    "balance": Columns(
        ("prepaid", "currency", "available_minor", "level"),
        ("paid_minor", "charged_minor", "estimated_minor", "held_minor"),
        ("low_minor", "tenant_id"),
    ),
    "budget": Columns(
        ("project_id", "currency", "minor_per_month", "left_minor"),
        ("measured_minor", "estimated_minor", "held_minor", "crossed"),
        ("id",),
    ),
    "catalog": Columns(
        ("slug", "launchable", "version", "category"), ("hindrances", "display_name", "description"), ("app_id",)
    ),
    "endpoint": Columns(("name", "protocol", "port", "age"), ("origin",), ("instance_id", "allocation_id", "id")),
    "entitlement": Columns(
        ("app_slug", "enabled", "versions", "age"),
        ("missing_actions",),
        ("agreed_actions", "app_id", "service_account_id", "id"),
    ),
    "instance": Columns(
        ("name", "status", "health", "age", "address"),
        ("app", "version", "members", "reason"),
        ("channel", "runtime_backend", "service_account_id", "id"),
    ),
    "member": Columns(
        ("name", "status", "health", "age"),
        ("version", "component_key", "reason"),
        ("allocation_id", "node_id", "last_operation_id", "id"),
    ),
    "membership": Columns(("role", "user_id", "id"), ("age",), ("project_id",)),
    "meter": Columns(("app", "unit", "billing", "status"), ("age",), ("id",)),
    "node": Columns(
        ("name", "status", "reachable", "slots", "seen"), ("region", "allocations", "host", "age"), ("labels", "id")
    ),
    "operation": Columns(
        ("id", "kind", "status", "steps", "age"), ("reason",), ("phase", "target_version", "requested_by")
    ),
    "price": Columns(
        ("item_key", "book", "unit_price", "valid_from"),
        ("existing_from", "included", "tenant_id", "reason"),
        ("minimum_seconds", "granularity_seconds", "id"),
    ),
    "receipt": Columns(("id", "task_type", "clean", "age"), (), ("sequence", "allocation_id", "node_id")),
    "service account key": Columns(("id", "age", "expires_at", "revoked_at"), ("algorithm",), ("public_key",)),
    "sku": Columns(
        ("slug", "status", "shape", "allowed_gpu_counts", "price"), ("gpu_model", "regions"), ("display_name", "id")
    ),
    "statement": Columns(("month", "status", "total", "closed_at"), ("line_count",), ("tenant_id", "digest", "id")),
    "statement group": Columns(("name", "unit", "billing", "amount"), ("shadow", "line_count"), ("key",)),
    "statement line": Columns(
        ("started_at", "project_slug", "unit", "billing", "amount"),
        ("shadow", "sku_slug", "app_slug", "instance_name"),
        ("source_id", "price_id", "transaction_id", "id"),
    ),
    "shape": Columns(("sku", "gpu_count", "shape", "fits", "price"), ("smallest_change", "regions")),
    "task": Columns(
        ("id", "type", "status", "age"), ("failure_code", "step"), ("allocation_id", "member_id", "node_id", "maker")
    ),
    "token": Columns(("name", "kind", "expires_at", "last_used_at"), ("age",), ("actions", "id")),
    "version": Columns(
        ("version", "status", "age"), ("canary_percentage", "deprecation_reason"), ("manifest_digest", "id")
    ),
    "webhook": Columns(("id", "enabled", "url"), ("age", "description"), ("event_types",)),
}
OF_NOUN["catalog version"] = Columns(("version", "status", "age", "offered"), ("instances", "release_notes"), ("id",))
OF_NOUN["instance attachment"] = OF_NOUN["attachment"]

DEAD: dict[str, tuple[str, ...]] = {
    "allocation": ("released",),
    "allocation group": ("released",),
    "attachment": ("detached", "refused"),
    "instance": ("stopped",),
    "instance attachment": ("detached", "refused"),
    "member": ("removed",),
    "node": ("retired",),
}
"""States in which a resource is only history: a list leaves it out unless --all is given."""


def columns_of(rows: Sequence[Row]) -> Columns:
    """The columns of rows without an entry: a name or an id, the state, the age, and short values."""
    fields = _fields(rows)
    named = next((name for name in NAME_FIELDS if name in fields), "id" if "id" in fields else "")
    states = [name for name in STATES if name in fields]
    aged = ["age"] if "created_at" in fields else []
    plain = [
        name
        for name in fields
        if name not in (named, "created_at", "id", *states, *BOOKKEEPING) and not (named and name.endswith("_id"))
    ]
    first = [each for each in (named, *states, *aged) if each] or plain[:FIRST_MAX]
    others = [name for name in plain if name not in first][: max(0, COLUMNS_MAX - len(first))]
    return Columns(tuple(first), tuple(others), tuple(name for name in fields if name not in (*first, *others)))


def _fields(rows: Sequence[Row]) -> list[str]:
    """The fields that some row has a short value for."""
    found: dict[str, bool] = {}
    for row in rows:
        for name, value in row.items():
            found[name] = found.get(name, False) or is_short(value)
    return [name for name, is_filled in found.items() if is_filled]


def is_short(value: Any) -> bool:
    """Whether a value fits into a cell."""
    if isinstance(value, dict):
        return {"version", "status"} <= value.keys()
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, dict) and "code" in each for each in value)
    return value not in (None, "") and "\n" not in str(value)


def chosen(rows: Sequence[Row], columns: Columns, *, wide: bool) -> list[str]:
    """The columns to show: those that always are, and of the others the ones with a value in some row."""
    others = (*columns.others, *columns.wide) if wide else columns.others
    return [*columns.first, *(name for name in others if any(value_of(row, name) not in NOTHING for row in rows))]


NOTHING: tuple[Any, ...] = (None, "", [], {})


def value_of(row: Row, name: str) -> Any:
    """The value of a column: derived, or of the field with this name."""
    derive = DERIVED.get(name)
    return row.get(name) if derive is None else derive(row) or row.get(name)


def age(text: Any, now: datetime | None = None) -> str:
    """How long ago a time of the API was, such as 12s, 5m or 3d."""
    moment = read_time(str(text)) if text else None
    if moment is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    for size, unit in UNITS:
        if abs(seconds) >= size:
            return f"{'' if seconds > 0 else '-'}{int(abs(seconds) // size)}{unit}"
    return "0s"


def read_time(text: str) -> datetime | None:
    """Parse a time of the API; None if it is not one."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _address(row: Row) -> str:
    """The address of a sandbox, or the names of endpoints as `mooring connect` takes them."""
    if "endpoints" not in row:
        return str(row.get("address") or "")
    named = dict.fromkeys(str(each["name"]) for each in row.get("endpoints") or [])
    return ", ".join(f"{row['name']}/{each}" for each in named)


def _members(row: Row) -> str:
    """How many of the wanted members are healthy."""
    roles = row.get("members_summary") or []
    return f"{sum(each['healthy'] for each in roles)}/{sum(each['desired'] for each in roles)}" if roles else ""


def _steps(row: Row) -> str:
    steps = row.get("steps") or []
    return f"{sum(each['status'] in ('done', 'skipped') for each in steps)}/{len(steps)}" if steps else ""


def _slots(row: Row) -> str:
    return f"{row['slots_free']} of {row['slots_total']} free" if "slots_total" in row else ""


def _price(row: Row) -> str:
    for field, unit in (("price_minor_per_gpu_hour", "GPU h"), ("price_minor_per_hour", "h")):
        if row.get(field) is not None:
            return f"{row[field] / 100:.2f} {row.get('currency', '')}/{unit}".strip()
    return ""


def _unit_price(row: Row) -> str:
    """What a price of the book says, such as 2.50 EUR/GPU h or 2.00 EUR per 1000000."""
    if "minor" not in row:
        return ""
    shown = money.text(int(row["minor"]) * 10**money.MICRO_DIGITS, str(row["currency"]))
    per = "/GPU h" if row["item"] == "sku" else f" per {row['per']}"
    return f"{shown}{per}{' in tiers' if row['tiers'] else ''}"


def _reason(row: Row) -> Any:
    """Why it failed, waits or is not healthy."""
    named = ("failure_code", "blocker_code", "blocker", "refusal_reason")
    unhealthy = row.get("health_detail") if row.get("health") != "healthy" else None
    return next((row[name] for name in named if row.get(name)), unhealthy)


def _amount(row: Row) -> str:
    return money.text(row.get("amount_micro"), row.get("currency"))


def _shadow(row: Row) -> str:
    """What covered usage would have cost."""
    return money.text(row.get("shadow_micro") or None, row.get("currency"))


DERIVED: dict[str, Callable[[Row], Any]] = {
    "address": _address,
    "age": lambda row: age(row.get("created_at")),
    "amount": _amount,
    "allocation_count": lambda row: len(row.get("allocations") or []),
    "gpus": lambda row: row.get("gpu_count"),
    "members": _members,
    "mark": lambda row: row.get("current") or " ",
    "price": _price,
    "reason": _reason,
    "receipt_id": lambda row: (row.get("receipt") or {}).get("receipt_id"),
    "seen": lambda row: age(row.get("last_seen_at")),
    "shadow": _shadow,
    "short_digest": lambda row: str(row.get("digest") or "")[:SHORT_DIGEST],
    "slots": _slots,
    "steps": _steps,
    "total": _amount,
    "unit_price": _unit_price,
}
"""Columns that are made of several fields, or of a field in another form."""
