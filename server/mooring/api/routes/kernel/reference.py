"""Endpoints for health, metrics, the OpenAPI document, and the reference of errors, actions, states and events."""

import mimetypes
from functools import cache
from importlib import resources
from typing import Any

from msgspec import Struct

from mooring.api.openapi import document
from mooring.api.problem import STATUS
from mooring.api.request_context import RequestContext, encode_json
from mooring.api.response import Response
from mooring.api.route import PUBLIC_ACTION, RouteSpec, route, route_beside
from mooring.core.kernel.errors import CATALOGUE, Code, Refusal
from mooring.core.kernel.event_types import MEANING
from mooring.core.kernel.permissions import ACTIONS, SERVICE_ACCOUNT_CEILING, Role, Scope
from mooring.core.lifecycles import LIFECYCLES
from mooring.settings import METRICS_ON_API

ASSETS = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png")
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Mooring API</title>
<link rel="stylesheet" href="/docs/assets/swagger-ui.css"><link rel="icon" href="/docs/assets/favicon-32x32.png">
</head>
<body><div id="reference"></div>
<script src="/docs/assets/swagger-ui-bundle.js"></script>
<script src="/docs/assets/start.js"></script>
</body></html>
"""
START = """window.onload = () => SwaggerUIBundle({
  url: "/api/v1/openapi.json", dom_id: "#reference", deepLinking: true, persistAuthorization: false,
  docExpansion: "none", filter: true, validatorUrl: null
});
"""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


class Health(Struct):
    """Whether the process is alive, or ready, and the reasons if it is not."""

    status: str
    reasons: list[str] = []


class ErrorReference(Struct):
    """One error of the catalogue."""

    code: Code
    status: int
    title: str
    meaning: str
    remedy: str
    retryable: bool


class ActionReference(Struct):
    """One action key."""

    key: str
    meaning: str
    roles: list[Role]
    human_only: bool
    service_account: bool


class EdgeReference(Struct):
    """One legal transition."""

    source: str
    trigger: str
    target: str
    by: str
    why: str


class LifecycleReference(Struct):
    """One lifecycle: its states with their meaning, and its transitions."""

    name: str
    initial: str
    final: list[str]
    states: dict[str, str]
    edges: list[EdgeReference]


class Reference(Struct):
    """Every error, action key, lifecycle and event type of the contract, with its meaning."""

    errors: list[ErrorReference]
    actions: list[ActionReference]
    lifecycles: list[LifecycleReference]
    event_types: dict[str, str]


@route_beside("/healthz", RouteSpec("health", "live", PUBLIC_ACTION, answer=Health))
async def get_health(request: RequestContext) -> Health:
    """Whether the process is alive; it does not check the services that it depends on."""
    return Health("ok")


@route_beside(
    "/readyz",
    RouteSpec("health", "ready", PUBLIC_ACTION, answer=Health, errors=(Code.TEMPORARILY_UNAVAILABLE,)),
)
async def get_readiness(request: RequestContext) -> Health:
    """Whether requests can be served: the database answers and no migration is missing."""
    reasons = await request.tools.readiness()
    if reasons:
        raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "; ".join(reasons), {"reasons": reasons})
    return Health("ready")


@route_beside(
    "/metrics",
    RouteSpec("health", "metrics", PUBLIC_ACTION, media_type="text/plain", unlimited=True, errors=(Code.NOT_FOUND,)),
)
async def get_metrics(request: RequestContext) -> Response:
    """Metrics of this process, for Prometheus, if they are served here.

    Usually they have a socket of their own; `MOORING_METRICS_LISTEN` says where.
    """
    if request.services.settings.metrics_listen != METRICS_ON_API:
        raise Refusal(Code.NOT_FOUND, "the metrics are not served here; MOORING_METRICS_LISTEN says where they are")
    return Response(200, request.tools.telemetry.metrics(), "text/plain; version=0.0.4; charset=utf-8")


@route(
    "GET",
    "/openapi.json",
    Scope.PUBLIC,
    RouteSpec("reference", "openapi", PUBLIC_ACTION, answer=dict[str, Any]),
)
async def get_openapi(request: RequestContext) -> Response:
    """The description of this API as OpenAPI 3.1."""
    return Response(200, _document())


@route("GET", "/reference", Scope.PUBLIC, RouteSpec("reference", "get", PUBLIC_ACTION, answer=Reference))
async def get_reference(request: RequestContext) -> Reference:
    """What every error, action, state and event type means."""
    return reference()


@route_beside("/docs", RouteSpec("reference", "page", PUBLIC_ACTION, media_type="text/html", hidden=True))
async def get_docs_page(request: RequestContext) -> Response:
    """The interactive API reference; it loads nothing from other sites."""
    return Response(200, PAGE.encode(), "text/html; charset=utf-8", {"content-security-policy": POLICY})


@route_beside(
    "/docs/assets/{asset}",
    RouteSpec("reference", "asset", PUBLIC_ACTION, media_type="text/plain", hidden=True),
)
async def get_docs_asset(request: RequestContext, asset: str) -> Response:
    """A file of the reference page."""
    if asset == "start.js":
        return Response(200, START.encode(), "text/javascript; charset=utf-8")
    if asset not in ASSETS:
        raise Refusal(Code.NOT_FOUND, "the page has no such file")
    media_type = mimetypes.guess_type(asset)[0] or "application/octet-stream"
    return Response(200, _asset(asset), media_type, {"cache-control": "public, max-age=3600"})


@cache
def _asset(name: str) -> bytes:
    return resources.files("swagger_ui").joinpath("static", name).read_bytes()


@cache
def _document() -> bytes:
    return encode_json(document())


@cache
def reference() -> Reference:
    """The reference, built once from the tables of the core."""
    return Reference(
        errors=[
            ErrorReference(code, STATUS[code], entry.title, entry.meaning, entry.remedy, entry.retryable)
            for code, entry in CATALOGUE.items()
        ],
        actions=[
            ActionReference(key, each.meaning, list(each.roles), each.human_only, key in SERVICE_ACCOUNT_CEILING)
            for key, each in ACTIONS.items()
        ],
        lifecycles=[
            LifecycleReference(
                machine.name,
                machine.initial.value,
                sorted(state.value for state in machine.final),
                {state.value: meaning for state, meaning in machine.meaning.items()},
                [
                    EdgeReference(e.source.value, e.trigger.value, e.target.value, e.by.value, e.why)
                    for e in machine.edges
                ],
            )
            for machine in LIFECYCLES
        ],
        event_types={each.value: meaning for each, meaning in MEANING.items()},
    )
