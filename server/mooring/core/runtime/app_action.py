"""App actions: verbs that a manifest declares and its adapter carries out.

The platform knows of an action what the manifest says: who may ask for it (a permission key), what goes in, what comes
out, how long it may take. Both ways are checked against the manifest's schemas and bounded in size.
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
from mooring.core.runtime.instance_change import InstanceContext, require_running
from mooring.core.runtime.instance_launch import new_row
from mooring.core.runtime.instance_transitions import new_operation
from mooring.core.runtime.launch import refusals_of
from mooring.core.runtime.member import MemberState
from mooring.core.runtime.operation import Operation, OperationKind

INPUT_BYTES_MAX: Final = 65_536
OUTPUT_BYTES_MAX: Final = 262_144
OPEN_MAX: Final = 100
"""Actions of one instance that are open at a time."""


def action_of(manifest: Manifest | None, name: str) -> ManifestAction:
    """The action of this name."""
    found = None if manifest is None else next((each for each in manifest.actions if each.name == name), None)
    if found is None:
        raise Refusal(Code.NOT_FOUND, f"the app has no action {name}", {"noun": "action"})
    return found


def may_act(actor: Actor, authority: Authority, place: Place, permission: str) -> bool:
    """Whether the caller has the key of an action here.

    An app's own key (`app.<slug>.<action>`) is on no role's list: it goes with the right to launch any app. A service
    account has what its list says, and no more.
    """
    held = authority.at(place)
    if permission in held:
        return True
    within = authority.limit is None or permission in authority.limit
    person = actor.kind is PrincipalKind.USER
    return person and is_app_action(permission) and "instance.create" in held and within


def start_action(
    context: DecisionContext,
    seen: InstanceContext,
    name: str,
    given: Mapping[str, Any],
    member_id: str | None,
    *,
    attached: Mapping[str, Any] | None = None,
) -> Decision[Operation]:
    """Ask the adapter for an action; what it takes is checked before it sees it.

    `attached` says for which attachment it is, where another project than the instance's own asks.
    """
    instance, action = seen.instance, action_of(seen.manifest, name)
    require_running(instance, "act")
    check_input(action, given)
    _require_target(seen, action, member_id)
    if sum(1 for each in seen.operations if each.kind == OperationKind.ACTION) >= OPEN_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"{OPEN_MAX} actions of the instance are open", {"limit": OPEN_MAX})
    request: dict[str, Any] = {"action": name, "permission": action.permission, "input": dict(given)}
    if hidden := list(hidden_places(given, action.input_schema, "/input")):
        request["hidden"] = hidden  # what no view gives back; the adapter has it
    if member_id is not None:
        request["member_id"] = member_id
    if attached is not None:
        request["attachment"] = dict(attached)
    operation = replace(
        new_row(context, instance, OperationKind.ACTION, request, action.timeout_seconds),
        dispatched_at=context.now,
        read_only=action.read_only,
        member_ids=[] if member_id is None else [member_id],
    )
    return new_operation(instance, operation, action.permission)


def check_input(action: ManifestAction, given: Mapping[str, Any]) -> None:
    """What an action is given fits its schema."""
    for refusal in refusals_of(value_findings(given, action.input_schema), "input"):
        raise refusal
    if len(canonical(given)) > INPUT_BYTES_MAX:
        raise validation.invalid("input", f"at most {INPUT_BYTES_MAX} bytes")


def check_output(manifest: Manifest | None, operation: Operation, output: Mapping[str, Any] | None) -> None:
    """What an adapter gives back for an action fits its schema; other operations give nothing back."""
    if operation.kind != OperationKind.ACTION:
        if output is not None:
            raise validation.invalid("output", "only an action has an output")
        return
    action = action_of(manifest, str(operation.request.get("action")))
    told = {} if output is None else output
    schema = action.output_schema
    for refusal in refusals_of(plain_findings(told) if schema is None else value_findings(told, schema), "output"):
        raise refusal
    if len(canonical(told)) > OUTPUT_BYTES_MAX:
        raise validation.invalid("output", f"at most {OUTPUT_BYTES_MAX} bytes")


def _require_target(seen: InstanceContext, action: ManifestAction, member_id: str | None) -> None:
    if (action.target == "member") != (member_id is not None):
        wanted = "name the member" if action.target == "member" else "it is an action of the whole instance"
        raise validation.invalid("member_id", wanted)
    if member_id is None:
        return
    found = next((each for each in seen.members if each.id == member_id), None)
    if found is None or found.status == MemberState.REMOVED:
        raise validation.invalid("member_id", "the instance has no such member")
