"""The OpenAPI 3.1 document, generated from the routes.

It is committed as `openapi/openapi.json` and compared by a test, so that a change of the contract is a line that
somebody reviews. The extension `x-mooring` describes an operation in Mooring's terms: noun, verb, action key, scope;
the SDK's methods and the CLI's commands are generated from it.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any, Final, get_type_hints

import msgspec

from mooring.api.parse import CLOUDEVENTS_BATCH, NDJSON, PARAMETER_PREFIX
from mooring.api.problem import MEDIA_TYPE, STATUS, Problem
from mooring.api.route import ROUTES, Route
from mooring.api.trace import CORRELATION_PATTERN
from mooring.core.kernel.errors import CATALOGUE, Code
from mooring.core.kernel.ids import pattern
from mooring.core.kernel.permissions import Scope

REF: Final = "#/components/schemas/{name}"
RESPONSE: Final = "#/components/responses/"
FORM: Final = "application/x-www-form-urlencoded"
ALWAYS: Final = (Code.HEADER_INVALID, Code.MALFORMED_REQUEST, Code.VALIDATION_FAILED, Code.RATE_LIMITED, Code.INTERNAL,
                 Code.TEMPORARILY_UNAVAILABLE, Code.BODY_TOO_LARGE)  # fmt: skip
ABOUT: Final = (
    "Mooring launches apps on the machines that a tenant of a GPU cloud holds, keeps them running, and tears them "
    "down with proof.\n\nEvery response has an `X-Correlation-ID`; errors are problem documents (RFC 9457) with a code "
    "from a closed catalogue; mutations accept an `Idempotency-Key`."
)


def document() -> dict[str, Any]:
    import_module("mooring.api.routes")  # it declares all endpoints, and one of them shows this document
    routes = [each for each in ROUTES if not each.hidden]
    types = _types(routes)
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    shown = dict(zip((_identity(each) for each in types), schemas, strict=True))
    paths: dict[str, Any] = {}
    refusals: dict[str, Any] = {}
    for each in sorted(routes, key=lambda route: (route.path, route.method)):
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, shown, components)
        refusals |= _refusals(each, shown)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mooring", "version": version("mooring-server"), "description": ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": noun} for noun in sorted({each.noun for each in routes})],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "responses": dict(sorted(refusals.items())),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "description": "A token of any kind."}},
        },
    }


def _types(routes: list[Route]) -> list[Any]:
    types: dict[Any, Any] = {_identity(Problem): Problem}
    for each in routes:
        for kind in (each.answer, each.body, each.query):
            if kind is not None:
                types.setdefault(_identity(kind), kind)
    return list(types.values())


def _identity(kind: Any) -> str:
    return str(kind)


def _operation(route: Route, shown: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    query = [] if route.query is None else _query(route, components)
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.noun],
        "summary": route.summary,
        "description": _description(route),
        "parameters": [*_path(route), *query, *_headers(route)],
        "responses": _responses(route, shown),
        "x-mooring": {
            "noun": route.noun,
            "verb": route.verb,
            "action": route.action,
            "scope": route.scope.value,
            "idempotent": route.mutates,
            "one_time_secret": route.one_time_secret,
            "pages": any(each["name"] == "cursor" for each in query) and route.verb == "list",
            "waits": any(each["name"] == "wait" for each in query),
            "streams": route.media_type == "text/event-stream",
            "errors": sorted({each.value for each in _codes(route)}),
        },
    }
    if route.scope is Scope.PUBLIC:
        operation["security"] = []
    if route.body is not None:
        media_type = FORM if route.form else "application/json"
        content = {media_type: {"schema": shown[_identity(route.body)]}}
        if route.batch:
            content |= _batch_types(route, components)
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _batch_types(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    """The media types of a batch that is only a list: a JSON array, or one item per line."""
    kind: Any = route.body
    listed = components[kind.__name__]["properties"][route.batch]
    return {CLOUDEVENTS_BATCH: {"schema": listed}, NDJSON: {"schema": listed["items"]}}


def _description(route: Route) -> str:
    needs = f"Needs the action `{route.action}`." if route.scope is not Scope.PUBLIC else "Needs no token."
    return f"{route.description}\n\n{needs}".strip()


def _path(route: Route) -> list[dict[str, Any]]:
    parameters = []
    for name in route.path_parameters:
        prefix = PARAMETER_PREFIX.get(name)
        schema: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 200}
        if prefix is not None:
            schema = {"type": "string", "pattern": pattern(prefix)}
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    return parameters


def _query(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    kind: Any = route.query
    properties = components.pop(kind.__name__, None) or _struct_schema(kind)
    parameters = []
    for name in get_type_hints(kind):
        schema = dict(properties["properties"][name])
        described = _describe(schema)
        parameter = {
            "name": name,
            "in": "query",
            "required": name in properties.get("required", ()),
            "schema": schema,
        }
        if described:
            parameter["description"] = described
        parameters.append(parameter)
    return parameters


def _struct_schema(kind: Any) -> dict[str, Any]:
    (_,), components = msgspec.json.schema_components([kind], ref_template=REF)
    schema: dict[str, Any] = components[kind.__name__]
    return schema


def _describe(schema: dict[str, Any]) -> str:
    """Take `null` out of a query parameter's schema (it is absent rather than null), and return its description."""
    variants = schema.get("anyOf")
    if variants:
        first = dict(next(each for each in variants if each.get("type") != "null"))
        schema.pop("anyOf")
        schema.pop("default", None)
        schema.update(first)
    return str(schema.pop("description", ""))


def _headers(route: Route) -> list[dict[str, Any]]:
    headers = [
        _header(
            "X-Correlation-ID",
            "A label for the response, events, audit rows and logs.",
            CORRELATION_PATTERN,
        )
    ]
    if route.mutates:
        text = "Repeated requests with this key have one effect and get one response."
        headers.append(_header("Idempotency-Key", text, r"^[!-~]{1,200}$"))
    if route.media_type == "text/event-stream":
        headers.append(_header("Last-Event-ID", "Continue after this event.", "^[A-Za-z0-9_-]{1,300}$"))
    return headers


def _header(name: str, text: str, form: str) -> dict[str, Any]:
    schema = {"type": "string", "pattern": form}
    return {"name": name, "in": "header", "required": False, "description": text, "schema": schema}


def _codes(route: Route) -> set[Code]:
    codes = {*ALWAYS, *route.errors}
    if route.scope is Scope.NODE and not route.without_certificate:
        codes.add(Code.CERTIFICATE_REQUIRED)
    if route.scope is not Scope.PUBLIC:
        codes |= {Code.UNAUTHENTICATED, Code.PERMISSION_DENIED}
        if route.path_parameters or route.scope is not Scope.SELF:
            codes |= {Code.NOT_FOUND}
    if route.mutates:
        codes |= {Code.IDEMPOTENCY_CONFLICT, Code.CONFLICT, Code.NOT_FOUND}
    if route.body is not None:
        codes |= {Code.MEDIA_TYPE_UNSUPPORTED}
    if route.query is not None and any(name == "cursor" for name in get_type_hints(route.query)):
        codes |= {Code.CURSOR_INVALID}
    return codes


def _responses(route: Route, shown: dict[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": route.summary, "headers": _answer_headers(route)}
    if route.status != 204 and (route.answer is not None or route.unlimited):
        schema = shown[_identity(route.answer)] if route.answer is not None else {"type": "string"}
        good["content"] = {each: {"schema": schema} for each in (route.media_type, route.other_media_type) if each}
    responses = {str(route.status): good}
    for status, codes in _codes_by_status(route).items():
        responses[str(status)] = {"$ref": RESPONSE + _refusal_name(status, codes)}
    return responses


def _codes_by_status(route: Route) -> dict[int, list[Code]]:
    by_status: dict[int, list[Code]] = {}
    for code in sorted(_codes(route)):
        by_status.setdefault(STATUS[code], []).append(code)
    return dict(sorted(by_status.items()))


def _refusals(route: Route, shown: dict[str, Any]) -> dict[str, Any]:
    """The error responses, each once for all operations that have the same codes."""
    return {
        _refusal_name(status, codes): {
            "description": "; ".join(f"`{code}`: {CATALOGUE[code].meaning}" for code in codes),
            "headers": {"X-Correlation-ID": {"schema": {"type": "string"}}},
            "content": {MEDIA_TYPE: {"schema": shown[_identity(Problem)]}},
        }
        for status, codes in _codes_by_status(route).items()
    }


def _refusal_name(status: int, codes: list[Code]) -> str:
    return ".".join((str(status), *codes))


def _answer_headers(route: Route) -> dict[str, Any]:
    headers = {"X-Correlation-ID": {"schema": {"type": "string"}}}
    if route.mutates:
        headers["Idempotency-Replayed"] = {"schema": {"type": "string"}}
    return headers
