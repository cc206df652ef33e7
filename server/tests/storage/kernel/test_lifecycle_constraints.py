"""The database refuses what the lifecycle tables of the core refuse, each time by a constraint with a name.

Every machine is driven on the real table of each of its nouns: every legal edge commits; every other triple of state,
trigger and target is refused; so are transitions that do not follow the row's last one, and a status or generation
that no transition backs. What a state requires (columns, closing records) is refused when it is missing.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
import pytest

from mooring.core.kernel.decision import Insert, StateChange
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.lifecycle import AnyLifecycle, Transition, Who
from mooring.storage.kernel.constraints import REFUSALS
from mooring.storage.kernel.database import PLATFORM, Database, PoolSettings
from mooring.storage.kernel.unit_of_work import BIRTH, PLATFORM_OWNER
from server.tests.support.lifecycle_rows import (
    CLOCK,
    HOMES,
    LifecycleSubject,
    ProjectRows,
    columns_of,
    context,
    every_cell,
    machines_of,
    make_project_rows,
    prefix_of,
    refused_by,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

every_home = pytest.mark.parametrize(
    ("noun", "machine"), HOMES, ids=[f"{noun}-{machine.name}" for noun, machine in HOMES]
)


@pytest.fixture(scope="module")
async def database(shared_database_url: str) -> AsyncIterator[Database]:
    opened = Database(PoolSettings(shared_database_url, 4))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
async def project_rows(database: Database) -> ProjectRows:
    return await make_project_rows(database)


async def standing(project_rows: ProjectRows, subject: LifecycleSubject) -> tuple[str, int]:
    """Status and generation of the stored row."""
    status, generation = columns_of(subject.machine)
    row = await project_rows.database.fetchrow(
        PLATFORM, f'SELECT "{status}", "{generation}" FROM "{subject.noun}" WHERE id = $1', subject.id
    )
    assert row is not None
    return row[0], row[1]


@every_home
async def test_every_legal_edge_commits(project_rows: ProjectRows, noun: str, machine: AnyLifecycle) -> None:
    for edge in machine.edges:
        before = await project_rows.subject(noun, machine, edge.source)
        after = await project_rows.move(before, edge)
        assert await standing(project_rows, after) == (edge.target.value, before.generation + 1), edge


@every_home
async def test_every_triple_that_is_not_a_transition_is_refused(
    project_rows: ProjectRows, noun: str, machine: AnyLifecycle
) -> None:
    legal = {(edge.source, edge.trigger, edge.target) for edge in machine.edges}
    subjects = {state: await project_rows.subject(noun, machine, state) for state in machine.states}
    tried = 0
    for edge in every_cell(machine):
        if (edge.source, edge.trigger, edge.target) not in legal:
            with pytest.raises(Refusal) as refused:
                await project_rows.move(subjects[edge.source], edge)
            assert refused.value.code is Code.ILLEGAL_TRANSITION
            assert getattr(refused.value.__cause__, "constraint_name", "") == "transition_edge_is_legal", edge
            tried += 1
    assert tried == len(machine.states.__members__) ** 2 * len(machine.triggers.__members__) - len(machine.edges)
    for state, subject in subjects.items():
        assert await standing(project_rows, subject) == (state.value, subject.generation)


@every_home
async def test_a_legal_edge_from_a_state_that_the_row_is_not_in_is_refused(
    project_rows: ProjectRows, noun: str, machine: AnyLifecycle
) -> None:
    for state in machine.states:
        subject = await project_rows.subject(noun, machine, state)
        for edge in machine.edges:
            if edge.source is not state:
                name = await refused_by(project_rows.move(subject, edge))
                assert name == "transition_follows_previous", (state, edge)
        assert await standing(project_rows, subject) == (state.value, subject.generation)


@every_home
async def test_no_row_is_born_outside_of_the_first_state(
    project_rows: ProjectRows, noun: str, machine: AnyLifecycle
) -> None:
    for state in machine.states:
        for trigger in (BIRTH, *machine.triggers.__members__.values()):
            if (state, trigger) != (machine.initial, BIRTH):
                step = step_of(project_rows, noun, machine, TransitionStep(0, "", trigger, state))
                name = await refused_by(project_rows.write(Insert("transition", step), acting=project_rows.home(noun)))
                assert name == "transition_edge_is_legal", (state, trigger)


@every_home
async def test_no_row_is_born_without_its_transition(
    project_rows: ProjectRows, noun: str, machine: AnyLifecycle
) -> None:
    status, generation = columns_of(machine)
    others = tuple(each for each in machines_of(noun) if each is not machine)
    around = await project_rows.shared_instance() if noun == "attachment" else {}
    for state in machine.states:
        for born_at in (0, 1):
            filled = around | project_rows.required(machine, state, noun) | {status: state.value, generation: born_at}
            row = Insert(noun, project_rows.row(noun) | filled, others)
            assert (
                await refused_by(project_rows.write(row, acting=project_rows.home(noun)))
                == f"{noun}_{status}_is_backed"
            )


@every_home
async def test_a_status_is_not_edited_without_its_transition(
    project_rows: ProjectRows, noun: str, machine: AnyLifecycle
) -> None:
    status, generation = columns_of(machine)
    for state in machine.states:
        subject = await project_rows.subject(noun, machine, state)
        for target in machine.states:
            if target is not state:
                filled = project_rows.required(machine, target, noun) | {status: target.value}
                alone = await edited(project_rows, subject, filled)
                assert alone == f"{noun}_{generation}_counts"
                counted = await edited(project_rows, subject, filled | {generation: subject.generation + 1})
                assert counted == f"{noun}_{status}_is_backed"


@every_home
async def test_a_generation_is_neither_rewound_nor_jumped(
    project_rows: ProjectRows, noun: str, machine: AnyLifecycle
) -> None:
    status, generation = columns_of(machine)
    edge = machine.edges[0]
    subject = await project_rows.move(await project_rows.subject(noun, machine, edge.source), edge)
    before = subject.generation - 1
    for other in (before, subject.generation + 2, -1):
        assert await edited(project_rows, subject, {generation: other}) == f"{noun}_{generation}_counts"
    assert await edited(project_rows, subject, {generation: subject.generation + 1}) == f"{noun}_{status}_is_backed"
    rewound = {status: edge.source.value, generation: before} | project_rows.required(machine, edge.source, noun)
    assert await edited(project_rows, subject, rewound) == f"{noun}_{generation}_counts"


@every_home
async def test_a_state_is_refused_without_a_column_that_it_requires(
    project_rows: ProjectRows, noun: str, machine: AnyLifecycle
) -> None:
    for edge in machine.edges:
        required = machine.requires.get(edge.target, frozenset())
        if required:
            subject = await project_rows.subject(noun, machine, edge.source)
            for column in sorted(required):
                name = await refused_by(project_rows.move(subject, edge, **{column: None}))
                assert name == f"{noun}_{column}_required", edge


async def test_the_database_requires_the_columns_that_the_core_requires_and_no_others(database: Database) -> None:
    wanted = {
        f"{noun}_{column}_required"
        for noun, machine in HOMES
        for columns in machine.requires.values()
        for column in columns
    }
    there = await database.fetch(PLATFORM, "SELECT conname FROM pg_constraint WHERE conname LIKE '%\\_required'")
    assert {row["conname"] for row in there} == wanted


@pytest.mark.parametrize("noun", sorted({noun for noun, _ in HOMES}))
async def test_each_required_column_is_required_in_exactly_the_states_of_the_core(
    database: Database, noun: str
) -> None:
    """The constraint's own expression, asked about every state with the column set and with it missing."""
    required: dict[str, list[tuple[str, str]]] = {}
    for machine in machines_of(noun):
        for state, columns in machine.requires.items():
            for column in columns:
                required.setdefault(column, []).append((columns_of(machine)[0], state.value))
    for column, places in required.items():
        (status,) = {each for each, _ in places}  # two machines of one noun that require one column: say both in SQL
        (machine,) = (each for each in machines_of(noun) if columns_of(each)[0] == status)
        expression = await database.fetchval(
            PLATFORM,
            "SELECT pg_get_expr(conbin, conrelid) FROM pg_constraint WHERE conname = $1",
            f"{noun}_{column}_required",
        )
        for state in machine.states:
            for value, holds in (("NULL", (status, state.value) not in places), ("''", True)):
                asked = f'SELECT {expression} FROM (SELECT $1::text AS "{status}", {value}::text AS "{column}") row_'
                assert await database.fetchval(PLATFORM, asked, state.value) is holds, (column, state, value)


async def test_a_generation_has_one_transition(project_rows: ProjectRows) -> None:
    for noun, machine in HOMES:
        edge = machine.edges[0]
        subject = await project_rows.move(await project_rows.subject(noun, machine, edge.source), edge)
        step = step_of(
            project_rows, noun, machine, TransitionStep(subject.generation, edge.source, edge.trigger, edge.target)
        )
        again = Insert("transition", step | {"subject_id": subject.id})
        assert await refused_by(project_rows.write(again, acting=project_rows.home(noun))) == "transition_pkey"


async def test_the_record_of_transitions_is_not_rewritten_under_a_row(project_rows: ProjectRows) -> None:
    """Not even by the platform's own sessions; a tenant's session has no right to try."""
    for noun, machine in HOMES:
        edge = machine.edges[0]
        subject = await project_rows.move(await project_rows.subject(noun, machine, edge.source), edge)
        backed = f"{noun}_{columns_of(machine)[0]}_is_backed"
        last = "WHERE machine = $1 AND subject_id = $2 AND generation = $3"
        who = (machine.name, subject.id)
        async with project_rows.database.connection(PLATFORM) as connection:
            for statement, generation, name in (
                (f"DELETE FROM transition {last}", subject.generation, backed),
                (f"DELETE FROM transition {last}", subject.generation - 1, "transition_follows_previous"),
                (f"UPDATE transition SET target = source {last}", subject.generation, "transition_edge_is_legal"),
                (f"UPDATE transition SET generation = 9 {last}", subject.generation, "transition_follows_previous"),
            ):
                assert await refused_by(connection.execute(statement, *who, generation)) == name


async def test_a_tenant_writes_no_transition_of_another_tenants_row(project_rows: ProjectRows) -> None:
    other = await make_project_rows(project_rows.database, "other")
    for noun, machine in HOMES:
        if noun == "node":
            continue
        edge = machine.edges[0]
        theirs = await other.subject(noun, machine, edge.source)
        step = step_of(
            project_rows, noun, machine, TransitionStep(theirs.generation + 1, edge.source, edge.trigger, edge.target)
        )
        as_own = Insert("transition", step | {"subject_id": theirs.id})
        assert await refused_by(project_rows.write(as_own)) == "transition_follows_previous"
        as_theirs = Insert("transition", step | {"subject_id": theirs.id, "tenant_id": other.tenant_id})
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await project_rows.write(as_theirs)
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await project_rows.write(Insert("transition", step | {"tenant_id": PLATFORM_OWNER}))
        assert await standing(project_rows, theirs) == (edge.source.value, theirs.generation)


async def test_what_no_tenant_owns_goes_through_its_lifecycle_as_well(project_rows: ProjectRows) -> None:
    (artifact,) = {noun for noun, machine in HOMES if machine.name == "trust"}
    row = project_rows.row(artifact) | {"tenant_id": None, "visibility": "platform"}
    await project_rows.write(Insert(artifact, row, machines_of(artifact)), acting=PLATFORM)
    for machine in machines_of(artifact):
        edge = machine.edges[0]
        filled = project_rows.required(machine, edge.target, artifact)
        move = StateChange(artifact, str(row["id"]), machine, edge, 0, None, set=filled)
        await project_rows.write(move, acting=PLATFORM)
        assert await standing(project_rows, LifecycleSubject(artifact, machine, str(row["id"]), edge.target)) == (
            edge.target.value,
            1,
        )
        backwards = Transition(edge.target, edge.trigger, edge.source, Who.SYSTEM, "tried")
        move = StateChange(artifact, str(row["id"]), machine, backwards, 1, None)
        assert await refused_by(project_rows.write(move, acting=PLATFORM)) == "transition_edge_is_legal"


def test_every_refusal_of_a_lifecycle_is_an_error_of_the_catalogue() -> None:
    for name in ("transition_edge_is_legal", "transition_follows_previous"):
        assert REFUSALS[name][0] is Code.ILLEGAL_TRANSITION


@dataclass(frozen=True)
class TransitionStep:
    generation: int
    source: str
    trigger: str
    target: str


def step_of(project_rows: ProjectRows, noun: str, machine: AnyLifecycle, step: TransitionStep) -> dict[str, object]:
    """A row of the table of transitions; its subject does not exist unless the caller puts an id in."""
    return {
        "machine": machine.name,
        "subject_id": CLOCK.mint(prefix_of(noun)),
        "generation": step.generation,
        "tenant_id": PLATFORM_OWNER if noun == "node" else project_rows.tenant_id,
        "source": str(step.source),
        "trigger": str(step.trigger),
        "target": str(step.target),
        "occurred_at": CLOCK.now(),
        "correlation_id": context().correlation_id,
    }


async def edited(project_rows: ProjectRows, subject: LifecycleSubject, columns: dict[str, object]) -> str:
    """By which constraint a plain UPDATE of these columns is refused."""
    sets = ", ".join(f'"{column}" = ${index}' for index, column in enumerate(columns, 2))
    statement = f'UPDATE "{subject.noun}" SET {sets} WHERE id = $1'
    async with project_rows.database.connection(PLATFORM) as connection:
        return await refused_by(connection.execute(statement, subject.id, *columns.values()))
