"""Finds what begins like a text: one statement for each kind, each within one range of one index.

The tenant comes first in each of these indexes, so that another tenant's rows are never visited; row-level security
would hide them, but only after they were read. Each statement looks at a bounded number of rows, in the order of the
index, before it moves ended ones behind living ones.
"""

from collections.abc import Mapping
from typing import Final

from mooring.core.records.search import HITS_MAX, SearchHit, SearchKind, SearchRange, SearchReach
from mooring.storage.kernel.database import Acting, Database

LOOKED_AT_MAX: Final = 200
_COLUMNS: Final = {
    SearchKind.INSTANCE: "i.app_slug AS detail, i.status, i.project_id, i.status = 'stopped' AS ended",
    SearchKind.ALLOCATION: "a.sku_slug AS detail, a.status, a.project_id, a.status = 'released' AS ended",
    SearchKind.PROJECT: "p.display_name AS detail, NULL::text AS status, p.id AS project_id, false AS ended",
    SearchKind.APP: "a.display_name AS detail, NULL::text AS status, NULL::text AS project_id, false AS ended",
    SearchKind.NODE: "n.region AS detail, n.status, NULL::text AS project_id, n.status = 'retired' AS ended",
    SearchKind.TENANT: "t.display_name AS detail, NULL::text AS status, NULL::text AS project_id, false AS ended",
    SearchKind.USER: "u.display_name AS detail, NULL::text AS status, NULL::text AS project_id,"
    " u.disabled_at IS NOT NULL AS ended",
    SearchKind.ARTIFACT: "a.location AS detail, a.promotion AS status, a.project_id, a.promotion = 'retired' AS ended",
}
_TABLES: Final = {
    SearchKind.INSTANCE: ("instance i", "i", "name"),
    SearchKind.ALLOCATION: ("allocation a", "a", "name"),
    SearchKind.PROJECT: ("project p", "p", "slug"),
    SearchKind.APP: ("app a", "a", "slug"),
    SearchKind.NODE: ("node n", "n", "name"),
    SearchKind.TENANT: ("tenant t", "t", "slug"),
    SearchKind.USER: ('"user" u', "u", "email"),
    SearchKind.ARTIFACT: ("artifact a", "a", "digest"),
}
_REACHED: Final = {
    SearchKind.INSTANCE: """ AND ($4::boolean OR i.project_id = ANY ($5::text[]) OR i.app_category = ANY ($6::text[])
       OR (i.project_id, i.app_category) IN (SELECT * FROM unnest($7::text[], $8::text[])))""",
    SearchKind.ALLOCATION: " AND ($4::boolean OR a.project_id = ANY ($5::text[]))",
    SearchKind.PROJECT: " AND p.deleted_at IS NULL AND ($4::boolean OR p.id = ANY ($5::text[]))",
    SearchKind.APP: " AND ($4::boolean OR a.category = ANY ($5::text[]))",
    SearchKind.ARTIFACT: " AND (a.project_id IS NULL OR $4::boolean OR a.project_id = ANY ($5::text[]))",
}
"""The part of a tenant that the caller reaches; a user of the tenant is found by who reaches all of it."""


def _range(kind: SearchKind, owner: str, *, by_id: bool, reached: str = "") -> str:
    table, alias, name = _TABLES[kind]
    key = f'{alias}.{"id" if by_id else name} COLLATE "C"'
    order = f"{alias}.tenant_id, {key}" if owner else key  # PostgreSQL does not treat `IS NULL` as a constant
    return f"""(SELECT {alias}.id, {alias}.{name} AS name, {_COLUMNS[kind]} FROM {table}
   WHERE {owner}{key} >= $1 AND {key} < $2{reached} ORDER BY {order} LIMIT {LOOKED_AT_MAX})"""


def _statement(*ranges: str) -> str:
    return f"""
SELECT * FROM ({" UNION ALL ".join(ranges)}) x ORDER BY x.ended, x.name COLLATE "C" LIMIT {HITS_MAX}"""


def _of_tenant(kind: SearchKind, *, by_id: bool) -> str:
    alias, reached = _TABLES[kind][1], _REACHED.get(kind, "")
    own = _range(kind, f"{alias}.tenant_id = $3 AND ", by_id=by_id, reached=reached)
    if kind not in (SearchKind.APP, SearchKind.ARTIFACT):
        return _statement(own)
    return _statement(own, _range(kind, f"{alias}.tenant_id IS NULL AND ", by_id=by_id, reached=reached))


def _of_platform(kind: SearchKind, *, by_id: bool) -> str:
    owned = kind in (SearchKind.APP, SearchKind.ARTIFACT, SearchKind.USER)
    return _statement(_range(kind, f"{_TABLES[kind][1]}.tenant_id IS NULL AND " if owned else "", by_id=by_id))


OF_TENANT: Final[Mapping[tuple[SearchKind, bool], str]] = {
    (kind, by_id): _of_tenant(kind, by_id=by_id)
    for kind in SearchKind
    if kind not in (SearchKind.NODE, SearchKind.TENANT)
    for by_id in (False, True)
}
OF_PLATFORM: Final[Mapping[tuple[SearchKind, bool], str]] = {
    (kind, by_id): _of_platform(kind, by_id=by_id)
    for kind in (SearchKind.APP, SearchKind.NODE, SearchKind.TENANT, SearchKind.USER, SearchKind.ARTIFACT)
    for by_id in (False, True)
}
"""By kind, and by whether ids are searched instead of names."""


async def find(
    database: Database, acting: Acting, kind: SearchKind, wanted: SearchRange, reach: SearchReach
) -> list[SearchHit]:
    """What of one kind begins like the text, for a caller who reaches so far; living ones first."""
    table = OF_PLATFORM if acting.is_platform else OF_TENANT
    rows = await database.fetch(
        acting, table[kind, wanted.by_id], wanted.first, wanted.beyond, *_reached(acting, kind, reach)
    )
    return [
        SearchHit(kind, row["id"], row["name"], row["detail"], row["status"], row["project_id"], row["ended"])
        for row in rows
    ]


def _reached(acting: Acting, kind: SearchKind, reach: SearchReach) -> tuple[object, ...]:
    """The arguments after the range: the tenant, and how far the caller reaches in it."""
    if acting.is_platform:
        return ()
    if kind is SearchKind.USER:
        return (acting.tenant_id,)
    if kind is SearchKind.APP:
        of_category = {category for _, category in reach.of_category}
        return acting.tenant_id, reach.everywhere or bool(reach.projects), sorted({*reach.categories, *of_category})
    if kind is not SearchKind.INSTANCE:
        return acting.tenant_id, reach.everywhere, list(reach.projects)
    projects, categories = zip(*reach.of_category, strict=True) if reach.of_category else ((), ())
    return acting.tenant_id, reach.everywhere, list(reach.projects), list(reach.categories), [*projects], [*categories]
