"""The agent's journal: accepted tasks, intents and results.

A task's intent is on disk before the task has any effect, and its result before it is reported. So after `kill -9` at
any moment the journal tells a new agent which tasks may have begun, which results are not delivered yet, which owners
are closed for ever, and where the chain of receipts ends. A result and its receipt are one transaction.

SQLite (in the standard library) provides the transaction and the flush; the file belongs to the agent alone.
"""

import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from mooring_agent.control_plane.messages import SealedSecret, Task, TaskResult
from mooring_agent.tasks.receipts import FIRST_PREVIOUS, ChainedReceipt, ChainLink, next_link

BALLAST_BYTES: Final = 16 * 1_048_576
KEEP_DELIVERED_SECONDS: Final = 86_400.0
KEEP_CLOSED_SECONDS: Final = 30 * 86_400.0
VERSION: Final = 1
"""The version of the tables; other agent versions may use others."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS task (
  task_id TEXT PRIMARY KEY,
  fence INTEGER NOT NULL,
  owner TEXT NOT NULL,
  allocation_id TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('intended', 'ended', 'delivered')),
  payload BLOB,
  result BLOB,
  expires_at REAL NOT NULL,
  changed_at REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS task_open ON task (state) WHERE state <> 'delivered';
CREATE TABLE IF NOT EXISTS closed_owner (
  owner TEXT PRIMARY KEY,
  closed_at REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS delivered_secret (
  id INTEGER PRIMARY KEY,
  allocation_id TEXT NOT NULL,
  node_id TEXT NOT NULL,
  task_id TEXT NOT NULL,
  sealed BLOB NOT NULL,
  delivered_at REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS delivered_secret_by_allocation ON delivered_secret (allocation_id, id);
CREATE TABLE IF NOT EXISTS receipt (
  sequence INTEGER PRIMARY KEY,
  task_id TEXT NOT NULL,
  body BLOB NOT NULL,
  signature BLOB NOT NULL
) STRICT;
"""
_TASK: Final = msgspec.json.Decoder(Task)
_RESULT: Final = msgspec.json.Decoder(TaskResult)
_SEALED: Final = msgspec.json.Decoder(SealedSecret)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A task in the journal."""

    task_id: str
    fence: int
    owner: str
    state: str
    task: Task | None
    result: TaskResult | None


@dataclass(frozen=True, slots=True)
class DeliveredSecret:
    """A secret that a task delivered to an allocation, sealed to this node as it came."""

    allocation_id: str
    node_id: str
    task_id: str
    sealed: SealedSecret


class JournalFull(Exception):
    """The disk is full, and so is the space reserved for this case: nothing was written."""


class JournalUnreadable(ValueError):
    """The journal is damaged, or of another version. Nothing was changed in it."""


class Journal:
    """The journal of one agent; `:memory:` for a simulated one, which does not survive its process."""

    def __init__(self, path: Path | str) -> None:
        if isinstance(path, Path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            os.fchmod(file, 0o600)
            os.close(file)
        self._ballast = path.with_name("ballast") if isinstance(path, Path) else None
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._open(path)
        except BaseException:
            self._database.close()
            raise

    def _open(self, path: Path | str) -> None:
        try:
            version = self._database.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise JournalUnreadable(
                    f"the journal {path} has version {version}, but this agent writes version {VERSION}: "
                    "run the agent that wrote it, or a newer one"
                )
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            findings = [row[0] for row in self._database.execute("PRAGMA quick_check(1)")]
            if findings != ["ok"]:
                raise JournalUnreadable(_damage_message(path, "; ".join(findings)))
            self._database.executescript(f"{_SCHEMA} PRAGMA user_version = {VERSION};")
        except sqlite3.DatabaseError as error:
            raise JournalUnreadable(_damage_message(path, str(error))) from error

    def keep_reserve(self) -> bool:
        """Keep a file that is deleted when the disk is full, so that a teardown can still be recorded."""
        if self._ballast is None or self._ballast.exists():
            return True
        try:
            with self._ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)
        except OSError:
            self._ballast.unlink(missing_ok=True)
            return False
        return True

    def _write(self, statement: Callable[[], object]) -> None:
        try:
            statement()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            if self._ballast is None or not self._ballast.exists():
                raise JournalFull("the disk is full: nothing more can be recorded") from error
            self._ballast.unlink()
            statement()

    def _execute(self, statement: str, values: tuple[object, ...]) -> None:
        self._write(lambda: self._database.execute(statement, values))

    def close(self) -> None:
        self._database.close()

    def find(self, task_id: str) -> JournalEntry | None:
        row = self._database.execute(
            "SELECT task_id, fence, owner, state, payload, result FROM task WHERE task_id = ?", (task_id,)
        ).fetchone()
        return None if row is None else _read_entry(row)

    def record_intent(self, task: Task, now: float) -> None:
        """Record that the task may have effects from here on."""
        self._execute(
            "INSERT INTO task VALUES (?, ?, ?, ?, 'intended', ?, NULL, ?, ?)",
            (
                task.task_id,
                task.fence,
                task.owner,
                task.allocation_id,
                msgspec.json.encode(task),
                task.expires_at,
                now,
            ),
        )

    def update_fence(self, task_id: str, fence: int, now: float) -> None:
        """The same task was assigned again: report it under the new fence from here on."""
        self._execute(
            """UPDATE task SET fence = ?, changed_at = ?,
                      state = CASE state WHEN 'delivered' THEN 'ended' ELSE state END
               WHERE task_id = ? AND fence < ?""",
            (fence, now, task_id, fence),
        )

    def record_result(
        self, task_id: str, result: TaskResult, now: float, receipt: ChainedReceipt | None = None
    ) -> None:
        """Record the task's result; its receipt, if any, is appended to the chain in the same transaction."""
        self._write(lambda: self._record_result(task_id, result, now, receipt))

    def _record_result(self, task_id: str, result: TaskResult, now: float, receipt: ChainedReceipt | None) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            if receipt is not None:
                self._database.execute(
                    "INSERT INTO receipt VALUES (?, ?, ?, ?)",
                    (receipt.link.sequence, task_id, receipt.body, receipt.signature),
                )
            self._database.execute(
                "UPDATE task SET state = 'ended', result = ?, payload = NULL, changed_at = ? WHERE task_id = ?",
                (msgspec.json.encode(result), now, task_id),
            )
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def mark_delivered(self, task_id: str, fence: int, now: float, kept_result: TaskResult | None = None) -> None:
        """Record that the platform has the result under this fence; `kept_result` replaces a large one."""
        self._execute(
            """UPDATE task SET state = 'delivered', changed_at = ?, result = coalesce(?, result)
               WHERE task_id = ? AND fence = ? AND state = 'ended'""",
            (now, None if kept_result is None else msgspec.json.encode(kept_result), task_id, fence),
        )

    def unfinished(self) -> Sequence[JournalEntry]:
        """Tasks that may have had effects and have no result; after a start, those that a crash interrupted."""
        return self._entries("intended")

    def undelivered(self) -> Sequence[JournalEntry]:
        """Results that the platform has not accepted yet, in the order of their ends and receipts."""
        return self._entries("ended")

    def close_owner(self, owner: str, now: float) -> None:
        """Accept nothing more for this owner; closing an allocation closes all owners within it."""
        self._execute("INSERT OR IGNORE INTO closed_owner VALUES (?, ?)", (owner, now))

    def is_closed(self, owner: str) -> bool:
        """Whether the owner, or its allocation, is closed."""
        row = self._database.execute(
            "SELECT 1 FROM closed_owner WHERE owner IN (?, ?)", (owner, owner.partition("/")[0])
        ).fetchone()
        return row is not None

    def record_secret(self, task: Task, sealed: SealedSecret, now: float, keep: int) -> None:
        """Remember which secret an allocation has, to mask it in what the allocation writes; the newest are kept."""
        self._execute(
            "INSERT INTO delivered_secret VALUES (NULL, ?, ?, ?, ?, ?)",
            (task.allocation_id, task.node_id, task.task_id, msgspec.json.encode(sealed), now),
        )
        self._execute(
            """DELETE FROM delivered_secret WHERE allocation_id = ? AND id NOT IN
                 (SELECT id FROM delivered_secret WHERE allocation_id = ? ORDER BY id DESC LIMIT ?)""",
            (task.allocation_id, task.allocation_id, keep),
        )

    def delivered_secrets(self) -> Sequence[DeliveredSecret]:
        rows = self._database.execute(
            "SELECT allocation_id, node_id, task_id, sealed FROM delivered_secret ORDER BY id"
        ).fetchall()
        return [
            DeliveredSecret(allocation_id, node_id, task_id, _SEALED.decode(sealed))
            for allocation_id, node_id, task_id, sealed in rows
        ]

    def forget_secrets(self, allocation_id: str) -> None:
        self._execute("DELETE FROM delivered_secret WHERE allocation_id = ?", (allocation_id,))

    def link(self) -> ChainLink:
        """The next link of the receipt chain."""
        row = self._database.execute("SELECT sequence, body FROM receipt ORDER BY sequence DESC LIMIT 1").fetchone()
        return ChainLink(1, FIRST_PREVIOUS) if row is None else next_link(ChainLink(row[0], ""), row[1])

    def prune(self, now: float) -> None:
        """Delete what cannot be asked for again: expired tasks, and owners closed long ago."""
        self._database.execute(
            "DELETE FROM task WHERE state = 'delivered' AND expires_at < ? AND changed_at < ?",
            (now - KEEP_DELIVERED_SECONDS, now - KEEP_DELIVERED_SECONDS),
        )
        self._database.execute("DELETE FROM delivered_secret WHERE allocation_id IN (SELECT owner FROM closed_owner)")
        self._database.execute("DELETE FROM closed_owner WHERE closed_at < ?", (now - KEEP_CLOSED_SECONDS,))

    def _entries(self, state: str) -> Sequence[JournalEntry]:
        rows = self._database.execute(
            """SELECT task_id, fence, owner, state, payload, result FROM task WHERE state = ?
               ORDER BY (SELECT sequence FROM receipt r WHERE r.task_id = task.task_id), changed_at, rowid""",
            (state,),
        ).fetchall()
        return [_read_entry(row) for row in rows]


def _damage_message(path: Path | str, findings: str) -> str:
    cause = " ".join(findings.split())[:200]
    return (
        f"the journal {path} is damaged ({cause}): what this agent has begun is unknown. Move it "
        "away, retire the node and enrol this machine again (`mooring-agent enrol --again`): its sweep then reaps what "
        "is left here"
    )


def _read_entry(row: tuple[Any, ...]) -> JournalEntry:
    task_id, fence, owner, state, payload, result = row
    task = None if payload is None else msgspec.structs.replace(_TASK.decode(payload), fence=fence)
    return JournalEntry(task_id, fence, owner, state, task, None if result is None else _RESULT.decode(result))
