"""Lint of an action's `view`: its rows and columns are in the output, and its buttons take what a row has."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mooring.core.catalog.manifest import Manifest, ManifestAction
from mooring.core.kernel.finding import Finding, below, error

VIEW_RULES: Final[Mapping[str, str]] = {
    "action_view": "A client can show a table only if its rows, its columns and its buttons exist.",
}


@dataclass(frozen=True, slots=True)
class _Fault:
    field: str
    why: str


def view_findings(manifest: Manifest) -> Iterator[Finding]:
    """What is wrong with the views of the manifest's actions."""
    actions = {each.name: each for each in manifest.actions}
    for index, action in enumerate(manifest.actions):
        if action.view is None:
            continue
        place = below(below("/actions", index), "view")
        for fault in _faults(action, action.view, actions):
            fix = "name what the manifest declares, or remove the view"
            yield error(below(place, fault.field), "action_view", fault.why, fix)


def _faults(action: ManifestAction, view: Mapping[str, Any], actions: Mapping[str, ManifestAction]) -> Iterator[_Fault]:
    if not action.read_only:
        yield _Fault("kind", "only an action that only reads can be shown as a table")
    columns = _columns(action, str(view["rows"]))
    if columns is None:
        yield _Fault("rows", f"the output has no list of objects named {view['rows']!r}")
        return
    for name in view["columns"]:
        if name not in columns:
            yield _Fault("columns", f"a row has no {name!r}")
    for name in view.get("create", ()):
        if name not in actions:
            yield _Fault("create", f"there is no action {name!r}")
    for each in view.get("row_actions", ()):
        yield from _button_faults(each, columns, actions.get(each["action"]))


def _button_faults(
    button: Mapping[str, Any], columns: Mapping[str, Any], target: ManifestAction | None
) -> Iterator[_Fault]:
    if target is None:
        yield _Fault("row_actions", f"there is no action {button['action']!r}")
        return
    fields = target.input_schema.get("properties", {})
    for field, column in button["input"].items():
        if field not in fields:
            yield _Fault("row_actions", f"the input of {target.name} has no {field!r}")
        if column not in columns:
            yield _Fault("row_actions", f"a row has no {column!r}")
    for column in button.get("when", {}):
        if column not in columns:
            yield _Fault("row_actions", f"a row has no {column!r}")


def _columns(action: ManifestAction, rows: str) -> Mapping[str, Any] | None:
    """The properties of a row, or nothing if the output has no such list of objects."""
    listed = ((action.output_schema or {}).get("properties") or {}).get(rows) or {}
    items = listed.get("items") or {}
    if listed.get("type") != "array" or items.get("type") != "object":
        return None
    found: Mapping[str, Any] = items.get("properties") or {}
    return found
