"""Reading instances, their members and their operations.

`storage/runtime/instance_reconcile.py` reads for the reconcile worker, `storage/runtime/claim.py` for adapters; both
use the column lists of this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

import asyncpg

from mooring.core.catalog.app_version import AppVersion
from mooring.core.kernel.form_schema import with_hidden
from mooring.core.kernel.permissions import Place
from mooring.core.kernel.sealed_document import INSTANCE_CONFIG, OPERATION_REQUEST, SEALED
from mooring.core.runtime.instance import Instance, InstanceRef
from mooring.core.runtime.member import Member
from mooring.core.runtime.operation import Operation
from mooring.storage.catalog.app_version import COLUMNS as VERSION_COLUMNS
from mooring.storage.catalog.app_version import version_of
from mooring.storage.kernel.database import PLATFORM, Acting, Database, RowReader
from mooring.storage.kernel.page_window import PageWindow
from mooring.storage.kernel.sealed_document import open_document

INSTANCE_NAMES: Final = tuple(field.name for field in fields(Instance))
MEMBER_NAMES: Final = tuple(field.name for field in fields(Member))
OPERATION_NAMES: Final = tuple(field.name for field in fields(Operation))
INSTANCE_COLUMNS: Final = ", ".join(f"i.{name}" for name in INSTANCE_NAMES)
MEMBER_COLUMNS: Final = ", ".join(f"m.{name}" for name in MEMBER_NAMES)
OPERATION_COLUMNS: Final = ", ".join(f"o.{name}" for name in OPERATION_NAMES)

FIND: Final = f"SELECT {INSTANCE_COLUMNS} FROM instance i WHERE i.project_id = $1 AND i.id = $2"
NEEDS_ATTENTION: Final = """(
       i.status = 'failed' OR (i.status = 'running' AND i.health <> 'healthy')
    OR (i.distrust IS NOT NULL AND i.status <> 'stopped')
    OR EXISTS (SELECT FROM operation o WHERE o.instance_id = i.id AND o.status = 'blocked'))"""
"""As `core.runtime.next_steps.needs_attention`; a test compares both."""
LISTS: Final = {
    (of_tenant, newest_first): f"""
SELECT {INSTANCE_COLUMNS} FROM instance i
 WHERE i.{"tenant_id" if of_tenant else "project_id"} = $1 AND i.id {"<" if newest_first else ">"} $2
   AND ($4::text IS NULL OR i.status = $4) AND ($5::text IS NULL OR i.app_slug = $5 OR i.app_id = $5)
   AND ($6::text[] IS NULL OR i.app_category = ANY ($6))
   AND ($7::text IS NULL OR starts_with(i.name, $7) OR starts_with(i.id, $7))
   AND ($8::text IS NULL OR i.health = $8) AND ($9::boolean IS NULL OR {NEEDS_ATTENTION} = $9)
   AND ($10::text IS NULL OR EXISTS (
     SELECT FROM member m WHERE m.instance_id = i.id AND m.allocation_id = $10 AND m.status <> 'removed'))
 ORDER BY i.id {"DESC" if newest_first else "ASC"} LIMIT $3"""
    for of_tenant in (False, True)
    for newest_first in (False, True)
}
"""By whether the list is of a whole tenant, and whether the newest are first."""
FIND_MEMBER: Final = f"""
SELECT {MEMBER_COLUMNS} FROM member m WHERE m.project_id = $1 AND m.instance_id = $2 AND m.id = $3"""
LIST_MEMBERS: Final = f"""
SELECT {MEMBER_COLUMNS} FROM member m
 WHERE m.project_id = $1 AND m.instance_id = $2 AND m.id > $3 AND ($5::text IS NULL OR m.status = $5)
   AND ($6::text IS NULL OR m.component_key = $6)
 ORDER BY m.id LIMIT $4"""
MEMBERS_OF: Final = f"""
SELECT {MEMBER_COLUMNS} FROM member m WHERE m.instance_id = ANY ($1::text[]) AND m.status <> 'removed'
 ORDER BY m.instance_id, m.component_key, m.ordinal"""
FIND_OPERATION: Final = f"""
SELECT {OPERATION_COLUMNS} FROM operation o WHERE o.project_id = $1 AND o.instance_id = $2 AND o.id = $3"""
LIST_OPERATIONS: Final = f"""
SELECT {OPERATION_COLUMNS} FROM operation o
 WHERE o.project_id = $1 AND o.instance_id = $2 AND o.id < $3 AND ($5::text IS NULL OR o.status = $5)
   AND ($6::text IS NULL OR o.kind = $6) AND NOT o.read_only
 ORDER BY o.id DESC LIMIT $4"""
LIST_OPERATIONS_OF_TENANT: Final = f"""
SELECT {OPERATION_COLUMNS} FROM operation o
 WHERE o.tenant_id = $1 AND o.id < $2 AND ($4::text IS NULL OR o.status = $4) AND ($5::text IS NULL OR o.kind = $5)
   AND NOT o.read_only AND (NOT $6::boolean OR o.status NOT IN ('succeeded', 'failed', 'cancelled'))
 ORDER BY o.id DESC LIMIT $3"""
OPEN_OPERATIONS: Final = f"""
SELECT {OPERATION_COLUMNS} FROM operation o
 WHERE o.instance_id = ANY ($1::text[]) AND o.status NOT IN ('succeeded', 'failed', 'cancelled')
 ORDER BY o.instance_id, o.id"""

CLAIMS: Final = """
SELECT c.instance_id, c.holder, c.claimed_at, c.expires_at FROM instance_claim c
 WHERE c.instance_id = ANY ($1::text[]) AND c.holder IS NOT NULL"""
LAST_STOP: Final = f"""
SELECT {OPERATION_COLUMNS} FROM operation o WHERE o.instance_id = $1 AND o.kind = 'decommission'
 ORDER BY o.id DESC LIMIT 1"""
CLOSING_RECORDS: Final = """
SELECT c.id, c.member_id, m.name, m.component_key, m.ordinal, m.allocation_id, c.kind, c.receipt, c.node_id, c.reason,
       c.may_be_left, c.created_at
  FROM member m JOIN closing_record c ON c.member_id = m.id
 WHERE m.project_id = $1 AND m.instance_id = $2 AND c.id > $3 ORDER BY c.id LIMIT $4"""
HELD: Final = "SELECT h.digest FROM artifact_hold h WHERE h.holder_noun = 'instance' AND h.holder_id = $1"
VERSION: Final = f"SELECT {VERSION_COLUMNS} FROM app_version v WHERE v.id = $1"

BINDINGS: Final = """
SELECT a.id, a.node_id, n.unreachable_since IS NULL AND n.status <> 'retired'
  FROM allocation a LEFT JOIN node n ON n.id = a.node_id WHERE a.id = ANY ($1::text[])"""


@dataclass(frozen=True, slots=True)
class MemberBinding:
    """The node of a member's allocation, and whether it answers."""

    node_id: str | None
    reachable: bool | None


@dataclass(frozen=True, slots=True)
class ClaimHolder:
    """Who holds an instance, since when, and until when unless the lease is renewed."""

    holder: str
    since: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class MemberClosing:
    """A member with its closing record."""

    id: str
    member_id: str
    member_name: str
    component_key: str
    ordinal: int
    allocation_id: str | None
    kind: str
    receipt: dict[str, Any] | None
    node_id: str | None
    reason: str | None
    may_be_left: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class InstanceFilter:
    """Which rows a list shows; `kind` is an instance's app, a member's component or an operation's kind."""

    status: str | None = None
    kind: str | None = None
    categories: tuple[str, ...] | None = None  # of instances; None: all categories
    prefix: str | None = None  # of an instance's name or id
    health: str | None = None
    needs_attention: bool | None = None
    allocation_id: str | None = None  # of an instance's members
    newest_first: bool = False
    open_only: bool = False  # of operations


async def find(database: Database, acting: Acting, project_id: str, instance_id: str) -> Instance | None:
    """One instance of this project; stopped ones stay readable."""
    row = await database.fetchrow(acting, FIND, project_id, instance_id)
    return None if row is None else instance_of(row)


async def page(
    database: Database, acting: Acting, place: Place, criteria: InstanceFilter, window: PageWindow
) -> list[Instance]:
    """The next instances of this project, or of all projects of this tenant."""
    rows = await database.fetch(
        acting,
        LISTS[place.project_id is None, criteria.newest_first],
        place.project_id or place.tenant_id,
        window.after,
        window.limit,
        criteria.status,
        criteria.kind,
        None if criteria.categories is None else list(criteria.categories),
        criteria.prefix,
        criteria.health,
        criteria.needs_attention,
        criteria.allocation_id,
    )
    return [instance_of(row) for row in rows]


async def find_member(database: Database, acting: Acting, ref: InstanceRef, member_id: str) -> Member | None:
    """One member of an instance; removed ones stay readable."""
    row = await database.fetchrow(acting, FIND_MEMBER, ref.project_id, ref.instance_id, member_id)
    return None if row is None else member_of(row)


async def page_members(
    database: Database, acting: Acting, ref: InstanceRef, criteria: InstanceFilter, window: PageWindow
) -> list[Member]:
    """The next members of an instance, including removed ones."""
    rows = await database.fetch(acting, LIST_MEMBERS, *_window_of(ref, window), criteria.status, criteria.kind)
    return [member_of(row) for row in rows]


async def members_of(database: RowReader, acting: Acting, instance_ids: Sequence[str]) -> dict[str, list[Member]]:
    """Instance id → its members that are not removed, by component and ordinal."""
    found: dict[str, list[Member]] = {each: [] for each in instance_ids}
    for row in await database.fetch(acting, MEMBERS_OF, list(instance_ids)):
        member = member_of(row)
        found[member.instance_id].append(member)
    return found


async def find_operation(database: Database, acting: Acting, ref: InstanceRef, operation_id: str) -> Operation | None:
    row = await database.fetchrow(acting, FIND_OPERATION, ref.project_id, ref.instance_id, operation_id)
    return None if row is None else operation_of(row)


async def page_operations(
    database: Database, acting: Acting, ref: InstanceRef, criteria: InstanceFilter, window: PageWindow
) -> list[Operation]:
    """The next older operations of an instance, without read-only actions."""
    rows = await database.fetch(acting, LIST_OPERATIONS, *_window_of(ref, window), criteria.status, criteria.kind)
    return [operation_of(row) for row in rows]


async def page_operations_of_tenant(
    database: Database, acting: Acting, tenant_id: str, criteria: InstanceFilter, window: PageWindow
) -> list[Operation]:
    """The next older operations in all projects of a tenant, without read-only actions."""
    rows = await database.fetch(
        acting,
        LIST_OPERATIONS_OF_TENANT,
        tenant_id,
        window.after,
        window.limit,
        criteria.status,
        criteria.kind,
        criteria.open_only,
    )
    return [operation_of(row) for row in rows]


async def open_operations(
    database: RowReader, acting: Acting, instance_ids: Sequence[str]
) -> dict[str, list[Operation]]:
    """Instance id → its open operations, oldest first."""
    found: dict[str, list[Operation]] = {each: [] for each in instance_ids}
    for row in await database.fetch(acting, OPEN_OPERATIONS, list(instance_ids)):
        operation = operation_of(row)
        found[operation.instance_id].append(operation)
    return found


def _window_of(ref: InstanceRef, window: PageWindow) -> tuple[str, str, str, int]:
    """The arguments $1 to $4 of a list below an instance."""
    return ref.project_id, ref.instance_id, window.after, window.limit


def instance_of(row: asyncpg.Record, start: int = 0) -> Instance:
    """The instance in a row whose INSTANCE_COLUMNS begin at index `start`."""
    values = dict(zip(INSTANCE_NAMES, row[start : start + len(INSTANCE_NAMES)], strict=True))
    if values["config_secrets"] is not None:
        secrets = open_document(values["config_secrets"], INSTANCE_CONFIG, values["tenant_id"], values["id"])
        values |= {"config": with_hidden(values["config"], secrets), "config_secrets": None}
    return Instance(**values)


def member_of(row: asyncpg.Record, start: int = 0) -> Member:
    """The member in a row whose MEMBER_COLUMNS begin at index `start`."""
    return Member(**dict(zip(MEMBER_NAMES, row[start : start + len(MEMBER_NAMES)], strict=True)))


def operation_of(row: asyncpg.Record, start: int = 0) -> Operation:
    """The operation in a row whose OPERATION_COLUMNS begin at index `start`."""
    values = dict(zip(OPERATION_NAMES, row[start : start + len(OPERATION_NAMES)], strict=True))
    if SEALED in values["request"]:
        values["request"] = open_document(values["request"], OPERATION_REQUEST, values["tenant_id"], values["id"])
    return Operation(**values)


async def claims(database: Database, acting: Acting, instance_ids: Sequence[str]) -> dict[str, ClaimHolder]:
    """Instance id → its holder, for those that have one."""
    rows = await database.fetch(acting, CLAIMS, list(instance_ids))
    return {row[0]: ClaimHolder(row[1], row[2], row[3]) for row in rows}


async def bindings(database: Database, allocation_ids: Sequence[str]) -> dict[str, MemberBinding]:
    """Allocation id → its node; nodes belong to the platform, and a tenant sees no more of them than this."""
    rows = await database.fetch(PLATFORM, BINDINGS, list(allocation_ids))
    return {row[0]: MemberBinding(row[1], None if row[1] is None else bool(row[2])) for row in rows}


async def last_stop(database: Database, acting: Acting, instance_id: str) -> Operation | None:
    """The latest operation that stopped an instance."""
    row = await database.fetchrow(acting, LAST_STOP, instance_id)
    return None if row is None else operation_of(row)


async def closing_records(
    database: Database, acting: Acting, ref: InstanceRef, window: PageWindow
) -> list[MemberClosing]:
    """The next closing records of an instance's members."""
    rows = await database.fetch(acting, CLOSING_RECORDS, *_window_of(ref, window))
    return [MemberClosing(*row) for row in rows]


async def held_digests(database: Database, acting: Acting, instance_id: str) -> frozenset[str]:
    """The digests on which an instance has a hold."""
    return frozenset(row[0] for row in await database.fetch(acting, HELD, instance_id))


async def version(database: Database, acting: Acting, version_id: str) -> AppVersion | None:
    """A version by its id, in whatever state."""
    row = await database.fetchrow(acting, VERSION, version_id)
    return None if row is None else version_of(row)
