"""Changing a configuration: what is asked of the adapter, what becomes true, and what is refused."""

from dataclasses import replace
from typing import Any, Final

import pytest

from mooring.core.catalog.manifest import Manifest, read_manifest
from mooring.core.kernel.decision import Insert, Update
from mooring.core.kernel.errors import Refusal
from mooring.core.runtime.instance_change import InstanceContext, changed_places, configure_instance, configured, merged
from mooring.core.runtime.instance_launch import OperationBounds
from server.tests.support.decision_context import context
from server.tests.support.manifests import LIFECYCLE, launchable
from server.tests.support.sample_decisions.instances import running
from tests.support.rows import every_row

SCHEMA: Final = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 8},
        "motd": {"type": "string", "maxLength": 20},
        "token": {"type": "string", "maxLength": 20, "writeOnly": True},
    },
}
BEFORE: Final = {"size": 1, "motd": "hello", "token": "secret-1"}


def manifest(**lifecycle: Any) -> Manifest:
    document = launchable(lifecycle={**LIFECYCLE, "configure": {"supported": True}, **lifecycle}, config_schema=SCHEMA)
    found = read_manifest(document).manifest
    assert found is not None
    return found


def current(**changes: Any) -> InstanceContext:
    seen = running(context(), config=dict(BEFORE), config_hidden=["/token"])
    return replace(seen, manifest=manifest(), **changes)


def asked(patch: dict[str, Any], seen: InstanceContext | None = None) -> Any:
    return configure_instance(context(), seen or current(), patch, OperationBounds())


def test_a_patch_becomes_an_operation_with_the_whole_target() -> None:
    decision = asked({"size": 4, "motd": None})
    operation = decision.result
    assert (operation.kind, operation.dispatched_at is not None) == ("configure", True)
    assert operation.request == {
        "changed": ["/motd", "/size"],
        "input": {"size": 4, "token": "secret-1"},
        "previous": {"size": 1, "motd": "hello", "token": None},
        "hidden": ["/input/token"],
    }
    (row,) = [each for each in decision.writes if isinstance(each, Insert)]
    assert row.noun == "operation"
    (audit,) = decision.audits
    assert (audit.action, audit.after["changed"]) == ("instance.update", ["/motd", "/size"])
    assert "secret-1" not in str((decision.events, decision.audits)), "no secret in a record"


def test_what_the_adapter_has_put_into_force_becomes_the_configuration() -> None:
    seen = current()
    decision = configured(seen.instance, manifest(), asked({"token": "secret-2"}, seen).result, "runtime.report")
    (change,) = decision.writes
    assert isinstance(change, Update)
    assert change.set == {
        "config": {"size": 1, "motd": "hello", "token": None},
        "config_hidden": ["/token"],
        "config_secrets": {"/token": "secret-2"},
    }
    assert change.tenant_id == seen.instance.tenant_id
    assert "secret-2" not in str((decision.events, decision.audits))


@every_row(
    ("patch", "seen", "said"),
    [
        ({"size": 9}, current(), "config.size"),
        ({"colour": "red"}, current(), "colour"),
        ({"size": 1}, current(), "already has this configuration"),
        ({"size": 2}, replace(current(), manifest=manifest(configure={"supported": False})), "does not support"),
        ({"size": 2}, replace(current(), instance=replace(current().instance, status="starting")), "only a running"),
        ({"size": 2}, replace(current(), operations=[asked({"size": 3}).result]), "is accepted"),
        ({"motd": "x" * 70_000}, current(), "config"),
    ],
)
def test_what_cannot_be_changed_is_refused_at_once(patch: dict[str, Any], seen: InstanceContext, said: str) -> None:
    with pytest.raises(Refusal, match=said):
        asked(patch, seen)


@every_row(
    ("before", "patch", "after", "changed"),
    [
        ({"a": 1}, {}, {"a": 1}, []),
        ({"a": 1}, {"a": True}, {"a": True}, ["/a"]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}, ["/a/b"]),
        ({"a": [1, 2]}, {"a": [1]}, {"a": [1]}, ["/a"]),
        ({"a": 1}, {"b": {"c": None}}, {"a": 1, "b": {}}, ["/b"]),
    ],
)
def test_a_patch_is_merged(before: Any, patch: Any, after: Any, changed: list[str]) -> None:
    assert merged(before, patch) == after
    assert list(changed_places(before, after)) == changed
