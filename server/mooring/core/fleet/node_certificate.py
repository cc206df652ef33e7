"""The client certificate of a node: what its agent signs to get one, and what a request of the node must show.

A certificate counts only together with the node's token and only for the node that it names. So a stolen token is of no
use on another machine, and a certificate is worth nothing once its node is retired, because the token is.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mooring.core.kernel.errors import Code, Refusal

CONTEXT: Final = "mooring-certificate-v1"
REQUEST_LENGTH_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class NodeCertificate:
    """The certificate that a connection showed, verified by TLS when the connection began."""

    node_id: str
    not_after: datetime


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A new certificate, PEM."""

    certificate: str
    not_after: datetime


def certificate_proof_of(request: str, signing_key: str) -> bytes:
    """What the node's signing key signs to ask for a certificate, with the request and the key as they are sent.

    A token alone does not get a certificate: with it, a thief could have their own key certified.
    """
    return f"{CONTEXT}\n{hashlib.sha256(request.encode()).hexdigest()}\n{signing_key}".encode()


def require_certificate(shown: NodeCertificate | None, node_id: str, now: datetime) -> None:
    """Refuse a node's request on a connection without the certificate of this very node.

    A connection may live longer than its certificate, so the end is checked at every request.
    """
    if shown is None:
        raise _required("this request needs the client certificate of the node")
    if shown.node_id != node_id:
        raise _required("the client certificate belongs to another node")
    if shown.not_after <= now:
        raise _required("the client certificate of this connection has expired; renew it and connect again")


def _required(detail: str) -> Refusal:
    return Refusal(Code.CERTIFICATE_REQUIRED, detail)
