"""Endpoints for policy layers on the platform, in tenants and in projects: read, set and explain."""

from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
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
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.policy import PolicyChain, PolicyRequest
from mooring.core.catalog.policy_change import Policy, PolicySpec, layers_of
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.catalog import policy as policies
from mooring.storage.identity import project as projects

PLACES = (Scope.PLATFORM, Scope.TENANT, Scope.PROJECT)
PATH = "/policy"


@route_in(PLACES, "GET", PATH, RouteSpec("policy", "get", "policy.read", answer=PolicyView))
async def get_policy(request: RequestContext) -> PolicyView:
    """Read the layer of exactly this place; `explain` shows the combined effect of all layers."""
    database, project_id = request.services.database, request.place.project_id
    if project_id is not None:
        require(await projects.find(database, request.acting, project_id), "project")
    row = await policies.find(database, request.acting, project_id)
    return policy_view(request.caller.authority, request.place, row)


@route_in(
    PLACES,
    "PUT",
    PATH,
    RouteSpec(
        "policy", "update", "policy.update", answer=PolicyView, errors=(Code.POLICY_WIDENS, Code.REVISION_CONFLICT)
    ),
)
async def update_policy(request: RequestContext, body: PutPolicy) -> Answered:
    """Replace all rules of this place's layer; they take effect with the next decision.

    A layer can only narrow what the layers above it allow; one that allows more is refused.
    """
    work: Work[Policy] = request.work(lambda policy: policy_view(request.caller.authority, request.place, policy))
    return await commands.put(work, request.place, PolicySpec(rules_of(body.rules), body.reason), body.revision)


@route_in(PLACES, "GET", PATH + "/explain", RouteSpec("policy", "explain", "policy.read", answer=ExplainedView))
async def explain_policy(request: RequestContext, query: ExplainQuery) -> ExplainedView:
    """Evaluate the policy of this place for a hypothetical request, and show which layer decides and why."""
    rows = await policies.chain(request.services.database, request.acting, request.place.project_id)
    chain = PolicyChain(layers_of(rows))
    asked = PolicyRequest(query.source, query.region, query.sku, query.app, query.gpus, query.signed, query.image)
    return explained_view(chain.decide(asked), chain.explain(asked))
