"""The agent's HTTP client: it dials out and authenticates with its key.

An access token lives for minutes and is renewed when it expires or is refused. Nothing is retried here: the calling
loops know what is worth repeating.
"""

import asyncio
import hashlib
import json
import logging
import secrets
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
import msgspec

from mooring_agent import VERSION
from mooring_agent.control_plane.client_certificate import ClientCertificate
from mooring_agent.control_plane.keys import NodeKeys
from mooring_agent.control_plane.messages import (
    ClaimResponse,
    EnrolmentResponse,
    PlatformKey,
    PlatformKeys,
    ReportResponse,
    TaskLease,
    encode,
    prepare_decoders,
)
from mooring_agent.control_plane.tls import PlatformTls, empty_context, is_tls
from mooring_agent.control_plane.trust import Identity, pin

ASSERTION_SECONDS: Final = 120
ENROL_CONTEXT: Final = "mooring-enrol-v1"
RESPONSE_MAX_BYTES: Final = 64 * 1_048_576
USER_AGENT: Final = f"mooring-agent/{VERSION}"
CERTIFICATE_REQUIRED: Final = "certificate_required"
BROKEN_MAX: Final = 2
"""After so many broken connections without an answer between them, the next one is tried with a new certificate."""
RENEW_AGAIN_SECONDS: Final = 30.0
UNUSED_SECONDS: Final = 600.0
"""How often a platform that issues no client certificates is asked again."""
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"

log = logging.getLogger("mooring.agent")
Response = TypeVar("Response")


class Unreachable(Exception):
    """The platform did not respond, or not with a usable response; worth another try later."""


class Rejected(Exception):
    """The platform rejected a request; `code` says why."""

    def __init__(self, status: int, code: str, detail: str, correlation_id: str = "") -> None:
        super().__init__(f"{code}: {detail}" + (f" (correlation id {correlation_id})" if correlation_id else ""))
        self.status = status
        self.code = code
        self.detail = detail


class _TokenResponse(msgspec.Struct):
    access_token: str
    expires_in: float


class _AllocationList(msgspec.Struct):
    allocations: tuple[str, ...] = ()


class _CertificateResponse(msgspec.Struct):
    certificate: str


prepare_decoders(_TokenResponse, _AllocationList, _CertificateResponse)


@dataclass(slots=True)
class _Connections:
    """Connections that show one client certificate; when it is replaced they are closed after their last request."""

    http: httpx.AsyncClient
    users: int = 0
    is_replaced: bool = False


@dataclass(frozen=True, slots=True)
class EnrolmentRequest:
    """What a machine says about itself when it enrols."""

    name: str
    host: str
    labels: Mapping[str, str]
    previous_node_id: str | None = None  # the node that this machine was before, if any


class PlatformClient:
    def __init__(
        self,
        identity: Identity,
        keys: NodeKeys,
        now: Any,
        transport: httpx.AsyncBaseTransport | None = None,
        certificate: ClientCertificate | None = None,
    ) -> None:
        """`transport` is shared with other agents; then, and without TLS, no client certificate is used."""
        self.identity = identity
        self.tls = PlatformTls(identity.ca_file, identity.allow_insecure)
        self._keys = keys
        self._now = now
        self._token: tuple[str, float] | None = None
        self._session = secrets.token_urlsafe(16)
        self._transport = transport
        if transport is None and is_tls(identity.url):
            self.tls.certificate = certificate
        self._renewing = asyncio.Lock()
        self._renew_not_before = 0.0
        self._broken = 0
        self._connections = self._new_connections()

    def _new_connections(self) -> "_Connections":
        use_tls = self._transport is None and is_tls(self.identity.url)
        http = httpx.AsyncClient(
            base_url=self.identity.url.rstrip("/") + "/api/v1",
            timeout=httpx.Timeout(30.0),
            headers={"User-Agent": USER_AGENT},
            follow_redirects=False,
            transport=self._transport,
            verify=self.tls.context() if use_tls else empty_context(),
            limits=httpx.Limits(max_connections=4, max_keepalive_connections=2),
        )
        return _Connections(http)

    async def close(self) -> None:
        await self._connections.http.aclose()

    async def claim(
        self,
        free: int,
        wait_seconds: float,
        running: Sequence[TaskLease],
        health: Mapping[str, Any],
        samples: Sequence[Mapping[str, Any]] = (),
    ) -> ClaimResponse:
        """Send the heartbeat and samples of the GPUs, renew leases and claim tasks, in one long poll."""
        body: dict[str, Any] = {
            "free": free,
            "wait_seconds": wait_seconds,
            "running": running,
            "health": health,
            "session": self._session,
        }
        if samples:
            body["samples"] = samples
        return await self._post("/agent/claims", body, ClaimResponse, wait_seconds + 30.0)

    async def report(self, reports: Sequence[Mapping[str, Any]]) -> ReportResponse:
        """Send a batch of reports; each gets its own verdict."""
        return await self._post("/agent/reports", {"reports": reports}, ReportResponse)

    async def report_inventory(self, inventory: Mapping[str, Any]) -> None:
        await self._post("/agent/inventory", inventory, dict[str, Any])

    async def allocations(self) -> Sequence[str]:
        """The allocations that the platform has on this node; anything else on the machine is a stray."""
        return (await self._send("GET", "/agent/allocations", None, _AllocationList)).allocations

    async def platform_keys(self) -> Sequence[PlatformKey]:
        """The whole chain of keys that sign tasks."""
        return (await self._send("GET", "/agent/platform-keys", None, PlatformKeys)).platform_keys

    async def authorization(self) -> str:
        """The value of the Authorization header; on the way, the client certificate is renewed if that is due."""
        await self._keep_certificate()
        return f"Bearer {await self._access_token()}"

    async def _post(self, path: str, body: Any, response_type: type[Response], timeout: float = 30.0) -> Response:
        return await self._send("POST", path, msgspec.json.encode(body), response_type, timeout)

    async def _send(
        self, method: str, path: str, content: bytes | None, response_type: type[Response], timeout: float = 30.0
    ) -> Response:
        for is_first_try in (True, False):
            headers = _headers(await self.authorization())
            response = await self._request(method, path, content=content, headers=headers, timeout=timeout)
            if response.status_code == 401 and is_first_try:
                self._token = None
                continue
            if response.status_code == 403 and is_first_try and _rejected(response).code == CERTIFICATE_REQUIRED:
                await self._drop_certificate("the platform wants another one")
                continue
            return read_response(response, response_type)
        raise Unreachable("the platform refuses a token that it has just issued")

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request; its connection stays until the answer, also when the certificate is renewed meanwhile."""
        connections = self._connections
        connections.users += 1
        try:
            response = await connections.http.request(method, path, **options)
            self._broken = 0
            return response
        except (httpx.HTTPError, ssl.SSLError) as error:
            self._broken += _may_be_the_certificate(error)
            if self._broken >= BROKEN_MAX:
                self._broken = 0
                await self._drop_certificate("connections with it break")
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        finally:
            connections.users -= 1
            if connections.is_replaced and connections.users == 0:
                await connections.http.aclose()

    async def _keep_certificate(self) -> None:
        """Get the next client certificate if that is due; while the one in use is valid, a failure can wait."""
        held = self.tls.certificate
        if held is None or not held.is_due(self._now()) or self._now() < self._renew_not_before:
            return
        async with self._renewing:
            if not held.is_due(self._now()) or self._now() < self._renew_not_before:
                return  # another request has renewed it
            self._renew_not_before = self._now() + RENEW_AGAIN_SECONDS
            try:
                await self._renew(held)
            except Unreachable as error:
                if not held.is_valid(self._now()):
                    self._renew_not_before = 0.0
                    raise
                log.warning("cannot renew the client certificate; retrying: %s", error)

    async def _renew(self, held: ClientCertificate) -> None:
        request, proof = held.request(self._keys)
        body = msgspec.json.encode({"certificate_request": request, "proof": proof})
        headers = _headers(f"Bearer {await self._access_token()}")
        response = await self._request("POST", "/agent/certificates", content=body, headers=headers)
        if response.status_code == 401:
            self._token = None
        try:
            issued = read_response(response, _CertificateResponse)
            held.accept(issued.certificate)
        except Rejected as error:
            if error.status in (404, 409):  # a platform that does not know them yet, or does not use them
                self._renew_not_before = self._now() + UNUSED_SECONDS
                return
            raise Unreachable(f"the platform issues no client certificate: {error}") from error
        except ValueError as error:
            raise Unreachable(f"the platform's certificate cannot be used: {error}") from error
        self._renew_not_before = 0.0
        log.info("got a new client certificate")
        await self._replace_connections()

    async def _drop_certificate(self, why: str) -> None:
        if self.tls.certificate is not None:
            log.warning("the platform refuses this node's client certificate; asking for a new one: %s", why)
            self.tls.certificate.discard()
            await self._replace_connections()

    async def _replace_connections(self) -> None:
        """Use new connections from now on; those in use end with their requests."""
        replaced, self._connections = self._connections, self._new_connections()
        replaced.is_replaced = True
        if replaced.users == 0:
            await replaced.http.aclose()

    async def _access_token(self) -> str:
        if self._token is not None and self._token[1] > self._now() + 30:
            return self._token[0]
        form = {"grant_type": GRANT, "assertion": assertion(self.identity, self._keys, self._now())}
        response = await self._request("POST", "/oauth/token", data=form)
        token = read_response(response, _TokenResponse)
        self._token = (token.access_token, self._now() + token.expires_in)
        return token.access_token


def _headers(authorization: str) -> dict[str, str]:
    return {
        "Authorization": authorization,
        "Content-Type": "application/json",
        "Idempotency-Key": secrets.token_urlsafe(18),
    }


def _may_be_the_certificate(error: BaseException) -> bool:
    """Whether the platform may have ended the connection because of the certificate that this agent showed.

    With TLS 1.3 the handshake is over by then, and often only the broken connection is seen, not the reason.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        return not isinstance(cause, ssl.SSLCertVerificationError)  # that is about the platform's own certificate
    return isinstance(error, (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError))


def assertion(identity: Identity, keys: NodeKeys, now: float) -> str:
    """A signed JWT that identifies this node, valid once and for minutes only (RFC 7523)."""
    head = {"alg": "EdDSA", "kid": "signing", "typ": "JWT"}
    claims = {
        "iss": identity.node_id,
        "sub": identity.node_id,
        "aud": f"{identity.url.rstrip('/')}/api/v1/oauth/token",
        "iat": int(now),
        "exp": int(now) + ASSERTION_SECONDS,
        "jti": secrets.token_urlsafe(18),
    }
    signed = ".".join(encode(json.dumps(part, separators=(",", ":")).encode()) for part in (head, claims))
    return f"{signed}.{encode(keys.sign(b'', signed.encode()))}"


async def enrol(
    url: str,
    token: str,
    keys: NodeKeys,
    request: EnrolmentRequest,
    transport: httpx.AsyncBaseTransport | None = None,
    *,
    tls: PlatformTls | None = None,
) -> Identity:
    """Enrol: present the one-time token, prove possession of the keys, and pin the platform's keys."""
    proof = "\n".join((ENROL_CONTEXT, _sha256(token), keys.signing_public, keys.sealing_public)).encode()
    body: dict[str, Any] = {
        "token": token,
        "name": request.name,
        "host": request.host,
        "labels": dict(request.labels),
        "signing_key": keys.signing_public,
        "sealing_key": keys.sealing_public,
        "proof": encode(keys.sign(b"", proof)),
    }
    if request.previous_node_id is not None:
        body["previous_node_id"] = request.previous_node_id
    certificate = tls.certificate if tls is not None and is_tls(url) else None
    if certificate is not None:
        body["certificate_request"], body["certificate_proof"] = certificate.request(keys)
    verify = (tls or PlatformTls()).context() if transport is None and is_tls(url) else empty_context()
    headers = {"User-Agent": USER_AGENT}
    async with httpx.AsyncClient(timeout=30.0, headers=headers, transport=transport, verify=verify) as http:
        try:
            response = await http.post(
                f"{url.rstrip('/')}/api/v1/agent/enrolments",
                content=msgspec.json.encode(body),
                headers={"Content-Type": "application/json"},
            )
        except httpx.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        enrolled = read_response(response, EnrolmentResponse)
    if certificate is not None and enrolled.certificate is not None:
        certificate.accept(enrolled.certificate)
    return pin(url, enrolled.node_id, enrolled.audience, enrolled.platform_keys, enrolled.root_key)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_response(response: httpx.Response, response_type: type[Response]) -> Response:
    """Decode a response; raises `Rejected` for a refusal and `Unreachable` for anything unusable."""
    if len(response.content) > RESPONSE_MAX_BYTES:
        raise Unreachable("the platform's response is too large")
    if response.status_code >= 500 or response.status_code == 429:
        raise Unreachable(f"the platform responded with {response.status_code}")
    if response.status_code >= 300:
        raise _rejected(response)
    try:
        return msgspec.json.decode(response.content or b"{}", type=response_type)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Unreachable(f"the platform's response cannot be decoded: {error}") from error


def _rejected(response: httpx.Response) -> Rejected:
    try:
        problem = response.json()
        return Rejected(
            response.status_code,
            str(problem.get("code", "unknown")),
            str(problem.get("detail", "")),
            str(problem.get("correlation_id", "")),
        )
    except (ValueError, AttributeError, RecursionError):
        return Rejected(response.status_code, "unknown", f"the platform responded with {response.status_code}")
