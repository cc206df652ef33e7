"""App actions: verbs that a manifest declares and its adapter performs.

All that the platform knows about an action is in the manifest: the permission key that a caller needs, the schemas of
input and output, and the timeout. Input and output are validated against those schemas and bounded in size.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mooring.core.catalog.manifest import Manifest, ManifestAction, canonical
from mooring.core.kernel import validation
from mooring.core.kernel.decision import Actor, Decision, DecisionContext, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.form_schema import hidden_places, plain_findings, value_findings
from mooring.core.kernel.permissions import Authority, Place, is_app_action
from mooring.core.runtime.instance_change import InstanceContext, require_running, require_trusted
from mooring.core.runtime.instance_launch import build_operation
from mooring.core.runtime.instance_transitions import new_operation
from mooring.core.runtime.launch import refusals_of
from mooring.core.runtime.member import MemberState
from mooring.core.runtime.operation import Operation, OperationKind

INPUT_BYTES_MAX: Final = 65_536
OUTPUT_BYTES_MAX: Final = 262_144
OPEN_MAX: Final = 100
"""How many actions of one instance may be open at the same time."""


def action_of(manifest: Manifest | None, name: str) -> ManifestAction:
    found = None if manifest is None else next((each for each in manifest.actions if each.name == name), None)
    if found is None:
        raise Refusal(Code.NOT_FOUND, f"the app has no action {name}", {"noun": "action"})
    return found


def may_act(actor: Actor, authority: Authority, place: Place, permission: str) -> bool:
    """Whether the caller holds an action's permission key at this place.

    An app's own key (`app.<slug>.<action>`) is in no role: users who may launch any app hold it too. A service account
    holds only the keys on its list.
    """
    held = authority.at(place)
    if permission in held:
        return True
    within = authority.limit is None or permission in authority.limit
    person = actor.kind is PrincipalKind.USER
    return person and is_app_action(permission) and "instance.create" in held and within


def start_action(
    context: DecisionContext,
    current: InstanceContext,
    name: str,
    arguments: Mapping[str, Any],
    member_id: str | None,
    *,
    attached: Mapping[str, Any] | None = None,
) -> Decision[Operation]:
    """Ask the adapter for an action, after validating its input.

    `attached` names the attachment if another project than the instance's own asks.
    """
    instance, action = current.instance, action_of(current.manifest, name)
    require_running(instance, "act")
    require_trusted(current, "act")
    check_input(action, arguments)
    _require_target(current, action, member_id)
    if sum(1 for each in current.operations if each.kind == OperationKind.ACTION) >= OPEN_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"{OPEN_MAX} actions of the instance are open", {"limit": OPEN_MAX})
    request: dict[str, Any] = {"action": name, "permission": action.permission, "input": dict(arguments)}
    if hidden := list(hidden_places(arguments, action.input_schema, "/input")):
        request["hidden"] = hidden  # hidden in every view; only the adapter gets the values
    if member_id is not None:
        request["member_id"] = member_id
    if attached is not None:
        request["attachment"] = dict(attached)
    operation = replace(
        build_operation(context, instance, OperationKind.ACTION, request, action.timeout_seconds),
        dispatched_at=context.now,
        read_only=action.read_only,
        member_ids=[] if member_id is None else [member_id],
    )
    return new_operation(instance, operation, action.permission)


def check_input(action: ManifestAction, arguments: Mapping[str, Any]) -> None:
    _require_size(arguments, INPUT_BYTES_MAX, "input")
    for refusal in refusals_of(value_findings(arguments, action.input_schema), "input"):
        raise refusal


def _require_size(value: Mapping[str, Any], bytes_max: int, path: str) -> None:
    """Refuse a value that cannot be stored or is too large, before its schema is looked at."""
    for refusal in refusals_of(plain_findings(value, bytes_max), path):
        raise refusal
    if len(canonical(value)) > bytes_max:
        raise validation.invalid(path, f"at most {bytes_max} bytes")


def check_output(manifest: Manifest | None, operation: Operation, output: Mapping[str, Any] | None) -> None:
    """Validate what an adapter returns; only actions have an output."""
    if operation.kind != OperationKind.ACTION:
        if output is not None:
            raise validation.invalid("output", "only an action has an output")
        return
    action = action_of(manifest, str(operation.request.get("action")))
    value = {} if output is None else output
    schema = action.output_schema
    _require_size(value, OUTPUT_BYTES_MAX, "output")
    for refusal in refusals_of(() if schema is None else value_findings(value, schema), "output"):
        raise refusal


def _require_target(current: InstanceContext, action: ManifestAction, member_id: str | None) -> None:
    if (action.target == "member") != (member_id is not None):
        wanted = (
            "required: the action is for one member"
            if action.target == "member"
            else "not allowed: the action is for the whole instance"
        )
        raise validation.invalid("member_id", wanted)
    if member_id is None:
        return
    found = next((each for each in current.members if each.id == member_id), None)
    if found is None or found.status == MemberState.REMOVED:
        raise validation.invalid("member_id", "the instance has no such member")
