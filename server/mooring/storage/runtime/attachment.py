"""Reading attachments, for the attached project and for the owning one."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Final

import asyncpg

from mooring.core.runtime.attachment import Attachment
from mooring.core.runtime.instance import Instance, InstanceRef
from mooring.core.runtime.operation import Operation
from mooring.storage.kernel.database import Acting, Database, RowReader
from mooring.storage.kernel.page_window import PageWindow
from mooring.storage.runtime.instance import INSTANCE_COLUMNS, OPERATION_COLUMNS, instance_of, operation_of

NAMES: Final = tuple(field.name for field in fields(Attachment))
COLUMNS: Final = ", ".join(f"t.{name}" for name in NAMES)
LIVE: Final = "('requested', 'active', 'detaching')"
FIND: Final = f"SELECT {COLUMNS} FROM attachment t WHERE t.project_id = $1 AND t.id = $2"
LIST: Final = f"""
SELECT {COLUMNS} FROM attachment t WHERE t.project_id = $1 AND t.id > $2 AND ($4::text IS NULL OR t.status = $4)
 ORDER BY t.id LIMIT $3"""
OF_INSTANCE: Final = f"""
SELECT {COLUMNS} FROM attachment t
 WHERE t.owning_project_id = $1 AND t.instance_id = $2 AND t.id > $3 AND ($5::text IS NULL OR t.status = $5)
 ORDER BY t.id LIMIT $4"""
LIVE_OF: Final = f"SELECT {COLUMNS} FROM attachment t WHERE t.instance_id = $1 AND t.status IN {LIVE} ORDER BY t.id"
OF_OPERATION: Final = f"""
SELECT {COLUMNS} FROM attachment t WHERE t.instance_id = $1 AND t.operation_id = $2 AND t.status IN {LIVE}"""
TAKEN: Final = "SELECT DISTINCT t.account_name FROM attachment t WHERE t.instance_id = $1 AND t.project_id <> $2"
SHARED: Final = f"SELECT {INSTANCE_COLUMNS} FROM instance i WHERE i.id = $1"
OPERATION: Final = f"""
SELECT {OPERATION_COLUMNS} FROM operation o
 WHERE o.project_id = $1 AND o.instance_id = $2 AND o.id = $3 AND o.request #>> '{{attachment,id}}' = $4"""
OPERATIONS: Final = f"""
SELECT {OPERATION_COLUMNS} FROM operation o
 WHERE o.request ? 'attachment' AND o.request #>> '{{attachment,id}}' = $1 AND o.project_id = $2 AND o.id < $3
   AND ($5::text IS NULL OR o.status = $5) AND NOT o.read_only
 ORDER BY o.id DESC LIMIT $4"""
ATTACHED: Final = """
SELECT DISTINCT t.project_id FROM attachment t
 WHERE t.instance_id = $1 AND t.project_id = ANY ($2::text[]) AND t.activated_at IS NOT NULL"""


async def find(database: Database, acting: Acting, project_id: str, attachment_id: str) -> Attachment | None:
    """One attachment of this project; ended ones stay readable."""
    row = await database.fetchrow(acting, FIND, project_id, attachment_id)
    return None if row is None else attachment_of(row)


async def page(
    database: Database, acting: Acting, project_id: str, status: str | None, window: PageWindow
) -> list[Attachment]:
    """The next attachments of this project."""
    rows = await database.fetch(acting, LIST, project_id, window.after, window.limit, status)
    return [attachment_of(row) for row in rows]


async def page_of_instance(
    database: Database, acting: Acting, ref: InstanceRef, status: str | None, window: PageWindow
) -> list[Attachment]:
    """The next attachments to an instance of this project."""
    rows = await database.fetch(
        acting, OF_INSTANCE, ref.project_id, ref.instance_id, window.after, window.limit, status
    )
    return [attachment_of(row) for row in rows]


async def live_of(database: RowReader, acting: Acting, instance_id: str) -> list[Attachment]:
    return [attachment_of(row) for row in await database.fetch(acting, LIVE_OF, instance_id)]


async def of_operation(database: Database, acting: Acting, instance_id: str, operation_id: str) -> Attachment | None:
    """The live attachment that an operation creates or ends."""
    row = await database.fetchrow(acting, OF_OPERATION, instance_id, operation_id)
    return None if row is None else attachment_of(row)


async def taken_names(database: Database, acting: Acting, instance_id: str, project_id: str) -> frozenset[str]:
    """The account names that other projects have, or once had, at an instance."""
    return frozenset(row[0] for row in await database.fetch(acting, TAKEN, instance_id, project_id))


async def shared_instance(database: Database, acting: Acting, instance_id: str) -> Instance | None:
    """An instance of any project of the tenant; the caller must be allowed to act for the whole tenant."""
    if acting.is_platform:
        raise ValueError("a shared instance is only searched within one tenant")
    row = await database.fetchrow(acting, SHARED, instance_id)
    return None if row is None else instance_of(row)


async def find_operation(
    database: Database, acting: Acting, attachment: Attachment, operation_id: str
) -> Operation | None:
    """An operation for this attachment; other operations of the owning project are not found."""
    ids = (attachment.owning_project_id, attachment.instance_id)
    row = await database.fetchrow(acting, OPERATION, *ids, operation_id, attachment.id)
    return None if row is None else operation_of(row)


async def page_operations(
    database: Database, acting: Acting, attachment: Attachment, status: str | None, window: PageWindow
) -> list[Operation]:
    """The next older operations for this attachment, without read-only actions."""
    ids = (attachment.id, attachment.owning_project_id)
    rows = await database.fetch(acting, OPERATIONS, *ids, window.after, window.limit, status)
    return [operation_of(row) for row in rows]


async def attached_projects(
    database: Database, acting: Acting, instance_id: str, project_ids: Sequence[str]
) -> frozenset[str]:
    """Which of these projects are, or were, attached to the instance."""
    return frozenset(row[0] for row in await database.fetch(acting, ATTACHED, instance_id, list(project_ids)))


def attachment_of(row: asyncpg.Record, start: int = 0) -> Attachment:
    """The attachment in a row whose COLUMNS begin at index `start`."""
    return Attachment(**dict(zip(NAMES, row[start : start + len(NAMES)], strict=True)))
