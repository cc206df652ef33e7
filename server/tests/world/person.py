"""Who wants something: a person with a list of intents, and an admin who gives up what is lost.

A person whose answer was lost asks once more under the same key, and gets the result of the first time.
"""

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from mooring.commands.fleet import allocation as allocations
from mooring.commands.fleet import node as nodes
from mooring.commands.kernel.work import Answered, IdempotencyRequest, PresentedAnswer, Work
from mooring.commands.runtime import app_action, attachment, instance, member
from mooring.commands.runtime.attachment import AttachmentRef
from mooring.commands.services import Services
from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.fleet.allocation import AllocationRequest
from mooring.core.fleet.node import WriteOff
from mooring.core.kernel.decision import Actor, DecisionContext, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import ROLE_ACTIONS, Authority, Role
from mooring.core.runtime.attachment import Attachment
from mooring.core.runtime.attachment_change import DetachRequest
from mooring.core.runtime.instance import InstanceRef
from mooring.core.runtime.instance_change import RepairScope
from mooring.core.runtime.launch_snapshot import LaunchRequest, PlacementSpec
from mooring.core.runtime.member import Member
from mooring.core.runtime.member_change import AddMembersRequest, RemoveMemberRequest, ReplaceMemberRequest
from mooring.storage.kernel.database import PLATFORM, Acting
from mooring.storage.runtime import instance as instances
from server.tests.world.starting_point import StartingPoint

NO: Final = frozenset(
    {
        Code.CONFLICT, Code.ILLEGAL_TRANSITION, Code.OPERATION_IN_PROGRESS, Code.NOT_SUPPORTED, Code.LIMIT_REACHED,
        Code.ROLLBACK_UNAVAILABLE, Code.ALLOCATION_IN_USE, Code.NO_CAPACITY, Code.INCOMPATIBLE, Code.NOT_FOUND,
        Code.VALIDATION_FAILED, Code.CIRCUIT_OPEN, Code.SOURCE_DENIED,
    }
)  # fmt: skip
"""The refusals that a person may get; any other is a fault of the platform."""


def plain(result: Any) -> PresentedAnswer:
    """The answer's body: the id of what was made."""
    about = getattr(result, "operation", result)
    made = getattr(result, "instance", None)
    body = {"id": about.id, "instance": None if made is None else made.id}
    if isinstance(result, Attachment):
        body |= {"id": result.operation_id, "attachment": result.id}
    return PresentedAnswer(200, json.dumps(body).encode())


@dataclass
class Person:
    """Somebody of the tenant; what is wished for next stands first."""

    services: Services
    start: StartingPoint
    chance: Random
    intents: list[Any]
    instance_id: str | None = None
    kept: list[str] = field(default_factory=list)  # allocations that were there before
    owned: bool = True
    name: str = "app"
    number: int = 0
    pending: tuple[str, Any] | None = None  # asked for, and not answered: the key, and what exactly
    promised: list[str] = field(default_factory=list)  # the operations that were promised
    released: list[str] = field(default_factory=list)
    attachment_id: str | None = None  # of the project beside

    async def step(self) -> str:
        """Ask for the next thing; in words what came of it."""
        if self.pending is None:
            intent = self.intents[0]
            chosen = await self._choose(intent)
            self.number += 1
            self.pending = (f"{self.name}-{self.number}", chosen)
            if chosen is None:
                self.pending = None
                self.intents.pop(0)
                return f"{intent}: there is nothing to ask it of"
        key, chosen = self.pending
        try:
            answered = await self._ask(key, chosen)
        except Refusal as refusal:
            if refusal.code not in NO or chosen[0] in ("stop", "create", "allocate"):
                raise
            outcome = f"refused {refusal.code.value}: {refusal.detail[:80]}"
        else:
            body = json.loads(answered.body)
            if chosen[0] == "create":
                self.instance_id = body["instance"]
            if chosen[0] == "attach":
                self.attachment_id = body["attachment"]
            if chosen[0] == "allocate":
                self.kept.append(body["id"])
            elif chosen[0] == "release":
                self.released.append(body["id"])
            elif chosen[0] != "resume":
                self.promised.append(body["id"])
            outcome = "again" if answered.replayed else "done"
        self.intents.pop(0)
        self.pending = None
        return f"{chosen[0]}: {outcome}"

    async def _choose(self, intent: Any) -> Any:
        """What exactly is asked for: drawn once, so that asking again asks for the same."""
        if isinstance(intent, tuple):
            return intent
        if intent in ("stop", "upgrade", "rollback", "restart", "reconcile", "action"):
            return (intent,)
        if intent in ("attach", "detach", "hurry", "attached"):
            return (intent,) if intent == "attach" or self.attachment_id is not None else None
        if intent == "add":
            return intent, self.chance.choice(("seed", "worker", "gate")), 1 + (self.chance.random() < 0.2)
        if intent == "cancel":
            found = await instances.open_operations(self.services.database, self._acting, [str(self.instance_id)])
            open_ = [each for each in found[str(self.instance_id)] if each.status != "cancelling"]
            return (intent, self.chance.choice(open_).id) if open_ else None
        members = await self._members()
        if intent == "release":
            ids = sorted({each.allocation_id for each in members if each.allocation_id is not None})
            return (intent, self.chance.choice(ids)) if ids else None
        if intent == "repair":
            failed = [each for each in members if each.status == "failed"]
            return (intent, self.chance.choice(failed).id) if failed and self.chance.random() < 0.5 else (intent, None)
        return (intent, self.chance.choice(members).id) if members else None

    async def _members(self) -> list[Member]:
        found = await instances.members_of(self.services.database, self._acting, [str(self.instance_id)])
        return found[str(self.instance_id)]

    @property
    def _acting(self) -> Acting:
        return Acting(self.start.tenant_id)

    async def _ask(self, key: str, chosen: Any) -> Answered:
        intent, *given = chosen
        work, at = self._work(key, intent), InstanceRef(self.start.project_id, str(self.instance_id))
        project_id = self.start.project_id
        if intent == "create":
            return await instance.create(work, project_id, self._launch(*given))
        if intent == "allocate":
            asked = AllocationRequest(name=None, shape=CapacityShape.GPU_SLICE, sku=self.start.sku, gpu_count=1)
            return await allocations.create(work, project_id, asked, None)
        if intent == "release":
            return await allocations.release(work, project_id, given[0])
        if intent == "add":
            return await member.add(work, at, AddMembersRequest(*given), PlacementSpec(sku=self.start.sku, gpu_count=1))
        if intent == "drain":
            return await member.drain(work, at, given[0], timeout_seconds=300, reason="because")
        if intent == "resume":
            return await member.resume(work, at, given[0])
        if intent in ("remove", "force"):
            return await member.remove(work, at, given[0], RemoveMemberRequest(60, force=intent == "force"))
        if intent in ("replace", "surge"):
            where = PlacementSpec(sku=self.start.sku, gpu_count=1) if intent == "surge" else None
            return await member.replace(work, at, given[0], ReplaceMemberRequest(surge=intent == "surge"), where)
        if intent == "cancel":
            return await instance.cancel(work, at, given[0], "not wanted")
        if intent == "action":
            return await app_action.start(work, at, "echo.remember", {}, None)
        if intent in ("attach", "detach", "hurry", "attached"):
            return await self._ask_beside(intent, work)
        return await self._ask_whole(intent, work, at, given)

    async def _ask_beside(self, intent: str, work: Work[Any]) -> Answered:
        """What is asked for the project beside."""
        beside = AttachmentRef(self.start.beside_id, str(self.attachment_id))
        if intent == "attach":
            return await attachment.attach(work, beside.project_id, str(self.instance_id))
        if intent == "attached":
            return await attachment.act(work, beside, "echo.remember", {})
        return await attachment.detach(work, beside, DetachRequest(intent == "hurry", 60))

    async def _ask_whole(self, intent: str, work: Work[Any], at: InstanceRef, given: Any) -> Answered:
        if intent == "upgrade":
            return await instance.upgrade(work, at, "1.1.0", None)
        if intent == "rollback":
            return await instance.rollback(work, at)
        if intent == "restart":
            return await instance.restart(work, at)
        if intent == "reconcile":
            return await instance.reconcile(work, at)
        if intent == "repair":
            scope = RepairScope.WHOLE_RUNTIME if given[0] is None else RepairScope.MEMBER
            return await instance.repair(work, at, scope, given[0])
        return await instance.stop(work, at)

    def _launch(self, topology: dict[str, int], where: str) -> LaunchRequest:
        placement = PlacementSpec(sku=self.start.sku, gpu_count=1, keep_allocations=where == "keep")
        if where == "existing":
            placement = PlacementSpec(allocations=tuple(self.kept[: sum(topology.values())]))
        return LaunchRequest(
            app="web-tool",
            name=self.name,
            version="1.0.0",
            topology=topology,
            placement=placement,
            service_account_id=self.start.account_id,
            control_plane_scope="tenant",
        )

    def _work(self, key: str, intent: str) -> Work[Any]:
        clock, start = self.services.clock, self.start
        actor = Actor(PrincipalKind.USER, start.user_id)
        context = DecisionContext(actor, clock.now(), clock.mint(Prefix.CORRELATION), "c" * 32, clock.mint)
        authority = Authority(tenant_id=start.tenant_id, tenant=ROLE_ACTIONS[Role.TENANT_ADMIN])
        asked = IdempotencyRequest(start.user_id, intent, key, key.encode().ljust(32))
        return Work(self.services, self._acting, context, authority, idempotency=asked, present=plain)


async def write_off(services: Services, node_id: str) -> None:
    """An admin gives a machine up."""
    clock = services.clock
    actor = Actor(PrincipalKind.USER, "usr_admin")
    context = DecisionContext(actor, clock.now(), clock.mint(Prefix.CORRELATION), "d" * 32, clock.mint)
    work: Work[Any] = Work(services, PLATFORM, context, Authority())
    await nodes.write_off(work, node_id, WriteOff("the machine burnt down", "its disks"))
