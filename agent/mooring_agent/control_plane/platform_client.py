"""The agent's HTTP client: it dials out and authenticates with its key.

An access token lives for minutes and is renewed when it expires or is refused. Nothing is retried here: the calling
loops know what is worth repeating.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
import msgspec

from mooring_agent import VERSION
from mooring_agent.control_plane.keys import Identity, NodeKeys
from mooring_agent.control_plane.messages import (
    ClaimResponse,
    EnrolmentResponse,
    ReportResponse,
    TaskLease,
    encode,
    prepare_decoders,
)

ASSERTION_SECONDS: Final = 120
ENROL_CONTEXT: Final = "mooring-enrol-v1"
RESPONSE_MAX_BYTES: Final = 64 * 1_048_576
USER_AGENT: Final = f"mooring-agent/{VERSION}"
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"

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


prepare_decoders(_TokenResponse, _AllocationList)


@dataclass(frozen=True, slots=True)
class EnrolmentRequest:
    """What a machine says about itself when it enrols."""

    name: str
    host: str
    labels: Mapping[str, str]
    previous_node_id: str | None = None  # the node that this machine was before, if any


class PlatformClient:
    def __init__(
        self, identity: Identity, keys: NodeKeys, now: Any, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.identity = identity
        self._keys = keys
        self._now = now
        self._token: tuple[str, float] | None = None
        self._session = secrets.token_urlsafe(16)
        self._http = httpx.AsyncClient(
            base_url=identity.url.rstrip("/") + "/api/v1",
            timeout=httpx.Timeout(30.0),
            headers={"User-Agent": USER_AGENT},
            follow_redirects=False,
            transport=transport,
            limits=httpx.Limits(max_connections=4, max_keepalive_connections=2),
        )

    @property
    def http(self) -> httpx.AsyncClient:
        """The underlying client, for streamed connections."""
        return self._http

    async def close(self) -> None:
        await self._http.aclose()

    async def claim(
        self, free: int, wait_seconds: float, running: Sequence[TaskLease], health: Mapping[str, Any]
    ) -> ClaimResponse:
        """Send the heartbeat, renew leases and claim tasks, in one long poll."""
        body = {
            "free": free,
            "wait_seconds": wait_seconds,
            "running": running,
            "health": health,
            "session": self._session,
        }
        return await self._post("/agent/claims", body, ClaimResponse, wait_seconds + 30.0)

    async def report(self, reports: Sequence[Mapping[str, Any]]) -> ReportResponse:
        """Send a batch of reports; each gets its own verdict."""
        return await self._post("/agent/reports", {"reports": reports}, ReportResponse)

    async def report_inventory(self, inventory: Mapping[str, Any]) -> None:
        await self._post("/agent/inventory", inventory, dict[str, Any])

    async def allocations(self) -> Sequence[str]:
        """The allocations that the platform has on this node; anything else on the machine is a stray."""
        return (await self._send("GET", "/agent/allocations", None, _AllocationList)).allocations

    async def authorization(self) -> str:
        """The value of the Authorization header."""
        return f"Bearer {await self._access_token()}"

    async def _post(self, path: str, body: Any, response_type: type[Response], timeout: float = 30.0) -> Response:
        return await self._send("POST", path, msgspec.json.encode(body), response_type, timeout)

    async def _send(
        self, method: str, path: str, content: bytes | None, response_type: type[Response], timeout: float = 30.0
    ) -> Response:
        for is_first_try in (True, False):
            headers = {
                "Authorization": await self.authorization(),
                "Content-Type": "application/json",
                "Idempotency-Key": secrets.token_urlsafe(18),
            }
            try:
                response = await self._http.request(method, path, content=content, headers=headers, timeout=timeout)
            except httpx.HTTPError as error:
                raise Unreachable(f"{type(error).__name__}: {error}") from error
            if response.status_code == 401 and is_first_try:
                self._token = None
                continue
            return read_response(response, response_type)
        raise Unreachable("the platform refuses a token that it has just issued")

    async def _access_token(self) -> str:
        if self._token is not None and self._token[1] > self._now() + 30:
            return self._token[0]
        form = {"grant_type": GRANT, "assertion": assertion(self.identity, self._keys, self._now())}
        try:
            response = await self._http.post("/oauth/token", data=form)
        except httpx.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        token = read_response(response, _TokenResponse)
        self._token = (token.access_token, self._now() + token.expires_in)
        return token.access_token


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
    async with httpx.AsyncClient(timeout=30.0, headers={"User-Agent": USER_AGENT}, transport=transport) as http:
        try:
            response = await http.post(
                f"{url.rstrip('/')}/api/v1/agent/enrolments",
                content=msgspec.json.encode(body),
                headers={"Content-Type": "application/json"},
            )
        except httpx.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        enrolled = read_response(response, EnrolmentResponse)
    return Identity(url, enrolled.node_id, enrolled.audience, enrolled.platform_keys)


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
    except msgspec.DecodeError as error:
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
    except (ValueError, AttributeError):
        return Rejected(response.status_code, "unknown", f"the platform responded with {response.status_code}")
