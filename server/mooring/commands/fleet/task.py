"""Commands on tasks: create once per name, cancel, and offer again or end what has expired."""

from collections.abc import Sequence
from dataclasses import dataclass

from mooring.commands.kernel.apply import apply_once, apply_with_retry
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work, system_context
from mooring.commands.services import Services
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_creation import PLATFORM_ONLY, TaskRequest, check_room, make_task
from mooring.core.fleet.task_transitions import cancel as decide_cancel
from mooring.core.fleet.task_transitions import lapse
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.storage.fleet import task as tasks
from mooring.storage.kernel.database import PLATFORM

BATCH = 100
"""The most tasks that one pass changes."""


@dataclass(frozen=True, slots=True)
class _TaskFacts:
    """An earlier task of the same name, and how many tasks of the project are open."""

    earlier: Task | None
    open_count: int


async def make(work: Work[Task], request: TaskRequest) -> Answered:
    """Create a task, or answer with the one that has this name already."""
    with work.services.open_tasks.reserve(request.project_id, 1) as reserved:
        return await _make(work, request, reserved)


async def _make(work: Work[Task], request: TaskRequest, reserved: int) -> Answered:

    limit = work.services.settings.open_tasks_per_project_max

    async def load() -> _TaskFacts:
        named = (request.operation_id, request.allocation_id, request.step)
        earlier = await tasks.find_named(work.database, work.acting, *named)
        return _TaskFacts(earlier, await tasks.count_open(work.database, work.acting, request.project_id, limit))

    def decide(facts: _TaskFacts) -> Decision[Task]:
        if facts.earlier is not None:
            return Decision(facts.earlier)
        check_room(facts.open_count + reserved, limit)
        made = make_task(work.context, request)
        return Decision(made.task, made.writes, made.events, made.audits)

    return await work.execute(load, decide)


async def cancel(work: Work[Task], project_id: str, task_id: str) -> Answered:
    async def load() -> Task:
        return require(await tasks.find(work.database, work.acting, project_id, task_id), "task")

    def decide(task: Task) -> Decision[Task]:
        if task.type in PLATFORM_ONLY:
            raise Refusal(
                Code.PERMISSION_DENIED,
                f"only the platform ends {task.type} tasks: release the allocation instead",
                {"action": "task.cancel"},
            )
        return decide_cancel(work.context, task)

    return await work.execute(load, decide)


async def offer_again(services: Services, node_id: str, held: Sequence[str]) -> int:
    """Offer again at once what a restarted node had claimed and does not hold any more; returns how many."""
    context = system_context(services)

    async def decide() -> Decision[tuple[Task, ...]] | None:
        decision = lapse(context, await tasks.abandoned(services.database, node_id, held, BATCH), abandoned=True)
        return decision if decision.writes else None

    decision = await apply_with_retry(services, PLATFORM, context, decide)
    return 0 if decision is None else len(decision.result)


async def expire_tasks(services: Services) -> int:
    """Offer again what lost its lease, and end what is past its deadline.

    Returns how many; BATCH also after a lost race, so that the caller runs again at once.
    """
    context = system_context(services)
    decision = lapse(context, await tasks.lapsed(services.database, context.now, BATCH))
    if not decision.writes:
        return 0
    won = await apply_once(services, PLATFORM, context, decision)
    return len(decision.result) if won else BATCH
