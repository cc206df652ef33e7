"""Seals documents that were stored before documents were sealed."""

from mooring.commands.services import Services
from mooring.core.kernel.form_schema import hidden_values, without_hidden
from mooring.core.kernel.sealed_document import SEALED_COLUMNS
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.sealed_document import seal_document
from mooring.storage.records import in_the_clear

BATCH = 500


async def seal_stored(services: Services) -> bool:
    """Seal the next documents that are in the clear; returns whether none is left."""
    database, cipher = services.database, services.database.documents
    if cipher is None:
        return True
    found = 0
    for noun in ("task", "operation"):
        for each in await in_the_clear.documents(database, noun, BATCH):
            stored = seal_document(cipher, SEALED_COLUMNS[noun], each.document, each.tenant_id, each.id)
            await in_the_clear.replace(database, noun, each.id, stored)
            found += 1
    for row in await database.fetch(PLATFORM, in_the_clear.INSTANCES, BATCH):
        hidden = row["config_hidden"]
        values = hidden_values(row["config"], hidden)
        stored = seal_document(cipher, SEALED_COLUMNS["instance"], values, row["tenant_id"], row["id"])
        await in_the_clear.split(database, row["id"], without_hidden(row["config"], hidden), stored)
        found += 1
    return found < BATCH
