"""Use cases for allowed sources: add one, and take one off the list."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.artifact_location import ArtifactSource
from mooring.core.catalog.artifact_source import ArtifactSourceSpec, create_source, delete_source
from mooring.storage.catalog import artifact_source as sources


async def create(work: Work[ArtifactSource], spec: ArtifactSourceSpec) -> Answered:
    return await work.execute(
        lambda: sources.count(work.database, work.acting),
        lambda source_count: create_source(work.context, work.acting.tenant_id, spec, source_count),
    )


async def delete(work: Work[ArtifactSource], source_id: str) -> Answered:
    async def load() -> ArtifactSource:
        return require(await sources.find(work.database, work.acting, source_id), "artifact source")

    return await work.execute(load, lambda source: delete_source(work.context, source))
