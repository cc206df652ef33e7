"""The shelf of the catalog on a real database: what is found on it is what going through everything would find."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

import pytest

from mooring.core.catalog.app import App, AppCard, create_app, update_app
from mooring.core.catalog.catalog import chosen_candidate, newest_candidate, search_words
from mooring.core.catalog.channel import Candidate
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState
from mooring.core.catalog.semver import read_version
from mooring.core.kernel.decision import Insert, StateChange, Write
from mooring.storage.catalog import catalog
from mooring.storage.catalog.catalog import CatalogFilter
from mooring.storage.kernel.database import PLATFORM, Acting, Database, PoolSettings
from mooring.storage.kernel.page_window import PageWindow
from mooring.storage.kernel.unit_of_work import apply
from server.tests.support.lifecycle_rows import ProjectRows, context, make_project_rows, path, version_columns

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

S = PromotionState
OFFERED: Final = (S.CANARY, S.ACTIVE, S.DEPRECATED)
VOCABULARY: Final = ("alpha", "alphabet", "beta", "gamma-ray", "Größe", "x")
SEARCHES: Final = (
    "alpha",
    "al",
    "alphabet",
    "alpha beta",
    "be al",
    "gamma",
    "ray",
    "gamma-r",
    "größe x",
    "a b g",
    "zzz",
)
OUT: Final = ("deprecate", "retire")
CATEGORIES: Final = ("tool", "training")
SHELVED: Final = "SELECT count(*) FROM app_word WHERE app_id = $1"


@dataclass(frozen=True)
class Made:
    """An app that a test has made, and whether some version of it is offered."""

    app: App
    offered: bool

    def has(self, sought: CatalogFilter, tenant_id: str) -> bool:
        """Whether it should be found: the long way."""
        card = f"{self.app.slug} {self.app.category} {self.app.display_name} {self.app.description}".lower()
        words = {*card.split(), *card.replace("-", " ").split()}
        return (
            self.offered
            and self.app.tenant_id in (None, tenant_id)
            and sought.category in (None, self.app.category)
            and all(any(word.startswith(each) for word in words) for each in sought.words)
        )


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator[ProjectRows]:
    opened = Database(PoolSettings(database_url, 8, acquire_timeout_seconds=60.0))
    await opened.open()
    yield await make_project_rows(opened)
    await opened.close()


async def new_app(rows: ProjectRows, tenant_id: str | None, slug: str, category: str, description: str) -> App:
    decision = create_app(context(), tenant_id, slug, category, AppCard("An app", description))
    await apply(rows.database, Acting(tenant_id), context(), decision)
    return decision.result


async def write(rows: ProjectRows, app: App, change: Write) -> None:
    """Write for the owner of an app."""
    owner = replace(rows, tenant_id=app.tenant_id or rows.tenant_id)
    await owner.write(change, acting=Acting(app.tenant_id))


async def new_version(rows: ProjectRows, app: App, number: str, state: PromotionState, percentage: int = 10) -> str:
    """A version that needs no artifact, in this state."""
    row = rows.row("app_version") | version_columns(app.id, number) | {"tenant_id": app.tenant_id}
    await write(rows, app, Insert("app_version", row, (PROMOTION,)))
    await move(rows, app, str(row["id"]), (S.DRAFT, state), percentage)
    return str(row["id"])


async def move(
    rows: ProjectRows, app: App, version_id: str, way: tuple[PromotionState, PromotionState], percentage: int = 10
) -> None:
    """From one state to another along the shortest way from the first."""
    before, after = way
    steps = path(PROMOTION, after)
    begin = next((number + 1 for number, edge in enumerate(steps) if edge.target is before), 0)
    for generation, edge in list(enumerate(steps))[begin:]:
        columns = rows.required(PROMOTION, edge.target, "app_version")
        if edge.target is S.CANARY:
            columns["canary_percentage"] = Decimal(percentage)
        step = StateChange("app_version", version_id, PROMOTION, edge, generation, app.tenant_id, set=columns)
        await write(rows, app, step)


async def all_pages(rows: ProjectRows, sought: CatalogFilter, limit: int) -> list[str]:
    """Every app that is found, page by page."""
    found: list[str] = []
    while True:
        window = PageWindow(found[-1] if found else "", limit)
        page = await catalog.page(rows.database, rows.acting, sought, window)
        assert len(page) <= limit
        found += [app.id for app in page]
        if len(page) < limit:
            return found


async def test_every_search_finds_what_going_through_all_apps_finds_page_by_page(rows: ProjectRows) -> None:
    chance = random.Random(11)
    other = await make_project_rows(rows.database, "other")
    made: list[Made] = []
    for number in range(60):
        tenant_id = chance.choice((None, rows.tenant_id, other.tenant_id))
        words = " ".join(chance.sample(VOCABULARY, chance.randint(0, 4)))
        app = await new_app(rows, tenant_id, f"app-{number}", chance.choice(CATEGORIES), words)
        states = [chance.choice((S.DRAFT, S.STAGED, *OFFERED)) for _ in range(chance.randint(0, 2))]
        for minor, state in enumerate(states):
            await new_version(rows, app, f"1.{minor}.0", state)
        made.append(Made(app, any(state in OFFERED for state in states)))
    found_some = 0
    for text in ("", *SEARCHES):
        for category in (None, *CATEGORIES):
            sought = CatalogFilter(search_words(text), category)
            expected = sorted(each.app.id for each in made if each.has(sought, rows.tenant_id))
            for limit in (1, 3, 100):
                assert await all_pages(rows, sought, limit) == expected, (text, category, limit)
            found_some += bool(expected)
    assert found_some > len(SEARCHES), "most searches find something"


async def test_an_app_is_on_the_shelf_while_a_version_is_offered_and_with_the_card_it_has(rows: ProjectRows) -> None:
    app = await new_app(rows, rows.tenant_id, "some-app", "tool", "first words")
    shelved = [await rows.database.fetchval(PLATFORM, SHELVED, app.id)]
    one = await new_version(rows, app, "1.0.0", S.STAGED)
    two = await new_version(rows, app, "2.0.0", S.ACTIVE)
    assert await all_pages(rows, CatalogFilter(("first",)), 10) == [app.id]
    await move(rows, app, one, (S.STAGED, S.CANARY))
    changed = update_app(context(), app, AppCard("An app", "other words"), None)
    await apply(rows.database, rows.acting, context(), changed)
    assert await all_pages(rows, CatalogFilter(("first",)), 10) == []
    assert await all_pages(rows, CatalogFilter(("oth", "wor"), "tool"), 10) == [app.id]
    assert shelved == [0]
    await retire(rows, app, two)
    assert await all_pages(rows, CatalogFilter(), 10) == [app.id], "the canary is offered"
    rollback = next(edge for edge in PROMOTION.edges if edge.trigger == "rollback")
    columns = rows.required(PROMOTION, S.STAGED, "app_version")
    await rows.write(StateChange("app_version", one, PROMOTION, rollback, 2, app.tenant_id, set=columns))
    assert await all_pages(rows, CatalogFilter(), 10) == []
    assert await rows.database.fetchval(PLATFORM, SHELVED, app.id) == 0


async def retire(rows: ProjectRows, app: App, version_id: str) -> None:
    """From active, by way of deprecated."""
    for generation, target in ((3, S.DEPRECATED), (4, S.RETIRED)):
        edge = next(each for each in PROMOTION.edges if each.target is target and each.trigger in OUT)
        columns = rows.required(PROMOTION, target, "app_version")
        step = StateChange("app_version", version_id, PROMOTION, edge, generation, app.tenant_id, set=columns)
        await write(rows, app, step)


async def test_versions_that_come_and_go_at_once_leave_the_shelf_as_it_should_be(rows: ProjectRows) -> None:
    for number in range(12):
        app = await new_app(rows, rows.tenant_id, f"raced-{number}", "tool", "")
        leaving = [await new_version(rows, app, f"1.{minor}.0", S.ACTIVE) for minor in range(2)]
        coming = [await new_version(rows, app, f"2.{minor}.0", S.STAGED) for minor in range(number % 3)]
        await asyncio.gather(
            *(retire(rows, app, each) for each in leaving),
            *(move(rows, app, each, (S.STAGED, S.CANARY)) for each in coming),
        )
        assert (await rows.database.fetchval(PLATFORM, SHELVED, app.id) > 0) == bool(coming)


@dataclass(frozen=True)
class StoredVersion:
    id: str
    number: str
    state: PromotionState
    percentage: int


def by_hand(versions: Sequence[StoredVersion]) -> list[Candidate]:
    """Every version that is offered, as the channel sees it."""
    return [
        Candidate(
            each.id, read_version(each.number), each.state, Decimal(each.percentage) if each.state is S.CANARY else None
        )
        for each in versions
        if each.state in OFFERED
    ]


async def test_the_few_versions_that_are_examined_contain_the_best_of_all(rows: ProjectRows) -> None:
    chance = random.Random(5)
    all_of: dict[str, list[Candidate]] = {}
    for number in range(25):
        app = await new_app(rows, rows.tenant_id, f"chosen-{number}", "tool", "")
        made = []
        for minor in range(chance.randint(0, 7)):
            state, percentage = chance.choice((S.DRAFT, *OFFERED)), chance.choice((1, 50, 100))
            version = f"1.{minor}.0" if chance.random() < 0.8 else f"1.{minor}.0-rc.1"
            version_id = await new_version(rows, app, version, state, percentage)
            made.append(StoredVersion(version_id, version, state, percentage))
        all_of[app.id] = by_hand(made)
    few = await catalog.candidates(rows.database, rows.acting, list(all_of))
    for app_id, candidates in all_of.items():
        assert newest_candidate(few[app_id]) == newest_candidate(candidates)
        for project in range(20):
            assert chosen_candidate(few[app_id], f"prj_{project}") == chosen_candidate(candidates, f"prj_{project}")
    assert sum(map(len, few.values())) < sum(map(len, all_of.values()))
