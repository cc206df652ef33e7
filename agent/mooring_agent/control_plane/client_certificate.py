"""The node's client certificate: it makes a stolen token useless on another machine.

The key is made on this machine for each certificate and never leaves it. The request for a certificate is signed by the
node's own key, so the platform certifies nothing that this machine did not ask for. A certificate is replaced when a
third of its time is left; one that has expired, or that the platform refuses, is simply not shown any more, and the
next one is asked for without it.
"""

import hashlib
import logging
import os
import ssl
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mooring_agent.atomic_files import write_private
from mooring_agent.control_plane.keys import NodeKeys
from mooring_agent.control_plane.messages import encode

CONTEXT: Final = "mooring-certificate-v1"
FILE_NAME: Final = "client.pem"

log = logging.getLogger("mooring.agent")


class ClientCertificate:
    """The certificate in use, with its key; stored in a file of the state directory, or in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._pem = b""
        self._asked_with: ec.EllipticCurvePrivateKey | None = None
        self._not_before = self._not_after = 0.0
        if path is not None and path.exists():
            try:
                self._use(path.read_bytes())
            except (OSError, ValueError) as error:
                log.warning("cannot read %s; asking for a new certificate: %s", path, error)

    def is_valid(self, now: float) -> bool:
        return bool(self._pem) and now < self._not_after

    def is_due(self, now: float) -> bool:
        """Whether it is time for the next one: there is none, or a third of its time is left."""
        return not self._pem or now >= self._not_after - (self._not_after - self._not_before) / 3

    def request(self, keys: NodeKeys) -> tuple[str, str]:
        """A request for a certificate of a new key, and the signature of the node's key over it."""
        self._asked_with = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mooring-node")])
        asked = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self._asked_with, SHA256())
        text = asked.public_bytes(Encoding.PEM).decode("ascii")
        signed = f"{CONTEXT}\n{hashlib.sha256(text.encode()).hexdigest()}\n{keys.signing_public}"
        return text, encode(keys.sign(b"", signed.encode()))

    def accept(self, certificate: str) -> None:
        """Use the certificate that the platform issued; raises ValueError if it is not for the key that asked."""
        key, self._asked_with = self._asked_with, None
        issued = _read(certificate.encode())
        if key is None or issued.public_key() != key.public_key():
            raise ValueError("the platform's certificate is for another key")
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        data = private + issued.public_bytes(Encoding.PEM)
        if self._path is not None:
            write_private(self._path, data)
        self._use(data)

    def discard(self) -> None:
        """Forget a certificate that the platform refuses."""
        self._pem = b""

    def load_into(self, context: ssl.SSLContext, now: float) -> None:
        """Show this certificate on connections of a context, while it is valid."""
        if not self.is_valid(now):
            return
        # The ssl module reads files only; this one exists in memory, for this process.
        descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, self._pem)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        except ssl.SSLError as error:
            log.warning("cannot use the stored client certificate; asking for a new one: %s", error)
            self.discard()
        finally:
            os.close(descriptor)

    def _use(self, data: bytes) -> None:
        found = _read(data)
        self._not_before = found.not_valid_before_utc.timestamp()
        self._not_after = found.not_valid_after_utc.timestamp()
        self._pem = data


def _read(data: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(data[max(0, data.find(b"-----BEGIN CERTIFICATE-----")) :])
