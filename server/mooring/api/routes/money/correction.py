"""Endpoint of corrections by hand."""

from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.money.correction import CorrectionView, CreateCorrection, correction_view
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.money import correction as commands
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.money.correction import Correction, CorrectionSpec


@route_in(
    (Scope.PLATFORM,),
    "POST",
    "/billing/corrections",
    RouteSpec(
        "billing_correction",
        "create",
        "billing.correct",
        status=201,
        answer=CorrectionView,
        errors=(Code.CONFLICT, Code.NOT_FOUND),
    ),
)
async def create_billing_correction(request: RequestContext, body: CreateCorrection) -> Answered:
    """Credit a project, or charge it, for a booked transaction; the reason stays with the correction."""
    spec = CorrectionSpec(body.transaction_id, body.micro, body.reason)
    work: Work[Correction] = request.work(correction_view)
    return await commands.create(work, spec)
