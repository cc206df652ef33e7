"""Reads prices: those of the list, and of the caller's contract."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mooring.core.pricing.price import Item, Price
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.kernel.page_window import PageWindow

COLUMNS: Final = ", ".join(f"p.{name}" for name in Price.__slots__)
CONTRACT: Final = """LEFT JOIN LATERAL (
    SELECT p.id, p.minor, p.currency FROM price p
     WHERE p.tenant_id = current_setting('mooring.tenant', true) AND p.item = 'sku' AND p.item_key = s.id
       AND p.valid_from <= now()
     ORDER BY p.valid_from DESC, p.id DESC LIMIT 1) c ON true"""
"""Joins to a SKU `s` the price of the contract of the tenant that the session acts for."""
OF_ITEMS: Final = f"SELECT {COLUMNS} FROM price p WHERE p.item = $1 AND p.item_key = ANY ($2::text[])"
NAMED: Final = f"SELECT {COLUMNS} FROM price p WHERE p.id = ANY ($1::text[])"
OF_APP: Final = f"SELECT {COLUMNS} FROM price p WHERE p.item = 'unit' AND starts_with(p.item_key, $1 || '/')"
LIST: Final = f"""
SELECT {COLUMNS} FROM price p
 WHERE p.id > $1 AND ($3::text IS NULL OR p.item = $3) AND ($4::text IS NULL OR p.item_key = $4)
   AND ($5::text IS NULL OR p.tenant_id IS NULL OR p.tenant_id = $5)
   AND ($6::timestamptz IS NULL OR (
       p.valid_from <= $6 AND NOT (p.item = 'sku' AND p.tenant_id IS NULL AND starts_with(p.id, 'prc_'))
       AND NOT EXISTS (
         SELECT FROM price n
          WHERE n.item = p.item AND n.item_key = p.item_key AND n.valid_from <= $6
            AND NOT (n.item = 'sku' AND n.tenant_id IS NULL AND starts_with(n.id, 'prc_'))
            AND ((n.tenant_id IS NOT DISTINCT FROM p.tenant_id AND (n.valid_from, n.id) > (p.valid_from, p.id))
                 OR (p.tenant_id IS NULL AND n.tenant_id = $5)))))
 ORDER BY p.id LIMIT $2"""
"""A price of the list for a SKU that an admin added is for running allocations: new ones get the SKU's own."""


@dataclass(frozen=True, slots=True)
class PriceFilter:
    """Which prices a list shows."""

    item: str | None = None
    item_key: str | None = None
    tenant_id: str | None = None  # the list and this tenant's contract; None: all of them
    at: datetime | None = None  # those that hold at this time; None: whenever they hold


async def of_items(reader: RowReader, acting: Acting, item: Item, keys: Sequence[str]) -> list[Price]:
    """All prices of these items that the session sees, whenever they hold."""
    return [Price(*row) for row in await reader.fetch(acting, OF_ITEMS, item.value, list(keys))]


async def named(reader: RowReader, acting: Acting, ids: Sequence[str]) -> dict[str, Price]:
    return {row["id"]: Price(*row) for row in await reader.fetch(acting, NAMED, list(ids))}


async def of_app(reader: RowReader, acting: Acting, app_slug: str) -> dict[str, list[Price]]:
    """All prices of an app's units that the session sees, by unit."""
    found: dict[str, list[Price]] = {}
    for row in await reader.fetch(acting, OF_APP, app_slug):
        found.setdefault(row["item_key"].partition("/")[2], []).append(Price(*row))
    return found


async def page(reader: RowReader, acting: Acting, wanted: PriceFilter, window: PageWindow) -> list[Price]:
    filters = (wanted.item, wanted.item_key, wanted.tenant_id, wanted.at)
    return [Price(*row) for row in await reader.fetch(acting, LIST, window.after, window.limit, *filters)]
