"""Usage records, as they are read."""

from collections.abc import Sequence
from typing import Final

from mooring.core.money.usage import UsageRecord
from mooring.core.runtime.attachment import Attachment
from mooring.storage.kernel.database import Acting, Database

NAMES: Final = tuple(UsageRecord.__slots__)
COLUMNS: Final = ", ".join(f"u.{name}" for name in NAMES)
NAMED: Final = f"SELECT {COLUMNS} FROM usage_record u WHERE u.instance_id = $1 AND u.record_id = ANY ($2::text[])"
LIST: Final = f"""
SELECT {COLUMNS} FROM usage_record u WHERE u.project_id = $1 AND u.instance_id = $2 AND u.id > $3
 ORDER BY u.id LIMIT $4"""
OF_ATTACHMENT: Final = f"""
SELECT {COLUMNS} FROM usage_record u
 WHERE u.attached_project_id = $1 AND u.instance_id = $2 AND u.id > $3 ORDER BY u.id LIMIT $4"""


async def named(
    database: Database, acting: Acting, instance_id: str, record_ids: Sequence[str]
) -> dict[str, UsageRecord]:
    """Those of these records that are stored, by the adapter's id."""
    rows = await database.fetch(acting, NAMED, instance_id, list(record_ids))
    return {row["record_id"]: UsageRecord(*row) for row in rows}


async def page(
    database: Database, acting: Acting, place: tuple[str, str], window: tuple[str, int]
) -> list[UsageRecord]:
    """The next records of an instance; `place` is its project and itself, `window` the id before and how many."""
    return [UsageRecord(*row) for row in await database.fetch(acting, LIST, *place, *window)]


async def page_of_attachment(
    database: Database, acting: Acting, attachment: Attachment, window: tuple[str, int]
) -> list[UsageRecord]:
    """The next records of what the attached project used there."""
    place = (attachment.project_id, attachment.instance_id)
    return [UsageRecord(*row) for row in await database.fetch(acting, OF_ATTACHMENT, *place, *window)]
