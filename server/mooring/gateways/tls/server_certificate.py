"""The certificate that the API and the relay serve, reloaded while they run.

The listening sockets keep one TLS context for the life of the process. Its server-name callback, which OpenSSL calls
for every new connection with or without a server name, moves the connection to the context of the newest certificate.
So a reload changes nothing about open connections, and a new file is used only after it was loaded completely: a
certificate without its key, or half of a file, leaves the last one in use. Sessions cannot be resumed, so that every
new connection sees the new certificate.
"""

import asyncio
import contextlib
import logging
import os
import ssl
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mooring.gateways.lazy_import import lazy_module

if TYPE_CHECKING:
    from cryptography import x509
else:
    x509 = lazy_module("cryptography.x509")

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: forward secrecy and authenticated encryption only. TLS 1.3 has no others."""
CHECK_SECONDS: Final = 2.0
EXPIRES_SOON: Final = timedelta(days=14)
REMINDER: Final = timedelta(days=1)
FILE_BYTES_MAX: Final = 1 << 20
HANDSHAKE_SECONDS: Final = 20.0
SHUTDOWN_SECONDS: Final = 5.0

log = logging.getLogger("mooring.tls")

FileState = tuple[int, int, int]


class CertificateRefused(Exception):
    """The certificate or its key cannot be used; the message names the file."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where a certificate chain and its private key are, both PEM."""

    certificate: Path
    key: Path

    def states(self) -> tuple[FileState, FileState] | None:
        """Identifies the content of both files without reading them; None while one is missing."""
        try:
            return _state(self.certificate), _state(self.key)
        except OSError:
            return None


class ServerCertificate:
    """The certificate in use, and the context that the listening sockets have."""

    def __init__(
        self, files: CertificateFiles, *, client_authority: str | None = None, renew: Callable[[], object] | None = None
    ) -> None:
        """`client_authority` is the PEM certificate of the authority whose client certificates are accepted.

        `renew` is called before each check of the files, and may replace them.
        """
        self._files = files
        self._client_authority = client_authority
        self._renew = renew
        self._states = files.states()
        self._refused: object = None
        self._reminded_at = datetime.min.replace(tzinfo=UTC)
        self.not_after = _not_after(files.certificate)
        self._current = self.context = self._load()
        self.context.sni_callback = self._select
        self._warn_of_readers()
        self._remind()

    def reload(self) -> bool:
        """Use the files as they are now for new connections; what cannot be used is logged, and the last one stays."""
        states = self._files.states()
        try:
            not_after = _not_after(self._files.certificate)
            if not_after <= datetime.now(UTC):
                raise CertificateRefused(f"{self._files.certificate} expired at {not_after:%Y-%m-%d %H:%M} UTC")
            loaded = self._load()
        except CertificateRefused as refused:
            if self._refused != (states, str(refused)):  # once for each state of the files, not at every check
                log.error("cannot use the new TLS certificate; keeping the one in use: %s", refused)
                self._refused = (states, str(refused))
            return False
        self._current, self._states, self._refused = loaded, states, None
        self.not_after = not_after
        log.info("new connections use the TLS certificate that is valid until %s", f"{not_after:%Y-%m-%d %H:%M} UTC")
        return True

    @contextlib.asynccontextmanager
    async def watched(self, check_seconds: float = CHECK_SECONDS) -> AsyncIterator[None]:
        """Reload whenever the files have changed, while this lasts."""
        task = asyncio.create_task(self._watch(check_seconds))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self, check_seconds: float) -> None:
        while True:
            await asyncio.sleep(check_seconds)
            try:
                if self._renew is not None:
                    self._renew()
                states = self._files.states()
                if states is not None and states != self._states:
                    self.reload()
                self._remind()
            except Exception:  # the certificate in use goes on, and so does this check
                log.exception("cannot check or renew the TLS certificate; retrying")

    def _select(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        context.set_alpn_protocols(["http/1.1"])
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        if self._client_authority is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(cadata=self._client_authority)
        try:
            context.load_cert_chain(self._files.certificate, self._files.key, password=_no_password)
        except ssl.SSLError as error:
            raise CertificateRefused(
                f"{self._files.certificate} and {self._files.key} are not a certificate and its key: "
                f"{error.reason or 'they cannot be read'}"
            ) from error
        except (OSError, ValueError) as error:
            raise CertificateRefused(f"cannot read {self._files.certificate} and {self._files.key}: {error}") from error
        return context

    def _warn_of_readers(self) -> None:
        if self._files.key.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            log.warning("other accounts may read the TLS key %s; make it readable by its owner only", self._files.key)

    def _remind(self) -> None:
        """Warn once a day when the certificate ends soon: somebody has to replace it."""
        now = datetime.now(UTC)
        if self.not_after - now < EXPIRES_SOON and now - self._reminded_at > REMINDER:
            self._reminded_at = now
            log.warning(
                "the TLS certificate %s is valid only until %s; replace the file, which is loaded without a restart",
                self._files.certificate,
                f"{self.not_after:%Y-%m-%d %H:%M} UTC",
            )


def _state(path: Path) -> FileState:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _no_password() -> str:
    raise ValueError("the key is encrypted; store it decrypted, readable only by the account of the server")


def _not_after(path: Path) -> datetime:
    """When the certificate of a file ends."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > FILE_BYTES_MAX:
                raise CertificateRefused(f"{path} is larger than {FILE_BYTES_MAX} bytes")
            return x509.load_pem_x509_certificate(file.read()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise CertificateRefused(f"cannot read a certificate from {path}: {error}") from error
