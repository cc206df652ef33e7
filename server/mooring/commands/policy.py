"""Commands on policy layers."""

from mooring.commands.found import found
from mooring.commands.work import Answered, Work
from mooring.core.decision import Decision
from mooring.core.ids import Prefix
from mooring.core.permissions import Place
from mooring.core.policy_change import Policy, PolicyWish, change_policy, create_policy, layer_of, layers_of
from mooring.storage import policy as policies
from mooring.storage import project as projects


async def put(work: Work[Policy], place: Place, wish: PolicyWish, revision_seen: int | None) -> Answered:
    """State the rules of a place's layer, whether it had some or not."""
    home = (work.acting.tenant_id, place.project_id)

    async def load() -> list[Policy]:
        if place.project_id is not None:
            found(await projects.find(work.database, work.acting, place.project_id), "project")
        return await policies.chain(work.database, work.acting, place.project_id)

    def decide(chain: list[Policy]) -> Decision[Policy]:
        layer = layer_of(*home)
        above = layers_of(each for each in chain if each.layer is not layer)
        own = next((each for each in chain if each.layer is layer), None)
        if own is None:
            return create_policy(work.context, work.context.mint(Prefix.POLICY), home, wish, above)
        return change_policy(work.context, own, wish, above, revision_seen)

    return await work.execute(load, decide)
