"""The check of a table: each rule is broken once, and the check says which and where."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from enum import StrEnum
from typing import Any

import pytest

from mooring.core.kernel.lifecycle import AnyLifecycle, BrokenTable, Lifecycle, TableProblem, TableRule, Transition, Who
from tests.support.rows import every_row


class DoorState(StrEnum):
    OPEN = "open"
    SHUT = "shut"
    BRICKED_UP = "bricked_up"


class DoorTrigger(StrEnum):
    SHUT = "shut"
    OPEN = "open"
    BRICK_UP = "brick_up"


class WindowState(StrEnum):
    OPEN = "open"
    BROKEN = "broken"


class WindowTrigger(StrEnum):
    OPEN = "open"


class Shouting(StrEnum):
    OPEN = "OPEN"
    SHUT = "shut"


SHUT = Transition(DoorState.OPEN, DoorTrigger.SHUT, DoorState.SHUT, Who.USER, "It is cold.")
OPEN = Transition(DoorState.SHUT, DoorTrigger.OPEN, DoorState.OPEN, Who.USER, "It is warm.")
BRICK_UP = Transition(DoorState.SHUT, DoorTrigger.BRICK_UP, DoorState.BRICKED_UP, Who.ADMIN, "Nobody lives here.")
MEANING: dict[Any, str] = {state: f"the door is {state}" for state in DoorState}

DOOR = Lifecycle(
    name="door",
    about="A door.",
    states=DoorState,
    triggers=DoorTrigger,
    initial=DoorState.OPEN,
    meaning=MEANING,
    edges=(SHUT, OPEN, BRICK_UP),
)


def broken_rules(**changes: Any) -> dict[TableRule, list[str]]:
    """What the check says of the door after these changes."""
    with pytest.raises(BrokenTable) as caught:
        replace(DOOR, **changes)
    found: dict[TableRule, list[str]] = {}
    for problem in caught.value.problems:
        assert isinstance(problem, TableProblem)
        assert problem.detail in str(caught.value)
        found.setdefault(problem.rule, []).append(problem.detail)
    return found


def edge(source: Any, trigger: Any, target: Any, why: str = "Because.") -> Transition[Any, Any]:
    return Transition(source, trigger, target, Who.USER, why)


def test_a_right_table_passes_and_knows_its_final_states() -> None:
    assert DOOR.final == {DoorState.BRICKED_UP}
    assert DOOR.allowed(DoorState.SHUT) == (DoorTrigger.OPEN, DoorTrigger.BRICK_UP)
    assert DOOR.step(DoorState.SHUT, DoorTrigger.BRICK_UP) is BRICK_UP


def test_a_source_of_another_machine_is_refused_even_where_its_text_is_known() -> None:
    stray = edge(WindowState.OPEN, DoorTrigger.SHUT, DoorState.SHUT)

    assert broken_rules(edges=(stray, OPEN, BRICK_UP)) == {
        TableRule.STATES_ARE_KNOWN: ["open in edge shut is not of DoorState"]
    }


def test_a_target_that_is_not_a_state_is_refused() -> None:
    stray = edge(DoorState.SHUT, DoorTrigger.OPEN, WindowState.BROKEN)

    found = broken_rules(edges=(SHUT, stray, BRICK_UP))

    assert found[TableRule.STATES_ARE_KNOWN] == ["broken in edge open is not of DoorState"]


def test_an_initial_state_of_another_machine_is_refused() -> None:
    found = broken_rules(initial=WindowState.OPEN)

    assert found[TableRule.STATES_ARE_KNOWN] == ["open in initial is not of DoorState"]


@every_row(
    ("field", "value"),
    [
        ("meaning", {**MEANING, WindowState.BROKEN: "no door"}),
        ("requires", {WindowState.BROKEN: frozenset({"broken_at"})}),
        ("needs_closing_records", frozenset({WindowState.BROKEN})),
    ],
)
def test_a_description_of_an_unknown_state_is_refused(field: str, value: object) -> None:
    assert broken_rules(**{field: value}) == {TableRule.STATES_ARE_KNOWN: [f"broken in {field} is not of DoorState"]}


def test_a_trigger_of_another_machine_is_refused_even_where_its_text_is_known() -> None:
    stray = edge(DoorState.SHUT, WindowTrigger.OPEN, DoorState.OPEN)

    assert broken_rules(edges=(SHUT, stray, BRICK_UP)) == {
        TableRule.TRIGGERS_ARE_KNOWN: ["open in shut is not of DoorTrigger"]
    }


def test_a_state_that_nothing_leads_to_is_refused() -> None:
    aside = edge(DoorState.BRICKED_UP, DoorTrigger.BRICK_UP, DoorState.SHUT)

    found = broken_rules(edges=(SHUT, OPEN, aside))

    assert found[TableRule.STATES_ARE_REACHABLE] == ["bricked_up"]


def test_states_that_can_never_finish_are_refused() -> None:
    again = edge(DoorState.BRICKED_UP, DoorTrigger.OPEN, DoorState.OPEN)

    assert broken_rules(edges=(SHUT, OPEN, BRICK_UP, again)) == {
        TableRule.STATES_CAN_FINISH: ["open", "shut", "bricked_up"]
    }


def test_a_cell_with_two_targets_is_refused() -> None:
    second = edge(DoorState.SHUT, DoorTrigger.OPEN, DoorState.BRICKED_UP)

    assert broken_rules(edges=(SHUT, OPEN, BRICK_UP, second)) == {TableRule.CELLS_HAVE_ONE_TARGET: ["shut open"]}


def test_a_trigger_that_no_edge_uses_is_refused() -> None:
    away = edge(DoorState.SHUT, DoorTrigger.SHUT, DoorState.BRICKED_UP)

    assert broken_rules(edges=(SHUT, OPEN, away)) == {TableRule.TRIGGERS_ARE_USED: ["brick_up"]}


@every_row("meaning", [{}, {DoorState.SHUT: "  "}], ids=["absent", "blank"])
def test_a_state_without_a_meaning_is_refused(meaning: dict[DoorState, str]) -> None:
    others = {state: text for state, text in MEANING.items() if state is not DoorState.SHUT}

    assert broken_rules(meaning={**others, **meaning}) == {TableRule.STATES_HAVE_A_MEANING: ["shut"]}


def test_an_edge_without_a_reason_is_refused() -> None:
    silent = edge(DoorState.SHUT, DoorTrigger.OPEN, DoorState.OPEN, why=" ")

    assert broken_rules(edges=(SHUT, silent, BRICK_UP)) == {TableRule.EDGES_HAVE_A_REASON: ["shut open"]}


def test_an_edge_that_changes_nothing_is_refused() -> None:
    idle = edge(DoorState.OPEN, DoorTrigger.OPEN, DoorState.OPEN)

    assert broken_rules(edges=(SHUT, OPEN, BRICK_UP, idle)) == {TableRule.EDGES_CHANGE_THE_STATE: ["open open"]}


@every_row(
    ("changes", "word"),
    [
        ({"name": "front door"}, "front door"),
        ({"requires": {DoorState.SHUT: frozenset({"shut-at"})}}, "shut-at"),
        ({"triggers": Shouting}, "OPEN"),
    ],
    ids=["machine", "column", "trigger"],
)
def test_a_name_that_is_not_an_identifier_is_refused(changes: dict[str, Any], word: str) -> None:
    found = broken_rules(**changes)

    assert found[TableRule.NAMES_ARE_IDENTIFIERS] == [f"{word!r} is not a lower-case identifier"]


def test_a_table_without_edges_is_refused() -> None:
    found = broken_rules(edges=())

    assert found[TableRule.TRIGGERS_ARE_USED] == ["shut", "open", "brick_up"]
    assert found[TableRule.STATES_ARE_REACHABLE] == ["shut", "bricked_up"]


def test_the_check_does_not_vanish_under_optimization() -> None:
    program = (
        "from dataclasses import replace\n"
        "from mooring.core.runtime.instance import INSTANCE\n"
        "from mooring.core.kernel.lifecycle import BrokenTable\n"
        "try:\n"
        "    replace(INSTANCE, edges=INSTANCE.edges[1:])\n"
        "except BrokenTable as broken:\n"
        "    print(broken.problems[0].rule)\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "triggers_are_used\n"


def test_a_checked_table_cannot_be_changed_afterwards() -> None:
    table: AnyLifecycle = DOOR
    with pytest.raises(FrozenInstanceError):
        table.initial = DoorState.SHUT  # type: ignore[misc]
    with pytest.raises(TypeError, match="does not support item assignment"):
        table.meaning[DoorState.SHUT] = "ajar"  # type: ignore[index]


def test_a_table_does_not_follow_the_map_it_was_made_from() -> None:
    meaning = dict(MEANING)
    door = replace(DOOR, meaning=meaning)
    meaning[DoorState.SHUT] = "ajar"

    assert door.meaning[DoorState.SHUT] == "the door is shut"
