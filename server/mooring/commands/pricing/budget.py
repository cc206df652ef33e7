"""Commands on budgets: set one, and read them with what was spent."""

from collections.abc import Sequence
from dataclasses import dataclass

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.services import Services
from mooring.core.kernel.decision import Decision
from mooring.core.pricing.budget import Budget, BudgetSpec, Spent, set_budget
from mooring.storage.identity import project as projects
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.kernel.page_window import PageWindow
from mooring.storage.pricing import spending


@dataclass(frozen=True, slots=True)
class BudgetStanding:
    """A budget, what was spent of it in this month, and the thresholds that fired."""

    budget: Budget
    spent: Spent
    held_micro: int
    fired: tuple[int, ...]

    @property
    def id(self) -> str:
        return self.budget.id


async def put(
    work: Work[Budget], tenant_id: str, project_id: str | None, spec: BudgetSpec, revision_seen: int | None
) -> Answered:
    async def load() -> list[Budget]:
        if project_id is not None:
            require(await projects.find(work.database, work.acting, project_id), "project")
        return (await spending.limits(work.database, work.acting, tenant_id, project_id)).budgets

    def decide(found: list[Budget]) -> Decision[Budget]:
        own = next((each for each in found if each.project_id == project_id), None)
        above = next((each for each in found if each.project_id is None), None) if project_id is not None else None
        return set_budget(
            work.context, own, above, spec, tenant_id=tenant_id, project_id=project_id, revision_seen=revision_seen
        )

    return await work.execute(load, decide)


async def standing(
    services: Services, acting: Acting, tenant_id: str, project_id: str | None, window: PageWindow
) -> list[BudgetStanding]:
    """The budgets of a tenant and its projects, or of one project, with what was spent."""
    now = services.clock.now()

    async def read(reader: RowReader) -> Sequence[BudgetStanding]:
        found = await spending.budgets_of(reader, acting, tenant_id, project_id, after=window.after, limit=window.limit)
        figures = await spending.figures(reader, acting, tenant_id, now, ever=False)
        fired = await spending.fired(reader, acting, tenant_id, figures.month)
        return [
            BudgetStanding(
                each,
                figures.spent(each.project_id, each.currency),
                figures.held_micro(each.project_id, each.currency),
                tuple(sorted(fired.get(each.id, ()))),
            )
            for each in found
        ]

    return list(await services.database.in_snapshot(acting, read))
