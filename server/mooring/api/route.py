"""The only way to add an endpoint.

A route is declared with its action key and its scope, so neither can be forgotten. The declaration drives dispatch,
authorization, parsing, idempotency and the OpenAPI document, and through that the SDK's methods and the CLI's commands.
What the handler takes is read from its signature: path parameters by name, `query` and `body` by their types.

A handler for several kinds of place (`/platform`, `/tenants/{tenant_id}`, `/projects/{project_id}`) is declared once
with all of them.
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
    form: bool = False  # the body is form-encoded, as OAuth requires
    platform_too: bool = False
    one_time_secret: bool = False  # the response contains a secret that is shown only once
    unlimited: bool = False  # a stream, or another response that is not a JSON document
    media_type: str = "application/json"
    other_media_type: str = ""  # in which the caller may ask for the same response
    errors: tuple[Code, ...] = ()
    hidden: bool = False
    read_only: bool = False  # a POST that changes nothing; its input is too long for a URL
    family: bool = False  # the key of a category (`<category>.<action>`) is enough; see `api/category_access.py`
    websocket: bool = False  # it upgrades to a WebSocket, whose first message may contain the token
    ticket: bool = False  # the first message of that WebSocket may also contain a ticket, which needs no token
    without_certificate: bool = False  # a node's route that needs no client certificate: it issues them
    also: tuple[str, ...] = ()  # keys that parts of a request need besides the action
    instead: tuple[str, ...] = ()  # narrower keys, each of which is enough in place of the action
    batch: str = ""  # the body's one list, which may also come alone: as a JSON array, or with one item per line
    body_bytes_max: int = 0  # the largest body, where more than usual is accepted
    path_parameters: tuple[str, ...] = ()
    key: str = field(init=False)
    """The route's name in records: method and path template."""
    mutates: bool = field(init=False)
    """Whether it changes something: then it accepts an Idempotency-Key and leaves an audit row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.method} {self.path}")
        object.__setattr__(self, "mutates", self._mutates())

    def _mutates(self) -> bool:
        # Fences, names and sequence numbers already make the requests of agents and adapters safe to repeat.
        return (
            self.method != "GET" and self.scope not in (Scope.PUBLIC, Scope.NODE, Scope.RUNTIME) and not self.read_only
        )


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """What a declaration says besides method, path and scope."""

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
    other_media_type: str = ""
    errors: tuple[Code, ...] = ()
    name: str = ""
    hidden: bool = False  # a page for browsers, not part of the API
    read_only: bool = False  # a POST that changes nothing
    family: bool = False  # the key of a category is enough
    websocket: bool = False  # always hidden: OpenAPI cannot describe it; the docs do
    ticket: bool = False  # a WebSocket of terminals
    without_certificate: bool = False  # a node's route that needs no client certificate
    also: tuple[str, ...] = ()  # keys that parts of a request need besides the action
    instead: tuple[str, ...] = ()  # narrower keys, each of which is enough in place of the action
    batch: str = ""  # the body's one list, which may also come alone: as a JSON array, or with one item per line
    body_bytes_max: int = 0  # the largest body, where more than usual is accepted


ROUTES: Final[list[Route]] = []


def route(method: str, path: str, scope: Scope, spec: RouteSpec) -> Callable[[Handler], Handler]:
    """Declare an endpoint at one path below the API's prefix."""

    def register(handler: Handler) -> Handler:
        name = spec.name or handler.__name__
        ROUTES.append(_route(method, PREFIX + path, scope, spec, handler=handler, name=name))
        return handler

    return register


def route_beside(path: str, spec: RouteSpec) -> Callable[[Handler], Handler]:
    """Declare a public page next to the API: health, metrics, documentation."""

    def register(handler: Handler) -> Handler:
        ROUTES.append(_route("GET", path, Scope.PUBLIC, spec, handler=handler, name=spec.name or handler.__name__))
        return handler

    return register


def route_in(scopes: tuple[Scope, ...], method: str, path: str, spec: RouteSpec) -> Callable[[Handler], Handler]:
    """Declare an endpoint below each of several kinds of place."""

    def register(handler: Handler) -> Handler:
        for scope in scopes:
            verb, _, rest = (spec.name or handler.__name__).partition("_")
            name = f"{verb}_{scope}_{rest}" if len(scopes) > 1 else f"{verb}_{rest}"
            ROUTES.append(_route(method, PLACE_PATH[scope] + path, scope, spec, handler=handler, name=name))
        return handler

    return register


def _route(method: str, path: str, scope: Scope, spec: RouteSpec, *, handler: Handler, name: str) -> Route:
    if scope is Scope.PUBLIC:
        if spec.action != PUBLIC_ACTION:
            raise ValueError(f"{method} {path} is public: it must declare the action {PUBLIC_ACTION!r}")
    elif spec.action not in ACTIONS:
        raise ValueError(f"{method} {path} declares the action {spec.action!r}, which is not in the table")
    if unknown := sorted({*spec.also, *spec.instead} - set(ACTIONS)):
        raise ValueError(f"{method} {path} declares the action {unknown[0]!r}, which is not in the table")
    signature = inspect.signature(handler, eval_str=True)
    body = signature.parameters.get("body")
    query = signature.parameters.get("query")
    in_path = tuple(part[1:-1] for part in path.split("/") if part.startswith("{"))
    handler_parameters = set(signature.parameters) - {"request", "body", "query"}
    place = {"tenant_id", "project_id"}
    if not handler_parameters <= set(in_path) or not set(in_path) <= handler_parameters | place:
        raise ValueError(
            f"{method} {path}: the handler takes {sorted(handler_parameters)}, the path gives {sorted(in_path)}"
        )
    text = inspect.getdoc(handler) or ""
    if not text:
        raise ValueError(f"{method} {path} has no docstring, which is the endpoint's documentation")
    summary, _, description = text.partition("\n")
    return Route(
        method=method,
        path=path,
        name=name,
        noun=spec.noun,
        verb=spec.verb,
        summary=summary.rstrip("."),
        description=description.strip(),
        action=spec.action,
        scope=scope,
        handler=handler,
        status=spec.status,
        answer=spec.answer,
        body=body.annotation if body else None,
        query=query.annotation if query else None,
        form=spec.form,
        platform_too=spec.platform_too,
        one_time_secret=spec.one_time_secret,
        unlimited=spec.unlimited,
        media_type=spec.media_type,
        other_media_type=spec.other_media_type,
        errors=spec.errors,
        hidden=spec.hidden,
        read_only=spec.read_only,
        family=spec.family,
        websocket=spec.websocket,
        ticket=spec.ticket,
        without_certificate=spec.without_certificate,
        also=spec.also,
        instead=spec.instead,
        batch=spec.batch,
        body_bytes_max=spec.body_bytes_max,
        path_parameters=in_path,
    )


class RouteTable:
    """Finds the route of a request with one dictionary look-up per path segment."""

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
        """The routes of a path by method, and the values of its parameters in order."""
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
