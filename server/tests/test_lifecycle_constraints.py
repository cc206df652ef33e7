"""The database refuses what the lifecycle tables of the core refuse, each time by a constraint with a name.

Every machine is driven on the real table of each of its nouns: every legal edge commits; every other triple of state,
trigger and target is refused; so are transitions that do not follow the row's last one, and a status or generation
that no transition backs. What a state requires (columns, closing records) is refused when it is missing.
"""

from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg
import pytest

from mooring.core.decision import Insert, Move
from mooring.core.errors import Code, Refusal
from mooring.core.machine import AnyMachine, Edge, Who
from mooring.storage.constraints import REFUSALS
from mooring.storage.database import PLATFORM, Database
from mooring.storage.unit_of_work import BIRTH, PLATFORM_OWNER
from server.tests.rows import (
    CLOCK,
    HOMES,
    Ground,
    Subject,
    columns_of,
    context,
    every_cell,
    machines_of,
    make_ground,
    prefix_of,
    refused_by,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

every_home = pytest.mark.parametrize(
    ("noun", "machine"), HOMES, ids=[f"{noun}-{machine.name}" for noun, machine in HOMES]
)


@pytest.fixture
async def ground(database: Database) -> AsyncIterator[Ground]:
    yield await make_ground(database)


async def standing(ground: Ground, subject: Subject) -> tuple[str, int]:
    """Status and generation of the stored row."""
    status, generation = columns_of(subject.machine)
    row = await ground.database.fetchrow(
        PLATFORM, f'SELECT "{status}", "{generation}" FROM "{subject.noun}" WHERE id = $1', subject.id
    )
    assert row is not None
    return row[0], row[1]


@every_home
async def test_every_legal_edge_commits(ground: Ground, noun: str, machine: AnyMachine) -> None:
    for edge in machine.edges:
        before = await ground.subject(noun, machine, edge.source)
        after = await ground.move(before, edge)
        assert await standing(ground, after) == (edge.target.value, before.generation + 1), edge


@every_home
async def test_every_triple_that_is_no_edge_is_refused(ground: Ground, noun: str, machine: AnyMachine) -> None:
    legal = {(edge.source, edge.trigger, edge.target) for edge in machine.edges}
    subjects = {state: await ground.subject(noun, machine, state) for state in machine.states}
    tried = 0
    for edge in every_cell(machine):
        if (edge.source, edge.trigger, edge.target) not in legal:
            with pytest.raises(Refusal) as refused:
                await ground.move(subjects[edge.source], edge)
            assert refused.value.code is Code.ILLEGAL_TRANSITION
            assert getattr(refused.value.__cause__, "constraint_name", "") == "transition_edge_is_legal", edge
            tried += 1
    assert tried == len(machine.states) ** 2 * len(machine.triggers) - len(machine.edges)
    for state, subject in subjects.items():
        assert await standing(ground, subject) == (state.value, subject.generation)


@every_home
async def test_a_legal_edge_from_a_state_that_the_row_is_not_in_is_refused(
    ground: Ground, noun: str, machine: AnyMachine
) -> None:
    for state in machine.states:
        subject = await ground.subject(noun, machine, state)
        for edge in machine.edges:
            if edge.source is not state:
                name = await refused_by(ground.move(subject, edge))
                assert name == "transition_follows_previous", (state, edge)
        assert await standing(ground, subject) == (state.value, subject.generation)


@every_home
async def test_no_row_is_born_outside_of_the_first_state(ground: Ground, noun: str, machine: AnyMachine) -> None:
    status, generation = columns_of(machine)
    subject = await ground.subject(noun, machine, machine.initial)
    table = f'"{noun}"'
    columns = await _plain_columns(ground, noun)
    copied = ", ".join(f'"{column}"' for column in columns if column not in ("id", status))
    unique = {"service_account": ", name = 'another-name'"}.get(noun, "")
    async with ground.database.connection(PLATFORM) as connection:
        for state in machine.states:
            filled = ground.required(machine, state)
            for trigger in (BIRTH, *machine.triggers):
                if state is machine.initial and trigger == BIRTH:
                    continue
                fresh = CLOCK.mint(prefix_of(noun))
                step = _step(ground, subject, "", str(trigger), state.value)
                name = await refused_by(_transition(connection, replace(subject, id=fresh), step))
                assert name == "transition_edge_is_legal", (state, trigger)
            fresh = CLOCK.mint(prefix_of(noun))
            born = f"INSERT INTO {table} (id, \"{status}\", {copied}) SELECT $2, $3, {copied} FROM {table} WHERE id = $1"
            sets = ", ".join(f'"{column}" = ${index}' for index, column in enumerate(filled, 2))
            async with connection.transaction() as outer:
                if filled:
                    await connection.execute(f"UPDATE {table} SET {sets} WHERE id = $1", subject.id, *filled.values())
                if unique:
                    await connection.execute(f"UPDATE {table} SET {unique[2:]} WHERE id = $1", subject.id)
                name = await refused_by(_at_once(connection, born, subject.id, fresh, state.value))
                assert name == f"{noun}_{status}_is_backed", state
                raise_if = outer  # the row that was filled goes back as it was
                del raise_if
