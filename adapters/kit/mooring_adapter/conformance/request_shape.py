"""Checks the shape of requests by the published schemas, as the platform does: an unknown field is refused.

`request_schemas.json` is a generated copy of the bodies of the adapter's routes in `openapi/openapi.json`.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import jsonschema_rs

from mooring_adapter.conformance.platform_rules import invalid

FENCE_MAX: Final = 2**62


@cache
def _document() -> dict[str, Any]:
    text = (files("mooring_adapter.conformance") / "request_schemas.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def failure_codes() -> frozenset[str]:
    """The closed list of the codes with which an operation or a member fails."""
    return frozenset(_document()["components"]["schemas"]["OperationFailure"]["enum"])


@cache
def _validators() -> dict[str, Any]:
    document = _document()
    return {
        route: jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})
        for route, schema in document["routes"].items()
    }


def check_body(route: str, body: Mapping[str, Any]) -> None:
    """Refuse a body that the route cannot have, with the path of the first mistake."""
    for error in _validators()[route].iter_errors(dict(body)):
        path = "/".join(str(each) for each in error.instance_path)
        raise invalid(f"{path or 'the body'}: {error.message}")


def check_fence(query: Mapping[str, str]) -> None:
    """Refuse a query without a fence."""
    fence = query.get("fence", "")
    if not fence.isdecimal() or int(fence) > FENCE_MAX:
        raise invalid("fence: the fence of the claim is required")
