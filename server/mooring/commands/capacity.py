"""Reading what capacity a project has and could have; the catalog and the planning of a launch ask the same."""

from mooring.commands.work import Services
from mooring.core.offers import ProjectCapacity, possible_for
from mooring.core.policy import Chain
from mooring.storage import capacity
from mooring.storage.database import Acting


async def of_project(services: Services, acting: Acting, project_id: str, chain: Chain) -> ProjectCapacity:
    """The active allocations of a project that `acting` was let read, and what its policy lets it ask for."""
    kinds, terms = await services.fleet.read(services.database)
    return ProjectCapacity(tuple(await capacity.held(services.database, project_id)), possible_for(terms, kinds, chain))
