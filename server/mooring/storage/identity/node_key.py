"""Reads the public key with which a node signs its assertions."""

from dataclasses import dataclass
from typing import Final

from mooring.storage.kernel.database import PLATFORM, Database

FIND: Final = "SELECT id, signing_key, status = 'retired' AS retired FROM node WHERE id = $1"


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A node's public key, and whether the node is retired."""

    node_id: str
    public_key: bytes
    retired: bool


async def find(database: Database, node_id: str) -> NodeKey | None:
    row = await database.fetchrow(PLATFORM, FIND, node_id)
    return None if row is None else NodeKey(*row)
