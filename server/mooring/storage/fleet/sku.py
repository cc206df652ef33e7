"""Reads SKUs and their price history; every caller may read them."""

from dataclasses import dataclass
from typing import Final

import asyncpg

from mooring.core.fleet.sku import Sku, SkuPrice
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = """id, slug, display_name, shape, gpu_model, regions, allowed_gpu_counts, price_minor_per_gpu_hour,
       currency, price_revision, status, revision, created_at"""
FIND: Final = f"SELECT {_COLUMNS} FROM sku WHERE id = $1"
LIST: Final = f"""
SELECT {_COLUMNS} FROM sku
 WHERE id > $1 AND ($2::text IS NULL OR status = $2) AND ($3::text IS NULL OR $3 = ANY (regions))
   AND ($4::text IS NULL OR shape = $4)
 ORDER BY id LIMIT $5"""
COUNT: Final = "SELECT count(*) FROM sku"
PRICES: Final = """
SELECT id, sku_id, price_revision, price_minor_per_gpu_hour, currency, reason, created_by, created_at
  FROM sku_price WHERE sku_id = $1 AND id > $2 ORDER BY id LIMIT $3"""


async def find(database: Database, acting: Acting, sku_id: str) -> Sku | None:
    """One SKU; a withdrawn one is found too."""
    row = await database.fetchrow(acting, FIND, sku_id)
    return None if row is None else sku_of(row)


@dataclass(frozen=True, slots=True)
class SkuFilter:
    """Which SKUs a list shows."""

    status: str | None = None
    region: str | None = None
    shape: str | None = None


async def page(database: Database, acting: Acting, wanted: SkuFilter, window: PageWindow) -> list[Sku]:
    filters = (wanted.status, wanted.region, wanted.shape)
    return [sku_of(row) for row in await database.fetch(acting, LIST, window.after, *filters, window.limit)]


async def count(database: Database, acting: Acting) -> int:
    return int(await database.fetchval(acting, COUNT))


async def prices(database: Database, acting: Acting, sku_id: str, window: PageWindow) -> list[SkuPrice]:
    """The price history of a SKU, oldest first."""
    return [SkuPrice(*row) for row in await database.fetch(acting, PRICES, sku_id, window.after, window.limit)]


def sku_of(row: asyncpg.Record) -> Sku:
    return Sku(*row)
