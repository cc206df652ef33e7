"""Reads the slots of nodes."""

from typing import Final

from mooring.core.fleet.slot import Slot
from mooring.storage.kernel.database import Acting, Database

_COLUMNS: Final = """id, node_id, index, numa, gpu_model, memory_bytes, simulated, status, allocation_id, revision,
       created_at"""
OF_NODE: Final = f"SELECT {_COLUMNS} FROM slot WHERE node_id = $1 ORDER BY index"


async def of_node(database: Database, acting: Acting, node_id: str) -> list[Slot]:
    """All slots of a node, by their index; like nodes they belong to the platform."""
    return [Slot(*row) for row in await database.fetch(acting, OF_NODE, node_id)]
