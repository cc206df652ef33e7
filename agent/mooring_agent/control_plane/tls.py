"""How the agent's connections are protected: TLS with the system's CA certificates or one file of them.

Plain http is refused except on this machine's own loopback, unless an operator allowed it for a network that nobody
else uses. That holds for the platform's URL and for the relay's, which the platform names in a task.
"""

import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from mooring_agent.control_plane.addresses import check_platform_url
from mooring_agent.control_plane.client_certificate import ClientCertificate
from mooring_agent.control_plane.trust import Identity


@dataclass(slots=True)
class PlatformTls:
    """The trust of one agent."""

    ca_file: str | None = None
    allow_insecure: bool = False
    certificate: ClientCertificate | None = None  # shown on every connection while it is valid

    def context_for(self, url: str) -> ssl.SSLContext | None:
        """The context for a URL, None for plain http; raises ValueError if a token must not go there."""
        check_platform_url(url, allow_insecure=self.allow_insecure)
        return self.context() if is_tls(url) else None

    def context(self) -> ssl.SSLContext:
        """A new context. Certificates are always verified."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise ValueError(f"cannot read CA certificates from {self.ca_file}: {error}") from error
        if self.certificate is not None:
            self.certificate.load_into(context, time.time())
        return context


def with_trust(identity: Identity, tls: PlatformTls) -> Identity:
    """The identity with what the operator said about connections, for the next starts."""
    return msgspec.structs.replace(identity, ca_file=tls.ca_file, allow_insecure=tls.allow_insecure)


def empty_context() -> ssl.SSLContext:
    """For clients that speak plain http: it trusts nobody, and loading the system's certificates takes 25 ms."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def is_tls(url: str) -> bool:
    return urlsplit(url).scheme == "https"
