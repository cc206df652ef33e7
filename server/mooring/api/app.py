"""The ASGI application: every request takes the same way.

Correlation, limits, route, caller, permission, parsing, handler, answer. What is refused on the way is answered as a
problem document with the same headers; what is denied leaves an audit row. Nothing of the body is read before the
caller is known to be allowed.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from mooring.api import trace
from mooring.api.auth import bearer
from mooring.api.auth_cache import AuthCache, AuthorizedRequest
from mooring.api.body import read_body, too_large
from mooring.api.limits import RateLimit
from mooring.api.parse import decode_body, decode_form, decode_query, require_ids
from mooring.api.problem import MEDIA_TYPE, STATUS, problem
from mooring.api.request_context import AppState, RequestContext, encode_json
from mooring.api.request_cycle import ANSWER, BODY, GONE, wants_websocket
from mooring.api.response import Response, StreamingResponse
from mooring.api.route import Route, RouteTable
from mooring.api.routes import ROUTES
from mooring.api.socket import WebSocketResponse, accept
from mooring.commands.kernel.work import Answered, IdempotencyRequest
from mooring.core.identity.caller import ANONYMOUS, Caller
from mooring.core.kernel.decision import AuditRecord, DecisionContext, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import AccessDecision, Authority, Place, Scope, access_by_family
from mooring.gateways.telemetry.instruments import ObservedRequest
from mooring.storage.kernel.database import Acting
from mooring.storage.kernel.unit_of_work import Origin, record_refusal

IDEMPOTENCY_KEY_MAX: Final = 200
PATH_LENGTH_MAX: Final = 2_000
JSON: Final = "application/json"
STRANGERS_PER_SECOND: Final = 5.0
STRANGERS_BURST: Final = 100
"""WebSockets that one address may open before it has shown a token."""
DENIALS: Final = frozenset({Code.GRANT_EXCEEDS_CEILING, Code.PERMISSION_DENIED, Code.SIGN_IN_REFUSED})
"""What a caller who may use a route is denied for what he asks of it."""

Scope_ = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


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
        self._admissions = AuthCache(tools.authenticator)
        self._decoders = {each.body: msgspec.json.Decoder(each.body) for each in ROUTES if each.body and not each.form}

    async def __call__(self, scope: Scope_, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} is served here")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        traced = trace.begin(headers, self._tools.services.clock)
        with self._telemetry.request(scope["method"], traced) as observed:
            try:
                reply = await self._reply(scope, headers, receive, (traced, observed))
            except Refusal as refusal:
                reply = self._refused(refusal, traced)
                observed.code = refusal.code.value
            except Exception as error:  # noqa: BLE001  the caller gets a problem, the log its cause
                observed.failed(error)
                reply = self._refused(Refusal(Code.INTERNAL, "Mooring failed; its log says why"), traced)
                observed.code = Code.INTERNAL.value
            observed.status = reply.status if isinstance(reply, Response) else 200
            if isinstance(reply, (StreamingResponse, WebSocketResponse)):
                observed.begin_stream()
            await self._send(reply, traced, (scope, receive, send))

    async def _reply(
        self,
        scope: Scope_,
        headers: dict[str, str],
        receive: Receive,
        traced_observed: tuple[trace.RequestTrace, ObservedRequest],
    ) -> Response | StreamingResponse | WebSocketResponse:
        traced, observed = traced_observed
        self._bound(scope)
        if traced.refusal is not None:
            raise traced.refusal
        authorization = headers.get("authorization")
        if authorization is None and wants_websocket(scope) and self._route(scope["path"], "GET")[0].websocket:
            return self._unnamed(scope, headers, receive, traced_observed)
        admitted = self._admissions.before(scope, authorization)
        if admitted is None:
            admitted = await self._admit(scope, headers, traced_observed)
            self._admissions.keep(scope, authorization, admitted)
        else:
            observed.route, observed.caller, observed.place = admitted.route.key, admitted.caller, admitted.place
            self._rate.take(admitted.caller.actor.id)
        route, caller, place, acting, arguments = admitted
        body = b""
        if route.method != "GET":
            body = await self._body(route, headers, scope, receive)
            if route.body is not None:
                decode = decode_form if route.form else decode_body
                arguments = {**arguments, "body": decode(body, route.body, self._decoders.get(route.body))}
        clock = self._tools.services.clock
        call = RequestContext(
            tools=self._tools,
            route=route,
            caller=caller,
            context=DecisionContext(caller.actor, clock.now(), traced.correlation_id, traced.trace_id, clock.mint),
            place=place,
            acting=acting,
            origin=Origin(route.key, _remote(scope)),
            token=_bearer(route, authorization),
            idempotency=_idempotency(route, headers, caller, scope, body),
            headers=headers,
            gone=scope.get(GONE),
        )
        try:
            return _answer(route, await route.handler(call, **arguments))
        except Refusal as refusal:
            if refusal.code in DENIALS and (route.mutates or route.read_only or route.scope is Scope.RUNTIME):
                await self._record_denial(call, refusal)
            raise

    def _unnamed(
        self,
        scope: Scope_,
        headers: dict[str, str],
        receive: Receive,
        traced_observed: tuple[trace.RequestTrace, ObservedRequest],
    ) -> WebSocketResponse:
        """A WebSocket whose caller says who he is in the first message; how many wait for that is bounded."""
        self._strangers.take(f"address {_remote(scope)}")

        async def admit(token: str) -> WebSocketResponse:
            named = {**headers, "authorization": f"Bearer {token}"}
            reply = await self._reply(scope, named, receive, traced_observed)
            if not isinstance(reply, WebSocketResponse):
                raise Refusal(Code.MALFORMED_REQUEST, "this address does not go on as a WebSocket")
            return reply

        return WebSocketResponse(accept(headers), admit=admit)

    async def _record_denial(self, request: RequestContext, refusal: Refusal) -> None:
        """What the core denies, such as a role beyond the caller's own, leaves its row as any other denial does."""
        caller, route = request.caller, request.route
        project_id = _known_project(caller, request.place)
        action = str(refusal.details.get("action", route.action))  # an app action has a key of its own
        audited = AuditRecord(action, route.noun, None, caller.tenant_id, project_id, reason=refusal.detail)
        await record_refusal(
            self._tools.services.database, request.context, audited, AccessDecision.DENIED.value, request.origin
        )

    async def _admit(
        self, scope: Scope_, headers: dict[str, str], traced_observed: tuple[trace.RequestTrace, ObservedRequest]
    ) -> AuthorizedRequest:
        """Find the route and the caller, and let him in or not."""
        traced, observed = traced_observed
        route, values = self._route(scope["path"], scope["method"])
        observed.route = route.key
        remote = _remote(scope)
        origin = Origin(route.key, remote)
        caller = await self._caller(route, _bearer(route, headers.get("authorization")), origin, traced)
        observed.caller = caller
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

    def _bound(self, scope: Scope_) -> None:
        limit = self._settings.header_limit_bytes
        if sum(len(name) + len(value) for name, value in scope["headers"]) > limit:
            raise Refusal(Code.BODY_TOO_LARGE, f"the headers are larger than {limit} bytes", {"limit_bytes": limit})
        if len(scope["path"]) + len(scope["query_string"]) > PATH_LENGTH_MAX * 2:
            raise Refusal(Code.MALFORMED_REQUEST, f"the address is longer than {PATH_LENGTH_MAX * 2} characters")

    def _route(self, path: str, method: str) -> tuple[Route, list[str]]:
        found = self._table.find(path)
        if found is None:
            raise Refusal(Code.NOT_FOUND, "there is no such endpoint; see /docs")
        methods, values = found
        route = methods.get(method)
        if route is None:
            allowed = sorted(methods)
            raise Refusal(Code.METHOD_NOT_ALLOWED, f"this path takes {', '.join(allowed)}", {"allowed": allowed})
        return route, values

    async def _place(self, route: Route, parameters: dict[str, str], caller: Caller) -> Place:
        """Where the request acts; whose a project is, is looked up for the platform's people, who name no tenant."""
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
                self._tools.failures.take(f"address {origin.remote_address}")  # too many: 429, and no audit row
                await self._record(ANONYMOUS, route, Place(Scope.PUBLIC), (traced, origin, "refused"))
            raise

    async def _authorize(
        self, route: Route, caller: Caller, place: Place, context: DecisionContext, origin: Origin
    ) -> None:
        if route.scope is Scope.PUBLIC:
            return
        decide = access_by_family if route.family else Authority.access
        access = decide(caller.authority, route.action, place)
        if access is not AccessDecision.HIDDEN:
            if await self._tools.projects.is_foreign(caller, place, deleted_too=route.mutates):
                access = AccessDecision.HIDDEN
            elif access is AccessDecision.ALLOWED:
                return
        # A denial belongs to the trail of the caller's own home: a stranger writes into nobody else's.
        audited = AuditRecord(route.action, route.noun, None, caller.tenant_id, _known_project(caller, place))
        await record_refusal(self._tools.services.database, context, audited, access.value, origin)
        if access is AccessDecision.HIDDEN:
            raise Refusal(Code.NOT_FOUND, f"there is no such {place.scope}, or you may not see it")
        why = f"{route.action} is not allowed to this caller here"
        if place.scope is Scope.RUNTIME and place.project_id is None:
            why = "only the operator account of an instance, a service account of its project, acts as its adapter"
        raise Refusal(Code.PERMISSION_DENIED, why, {"action": route.action})

    async def _record(
        self, caller: Caller, route: Route, place: Place, how: tuple[trace.RequestTrace, Origin, str]
    ) -> None:
        traced, origin, outcome = how
        clock = self._tools.services.clock
        context = DecisionContext(caller.actor, clock.now(), traced.correlation_id, traced.trace_id, clock.mint)
        audited = AuditRecord(route.action, route.noun, None, place.tenant_id, place.project_id)
        await record_refusal(self._tools.services.database, context, audited, outcome, origin)

    async def _body(self, route: Route, headers: dict[str, str], scope: Scope_, receive: Receive) -> bytes:
        limit = self._settings.body_limit_bytes
        body: bytes | None = scope[BODY]() if BODY in scope else None
        if body is None:
            body = await read_body(receive, headers, limit, self._settings.body_timeout_seconds)
        elif len(body) > limit:
            raise too_large(limit)
        if route.body is not None:
            wanted = "application/x-www-form-urlencoded" if route.form else JSON
            given = headers.get("content-type", "").partition(";")[0].strip().lower()
            if given != wanted:
                raise Refusal(Code.MEDIA_TYPE_UNSUPPORTED, f"the body must be {wanted}, not {given or 'nothing'}")
        return body

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
        reply: Response | StreamingResponse | WebSocketResponse,
        traced: trace.RequestTrace,
        asgi: tuple[Scope_, Receive, Send],
    ) -> None:
        scope, receive, send = asgi
        common = {
            "x-correlation-id": traced.correlation_id,
            "traceparent": traced.traceparent,
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
        }
        if isinstance(reply, (StreamingResponse, WebSocketResponse)):
            await reply.send(common, send, receive)
            return
        headers = common | reply.headers
        if reply.body:
            headers["content-type"] = reply.media_type
        if reply.status != 204:
            headers["content-length"] = str(len(reply.body))
        if ANSWER in scope.get("extensions", ()):
            await send({"type": ANSWER, "status": reply.status, "headers": headers, "body": reply.body})
            return
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": raw})
        await send({"type": "http.response.body", "body": reply.body})


def _own_project(caller: Caller) -> Place:
    """The one project of a service account; nobody else has one."""
    if caller.actor.kind is not PrincipalKind.SERVICE_ACCOUNT:
        return Place(Scope.RUNTIME)
    return Place(Scope.RUNTIME, caller.tenant_id, next(iter(caller.authority.projects), None))


def _bearer(route: Route, authorization: str | None) -> str | None:
    """The caller's token; a public route takes other schemes too and reads them itself."""
    return None if route.scope is Scope.PUBLIC else bearer(authorization)


def _remote(scope: Scope_) -> str | None:
    """The caller's address, where there is one."""
    client = scope.get("client")
    return client[0] if client else None


def _acting(place: Place, caller: Caller) -> Acting:
    """For whom the database is asked: a tenant's caller for its own tenant, whatever place it names.

    So the second lock holds without the first: what the permissions let through by mistake finds no foreign row.
    """
    if place.scope is Scope.PUBLIC:
        return Acting()
    return Acting(caller.tenant_id or place.tenant_id)


def _known_project(caller: Caller, place: Place) -> str | None:
    return place.project_id if place.project_id in caller.authority.projects else None


def _idempotency(
    route: Route, headers: dict[str, str], caller: Caller, scope: Scope_, body: bytes
) -> IdempotencyRequest | None:
    key = headers.get("idempotency-key")
    if key is None or not route.mutates:
        return None
    if not 1 <= len(key) <= IDEMPOTENCY_KEY_MAX or not key.isascii() or not key.isprintable():
        raise Refusal(
            Code.HEADER_INVALID,
            f"Idempotency-Key takes 1 to {IDEMPOTENCY_KEY_MAX} printable ASCII characters",
            {"header": "Idempotency-Key"},
        )
    fingerprint = hashlib.sha256()
    limit = caller.authority.limit
    # A token that was narrowed is told nothing that was told to a wider one of the same principal.
    narrowed = () if limit is None else (",".join(sorted(limit)).encode(),)
    for part in (scope["path"].encode(), scope["query_string"], body, *narrowed):
        fingerprint.update(len(part).to_bytes(8) + part)
    return IdempotencyRequest(caller.actor.id, route.key, key, fingerprint.digest())


def _answer(route: Route, result: Any) -> Response | StreamingResponse | WebSocketResponse:
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
