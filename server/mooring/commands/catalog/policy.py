"""The use case that sets the policy layer of a place."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.policy_change import Policy, PolicySpec, change_policy, create_policy, layer_of, layers_of
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Place
from mooring.storage.catalog import policy as policies
from mooring.storage.identity import project as projects


async def put(work: Work[Policy], place: Place, spec: PolicySpec, revision_seen: int | None) -> Answered:
    """Set the rules of a place's layer; the layer is created if the place has none."""
    tenant_id, project_id = work.acting.tenant_id, place.project_id

    async def load() -> list[Policy]:
        if place.project_id is not None:
            require(await projects.find(work.database, work.acting, place.project_id), "project")
        return await policies.chain(work.database, work.acting, place.project_id)

    def decide(chain: list[Policy]) -> Decision[Policy]:
        layer = layer_of(tenant_id, project_id)
        above = layers_of(each for each in chain if each.layer is not layer)
        own = next((each for each in chain if each.layer is layer), None)
        if own is None:
            policy_id = work.context.mint(Prefix.POLICY)
            return create_policy(work.context, policy_id, spec, above, tenant_id=tenant_id, project_id=project_id)
        return change_policy(work.context, own, spec, above, revision_seen)

    return await work.execute(load, decide)
