"""Commands on the lists of allowed sources."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.artifact_location import ArtifactSource
from mooring.core.catalog.artifact_source import ArtifactSourceSpec, create_source, delete_source
from mooring.storage.catalog import artifact_source as sources


async def create(work: Work[ArtifactSource], spec: ArtifactSourceSpec) -> Answered:
    """Put a source on this place's list."""
    return await work.execute(
        lambda: sources.count(work.database, work.acting),
        lambda there: create_source(work.context, work.acting.tenant_id, spec, there),
    )


async def delete(work: Work[ArtifactSource], source_id: str) -> Answered:
    """Take a source off this place's list."""

    async def load() -> ArtifactSource:
        return require(await sources.find(work.database, work.acting, source_id), "artifact source")

    return await work.execute(load, lambda seen: delete_source(work.context, seen))
