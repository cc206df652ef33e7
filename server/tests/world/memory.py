"""What was read and cannot have changed since: a third of what a schedule asks the database, asked again.

The database has one user here, who knows every statement that is sent. An answer is remembered until something is
written to a table that the question names, directly or by a trigger. Questions whose answer depends on more than
their arguments and the tables they name (the database's own clock, its functions) are asked every time.
"""

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import asyncpg

_WRITES: Final = re.compile(r'(INSERT INTO|UPDATE|DELETE FROM) ("?)(\w+)"?')
_WORDS: Final = re.compile(r"\w+")
TABLES: Final = """
SELECT c.relname, c.relkind IN ('r', 'p') AS is_table FROM pg_class c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')"""
TRIGGERS: Final = """
SELECT c.relname, p.prosrc FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
 WHERE NOT t.tgisinternal AND c.relnamespace = 'public'::regnamespace"""
CASCADES: Final = """
SELECT k.confrelid::regclass::text, k.conrelid::regclass::text FROM pg_constraint k
 WHERE k.contype = 'f' AND (k.confdeltype <> 'a' OR k.confupdtype <> 'a')"""
FUNCTIONS: Final = "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace"
UNSURE: Final = frozenset({"now", "random", "clock_timestamp", "statement_timestamp", "transaction_timestamp", "SHARE"})
"""Words of questions that are asked every time: chance, the database's own clock, and locks."""


@lru_cache(maxsize=4_000)
def writes_of(statement: str) -> tuple[tuple[str, str], ...]:
    """What a statement writes: verb and table, those of the unit of work in capitals."""
    found = _WRITES.findall(statement)
    return tuple((verb if quoted else verb.lower(), table) for verb, quoted, table in found if table != "SKIP")


@lru_cache(maxsize=4_000)
def shape_of(statements: tuple[str, ...]) -> str:
    """What stands in a trace for these statements: the same for the same ones."""
    return hashlib.sha256("".join(statements).encode()).hexdigest()[:8]


class QueryCache:
    """Answers by question, forgotten table by table."""

    def __init__(self) -> None:
        self.age = 0
        """Rises whenever something is forgotten: an answer that was under way meanwhile is not kept."""
        self._tables: frozenset[str] = frozenset()
        self._unsure: frozenset[str] = UNSURE
        self._follow: dict[str, frozenset[str]] = {}
        self._named: dict[str, frozenset[str] | None] = {}
        self._written: dict[str, frozenset[str]] = {}
        self._answers: dict[frozenset[str], dict[object, Any]] = {}

    async def learn(self, connection: asyncpg.Connection) -> None:
        """Which tables there are, and which change when another one does."""
        relations = await connection.fetch(TABLES)
        functions = {row[0] for row in await connection.fetch(FUNCTIONS)}
        self._tables = frozenset(row[0] for row in relations if row[1])
        self._unsure = UNSURE | functions | {row[0] for row in relations if not row[1]}
        direct: dict[str, set[str]] = {table: set() for table in self._tables}
        for table, source in await connection.fetch(TRIGGERS):
            direct[table] |= self._tables if "EXECUTE" in source else {each for _, each in writes_of(source)}
        for table, following in await connection.fetch(CASCADES):
            direct[table.strip('"')].add(following.strip('"'))
        self._follow = {table: self._reached(direct, table) for table in self._tables}

    def _reached(self, direct: dict[str, set[str]], table: str) -> frozenset[str]:
        reached, left = {table}, [table]
        while left:
            new = (direct[left.pop()] & self._tables) - reached
            reached |= new
            left += new
        return frozenset(reached)

    def tables_of(self, statement: str) -> frozenset[str] | None:
        """The tables on which the answer depends; none when it depends on more."""
        if statement not in self._named:
            words = set(_WORDS.findall(statement))
            sure = bool(self._tables) and not words & self._unsure and not writes_of(statement)
            self._named[statement] = frozenset(words & self._tables) if sure else None
        return self._named[statement]

    def answers_of(self, tables: frozenset[str]) -> dict[object, Any]:
        """What is remembered of questions that depend on these tables, by question."""
        return self._answers.setdefault(tables, {})

    def forget_after(self, statement: str) -> None:
        """Something was written."""
        changed = self._written.get(statement)
        if changed is None:
            named = {table for _, table in writes_of(statement)}
            changed = self._written[statement] = frozenset().union(*(self._follow.get(each, ()) for each in named))
        self.forget(changed)

    def forget(self, changed: Iterable[str]) -> None:
        """These tables are not what they were."""
        changed = frozenset(changed)
        self.age += 1
        for tables in [each for each in self._answers if not each.isdisjoint(changed)]:
            del self._answers[tables]
