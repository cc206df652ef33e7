"""Commands on app actions: the manifest says which key a caller needs."""

from collections.abc import Mapping
from typing import Any

from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime.instance import load_for_use
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Place, Scope
from mooring.core.runtime.app_action import action_of, may_act, start_action
from mooring.core.runtime.instance import InstanceRef
from mooring.core.runtime.instance_change import InstanceContext
from mooring.core.runtime.operation import Operation


async def start(
    work: Work[Operation], ref: InstanceRef, name: str, arguments: Mapping[str, Any], member_id: str | None
) -> Answered:
    """Ask the instance's adapter for an action, if the caller holds the key that the manifest names."""

    async def load() -> InstanceContext:
        current = await load_for_use(work, ref)
        permission = action_of(current.manifest, name).permission
        place = Place(Scope.PROJECT, None, ref.project_id)
        if not may_act(work.context.actor, work.authority, place, permission):
            raise Refusal(
                Code.PERMISSION_DENIED, f"this caller does not have {permission} here", {"action": permission}
            )
        return current

    return await work.execute(load, lambda current: start_action(work.context, current, name, arguments, member_id))
