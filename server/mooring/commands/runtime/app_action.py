"""Commands on app actions: the manifest says who may ask, and what for."""

from collections.abc import Mapping
from typing import Any

from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime.instance import InstanceRef, find, standing
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Place, Scope
from mooring.core.runtime.app_action import action_of, may_act, start_action
from mooring.core.runtime.instance_change import InstanceContext
from mooring.core.runtime.operation import Operation


async def start(
    work: Work[Operation], at: InstanceRef, name: str, given: Mapping[str, Any], member_id: str | None
) -> Answered:
    """Ask the adapter of an instance for an action, where the caller has the key that the manifest names."""

    async def load() -> InstanceContext:
        await find(work.services, work.acting, work.authority, at)
        seen = await standing(work, at)
        permission = action_of(seen.manifest, name).permission
        place = Place(Scope.PROJECT, None, at.project_id)
        if not may_act(work.context.actor, work.authority, place, permission):
            raise Refusal(
                Code.PERMISSION_DENIED, f"{permission} is not allowed to this caller here", {"action": permission}
            )
        return seen

    return await work.execute(load, lambda seen: start_action(work.context, seen, name, given, member_id))
