"""Endpoints of the policy's layers: read, state and explain, in each kind of place."""

from mooring.api.request_context import Call
from mooring.api.route import Declared, route_in
from mooring.api.schemas.catalog.policy import (
    ExplainedView,
    ExplainQuery,
    PolicyView,
    PutPolicy,
    explained_view,
    policy_view,
    rules_of,
)
from mooring.commands.catalog import policy as commands
from mooring.commands.kernel.lookup import found
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.policy import Chain, Request
from mooring.core.catalog.policy_change import Policy, PolicyWish, layers_of
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.catalog import policy as policies
from mooring.storage.identity import project as projects

PLACES = (Scope.PLATFORM, Scope.TENANT, Scope.PROJECT)
PATH = "/policy"


@route_in(PLACES, "GET", PATH, Declared("policy", "get", "policy.read", answer=PolicyView))
async def get_policy(call: Call) -> PolicyView:
    """Read the layer of exactly this place; what counts in the end, `explain` says."""
    database, project_id = call.services.database, call.place.project_id
    if project_id is not None:
        found(await projects.find(database, call.acting, project_id), "project")
    row = await policies.find(database, call.acting, project_id)
    return policy_view(call.caller.authority, call.place, row)


@route_in(
    PLACES,
    "PUT",
    PATH,
    Declared(
        "policy", "update", "policy.update", answer=PolicyView, errors=(Code.POLICY_WIDENS, Code.REVISION_CONFLICT)
    ),
)
async def update_policy(call: Call, body: PutPolicy) -> Answered:
    """State all rules of this place's layer; they take effect with the next decision.

    A layer can only narrow what the layers above it allow; one that says more is refused.
    """
    work: Work[Policy] = call.work(lambda policy: policy_view(call.caller.authority, call.place, policy))
    return await commands.put(work, call.place, PolicyWish(rules_of(body.rules), body.reason), body.revision)


@route_in(PLACES, "GET", PATH + "/explain", Declared("policy", "explain", "policy.read", answer=ExplainedView))
async def explain_policy(call: Call, query: ExplainQuery) -> ExplainedView:
    """Decide about something as it would be decided here, and say which layer decided and why."""
    rows = await policies.chain(call.services.database, call.acting, call.place.project_id)
    chain = Chain(layers_of(rows))
    request = Request(query.source, query.region, query.sku, query.app, query.gpus, query.signed, query.image)
    return explained_view(chain.decide(request), chain.explain(request))
