"""What a storm over the catalog must never bring about, seen by an observer at every moment and in the log afterwards.

The observer reads a snapshot of its own connection, again and again. The log is replayed from the first entry to the
last: transitions, and the audit rows of holds. Its order is that in which the changes took effect. Neither times nor
transaction ids tell it, for both are taken before a change has waited for its locks; so the tests' database notes, as
the last thing that a transaction does, how many did so before it. A transaction that waited for another comes after it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import asyncpg

NEEDED: Final[Mapping[str, frozenset[str]]] = {
    "staged": frozenset({"staged", "canary", "active"}),
    "canary": frozenset({"canary", "active"}),
    "active": frozenset({"active"}),
    "deprecated": frozenset({"active", "deprecated"}),
}
"""In which states an artifact must be for a version in each state; written down here once more, not taken from code."""

NOTED: Final = """
CREATE SEQUENCE storm_order;
CREATE TABLE storm_mark (tx bigint PRIMARY KEY, place bigint);
CREATE FUNCTION storm_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  INSERT INTO storm_mark (tx) VALUES (pg_current_xact_id()::text::bigint) ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
CREATE FUNCTION storm_ends() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  UPDATE storm_mark SET place = nextval('storm_order') WHERE tx = NEW.tx;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER storm_changed AFTER INSERT ON transition DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION storm_changed();
CREATE CONSTRAINT TRIGGER storm_changed AFTER INSERT OR DELETE ON artifact_hold DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION storm_changed();
-- What a deferred trigger writes has its own deferred triggers fired after all that waited before it.
CREATE CONSTRAINT TRIGGER storm_ends AFTER INSERT ON storm_mark DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION storm_ends();
"""
ARTIFACTS: Final = "SELECT id, digest, promotion FROM artifact WHERE promotion <> 'retired'"
VERSIONS: Final = "SELECT id, digests, promotion FROM app_version WHERE promotion NOT IN ('draft', 'retired')"
HOLDS: Final = "SELECT id, digest, version_id FROM artifact_hold"
LOG: Final = """
SELECT m.place, 'move' AS kind, t.subject_id, t.target AS value
  FROM transition t JOIN storm_mark m ON m.tx = t.xmin::text::bigint WHERE t.machine = 'promotion'
UNION ALL
SELECT m.place, d.action, d.subject_id, d.after ->> 'digest'
  FROM audit d JOIN storm_mark m ON m.tx = d.xmin::text::bigint
 WHERE d.action IN ('artifact_hold.take', 'artifact_hold.drop') AND d.outcome = 'done'
 ORDER BY place"""
MOVES: Final = """
SELECT CASE WHEN a.id IS NULL THEN 'version' ELSE 'artifact' END, t.trigger, count(*)
  FROM transition t LEFT JOIN artifact a ON a.id = t.subject_id
 WHERE t.machine = 'promotion' AND t.generation > 0 GROUP BY 1, 2"""
ENTRIES: Final = """
SELECT (SELECT count(*) FROM transition WHERE machine = 'promotion')
     + (SELECT count(*) FROM audit WHERE action IN ('artifact_hold.take', 'artifact_hold.drop') AND outcome = 'done')"""


@dataclass
class Catalog:
    """What there is at one moment: artifacts and versions that are in some way offered, and holds."""

    artifacts: dict[str, tuple[str, str]] = field(default_factory=dict)  # digest and state by id
    versions: dict[str, tuple[list[str], str]] = field(default_factory=dict)  # digests and state by id
    holds: dict[str, tuple[str, str | None]] = field(default_factory=dict)  # digest and version by id

    def faults(self) -> Iterator[str]:
        """Everything that must never be."""
        states: dict[str, set[str]] = {}
        for digest, state in self.artifacts.values():
            states.setdefault(digest, set()).add(state)
        for hold_id, (digest, version_id) in self.holds.items():
            if digest not in states:
                yield f"the retired digest {digest} is under the hold {hold_id}"
            if version_id is not None and version_id not in self.versions:
                yield f"the hold {hold_id} is through {version_id}, which nobody may use"
        for version_id, (digests, state) in self.versions.items():
            for digest in digests:
                found = states.get(digest, set())
                if not found & NEEDED[state]:
                    yield f"the version {version_id} is {state} on {digest}, which is {sorted(found) or 'retired'}"


async def seen(connection: asyncpg.Connection) -> Catalog:
    """The catalog as it is, all of one snapshot."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        return Catalog(
            artifacts={row[0]: (row[1], row[2]) for row in await connection.fetch(ARTIFACTS)},
            versions={row[0]: (row[1], row[2]) for row in await connection.fetch(VERSIONS)},
            holds={row[0]: (row[1], row[2]) for row in await connection.fetch(HOLDS)},
        )


async def moved(connection: asyncpg.Connection) -> dict[tuple[str, str, str], int]:
    """How many moves of each kind the log has."""
    return {(noun, trigger, "done"): count for noun, trigger, count in await connection.fetch(MOVES)}


async def replayed(connection: asyncpg.Connection, through: Mapping[str, str | None]) -> tuple[Catalog, list[str]]:
    """The catalog at the end of the log, and what was wrong after any entry; `through` says by hold which version."""
    digest_of = {row[0]: row[1] for row in await connection.fetch("SELECT id, digest FROM artifact")}
    digests_of = {row[0]: row[1] for row in await connection.fetch("SELECT id, digests FROM app_version")}
    catalog, wrong = Catalog(), []
    log = await connection.fetch(LOG)
    if len(log) != await connection.fetchval(ENTRIES):
        wrong.append("not every entry of the log has its place")
    for place, entries in groupby(log, key=itemgetter("place")):
        for entry in entries:
            _apply(catalog, entry, digest_of=digest_of, digests_of=digests_of, through=through)
        wrong += [f"after change {place}: {fault}" for fault in catalog.faults()]
    return catalog, wrong


def _apply(
    catalog: Catalog,
    entry: Any,
    *,
    digest_of: Mapping[str, str],
    digests_of: Mapping[str, list[str]],
    through: Mapping[str, str | None],
) -> None:
    _, kind, subject_id, value = entry
    if kind == "artifact_hold.take":
        catalog.holds[subject_id] = (value, through[subject_id])
    elif kind == "artifact_hold.drop":
        del catalog.holds[subject_id]
    elif subject_id in digest_of:
        catalog.artifacts[subject_id] = (digest_of[subject_id], value)
        if value == "retired":
            del catalog.artifacts[subject_id]
    else:
        catalog.versions[subject_id] = (digests_of[subject_id], value)
        if value in ("draft", "retired"):
            del catalog.versions[subject_id]
