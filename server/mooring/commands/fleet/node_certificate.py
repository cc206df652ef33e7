"""Commands of the client certificates of nodes."""

from dataclasses import dataclass
from datetime import datetime

from mooring.core.fleet.node import Node
from mooring.core.fleet.node_certificate import IssuedCertificate, certificate_proof_of
from mooring.core.identity.platform_key import encoded
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.validation import invalid
from mooring.gateways.signing.signatures import verifies
from mooring.gateways.tls.node_authority import CertificateRequestRefused, NodeAuthority, key_of_request

FIELD = "certificate_request"


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """A request for a certificate as the agent sent it, and the signature of its node key over it."""

    request: str
    proof: bytes


def issue(authority: NodeAuthority | None, node: Node, asked: CertificateRequest, now: datetime) -> IssuedCertificate:
    """Certify the key of a request for this node, whose own key must have signed the request."""
    if authority is None:
        raise Refusal(Code.CONFLICT, "this platform does not use client certificates of nodes")
    check(asked, node.signing_key)
    return authority.issue(asked.request, node.id, now)


def check(asked: CertificateRequest, signing_key: bytes) -> None:
    """Refuse a request that cannot be certified, or that the node's signing key did not sign."""
    if not verifies(signing_key, asked.proof, certificate_proof_of(asked.request, encoded(signing_key))):
        raise Refusal(Code.PERMISSION_DENIED, "the proof is not a signature of the node's key over this request")
    try:
        key_of_request(asked.request)
    except CertificateRequestRefused as refused:
        raise invalid(FIELD, str(refused)) from refused
