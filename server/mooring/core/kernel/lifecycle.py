"""Lifecycles as tables: one table, many readers.

A lifecycle is a table of transitions. Everything that must agree about it (the diagram, the database's constraints,
the body of a 409, the console's buttons, the tests) reads this table, so it is stated only once. A `Lifecycle` is
the table with its states and triggers, and `Lifecycle.step` alone decides whether a state accepts a trigger, and
which state follows.

A table is checked when it is created, which is when its module is imported, so a wrong table stops the program
before it serves a request. The check raises `BrokenTable` and does not use `assert`, which `python -O` removes.

Two lifecycles may both have a state `failed`, and members of two `StrEnum`s with the same text are equal. The check
therefore compares the type of each state and trigger too; afterwards mypy guards the types.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

from mooring.core.kernel.errors import Code, Refusal

State = TypeVar("State", bound=StrEnum)
Trigger = TypeVar("Trigger", bound=StrEnum)


class Who(StrEnum):
    """The kind of principal that fires a trigger; the action keys say which permission it needs."""

    USER = "user"
    ADMIN = "admin"
    WORKER = "worker"
    ADAPTER = "adapter"
    AGENT = "agent"
    SYSTEM = "system"


WHO_MEANING: Mapping[Who, str] = MappingProxyType(
    {
        Who.USER: "a person, or automation acting for one, through the public API with the action key",
        Who.ADMIN: "a person who runs the platform, with an action key that only such people hold",
        Who.WORKER: "a worker of the control plane that compares the desired state with the observed state",
        Who.ADAPTER: "the program that knows the app, under the fencing token of its claim",
        Who.AGENT: "the node agent, by the tasks it claims and the receipts it returns",
        Who.SYSTEM: "the platform itself, as the consequence of another change, in the same transaction",
    }
)


@dataclass(frozen=True, slots=True)
class Transition(Generic[State, Trigger]):
    """One legal transition: in `source`, `trigger` leads to `target`."""

    source: State
    trigger: Trigger
    target: State
    by: Who
    why: str  # the sentence that the docs and the audit trail show


class IllegalTransition(Refusal):
    """The request is well formed, but this state does not accept this trigger."""

    def __init__(self, machine: str, state: StrEnum, trigger: StrEnum, allowed: tuple[StrEnum, ...]):
        self.machine, self.state, self.trigger, self.allowed = machine, state, trigger, allowed
        accepts = ", ".join(allowed) or "nothing, the state is final"
        super().__init__(
            Code.ILLEGAL_TRANSITION,
            f"{machine} is {state}: cannot {trigger}; it accepts {accepts}",
            {
                "machine": machine,
                "state": state.value,
                "trigger": trigger.value,
                "allowed": [each.value for each in allowed],
            },
        )


class UnknownWord(ValueError):
    """A text that is not a state or a trigger of this lifecycle: a bug of ours, never a caller's mistake."""

    def __init__(self, machine: str, word: str, known: tuple[StrEnum, ...]):
        self.machine, self.word, self.known = machine, word, known
        super().__init__(f"{machine} does not know {word!r}; it knows {', '.join(known)}")


class TableRule(StrEnum):
    """The rules that every table must pass when it is imported."""

    NAMES_ARE_IDENTIFIERS = "names_are_identifiers"
    STATES_ARE_KNOWN = "states_are_known"
    TRIGGERS_ARE_KNOWN = "triggers_are_known"
    STATES_HAVE_A_MEANING = "states_have_a_meaning"
    EDGES_HAVE_A_REASON = "edges_have_a_reason"
    EDGES_CHANGE_THE_STATE = "edges_change_the_state"
    CELLS_HAVE_ONE_TARGET = "cells_have_one_target"
    TRIGGERS_ARE_USED = "triggers_are_used"
    STATES_ARE_REACHABLE = "states_are_reachable"
    STATES_CAN_FINISH = "states_can_finish"


@dataclass(frozen=True, slots=True)
class TableProblem:
    """One violation of one rule by a table."""

    rule: TableRule
    detail: str


class BrokenTable(Exception):
    """A lifecycle's table violates the rules; the message names every problem."""

    def __init__(self, machine: str, problems: tuple[TableProblem, ...]):
        self.machine, self.problems = machine, problems
        listed = "; ".join(f"{problem.rule}: {problem.detail}" for problem in problems)
        super().__init__(f"the lifecycle table {machine!r} is broken: {listed}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Lifecycle(Generic[State, Trigger]):
    """A lifecycle's table. Two lifecycles are equal only when they are the same object."""

    name: str
    about: str  # what goes through this lifecycle, for the docs
    states: type[State]
    triggers: type[Trigger]
    initial: State
    meaning: Mapping[State, str]
    edges: tuple[Transition[State, Trigger], ...]
    requires: Mapping[State, frozenset[str]] = field(default_factory=dict)  # columns set in the state
    needs_closing_records: frozenset[State] = frozenset()  # states refused without a record of each member
    final: frozenset[State] = field(init=False)
    _edge_of_cell: Mapping[tuple[State, Trigger], Transition[State, Trigger]] = field(init=False, repr=False)
    _allowed_in: Mapping[State, tuple[Trigger, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        problems = tuple(TableProblem(rule, detail) for rule, find in _FINDERS.items() for detail in find(self))
        if problems:
            raise BrokenTable(self.name, problems)
        allowed = {state: tuple(edge.trigger for edge in self.edges if edge.source is state) for state in self.states}
        # The class is frozen and its maps are proxies, so nobody can change the table after the check.
        self._fix("meaning", MappingProxyType(dict(self.meaning)))
        self._fix("requires", MappingProxyType(dict(self.requires)))
        self._fix("final", frozenset(state for state, triggers in allowed.items() if not triggers))
        self._fix("_edge_of_cell", {(edge.source, edge.trigger): edge for edge in self.edges})
        self._fix("_allowed_in", allowed)

    def step(self, state: State, trigger: Trigger) -> Transition[State, Trigger]:
        """The transition for `trigger` in `state`; raises `IllegalTransition` when there is none."""
        edge = self._edge_of_cell.get((state, trigger))
        if edge is None:
            known = self.parse_state(state)
            raise IllegalTransition(self.name, known, self.parse_trigger(trigger), self.allowed(known))
        return edge

    def allowed(self, state: State) -> tuple[Trigger, ...]:
        """The triggers that `state` accepts, in the order of the table; empty when the state is final."""
        return self._allowed_in[self.parse_state(state)]

    def parse_state(self, text: str) -> State:
        try:
            return self.states(text)
        except ValueError:
            raise UnknownWord(self.name, text, tuple(self.states)) from None

    def parse_trigger(self, text: str) -> Trigger:
        try:
            return self.triggers(text)
        except ValueError:
            raise UnknownWord(self.name, text, tuple(self.triggers)) from None

    def _fix(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


AnyLifecycle: TypeAlias = Lifecycle[Any, Any]


def _bad_names(machine: AnyLifecycle) -> Iterator[str]:
    # Names go into SQL, URLs and file names unescaped.
    columns = {column for columns in machine.requires.values() for column in columns}
    words = [machine.name, *columns]
    words += [state.value for state in machine.states]
    words += [trigger.value for trigger in machine.triggers]
    for word in sorted(words):
        if not (word.isascii() and word.isidentifier() and word == word.lower()):
            yield f"{word!r} is not a lower-case identifier"


def _unknown_states(machine: AnyLifecycle) -> Iterator[str]:
    words: list[tuple[str, object]] = [("initial", machine.initial)]
    words += [(f"edge {edge.trigger}", edge.source) for edge in machine.edges]
    words += [(f"edge {edge.trigger}", edge.target) for edge in machine.edges]
    words += [("meaning", state) for state in machine.meaning]
    words += [("requires", state) for state in machine.requires]
    words += [("needs_closing_records", state) for state in machine.needs_closing_records]
    for place, state in words:
        if not isinstance(state, machine.states):
            yield f"{state} in {place} is not of {machine.states.__name__}"


def _unknown_triggers(machine: AnyLifecycle) -> Iterator[str]:
    for edge in machine.edges:
        if not isinstance(edge.trigger, machine.triggers):
            yield f"{edge.trigger} in {edge.source} is not of {machine.triggers.__name__}"


def _states_without_meaning(machine: AnyLifecycle) -> Iterator[str]:
    for state in machine.states:
        if not machine.meaning.get(state, "").strip():
            yield f"{state}"


def _edges_without_reason(machine: AnyLifecycle) -> Iterator[str]:
    for edge in machine.edges:
        if not edge.why.strip():
            yield f"{edge.source} {edge.trigger}"


def _edges_without_change(machine: AnyLifecycle) -> Iterator[str]:
    # `generation` counts transitions, and the database recognises a transition by the change of the state.
    for edge in machine.edges:
        if edge.source == edge.target:
            yield f"{edge.source} {edge.trigger}"


def _doubled_cells(machine: AnyLifecycle) -> Iterator[str]:
    seen: set[tuple[str, str]] = set()
    for edge in machine.edges:
        if (edge.source, edge.trigger) in seen:
            yield f"{edge.source} {edge.trigger}"
        seen.add((edge.source, edge.trigger))


def _unused_triggers(machine: AnyLifecycle) -> Iterator[str]:
    used = {edge.trigger for edge in machine.edges}
    for trigger in machine.triggers:
        if trigger not in used:
            yield f"{trigger}"


def _unreachable_states(machine: AnyLifecycle) -> Iterator[str]:
    reached = _reach(machine, machine.initial)
    for state in machine.states:
        if state not in reached:
            yield f"{state}"


def _states_without_end(machine: AnyLifecycle) -> Iterator[str]:
    sources = {edge.source for edge in machine.edges}
    final = {state for state in machine.states if state not in sources}
    for state in machine.states:
        if not _reach(machine, state) & final:
            yield f"{state}"


def _reach(machine: AnyLifecycle, state: StrEnum) -> set[StrEnum]:
    seen, todo = {state}, [state]
    while todo:
        here = todo.pop()
        new = {edge.target for edge in machine.edges if edge.source == here} - seen
        seen |= new
        todo.extend(new)
    return seen


_FINDERS: Mapping[TableRule, Callable[[AnyLifecycle], Iterator[str]]] = MappingProxyType(
    {
        TableRule.NAMES_ARE_IDENTIFIERS: _bad_names,
        TableRule.STATES_ARE_KNOWN: _unknown_states,
        TableRule.TRIGGERS_ARE_KNOWN: _unknown_triggers,
        TableRule.STATES_HAVE_A_MEANING: _states_without_meaning,
        TableRule.EDGES_HAVE_A_REASON: _edges_without_reason,
        TableRule.EDGES_CHANGE_THE_STATE: _edges_without_change,
        TableRule.CELLS_HAVE_ONE_TARGET: _doubled_cells,
        TableRule.TRIGGERS_ARE_USED: _unused_triggers,
        TableRule.STATES_ARE_REACHABLE: _unreachable_states,
        TableRule.STATES_CAN_FINISH: _states_without_end,
    }
)
