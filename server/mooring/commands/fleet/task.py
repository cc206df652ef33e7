"""Commands on tasks: made once under their name, cancelled, and offered again or ended when time is over."""

from collections.abc import Sequence

from mooring.commands.kernel.apply import apply_once, apply_with_retry
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work, system_context
from mooring.commands.services import Services
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_creation import PLATFORM_ONLY, TaskRequest, make_task
from mooring.core.fleet.task_transitions import cancel as decide_cancel
from mooring.core.fleet.task_transitions import lapse
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.storage.fleet import task as tasks
from mooring.storage.kernel.database import PLATFORM

BATCH = 100
"""Tasks that one look moves at the most."""


async def make(work: Work[Task], request: TaskRequest) -> Answered:
    """Make a task, or answer with the one that was made under this name before."""

    async def load() -> Task | None:
        named = (request.operation_id, request.allocation_id, request.step)
        return await tasks.find_named(work.database, work.acting, *named)

    def decide(earlier: Task | None) -> Decision[Task]:
        if earlier is not None:
            return Decision(earlier)
        made = make_task(work.context, request)
        return Decision(made.task, made.writes, made.events, made.audits)

    return await work.execute(load, decide)


async def cancel(work: Work[Task], project_id: str, task_id: str) -> Answered:
    """Ask for the early end of a task."""

    async def load() -> Task:
        return require(await tasks.find(work.database, work.acting, project_id, task_id), "task")

    def decide(task: Task) -> Decision[Task]:
        if task.type in PLATFORM_ONLY:
            raise Refusal(
                Code.PERMISSION_DENIED,
                f"{task.type} is the platform's own: release the allocation instead",
                {"action": "task.cancel"},
            )
        return decide_cancel(work.context, task)

    return await work.execute(load, decide)


async def offer_again(services: Services, node_id: str, held: Sequence[str]) -> int:
    """Offer again at once what a node claimed and, beginning anew, does not hold; how many."""
    context = system_context(services)

    async def decide() -> Decision[tuple[Task, ...]] | None:
        decision = lapse(context, await tasks.forsaken(services.database, node_id, held, BATCH), forsaken=True)
        return decision if decision.writes else None

    decision = await apply_with_retry(services, PLATFORM, context, decide)
    return 0 if decision is None else len(decision.result)


async def expire_tasks(services: Services) -> int:
    """Offer again what lost its lease, and end what is over its time; how many, or a batch's number to look again."""
    context = system_context(services)
    decision = lapse(context, await tasks.lapsed(services.database, context.now, BATCH))
    if not decision.writes:
        return 0
    won = await apply_once(services, PLATFORM, context, decision)
    return len(decision.result) if won else BATCH
