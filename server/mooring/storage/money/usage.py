"""Reads the usage records of an instance, or of a project that is attached to it."""

from collections.abc import Sequence
from typing import Final

from mooring.core.money.usage import UsageRecord
from mooring.core.runtime.attachment import Attachment
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow

NAMES: Final = tuple(UsageRecord.__slots__)
COLUMNS: Final = ", ".join(f"u.{name}" for name in NAMES)
NAMED: Final = f"""
SELECT {COLUMNS} FROM usage_record u
 WHERE u.instance_id = $1 AND u.record_id = ANY ($2::text[]) AND u.usage_source = 'app_runtime'"""
LIST: Final = f"""
SELECT {COLUMNS} FROM usage_record u WHERE u.project_id = $1 AND u.instance_id = $2 AND u.id > $3
 ORDER BY u.id LIMIT $4"""
OF_ATTACHMENT: Final = f"""
SELECT {COLUMNS} FROM usage_record u
 WHERE u.attached_project_id = $1 AND u.instance_id = $2 AND u.id > $3 ORDER BY u.id LIMIT $4"""


async def named(
    database: Database, acting: Acting, instance_id: str, record_ids: Sequence[str]
) -> dict[str, UsageRecord]:
    """The stored ones of these records, by the adapter's id."""
    rows = await database.fetch(acting, NAMED, instance_id, list(record_ids))
    return {row["record_id"]: UsageRecord(*row) for row in rows}


async def page(
    database: Database, acting: Acting, project_id: str, instance_id: str, window: PageWindow
) -> list[UsageRecord]:
    """The usage records of an instance."""
    rows = await database.fetch(acting, LIST, project_id, instance_id, window.after, window.limit)
    return [UsageRecord(*row) for row in rows]


async def page_of_attachment(
    database: Database, acting: Acting, attachment: Attachment, window: PageWindow
) -> list[UsageRecord]:
    """What the attached project used of the instance."""
    ids = (attachment.project_id, attachment.instance_id)
    rows = await database.fetch(acting, OF_ATTACHMENT, *ids, window.after, window.limit)
    return [UsageRecord(*row) for row in rows]
