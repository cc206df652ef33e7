"""Endpoints for enrolment, the keys that an agent trusts, and its inventory."""

import base64
from functools import partial

from mooring.api.guess_limits import GuessKind
from mooring.api.request_context import RequestContext
from mooring.api.route import PUBLIC_ACTION, RouteSpec, route
from mooring.api.routes.fleet.agent_certificate import with_certificate
from mooring.api.schemas.fleet.node import (
    Enrolled,
    EnrolNode,
    InventoryTaken,
    PlatformKeys,
    ReportInventory,
    enrolled,
    inventory_of,
    inventory_taken,
    platform_key_view,
)
from mooring.commands.fleet import enrolment as commands
from mooring.commands.fleet import node as node_commands
from mooring.commands.identity.platform_key import task_audience
from mooring.commands.kernel.work import Answered
from mooring.core.fleet.enrolment import JoinRequest
from mooring.core.identity.platform_key import TASK_SIGNING
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.identity import platform_key as platform_keys


@route(
    "POST",
    "/agent/enrolments",
    Scope.PUBLIC,
    RouteSpec("enrolment", "create", PUBLIC_ACTION, 201, Enrolled, errors=(Code.ENROLMENT_REFUSED, Code.NAME_TAKEN)),
)
async def enrol_node(request: RequestContext, body: EnrolNode) -> Answered:
    """Join as a node, with a one-time token and the proof of a key.

    `proof` is the Ed25519 signature of `signing_key` over `mooring-enrol-v1`, the SHA-256 of the token in hexadecimal,
    `signing_key` and `sealing_key` as they are sent, each on a line of its own. The request may be repeated with the
    same keys, so that an agent that crashed before it got the answer can continue. With `certificate_request` and
    `certificate_proof` the answer has a client certificate, if the platform uses them.
    """
    keys = await platform_keys.chain(request.services.database, TASK_SIGNING)
    audience, root_key = await task_audience(request.services), request.services.settings.root_key_bytes
    view = with_certificate(request, body, partial(enrolled, audience, keys, root_key))
    presented = commands.EnrolmentProof(body.token, body.signing_key, body.sealing_key, _decoded(body.proof))
    joining = JoinRequest(
        body.name,
        body.host,
        body.labels,
        _decoded(body.signing_key),
        _decoded(body.sealing_key),
        body.previous_node_id,
    )
    guessed = partial(request.tools.guesses.wrong, GuessKind.ENROLMENT, request.origin.remote_address)
    return await commands.join(request.work(view), presented, joining, guessed=guessed)


@route(
    "GET",
    "/agent/platform-keys",
    Scope.NODE,
    RouteSpec("agent_platform_key", "list", "agent.claim", answer=PlatformKeys),
)
async def list_agent_platform_keys(request: RequestContext) -> PlatformKeys:
    """Read the keys that sign tasks, each signed by the one before it."""
    keys = await platform_keys.chain(request.services.database, TASK_SIGNING, acting=request.acting)
    return PlatformKeys(
        audience=await task_audience(request.services), platform_keys=[platform_key_view(key) for key in keys]
    )


@route(
    "POST",
    "/agent/inventory",
    Scope.NODE,
    RouteSpec("agent_inventory", "report", "agent.report", answer=InventoryTaken, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def report_inventory(request: RequestContext, body: ReportInventory) -> Answered:
    """Report what the calling node has; the first report makes it ready.

    A report that equals the last one changes nothing. A different one never frees a slot that an allocation has: such a
    difference is returned as a finding, for operators.
    """
    return await node_commands.report(request.work(inventory_taken), inventory_of(body))


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
