"""Bodies of the client certificates of nodes."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.fleet.node import Signature
from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.core.fleet.node_certificate import REQUEST_LENGTH_MAX, IssuedCertificate

CertificateRequestText = Annotated[
    str, Meta(min_length=1, max_length=REQUEST_LENGTH_MAX, description="A PKCS #10 request of a P-256 key, PEM.")
]


class IssueNodeCertificate(Strict):
    """A request for a client certificate, signed by the node's own key."""

    certificate_request: CertificateRequestText
    proof: Signature


class NodeCertificateIssued(Shown):
    """A client certificate, PEM, with which the node connects from now on."""

    certificate: str
    not_after: Time


def certificate_issued(issued: IssuedCertificate) -> NodeCertificateIssued:
    return NodeCertificateIssued(certificate=issued.certificate, not_after=issued.not_after)
