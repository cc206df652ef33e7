"""Documents that are not sealed yet."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mooring.storage.kernel.database import PLATFORM, Database

TASKS: Final = "SELECT id, tenant_id, arguments FROM task WHERE NOT arguments ? '$sealed' ORDER BY id LIMIT $1"
OPERATIONS: Final = """
SELECT id, tenant_id, request FROM operation
 WHERE request ? 'hidden' AND NOT request ? '$sealed' ORDER BY id LIMIT $1"""
INSTANCES: Final = """
SELECT id, tenant_id, config, config_hidden FROM instance
 WHERE config_secrets IS NULL AND config_hidden <> '{}' ORDER BY id LIMIT $1"""
REPLACE_TASK: Final = "UPDATE task SET arguments = $2 WHERE id = $1 AND NOT arguments ? '$sealed'"
REPLACE_OPERATION: Final = "UPDATE operation SET request = $2 WHERE id = $1 AND NOT request ? '$sealed'"
SPLIT_INSTANCE: Final = "UPDATE instance SET config = $2, config_secrets = $3 WHERE id = $1 AND config_secrets IS NULL"
_READS: Final = {"task": TASKS, "operation": OPERATIONS}
_REPLACES: Final = {"task": REPLACE_TASK, "operation": REPLACE_OPERATION}


@dataclass(frozen=True, slots=True)
class PlainDocument:
    id: str
    tenant_id: str
    document: dict[str, Any]


async def documents(database: Database, noun: str, limit: int) -> list[PlainDocument]:
    return [PlainDocument(*row) for row in await database.fetch(PLATFORM, _READS[noun], limit)]


async def replace(database: Database, noun: str, id: str, stored: Mapping[str, Any]) -> None:
    async with database.connection(PLATFORM) as connection:
        await connection.execute(_REPLACES[noun], id, stored)


async def split(database: Database, instance_id: str, config: object, secrets: Mapping[str, Any]) -> None:
    async with database.connection(PLATFORM) as connection:
        await connection.execute(SPLIT_INSTANCE, instance_id, config, secrets)
