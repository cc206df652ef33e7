"""Reads meters; every caller may read them."""

from typing import Final

from mooring.core.pricing.meter import Meter
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.kernel.page_window import PageWindow

COLUMNS: Final = ", ".join(f"m.{name}" for name in Meter.__slots__)
OF_APP: Final = f"SELECT {COLUMNS} FROM meter m WHERE m.app_slug = $1"
FIND: Final = f"SELECT {COLUMNS} FROM meter m WHERE m.app_slug = $1 AND m.unit = $2"
LIST: Final = f"SELECT {COLUMNS} FROM meter m WHERE m.id > $1 ORDER BY m.id LIMIT $2"


async def of_app(reader: RowReader, acting: Acting, app_slug: str) -> dict[str, Meter]:
    """The meters of an app, by unit."""
    return {row["unit"]: Meter(*row) for row in await reader.fetch(acting, OF_APP, app_slug)}


async def find(reader: RowReader, acting: Acting, app_slug: str, unit: str) -> Meter | None:
    row = await reader.fetchrow(acting, FIND, app_slug, unit)
    return None if row is None else Meter(*row)


async def page(reader: RowReader, acting: Acting, window: PageWindow) -> list[Meter]:
    return [Meter(*row) for row in await reader.fetch(acting, LIST, window.after, window.limit)]
