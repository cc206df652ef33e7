"""SKUs and their prices, as they are read: by everybody."""

from typing import Final

import asyncpg

from mooring.core.fleet.sku import Sku, SkuPrice
from mooring.storage.kernel.database import Acting, Database

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
    """One SKU, offered or not."""
    row = await database.fetchrow(acting, FIND, sku_id)
    return None if row is None else sku_of(row)


async def page(
    database: Database, acting: Acting, wanted: tuple[str | None, str | None, str | None], after: str, limit: int
) -> list[Sku]:
    """The next SKUs; `wanted` is a status, a region and a shape, each or none."""
    return [sku_of(row) for row in await database.fetch(acting, LIST, after, *wanted, limit)]


async def count(database: Database, acting: Acting) -> int:
    """How many SKUs there are."""
    return int(await database.fetchval(acting, COUNT))


async def prices(database: Database, acting: Acting, sku_id: str, after: str, limit: int) -> list[SkuPrice]:
    """The next lines of a SKU's history."""
    return [SkuPrice(*row) for row in await database.fetch(acting, PRICES, sku_id, after, limit)]


def sku_of(row: asyncpg.Record) -> Sku:
    """The SKU of a row."""
    return Sku(*row)
