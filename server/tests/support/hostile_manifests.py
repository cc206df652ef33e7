"""Manifests of about 220 KB that are expensive to check, each in another way; all of them could be sent by a viewer."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from server.tests.support.manifests import oci

Plain = dict[str, Any]


def _with_fields(fields: Plain) -> Plain:
    return oci(config_schema={"type": "object", "properties": fields})


def long_unique_lists() -> Plain:
    items = [f"{number:03}" for number in range(1_000)]
    field = {"type": "array", "maxItems": 1_000, "uniqueItems": True, "items": {"type": "string"}, "default": items}
    return _with_fields({f"f{index}": field for index in range(26)})


def many_choices() -> Plain:
    return _with_fields({f"f{i}": {"type": "string", "enum": [f"{i}-{j:03}" for j in range(200)]} for i in range(105)})


def many_values_of_many_choices() -> Plain:
    items = {"type": "integer", "enum": list(range(200))}
    field = {"type": "array", "maxItems": 1_000, "items": items, "default": [199] * 1_000}
    return _with_fields({f"f{index}": field for index in range(37)})


def a_long_name_above_many_values() -> Plain:
    return oci() | {"k" * 100_000: [[""] * 100] * 400}


def patterns_of_many_states() -> Plain:
    """RE2 takes its slow way for these; Python's matcher would take it for the text of each example."""
    field = {"type": "string", "maxLength": 1_000, "pattern": "^[ab]*a[ab]{900}c$", "examples": ["ab" * 500]}
    return _with_fields({f"f{index}": field for index in range(190)})


def patterns_that_are_costly_to_compile() -> Plain:
    def field(index: int) -> Plain:
        return {"type": "string", "maxLength": 65_536, "pattern": f"^x{{0,999}}y{{0,999}}z{{0,{900 + index}}}$"}

    return _with_fields({f"f{index}": field(index) for index in range(99)})


HOSTILE: Final[Mapping[str, Callable[[], Plain]]] = {
    each.__name__: each
    for each in (
        long_unique_lists,
        many_choices,
        many_values_of_many_choices,
        a_long_name_above_many_values,
        patterns_of_many_states,
        patterns_that_are_costly_to_compile,
    )
}
