"""Reads the catalog: visible apps with at least one offered version, filtered and searched, page by page.

The database maintains a search index (`app_word`): for each offered app, every prefix of every word of its card, and
terms for the app itself and its category. A query is a few terms, and each term is one range of one index, in which the
apps are in the order of pages. A query with one term scans that range from the end of the last page. A query with
several terms is a leapfrog join: it looks up the next app of each term from the furthest position that any of them has
reached, until all are at the same app. So the cost of a page depends on what it shows, and not on the number of apps
and versions.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mooring.core.catalog.app import App
from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.channel import Candidate
from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.core.catalog.semver import read_version
from mooring.storage.catalog.app import COLUMNS, app_of
from mooring.storage.catalog.app_version import COLUMNS as VERSION_COLUMNS
from mooring.storage.catalog.app_version import version_of
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow

WORD_LENGTH_MAX: Final = 100
"""The longest prefix in the index; a longer word is searched by its beginning."""
SHELF: Final = ""
"""The term that every offered app has."""
CANARIES_MAX: Final = 100
"""How many of the newest canaries ahead of an app's active version are considered."""


def _walk(owner: str) -> str:
    # Ordered by the owner first although there is only one: PostgreSQL does not treat `IS NULL` as a constant, and
    # would otherwise sort all of the platform's rows.
    return f"""(SELECT w.app_id FROM app_word w WHERE {owner} AND w.word = ($4::text[])[1] AND w.app_id > $2
          ORDER BY w.tenant_id, w.app_id LIMIT $3)"""


def _leaps(name: str, owner: str) -> str:
    # No id contains chr(1), so an id followed by it sorts right after that id. The position to continue from is its own
    # column, because under row-level security only a plain comparison of text can use the index.
    return f"""{name} (reached, hit, onward) AS (
  SELECT $2::text COLLATE "C", false, $2::text COLLATE "C" || chr(1)
   UNION ALL
  SELECT next.high, next.low = next.high, CASE WHEN next.low = next.high THEN next.high || chr(1) ELSE next.high END
    FROM {name} last, LATERAL (
         SELECT max(found.app_id) AS high, min(found.app_id) AS low
           FROM unnest($4::text[]) sought (word)
           LEFT JOIN LATERAL (
                SELECT w.app_id FROM app_word w
                 WHERE {owner} AND w.word = sought.word AND w.app_id >= last.onward
                 ORDER BY w.tenant_id, w.app_id LIMIT 1) found ON true
         HAVING count(found.app_id) = cardinality($4::text[])) next)"""


_SHARED: Final = "w.tenant_id IS NULL"
_OWN: Final = "w.tenant_id = $1"
_FOUND: Final = f"{COLUMNS} FROM found JOIN app a ON a.id = found.app_id ORDER BY a.id"
WALK: Final = f"""
WITH found AS (
  SELECT both_.app_id FROM ({_walk(_SHARED)} UNION ALL {_walk(_OWN)}) both_ ORDER BY both_.app_id LIMIT $3)
SELECT {_FOUND}"""
LEAP: Final = f"""
WITH RECURSIVE {_leaps("shared", _SHARED)},
{_leaps("own", _OWN)},
found AS (
  SELECT both_.app_id FROM (
    (SELECT reached AS app_id FROM shared WHERE hit LIMIT $3) UNION ALL
    (SELECT reached FROM own WHERE hit LIMIT $3)) both_ ORDER BY both_.app_id LIMIT $3)
SELECT {_FOUND}"""
_CANDIDATE: Final = """v.id, v.version, v.version_order, v.promotion, v.canary_percentage, v.superseded_by
          FROM app_version v WHERE v.app_id = wanted.id AND v.promotion"""
CANDIDATES: Final = f"""
SELECT wanted.id AS app_id, one.id, one.version, one.promotion, one.canary_percentage, one.superseded_by
  FROM unnest($1::text[]) wanted (id)
  LEFT JOIN LATERAL (SELECT {_CANDIDATE} = 'active' ORDER BY v.version_order DESC LIMIT 1) newest ON true
 CROSS JOIN LATERAL (
       SELECT newest.* WHERE newest.id IS NOT NULL
       UNION ALL (SELECT {_CANDIDATE} = 'canary' AND v.version_order > coalesce(newest.version_order, '')
        ORDER BY v.version_order DESC LIMIT $2)
       UNION ALL (SELECT {_CANDIDATE} = 'deprecated' ORDER BY v.version_order DESC LIMIT 1)) one"""
VERSIONS: Final = f"SELECT {VERSION_COLUMNS} FROM app_version v WHERE v.id = ANY ($1::text[])"


@dataclass(frozen=True, slots=True)
class CatalogFilter:
    """What a catalog query filters by."""

    words: tuple[str, ...] = ()
    category: str | None = None


async def page(database: Database, acting: Acting, wanted: CatalogFilter, window: PageWindow) -> list[App]:
    """The apps that the tenant sees; for the platform, its own apps."""
    terms = _terms(wanted)
    statement = WALK if len(terms) == 1 else LEAP
    rows = await database.fetch(acting, statement, acting.tenant_id, window.after, window.limit, terms)
    return [app_of(row) for row in rows]


async def candidates(database: Database, acting: Acting, app_ids: list[str]) -> dict[str, list[Candidate]]:
    """The versions of these apps that a channel may select, by app id.

    These are the newest active version, the canaries ahead of it, and the newest deprecated version. A channel never
    selects an older one.
    """
    by_app: dict[str, list[Candidate]] = {app_id: [] for app_id in app_ids}
    rows = await database.fetch(acting, CANDIDATES, app_ids, CANARIES_MAX)
    for app_id, version_id, version, promotion, percentage, successor in rows:
        candidate = Candidate(version_id, read_version(version), PromotionState(promotion), percentage, successor)
        by_app[app_id].append(candidate)
    return by_app


async def versions(database: Database, acting: Acting, version_ids: Iterable[str]) -> dict[str, AppVersion]:
    """These versions with their manifests, by id."""
    rows = await database.fetch(acting, VERSIONS, list(version_ids))
    return {row["id"]: version_of(row) for row in rows}


def _terms(wanted: CatalogFilter) -> list[str]:
    terms = [word[:WORD_LENGTH_MAX] for word in wanted.words]
    if wanted.category is not None:
        terms.append(f"category {wanted.category}")  # cannot be mistaken for a word, because no word has a space
    return list(dict.fromkeys(terms)) or [SHELF]
