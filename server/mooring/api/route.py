"""The one way to add an endpoint.

A route is declared with its action key and its scope; there is no other way in, so none can be forgotten. From the
declaration come the dispatch, the authorization, the parsing, the idempotency, the OpenAPI document, and from that
the SDK's methods and the CLI's commands. What the handler takes is read from its signature: path parameters by name,
`query` and `body` by their types.

A handler that serves several kinds of place (`/platform`, `/tenants/{tenant_id}`, `/projects/{project_id}`) is
declared once with all of them.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import ACTIONS, Scope

PREFIX: Final = "/api/v1"
PLACE_PATH: Final = {
    Scope.PLATFORM: f"{PREFIX}/platform",
    Scope.TENANT: f"{PREFIX}/tenants/{{tenant_id}}",
    Scope.PROJECT: f"{PREFIX}/projects/{{project_id}}",
}
PUBLIC_ACTION: Final = "public"

Handler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint."""

    method: str
    path: str
    name: str
    noun: str
    verb: str
    summary: str
    description: str
    action: str
    scope: Scope
    handler: Handler
    status: int = 200
    answer: Any = None
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    form: bool = False  # the body is form-encoded, as OAuth asks for
    platform_too: bool = False
    one_time_secret: bool = False  # the answer holds something that is told once
    unlimited: bool = False  # a stream, or another answer that is no JSON document
    media_type: str = "application/json"
    errors: tuple[Code, ...] = ()
    hidden: bool = False
    read_only: bool = False  # a POST that changes nothing: what it asks about is too long for an address
    family: bool = False  # the key of a category (`<category>.<action>`) opens it too; the handler asks which
    websocket: bool = False  # it goes on as a WebSocket, whose first message may bring the token
    path_parameters: tuple[str, ...] = ()
    key: str = field(init=False)
    """How the route is called in records: method and template."""
    mutates: bool = field(init=False)
    """Whether this changes something: then it takes an Idempotency-Key and leaves an audit row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.method} {self.path}")
        object.__setattr__(self, "mutates", self._mutates())

    def _mutates(self) -> bool:
        # What agents and adapters send is made safe to repeat by fences, names and sequences of their own.
        return (
            self.method != "GET" and self.scope not in (Scope.PUBLIC, Scope.NODE, Scope.RUNTIME) and not self.read_only
        )


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """What a declaration says beside method and path."""

    noun: str
    verb: str
    action: str
    status: int = 200
    answer: Any = None
    form: bool = False
    platform_too: bool = False
    one_time_secret: bool = False
    unlimited: bool = False
    media_type: str = "application/json"
    errors: tuple[Code, ...] = ()
    name: str = ""
    hidden: bool = False  # a page for browsers, no part of the API
    read_only: bool = False  # a POST that changes nothing
    family: bool = False  # a category's key opens it too
    websocket: bool = False  # always hidden: OpenAPI has no words for it; the page of the timeline describes it


ROUTES: Final[list[Route]] = []


def route(method: str, path: str, scope: Scope, declared: RouteSpec) -> Callable[[Handler], Handler]:
    """Declare an endpoint at one path below the API's prefix."""

    def register(handler: Handler) -> Handler:
        name = declared.name or handler.__name__
        ROUTES.append(_route(method, PREFIX + path, scope, declared, (handler, name)))
        return handler

    return register


def route_beside(path: str, declared: RouteSpec) -> Callable[[Handler], Handler]:
    """Declare a public page beside the API: health, metrics, documentation."""

    def register(handler: Handler) -> Handler:
        ROUTES.append(_route("GET", path, Scope.PUBLIC, declared, (handler, declared.name or handler.__name__)))
        return handler

    return register


def route_in(scopes: tuple[Scope, ...], method: str, path: str, declared: RouteSpec) -> Callable[[Handler], Handler]:
    """Declare an endpoint below each of several kinds of place."""

    def register(handler: Handler) -> Handler:
        for scope in scopes:
            verb, _, rest = (declared.name or handler.__name__).partition("_")
            name = f"{verb}_{scope}_{rest}" if len(scopes) > 1 else f"{verb}_{rest}"
            ROUTES.append(_route(method, PLACE_PATH[scope] + path, scope, declared, (handler, name)))
        return handler

    return register


def _route(method: str, path: str, scope: Scope, declared: RouteSpec, named: tuple[Handler, str]) -> Route:
    handler, name = named
    if scope is Scope.PUBLIC:
        if declared.action != PUBLIC_ACTION:
            raise ValueError(f"{method} {path} is public: it declares the action {PUBLIC_ACTION!r}")
    elif declared.action not in ACTIONS:
        raise ValueError(f"{method} {path} declares the action {declared.action!r}, which is not in the table")
    signature = inspect.signature(handler, eval_str=True)
    body = signature.parameters.get("body")
    query = signature.parameters.get("query")
    in_path = tuple(part[1:-1] for part in path.split("/") if part.startswith("{"))
    taken = set(signature.parameters) - {"request", "body", "query"}
    place = {"tenant_id", "project_id"}
    if not taken <= set(in_path) or not set(in_path) <= taken | place:
        raise ValueError(f"{method} {path}: the handler takes {sorted(taken)}, the path gives {sorted(in_path)}")
    text = inspect.getdoc(handler) or ""
    if not text:
        raise ValueError(f"{method} {path} has no docstring: it is the endpoint's documentation")
    summary, _, description = text.partition("\n")
    return Route(
        method=method,
        path=path,
        name=name,
        noun=declared.noun,
        verb=declared.verb,
        summary=summary.rstrip("."),
        description=description.strip(),
        action=declared.action,
        scope=scope,
        handler=handler,
        status=declared.status,
        answer=declared.answer,
        body=body.annotation if body else None,
        query=query.annotation if query else None,
        form=declared.form,
        platform_too=declared.platform_too,
        one_time_secret=declared.one_time_secret,
        unlimited=declared.unlimited,
        media_type=declared.media_type,
        errors=declared.errors,
        hidden=declared.hidden,
        read_only=declared.read_only,
        family=declared.family,
        websocket=declared.websocket,
        path_parameters=in_path,
    )


class RouteTable:
    """Finds the route of a request: one dictionary look-up a segment, whatever the number of routes."""

    def __init__(self, routes: list[Route]) -> None:
        self._root: dict[str, Any] = {}
        for each in routes:
            node = self._root
            for part in each.path.strip("/").split("/"):
                node = node.setdefault("{}" if part.startswith("{") else part, {})
            methods = node.setdefault("", {})
            if each.method in methods:
                raise ValueError(f"{each.key} is declared twice")
            methods[each.method] = each

    def find(self, path: str) -> tuple[dict[str, Route], list[str]] | None:
        """The routes at a path by method, and the values of its parameters in order."""
        node = self._root
        values = []
        for part in path[1:].split("/"):
            if part in ("", "{}"):
                return None
            following = node.get(part)
            if following is None:
                following = node.get("{}")
                values.append(part)
            if following is None:
                return None
            node = following
        methods = node.get("")
        return None if methods is None else (methods, values)
