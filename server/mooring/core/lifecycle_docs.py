"""What is derived from the lifecycle tables: rows for the database, and the page for people.

`edge_rows`, `birth_rows` and `closing_rows` seed the database, so that it refuses what the core refuses. `page` is the
content of `docs/lifecycles.md`; a test compares the two.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum

from mooring.core.kernel.lifecycle import WHO_MEANING, AnyLifecycle
from mooring.core.runtime.closing_record import CLOSING_KIND_MEANING, CLOSING_REASON_MEANING, TEARDOWN_PROOF_MEANING

EdgeRow = tuple[str, str, str, str]
BirthRow = tuple[str, str]
ClosingRow = tuple[str, str]


def edge_rows(machines: Iterable[AnyLifecycle]) -> tuple[EdgeRow, ...]:
    """Every legal transition as (machine, source, trigger, target)."""
    return tuple(
        (machine.name, edge.source.value, edge.trigger.value, edge.target.value)
        for machine in machines
        for edge in machine.edges
    )


def birth_rows(machines: Iterable[AnyLifecycle]) -> tuple[BirthRow, ...]:
    """The initial state of each lifecycle, as (machine, initial)."""
    return tuple((machine.name, machine.initial.value) for machine in machines)


def closing_rows(machines: Iterable[AnyLifecycle]) -> tuple[ClosingRow, ...]:
    """The states that need closing records, as (machine, state)."""
    return tuple(
        (machine.name, state.value)
        for machine in machines
        for state in machine.states
        if state in machine.needs_closing_records
    )


def states(machine: AnyLifecycle) -> tuple[str, ...]:
    """Every state of the lifecycle, in the order of its declaration."""
    return tuple(state.value for state in machine.states)


def mermaid(machine: AnyLifecycle) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {machine.initial}"]
    lines += [f"    {edge.source} --> {edge.target}: {edge.trigger} ({edge.by})" for edge in machine.edges]
    lines += [f"    {state} --> [*]" for state in machine.states if state in machine.final]
    return "\n".join(lines)


def matrix(machine: AnyLifecycle) -> str:
    """A table of states and triggers: each cell has the target, or a dot where the trigger is refused."""
    targets = {(edge.source, edge.trigger): edge.target.value for edge in machine.edges}
    return _table(
        ("state", *(trigger.value for trigger in machine.triggers)),
        (
            (state.value, *(targets.get((state, trigger), "·") for trigger in machine.triggers))
            for state in machine.states
        ),
    )


def page(machines: Iterable[AnyLifecycle]) -> str:
    shown = tuple(machines)
    parts = [_INTRODUCTION, _list((who.value, meaning) for who, meaning in WHO_MEANING.items())]
    for machine in shown:
        parts += _section(machine)
    parts += _closing_section(shown)
    return "\n\n".join(parts) + "\n"


def _section(machine: AnyLifecycle) -> Iterator[str]:
    yield f"## {_title(machine)}"
    yield machine.about
    yield f"```mermaid\n{mermaid(machine)}\n```"
    yield "### Matrix"
    yield matrix(machine)
    yield "### States"
    yield _table(
        ("state", "meaning", "notes"),
        ((state.value, machine.meaning[state], _notes(machine, state)) for state in machine.states),
    )
    yield "### Edges"
    yield _table(
        ("from", "trigger", "to", "who", "why"),
        ((edge.source.value, edge.trigger.value, edge.target.value, edge.by.value, edge.why) for edge in machine.edges),
    )


def _notes(machine: AnyLifecycle, state: StrEnum) -> str:
    notes = []
    if state is machine.initial:
        notes.append("initial")
    if state in machine.final:
        notes.append("final")
    if state in machine.needs_closing_records:
        notes.append("needs closing records")
    columns = sorted(machine.requires.get(state, ()))
    if columns:
        notes.append("requires " + ", ".join(f"`{column}`" for column in columns))
    return "; ".join(notes)


def _closing_section(machines: tuple[AnyLifecycle, ...]) -> Iterator[str]:
    yield "## Closing records"
    yield _CLOSING
    yield "These states need them:"
    yield "\n".join(f"- `{state}` of {machine}" for machine, state in closing_rows(machines))
    yield "A closing record is of one of these kinds:"
    yield _list((kind.value, meaning) for kind, meaning in CLOSING_KIND_MEANING.items())
    yield "From the records of all members follows the instance's `teardown_proof`:"
    yield _list((proof.value, meaning) for proof, meaning in TEARDOWN_PROOF_MEANING.items())
    yield "A refusal (`closing_record_missing`) names its reason in `details.reason`:"
    yield _list((reason.value, meaning) for reason, meaning in CLOSING_REASON_MEANING.items())


def _title(machine: AnyLifecycle) -> str:
    return machine.name.replace("_", " ").capitalize()


def _list(items: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- `{word}`: {meaning}." for word, meaning in items)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


_INTRODUCTION = """\
# Lifecycles

<!-- Generated by tools/generate_lifecycles.py from the tables in server/mooring/core; not edited by hand. -->

Each lifecycle is one table in the core. The database is seeded from it, the 409 body quotes it, and this
page is generated from it. A matrix has a row for each state and a column for each trigger: the cell has the
next state, or a dot where the trigger is refused with the code `illegal_transition` and the list of accepted
triggers. A required column must have a value in that state; the database checks it.

Who can fire a trigger:"""

_CLOSING = """\
The end of an instance or of a member is proven, not assumed. Each member has one closing record, which is
kept forever; the core and the database refuse the end without it. While a record is missing, the instance
stays `stopping` and the member `removing`, with a named blocker; capacity that was released is no longer
charged, and nothing else is delayed. A member that was removed earlier still counts, with the record that it
has. A node that comes back after a write-off is swept before it takes work, and its late receipt is added to
the record, which stays a write-off."""
