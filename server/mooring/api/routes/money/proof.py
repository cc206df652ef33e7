"""Endpoint of the proof that the ledger is right."""

from mooring.api.page import Page, encode_cursor, start
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.money.proof import ProofQuery, ProvenLawView, hour_in, proven_view
from mooring.commands.money.proof import Period, prove
from mooring.core.kernel.permissions import Scope

PLACES = (Scope.PLATFORM, Scope.TENANT)
NAME = "billing_proof"


@route_in(
    PLACES, "GET", "/billing/proof", RouteSpec("billing_proof", "prove", "billing.prove", answer=Page[ProvenLawView])
)
async def prove_billing(request: RequestContext, query: ProofQuery) -> Page[ProvenLawView]:
    """Prove the ledger, one step for each page: recompute it from the lifecycle log and the stored usage.

    Follow `next_cursor` to the end, and add up `checked` and `broken` of each law. Every step reads one snapshot.
    """
    period = Period(hour_in(query.since, "since"), hour_in(query.until, "until"))
    step = await prove(request.services.database, request.acting, period, start(query, NAME))
    following = None if step.following is None else encode_cursor(NAME, step.following)
    return Page(items=[proven_view(each) for each in step.laws], next_cursor=following)
