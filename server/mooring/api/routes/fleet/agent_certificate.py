"""The endpoint of the client certificates of nodes."""

import base64
from collections.abc import Callable

import msgspec

from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route
from mooring.api.schemas.fleet.node import Enrolled, EnrolNode
from mooring.api.schemas.fleet.node_certificate import (
    IssueNodeCertificate,
    NodeCertificateIssued,
    certificate_issued,
)
from mooring.commands.fleet import node_certificate as commands
from mooring.commands.kernel.lookup import require
from mooring.core.fleet.node import Node
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.fleet import node as nodes


@route(
    "POST",
    "/agent/certificates",
    Scope.NODE,
    RouteSpec(
        "agent_certificate",
        "issue",
        "agent.claim",
        201,
        NodeCertificateIssued,
        errors=(Code.CONFLICT,),
        without_certificate=True,
    ),
)
async def issue_agent_certificate(request: RequestContext, body: IssueNodeCertificate) -> NodeCertificateIssued:
    """Get a client certificate for the calling node, the first one or the next.

    `proof` is the Ed25519 signature of the node's signing key over `mooring-certificate-v1`, the SHA-256 of
    `certificate_request` in hexadecimal and the node's public signing key, each on a line of its own. The request needs
    no certificate, so that a node whose last one has expired can come back. A platform that does not use client
    certificates answers `conflict`.
    """
    node = require(await nodes.find(request.services.database, request.caller.actor.id), "node")
    asked = commands.CertificateRequest(body.certificate_request, decoded(body.proof))
    return certificate_issued(commands.issue(request.tools.node_authority, node, asked, request.context.now))


def with_certificate(
    request: RequestContext, body: EnrolNode, view: Callable[[Node], Enrolled]
) -> Callable[[Node], Enrolled]:
    """The answer to an enrolment, with a certificate if the agent asked for one and the platform uses them."""
    authority = request.tools.node_authority
    if authority is None or body.certificate_request is None or body.certificate_proof is None:
        return view
    asked = commands.CertificateRequest(body.certificate_request, decoded(body.certificate_proof))
    commands.check(asked, decoded(body.signing_key))  # before the machine becomes a node

    def shown(node: Node) -> Enrolled:
        issued = commands.issue(authority, node, asked, request.context.now)
        return msgspec.structs.replace(view(node), certificate=issued.certificate)

    return shown


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
