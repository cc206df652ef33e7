"""The catalog, as it is read: apps in sight that some version is offered of, filtered, searched, page by page.

Search is by the beginnings of words. Each word is looked up as a range of the words' own index; the first drives the
search, the others are probed for what it found.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from mooring.core.app import App
from mooring.core.app_version import AppVersion
from mooring.core.channel import Candidate
from mooring.core.promotion import PromotionState
from mooring.core.semver import read_version
from mooring.storage.app import COLUMNS, app_of
from mooring.storage.app_version import COLUMNS as VERSION_COLUMNS
from mooring.storage.app_version import version_of
from mooring.storage.database import Acting, Database

LAST: Final = "\U0010ffff"
"""Sorts after everything that may follow the beginning of a word."""
_OFFERED: Final = """EXISTS (SELECT FROM app_version v
                WHERE v.app_id = a.id AND v.promotion IN ('canary', 'active', 'deprecated'))"""
_SEEN: Final = "(a.tenant_id IS NULL OR a.tenant_id = $1) AND a.id > $2 AND ($4::text IS NULL OR a.category = $4)"
BROWSE: Final = f"SELECT {COLUMNS} FROM app a WHERE {_SEEN} AND {_OFFERED} ORDER BY a.id LIMIT $3"
SEARCH: Final = f"""
SELECT {COLUMNS} FROM app a
 WHERE {_SEEN} AND {_OFFERED}
   AND a.id IN (SELECT w.app_id FROM app_word w WHERE w.word >= ($5::text[])[1] AND w.word < ($6::text[])[1])
   AND NOT EXISTS (
       SELECT FROM unnest($5::text[], $6::text[]) AS sought (low, high)
        WHERE NOT EXISTS (SELECT FROM app_word w
                           WHERE w.app_id = a.id AND w.word >= sought.low AND w.word < sought.high))
 ORDER BY a.id LIMIT $3"""
CANDIDATES: Final = """
SELECT v.app_id, v.id, v.version, v.promotion, v.canary_percentage, v.superseded_by
  FROM app_version v
 WHERE v.app_id = ANY ($1::text[]) AND v.promotion IN ('canary', 'active', 'deprecated')"""
VERSIONS: Final = f"SELECT {VERSION_COLUMNS} FROM app_version v WHERE v.id = ANY ($1::text[])"


@dataclass(frozen=True, slots=True)
class Sought:
    """What is looked for."""

    words: tuple[str, ...] = ()
    category: str | None = None


async def page(database: Database, acting: Acting, sought: Sought, after: str, limit: int) -> list[App]:
    """The next apps that the tenant sees, for the platform its own."""
    arguments: tuple[Any, ...] = (acting.tenant_id, after, limit, sought.category)
    if not sought.words:
        return [app_of(row) for row in await database.fetch(acting, BROWSE, *arguments)]
    low, high = list(sought.words), [word + LAST for word in sought.words]
    return [app_of(row) for row in await database.fetch(acting, SEARCH, *arguments, low, high)]


async def candidates(database: Database, acting: Acting, app_ids: list[str]) -> dict[str, list[Candidate]]:
    """The versions of these apps that are offered to somebody, or were, by app."""
    by_app: dict[str, list[Candidate]] = {app_id: [] for app_id in app_ids}
    for app_id, version_id, version, promotion, percentage, successor in await database.fetch(
        acting, CANDIDATES, app_ids
    ):
        candidate = Candidate(version_id, read_version(version), PromotionState(promotion), percentage, successor)
        by_app[app_id].append(candidate)
    return by_app


async def versions(database: Database, acting: Acting, version_ids: Iterable[str]) -> dict[str, AppVersion]:
    """These versions with their manifests, by id."""
    rows = await database.fetch(acting, VERSIONS, list(version_ids))
    return {row["id"]: version_of(row) for row in rows}
