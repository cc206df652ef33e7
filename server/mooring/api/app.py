"""The ASGI application: every request takes the same path.

Correlation, limits, route, caller, permission, parsing, category, handler, response. A refusal on the way is answered
with a problem document and the same headers; a denial leaves an audit row. The body is not read before the caller is
known to be allowed.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from mooring.api import console, trace
from mooring.api.auth import bearer
from mooring.api.auth_cache import AuthCache, AuthorizedRequest
from mooring.api.body import read_body, too_large
from mooring.api.browser_session import session_authorization
from mooring.api.category_access import require_category
from mooring.api.guess_limits import GuessKind
from mooring.api.header_rules import require_single
from mooring.api.limits import RateLimit
from mooring.api.parse import (
    BATCH_TYPES,
    batch_decoder,
    decode_batch,
    decode_body,
    decode_form,
    decode_query,
    require_ids,
)
from mooring.api.problem import MEDIA_TYPE, STATUS, problem
from mooring.api.request_context import AppState, RequestContext, encode_json
from mooring.api.request_cycle import ANSWER, BODY, CERTIFICATE, GONE, wants_websocket
from mooring.api.response import Response, StreamingResponse
from mooring.api.route import Route, RouteTable
from mooring.api.routes import ROUTES
from mooring.api.socket import WebSocketResponse, accept
from mooring.api.source_check import require_source
from mooring.api.terminal_socket import TerminalAddress
from mooring.commands.kernel.work import Answered, IdempotencyRequest
from mooring.core.fleet.node_certificate import require_certificate
from mooring.core.identity.caller import ANONYMOUS, Caller
from mooring.core.kernel.decision import AuditRecord, DecisionContext, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import AccessDecision, Authority, Place, Scope, access_by_family
from mooring.gateways.telemetry.instruments import ObservedRequest
from mooring.storage.kernel.database import Acting
from mooring.storage.kernel.unit_of_work import Origin, record_read

IDEMPOTENCY_KEY_MAX: Final = 200
PATH_LENGTH_MAX: Final = 2_000
JSON: Final = "application/json"
HSTS: Final = "max-age=31536000"
"""Other names of the same domain are not the platform's to decide about."""
STRANGERS_PER_SECOND: Final = 5.0
STRANGERS_BURST: Final = 100
"""How many WebSockets one address may open before it has sent a token."""
DENIALS: Final = frozenset({Code.GRANT_EXCEEDS_CEILING, Code.PERMISSION_DENIED, Code.SIGN_IN_REFUSED})
"""Refusals of callers who may use the route, but not for what they ask; they leave an audit row too."""

Scope_ = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RequestObservation:
    """The labels of a request, and what telemetry records of it."""

    traced: trace.RequestTrace
    observed: ObservedRequest


class Application:
    """The API as an ASGI application."""

    def __init__(self, tools: AppState) -> None:
        self._tools = tools
        self._telemetry = tools.telemetry
        self._table = RouteTable(ROUTES)
        settings = tools.services.settings
        self._settings = settings
        self._rate = RateLimit(settings.rate_limit_per_second, settings.rate_limit_burst)
        self._strangers = RateLimit(STRANGERS_PER_SECOND, STRANGERS_BURST)
        self._auth_cache = AuthCache(tools.authenticator)
        self._decoders = {each.body: msgspec.json.Decoder(each.body) for each in ROUTES if each.body and not each.form}
        self._batches = {each.key: batch_decoder(each) for each in ROUTES if each.batch}

    async def __call__(self, scope: Scope_, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"ASGI scope {scope['type']} is not supported")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        traced = trace.begin(headers, self._tools.services.clock)
        with self._telemetry.request(scope["method"], traced) as observed:
            try:
                response = await self._reply(scope, headers, receive, RequestObservation(traced, observed))
            except Refusal as refusal:
                response = self._refused(refusal, traced)
                observed.code = refusal.code.value
            except Exception as error:  # noqa: BLE001  the caller gets a problem document, the log gets the cause
                observed.failed(error)
                response = self._refused(Refusal(Code.INTERNAL, "Mooring failed; its log has the cause"), traced)
                observed.code = Code.INTERNAL.value
            observed.status = response.status if isinstance(response, Response) else 200
            if isinstance(response, (StreamingResponse, WebSocketResponse)):
                observed.begin_stream()
            await self._send(response, traced, scope=scope, receive=receive, send=send)

    async def _reply(
        self,
        scope: Scope_,
        headers: dict[str, str],
        receive: Receive,
        observation: RequestObservation,
    ) -> Response | StreamingResponse | WebSocketResponse:
        traced, observed = observation.traced, observation.observed
        self._bound(scope)
        if len(headers) != len(scope["headers"]):
            require_single(scope["headers"])
        if traced.refusal is not None:
            raise traced.refusal
        if console.is_console(scope["path"]):
            observed.route = console.ROUTE
            self._rate.take(f"address {_remote(scope)}")
            return console.serve(console.console_files(), scope["path"], scope["method"], headers)
        authorization = headers.get("authorization")
        if authorization is None and "cookie" in headers and not self._is_public(scope):
            authorization = session_authorization(scope, headers, self._tools.addresses)
            if authorization is not None:
                headers = {**headers, "authorization": authorization}
        if authorization is None and wants_websocket(scope) and self._route(scope["path"], "GET")[0].websocket:
            return self._websocket_without_token(scope, headers, receive, observation)
        authorized = self._auth_cache.get(scope, authorization)
        if authorized is None:
            authorized = await self._admit(scope, headers, observation)
            self._auth_cache.store(scope, authorization, authorized)
        else:
            observed.route, observed.caller, observed.place = authorized.route.key, authorized.caller, authorized.place
            self._rate.take(authorized.caller.actor.id)
            if authorized.caller.source_networks:
                await self._require_source(authorized.route, authorized.caller, traced, _remote(scope))
        route, caller, place, acting, arguments = authorized
        if route.scope is Scope.NODE and self._tools.node_authority is not None and not route.without_certificate:
            await self._require_certificate(route, caller, scope, traced)
        body = b""
        if route.method != "GET":
            body = await self._body(route, headers, scope, receive)
            if route.body is not None:
                arguments = {**arguments, "body": self._decode(route, headers, body)}
        clock = self._tools.services.clock
        request = RequestContext(
            tools=self._tools,
            route=route,
            caller=caller,
            context=DecisionContext(caller.actor, clock.now(), traced.correlation_id, traced.trace_id, clock.mint),
            place=place,
            acting=acting,
            origin=Origin(route.key, _remote(scope)),
            path=scope["path"],
            token=_bearer(route, authorization),
            idempotency=_idempotency(route, headers, caller, scope, body),
            headers=headers,
            gone=scope.get(GONE),
        )
        try:
            await require_category(request, arguments)
            if caller.actor.break_glass_id is not None and not route.mutates:
                await self._record_entry_read(request, arguments)
            return _to_response(route, await route.handler(request, **arguments))
        except Refusal as refusal:
            if refusal.code in DENIALS and (route.mutates or route.read_only or route.scope is Scope.RUNTIME):
                await self._record_denial(request, refusal)
            raise

    def _websocket_without_token(
        self,
        scope: Scope_,
        headers: dict[str, str],
        receive: Receive,
        observation: RequestObservation,
    ) -> WebSocketResponse:
        """A WebSocket whose caller sends the token in the first message; how many may wait for it is bounded."""
        self._strangers.take(f"address {_remote(scope)}")

        async def admit(token: str) -> WebSocketResponse:
            named = {**headers, "authorization": f"Bearer {token}"}
            reply = await self._reply(scope, named, receive, observation)
            if not isinstance(reply, WebSocketResponse):
                raise Refusal(Code.MALFORMED_REQUEST, "this endpoint is not a WebSocket")
            return reply

        route, values = self._route(scope["path"], "GET")
        if route.ticket:
            project_id, terminal_id = values
            address = TerminalAddress(self._tools.terminals, project_id, terminal_id, _remote(scope))
            return address.socket_of_stranger(accept(headers), admit)
        return WebSocketResponse(accept(headers), admit=admit)

    async def _record_entry_read(self, request: RequestContext, arguments: dict[str, Any]) -> None:
        """Show the tenant what platform staff read inside a break-glass entry: no row, no answer."""
        named = [arguments[name] for name in request.route.path_parameters if name in arguments]
        audited = AuditRecord(
            request.route.action,
            request.route.noun,
            str(named[-1]) if named else None,
            request.caller.tenant_id,
            request.place.project_id,
        )
        await record_read(self._tools.services.database, request.context, audited, request.origin)

    async def _record_denial(self, request: RequestContext, refusal: Refusal) -> None:
        """Record a denial by the core, such as a role above the caller's own, like any other denial."""
        caller, route = request.caller, request.route
        project_id = _known_project(caller, request.place)
        action = str(refusal.details.get("action", route.action))  # an app action has its own key
        audited = AuditRecord(action, route.noun, None, caller.tenant_id, project_id, reason=refusal.detail)
        services = self._tools.services
        await services.denials.record(
            services.database, request.context, audited, AccessDecision.DENIED.value, request.origin
        )

    async def _admit(
        self, scope: Scope_, headers: dict[str, str], observation: RequestObservation
    ) -> AuthorizedRequest:
        """Find the route and the caller, and check that the caller may use the route."""
        traced, observed = observation.traced, observation.observed
        route, values = self._route(scope["path"], scope["method"])
        observed.route = route.key
        remote = _remote(scope)
        origin = Origin(route.key, remote)
        caller = await self._caller(route, _bearer(route, headers.get("authorization")), origin, traced)
        observed.caller = caller
        if caller.source_networks:
            await self._require_source(route, caller, traced, remote)
        self._rate.take(caller.actor.id if caller is not ANONYMOUS else f"address {remote}")
        parameters = dict(zip(route.path_parameters, values, strict=True))
        place = await self._place(route, parameters, caller)
        observed.place = place
        clock = self._tools.services.clock
        context = DecisionContext(caller.actor, clock.now(), traced.correlation_id, traced.trace_id, clock.mint)
        await self._authorize(route, caller, place, context, origin)
        require_ids(parameters)
        arguments = self._arguments(route, parameters, scope["query_string"])
        return AuthorizedRequest(route, caller, place, _acting(place, caller), arguments)

    async def _require_certificate(
        self, route: Route, caller: Caller, scope: Scope_, traced: trace.RequestTrace
    ) -> None:
        """A node's token counts only on a connection with that node's client certificate."""
        clock = self._tools.services.clock
        context = DecisionContext(caller.actor, clock.now(), traced.correlation_id, traced.trace_id, clock.mint)
        try:
            require_certificate(scope.get(CERTIFICATE), caller.actor.id, context.now)
        except Refusal as refusal:
            audited = AuditRecord(route.action, route.noun, None, None, None, reason=refusal.detail)
            origin, denied = Origin(route.key, _remote(scope)), AccessDecision.DENIED.value
            services = self._tools.services
            await services.denials.record(services.database, context, audited, denied, origin)
            raise

    def _bound(self, scope: Scope_) -> None:
        limit = self._settings.header_limit_bytes
        if sum(len(name) + len(value) for name, value in scope["headers"]) > limit:
            raise Refusal(Code.BODY_TOO_LARGE, f"the headers are larger than {limit} bytes", {"limit_bytes": limit})
        if len(scope["path"]) + len(scope["query_string"]) > PATH_LENGTH_MAX * 2:
            raise Refusal(Code.MALFORMED_REQUEST, f"the URL is longer than {PATH_LENGTH_MAX * 2} characters")

    def _route(self, path: str, method: str) -> tuple[Route, list[str]]:
        found = self._table.find(path)
        if found is None:
            raise Refusal(Code.NOT_FOUND, "this endpoint does not exist; see /docs")
        methods, values = found
        route = methods.get(method)
        if route is None:
            allowed = sorted(methods)
            raise Refusal(Code.METHOD_NOT_ALLOWED, f"this path supports {', '.join(allowed)}", {"allowed": allowed})
        return route, values

    def _is_public(self, scope: Scope_) -> bool:
        return self._route(scope["path"], scope["method"])[0].scope is Scope.PUBLIC

    async def _place(self, route: Route, parameters: dict[str, str], caller: Caller) -> Place:
        """The place that the request acts in; for platform staff, who name no tenant, the project's tenant is looked
        up.
        """
        if route.scope is Scope.RUNTIME:
            return _own_project(caller)
        tenant_id, project_id = parameters.get("tenant_id"), parameters.get("project_id")
        if route.platform_too and project_id is not None and caller.authority.platform:
            tenant_id = await self._tools.projects.home_of(project_id, deleted_too=route.mutates)
        return Place(route.scope, tenant_id, project_id, route.platform_too)

    async def _caller(self, route: Route, token: str | None, origin: Origin, traced: trace.RequestTrace) -> Caller:
        if route.scope is Scope.PUBLIC:
            return ANONYMOUS
        try:
            if token is None:
                raise Refusal(Code.UNAUTHENTICATED, "a token is needed: send `Authorization: Bearer …`")
            return await self._tools.authenticator.caller(token)
        except Refusal as refusal:
            if refusal.code is Code.UNAUTHENTICATED:
                try:
                    self._tools.guesses.wrong(GuessKind.TOKEN, origin.remote_address)  # too many: no audit row
                except Refusal as too_many:  # who shows no token at all guesses at nothing: a page needs its 401
                    raise (refusal if token is None else too_many) from None
                await self._record_unauthenticated(route, traced, origin)
            raise

    async def _authorize(
        self, route: Route, caller: Caller, place: Place, context: DecisionContext, origin: Origin
    ) -> None:
        if route.scope is Scope.PUBLIC:
            return
        decide = access_by_family if route.family else Authority.access
        access = decide(caller.authority, route.action, place)
        if route.instead and access is AccessDecision.DENIED and set(route.instead) & caller.authority.at(place):
            access = AccessDecision.ALLOWED
        if access is not AccessDecision.HIDDEN:
            if await self._tools.projects.is_foreign(caller, place, deleted_too=route.mutates):
                access = AccessDecision.HIDDEN
            elif access is AccessDecision.ALLOWED:
                return
        # A denial goes into the audit trail of the caller's own tenant, never into that of another one.
        audited = AuditRecord(route.action, route.noun, None, caller.tenant_id, _known_project(caller, place))
        services = self._tools.services
        await services.denials.record(services.database, context, audited, access.value, origin)
        if access is AccessDecision.HIDDEN:
            raise Refusal(Code.NOT_FOUND, f"there is no such {place.scope}, or you may not see it")
        why = f"this caller does not have {route.action} here"
        if place.scope is Scope.RUNTIME and place.project_id is None:
            why = "only the operator account of an instance, a service account of its project, can act as its adapter"
        raise Refusal(Code.PERMISSION_DENIED, why, {"action": route.action})

    async def _require_source(
        self, route: Route, caller: Caller, traced: trace.RequestTrace, remote: str | None
    ) -> None:
        tools, clock = self._tools, self._tools.services.clock
        context = DecisionContext(caller.actor, clock.now(), traced.correlation_id, traced.trace_id, clock.mint)
        origin = Origin(route.key, remote)
        await require_source(tools.services, tools.guesses, caller, context, action=route.action, origin=origin)

    async def _record_unauthenticated(self, route: Route, traced: trace.RequestTrace, origin: Origin) -> None:
        services, clock = self._tools.services, self._tools.services.clock
        context = DecisionContext(ANONYMOUS.actor, clock.now(), traced.correlation_id, traced.trace_id, clock.mint)
        audited = AuditRecord(route.action, route.noun, None, None, None)
        await services.denials.record(services.database, context, audited, "refused", origin)

    async def _body(self, route: Route, headers: dict[str, str], scope: Scope_, receive: Receive) -> bytes:
        limit = max(self._settings.body_limit_bytes, route.body_bytes_max)
        body: bytes | None = scope[BODY]() if BODY in scope else None
        if body is None:
            body = await read_body(receive, headers, limit, self._settings.body_timeout_seconds)
        elif len(body) > limit:
            raise too_large(limit)
        if route.body is not None:
            expected = "application/x-www-form-urlencoded" if route.form else JSON
            sent = _media_type(headers)
            if sent != expected and not (route.batch and sent in BATCH_TYPES):
                raise Refusal(Code.MEDIA_TYPE_UNSUPPORTED, f"the body must be {expected}, not {sent or 'unspecified'}")
        return body

    def _decode(self, route: Route, headers: dict[str, str], body: bytes) -> Any:
        kind: Any = route.body
        if route.form:
            return decode_form(body, kind, None)
        media_type = _media_type(headers)
        if media_type in BATCH_TYPES:
            return decode_batch(body, route, media_type, self._batches[route.key])
        return decode_body(body, kind, self._decoders.get(kind))

    def _arguments(self, route: Route, parameters: dict[str, str], query_string: bytes) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            name: value for name, value in parameters.items() if name not in ("tenant_id", "project_id")
        }
        if route.query is not None or query_string:
            pairs = parse_qsl(query_string.decode("latin-1"), keep_blank_values=True) if query_string else []
            arguments |= decode_query(route, pairs)
        return arguments

    def _refused(self, refusal: Refusal, traced: trace.RequestTrace) -> Response:
        headers = {}
        if refusal.code is Code.RATE_LIMITED:
            headers["retry-after"] = str(refusal.details.get("retry_after_seconds", 1))
        if refusal.code is Code.METHOD_NOT_ALLOWED:
            headers["allow"] = ", ".join(str(each) for each in refusal.details["allowed"])  # type: ignore[attr-defined]
        if STATUS[refusal.code] == 401:
            headers["www-authenticate"] = 'Bearer realm="mooring"'
        body = encode_json(problem(refusal, traced.correlation_id))
        return Response(STATUS[refusal.code], body, MEDIA_TYPE, headers)

    async def _send(
        self,
        response: Response | StreamingResponse | WebSocketResponse,
        traced: trace.RequestTrace,
        *,
        scope: Scope_,
        receive: Receive,
        send: Send,
    ) -> None:
        common = {
            "x-correlation-id": traced.correlation_id,
            "traceparent": traced.traceparent,
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
        }
        if scope.get("scheme") == "https":  # as this server or a trusted proxy says
            common["strict-transport-security"] = HSTS
        if isinstance(response, (StreamingResponse, WebSocketResponse)):
            await response.send(common, send, receive)
            return
        headers = common | response.headers
        if response.body:
            headers["content-type"] = response.media_type
        if response.status != 204:
            headers["content-length"] = str(len(response.body))
        if ANSWER in scope.get("extensions", ()):
            await send({"type": ANSWER, "status": response.status, "headers": headers, "body": response.body})
            return
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": response.status, "headers": raw})
        await send({"type": "http.response.body", "body": response.body})


def _own_project(caller: Caller) -> Place:
    """The one project of a service account; other callers have none."""
    if caller.actor.kind is not PrincipalKind.SERVICE_ACCOUNT:
        return Place(Scope.RUNTIME)
    return Place(Scope.RUNTIME, caller.tenant_id, next(iter(caller.authority.projects), None))


def _bearer(route: Route, authorization: str | None) -> str | None:
    """The caller's token; public routes accept other schemes too and read them themselves."""
    return None if route.scope is Scope.PUBLIC else bearer(authorization)


def _remote(scope: Scope_) -> str | None:
    """The caller's address, if known."""
    client = scope.get("client")
    return client[0] if client else None


def _acting(place: Place, caller: Caller) -> Acting:
    """The tenant for which the database is queried: the caller's own, whatever place the request names.

    This is a second line of defence: if the permission check let something through by mistake, row-level security still
    hides the rows of other tenants.
    """
    if place.scope is Scope.PUBLIC:
        return Acting()
    return Acting(caller.tenant_id or place.tenant_id)


def _known_project(caller: Caller, place: Place) -> str | None:
    return place.project_id if place.project_id in caller.authority.projects else None


def _media_type(headers: dict[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _idempotency(
    route: Route, headers: dict[str, str], caller: Caller, scope: Scope_, body: bytes
) -> IdempotencyRequest | None:
    key = headers.get("idempotency-key")
    if key is None or not route.mutates:
        return None
    if not 1 <= len(key) <= IDEMPOTENCY_KEY_MAX or not key.isascii() or not key.isprintable():
        raise Refusal(
            Code.HEADER_INVALID,
            f"Idempotency-Key must have 1 to {IDEMPOTENCY_KEY_MAX} printable ASCII characters",
            {"header": "Idempotency-Key"},
        )
    fingerprint = hashlib.sha256()
    limit = caller.authority.limit
    # A narrowed token must not get a stored response that a wider token of the same principal got.
    narrowed = () if limit is None else (",".join(sorted(limit)).encode(),)
    for part in (scope["path"].encode(), scope["query_string"], body, *narrowed):
        fingerprint.update(len(part).to_bytes(8) + part)
    return IdempotencyRequest(caller.actor.id, route.key, key, fingerprint.digest())


def _to_response(route: Route, result: Any) -> Response | StreamingResponse | WebSocketResponse:
    if isinstance(result, (Response, StreamingResponse, WebSocketResponse)):
        return result
    if isinstance(result, Answered):
        headers = {"idempotency-replayed": "true"} if result.replayed else {}
        return Response(result.status, result.body, JSON, headers)
    if result is None:
        return Response(route.status, b"", JSON, {})
    headers = {}
    etag = getattr(result, "etag", None)
    if etag is not None:
        headers["etag"] = f'"{etag}"'
    return Response(route.status, encode_json(result), JSON, headers)
