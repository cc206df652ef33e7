"""Instances, their members and their operations: found and listed.

What the runtime worker looks for stands in `storage/runtime/instance_reconcile.py`, what adapters claim in
`storage/runtime/claim.py`; both read rows by the columns that are named here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

import asyncpg

from mooring.core.catalog.app_version import AppVersion
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.member import Member
from mooring.core.runtime.operation import Operation
from mooring.storage.catalog.app_version import COLUMNS as VERSION_COLUMNS
from mooring.storage.catalog.app_version import version_of
from mooring.storage.kernel.database import PLATFORM, Acting, Database, RowReader

INSTANCE_NAMES: Final = tuple(field.name for field in fields(Instance))
MEMBER_NAMES: Final = tuple(field.name for field in fields(Member))
OPERATION_NAMES: Final = tuple(field.name for field in fields(Operation))
INSTANCE_COLUMNS: Final = ", ".join(f"i.{name}" for name in INSTANCE_NAMES)
MEMBER_COLUMNS: Final = ", ".join(f"m.{name}" for name in MEMBER_NAMES)
OPERATION_COLUMNS: Final = ", ".join(f"o.{name}" for name in OPERATION_NAMES)

FIND: Final = f"SELECT {INSTANCE_COLUMNS} FROM instance i WHERE i.project_id = $1 AND i.id = $2"
LIST: Final = f"""
SELECT {INSTANCE_COLUMNS} FROM instance i
 WHERE i.project_id = $1 AND i.id > $2 AND ($4::text IS NULL OR i.status = $4)
   AND ($5::text IS NULL OR i.app_slug = $5 OR i.app_id = $5)
   AND ($6::text[] IS NULL OR i.app_category = ANY ($6))
 ORDER BY i.id LIMIT $3"""
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
    """Where a member's allocation is, and whether that machine answers."""

    node_id: str | None
    reachable: bool | None


@dataclass(frozen=True, slots=True)
class ClaimHolder:
    """Who holds an instance, since when, and until when unless he says that he lives."""

    holder: str
    since: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class MemberClosing:
    """By what a member's end is known."""

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
    categories: tuple[str, ...] | None = None  # of instances: those of these categories; none: of every one


async def find(database: Database, acting: Acting, project_id: str, instance_id: str) -> Instance | None:
    """One instance of this project; one that is over stays readable."""
    row = await database.fetchrow(acting, FIND, project_id, instance_id)
    return None if row is None else instance_of(row)


async def page(
    database: Database, acting: Acting, project_id: str, wanted: InstanceFilter, window: tuple[str, int]
) -> list[Instance]:
    """The next instances of this project; `window` is the id after which they begin, and how many."""
    categories = None if wanted.categories is None else list(wanted.categories)
    rows = await database.fetch(acting, LIST, project_id, *window, wanted.status, wanted.kind, categories)
    return [instance_of(row) for row in rows]


async def find_member(database: Database, acting: Acting, place: tuple[str, str], member_id: str) -> Member | None:
    """One member; `place` is its project and its instance. A removed one stays readable."""
    row = await database.fetchrow(acting, FIND_MEMBER, *place, member_id)
    return None if row is None else member_of(row)


async def page_members(
    database: Database, acting: Acting, place: tuple[str, str], wanted: InstanceFilter, window: tuple[str, int]
) -> list[Member]:
    """The next members of an instance, tombstones among them; `place` is its project and itself."""
    rows = await database.fetch(acting, LIST_MEMBERS, *place, *window, wanted.status, wanted.kind)
    return [member_of(row) for row in rows]


async def members_of(database: RowReader, acting: Acting, instance_ids: Sequence[str]) -> dict[str, list[Member]]:
    """The members of each instance that are not removed, by component and ordinal."""
    found: dict[str, list[Member]] = {each: [] for each in instance_ids}
    for row in await database.fetch(acting, MEMBERS_OF, list(instance_ids)):
        member = member_of(row)
        found[member.instance_id].append(member)
    return found


async def find_operation(
    database: Database, acting: Acting, place: tuple[str, str], operation_id: str
) -> Operation | None:
    """One operation; `place` is its project and its instance."""
    row = await database.fetchrow(acting, FIND_OPERATION, *place, operation_id)
    return None if row is None else operation_of(row)


async def page_operations(
    database: Database, acting: Acting, place: tuple[str, str], wanted: InstanceFilter, window: tuple[str, int]
) -> list[Operation]:
    """The next older operations of an instance, without actions that only read; `place` is its project and itself."""
    rows = await database.fetch(acting, LIST_OPERATIONS, *place, *window, wanted.status, wanted.kind)
    return [operation_of(row) for row in rows]


async def open_operations(
    database: RowReader, acting: Acting, instance_ids: Sequence[str]
) -> dict[str, list[Operation]]:
    """The operations of each instance that are not over, oldest first."""
    found: dict[str, list[Operation]] = {each: [] for each in instance_ids}
    for row in await database.fetch(acting, OPEN_OPERATIONS, list(instance_ids)):
        operation = operation_of(row)
        found[operation.instance_id].append(operation)
    return found


def instance_of(row: asyncpg.Record, start: int = 0) -> Instance:
    """The instance of a row that has INSTANCE_COLUMNS from this place on."""
    return Instance(**dict(zip(INSTANCE_NAMES, row[start : start + len(INSTANCE_NAMES)], strict=True)))


def member_of(row: asyncpg.Record, start: int = 0) -> Member:
    """The member of a row that has MEMBER_COLUMNS from this place on."""
    return Member(**dict(zip(MEMBER_NAMES, row[start : start + len(MEMBER_NAMES)], strict=True)))


def operation_of(row: asyncpg.Record, start: int = 0) -> Operation:
    """The operation of a row that has OPERATION_COLUMNS from this place on."""
    return Operation(**dict(zip(OPERATION_NAMES, row[start : start + len(OPERATION_NAMES)], strict=True)))


async def claims(database: Database, acting: Acting, instance_ids: Sequence[str]) -> dict[str, ClaimHolder]:
    """Who holds these instances now, of those that anybody holds."""
    rows = await database.fetch(acting, CLAIMS, list(instance_ids))
    return {row[0]: ClaimHolder(row[1], row[2], row[3]) for row in rows}


async def bindings(database: Database, allocation_ids: Sequence[str]) -> dict[str, MemberBinding]:
    """Where these allocations are: machines are the platform's, and no more than this is told of them."""
    rows = await database.fetch(PLATFORM, BINDINGS, list(allocation_ids))
    return {row[0]: MemberBinding(row[1], None if row[1] is None else bool(row[2])) for row in rows}


async def last_stop(database: Database, acting: Acting, instance_id: str) -> Operation | None:
    """The newest operation that stopped an instance."""
    row = await database.fetchrow(acting, LAST_STOP, instance_id)
    return None if row is None else operation_of(row)


async def closing_records(
    database: Database, acting: Acting, place: tuple[str, str], window: tuple[str, int]
) -> list[MemberClosing]:
    """The next closing records of an instance's members; `place` is its project and itself."""
    return [MemberClosing(*row) for row in await database.fetch(acting, CLOSING_RECORDS, *place, *window)]


async def held_digests(database: Database, acting: Acting, instance_id: str) -> frozenset[str]:
    """The digests that an instance holds."""
    return frozenset(row[0] for row in await database.fetch(acting, HELD, instance_id))


async def version(database: Database, acting: Acting, version_id: str) -> AppVersion | None:
    """The version that something is pinned to."""
    row = await database.fetchrow(acting, VERSION, version_id)
    return None if row is None else version_of(row)
