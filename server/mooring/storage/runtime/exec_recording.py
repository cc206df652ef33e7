"""Storage of recorded exec sessions: a row for each, and its content in sealed parts."""

from dataclasses import fields
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.runtime.exec_recording import ExecRecording
from mooring.storage.kernel.database import BROKEN, PLATFORM, Acting, Database, unavailable
from mooring.storage.kernel.page_window import PageWindow
from mooring.storage.kernel.sealed_document import open_body, seal_body

_COLUMNS: Final = ", ".join(each.name for each in fields(ExecRecording))
BEGIN: Final = f"INSERT INTO exec_recording ({_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
ADD: Final = """
WITH part AS (INSERT INTO exec_recording_part (tenant_id, recording_id, number, content) VALUES ($1, $2, $3, $4))
UPDATE exec_recording SET bytes = $5 WHERE id = $2"""
END: Final = "UPDATE exec_recording SET ended_at = $2 WHERE id = $1"
FIND: Final = f"SELECT {_COLUMNS} FROM exec_recording WHERE tenant_id = $1 AND id = $2"
LIST: Final = f"""
SELECT {_COLUMNS} FROM exec_recording WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3"""
PARTS: Final = """
SELECT number, content FROM exec_recording_part
 WHERE tenant_id = $1 AND recording_id = $2 AND number > $3 ORDER BY number LIMIT $4"""


async def begin(database: Database, recording: ExecRecording) -> None:
    values = (getattr(recording, each.name) for each in fields(recording))
    await _write(database, BEGIN, *values)


async def add(database: Database, recording: ExecRecording, number: int, content: str, total: int) -> None:
    """Store the next part, sealed."""
    sealed = seal_body(database.documents, content.encode(), _bound(recording, number))
    await _write(database, ADD, recording.tenant_id, recording.id, number, sealed, total)


async def end(database: Database, recording: ExecRecording, now: datetime) -> None:
    await _write(database, END, recording.id, now)


async def find(database: Database, acting: Acting, recording_id: str) -> ExecRecording | None:
    row = await database.fetchrow(acting, FIND, acting.tenant_id, recording_id)
    return None if row is None else ExecRecording(*row)


async def page(database: Database, acting: Acting, window: PageWindow) -> list[ExecRecording]:
    """The recordings of a tenant, newest first."""
    rows = await database.fetch(acting, LIST, acting.tenant_id, window.after, window.limit)
    return [ExecRecording(*row) for row in rows]


async def parts(database: Database, acting: Acting, recording: ExecRecording, after: int, limit: int) -> dict[int, str]:
    """The next parts by number, opened."""
    rows = await database.fetch(acting, PARTS, recording.tenant_id, recording.id, after, limit)
    return {row["number"]: open_body(row["content"], _bound(recording, row["number"])).decode() for row in rows}


def _bound(recording: ExecRecording, number: int) -> str:
    return f"exec_recording|{recording.tenant_id}|{recording.id}|{number}"


async def _write(database: Database, statement: str, *arguments: object) -> None:
    try:
        async with database.connection(PLATFORM) as connection:
            await connection.execute(statement, *arguments)
    except (*BROKEN, asyncpg.QueryCanceledError) as error:
        raise unavailable("the recording of the session cannot be stored") from error
