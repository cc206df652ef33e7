"""Every lifecycle, compared cell by cell with what the architecture says of it.

`TRANSCRIPT` is section 4 of the architecture, written down by hand as lines `source trigger target`; a
machine begins in the first word of its first line. It is deliberately not derived from the tables: a slip
in a table shows as a difference from it, so a change of a lifecycle is written twice.
"""

from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.core.kernel.errors import Code
from mooring.core.kernel.lifecycle import AnyLifecycle, IllegalTransition, UnknownWord, Who
from mooring.core.lifecycle_docs import birth_rows, edge_rows
from mooring.core.lifecycles import LIFECYCLES, DuplicateLifecycle, UnknownLifecycle, by_name, index_by_name
from mooring.core.runtime.instance import INSTANCE, InstanceState, InstanceTrigger
from mooring.core.runtime.member import MEMBER, MemberState
from tests.support.rows import every_row

TRANSCRIPT: dict[str, str] = {
    "promotion": """
        draft stage staged
        staged canary canary
        canary activate active
        active deprecate deprecated
        deprecated retire retired
        canary rollback staged
        draft withdraw retired
        staged withdraw retired
    """,
    "trust": """
        unverified verify verified
        unverified reject rejected
        verified reject rejected
        rejected verify verified
        verified lose_evidence unverified
        unverified revoke revoked
        verified revoke revoked
        rejected revoke revoked
    """,
    "artifact_check": """
        accepted start running
        running lose_lease accepted
        running succeed succeeded
        running fail failed
        accepted cancel cancelled
        running cancel cancelled
    """,
    "allocation": """
        requested provision provisioning
        provisioning activate active
        active release releasing
        releasing finish_teardown released
        requested fail failed
        provisioning fail failed
        failed release releasing
        releasing fail_teardown release_failed
        release_failed release releasing
        releasing write_off released
        release_failed write_off released
    """,
    "instance": """
        created start starting
        starting report_ready running
        running stop stopping
        stopping finish_teardown stopped
        created stop stopping
        starting stop stopping
        failed stop stopping
        created fail failed
        starting fail failed
        running fail failed
    """,
    "member": """
        requested join joining
        joining report_ready ready
        ready degrade degraded
        degraded recover ready
        ready drain draining
        degraded drain draining
        draining finish_drain drained
        drained resume ready
        draining resume ready
        requested remove removing
        joining remove removing
        ready remove removing
        degraded remove removing
        draining remove removing
        drained remove removing
        failed remove removing
        removing finish_teardown removed
        requested fail failed
        joining fail failed
        ready fail failed
        degraded fail failed
        draining fail failed
        drained fail failed
        failed repair joining
    """,
    "operation": """
        accepted start running
        running succeed succeeded
        running fail failed
        accepted block blocked
        running block blocked
        blocked unblock running
        accepted fail failed
        blocked fail failed
        accepted cancel cancelling
        running cancel cancelling
        blocked cancel cancelling
        cancelling finish_cancel cancelled
        cancelling succeed succeeded
        cancelling fail failed
    """,
    "task": """
        queued claim claimed
        claimed succeed succeeded
        claimed fail failed
        claimed lose_lease queued
        queued cancel cancelled
        claimed cancel cancelling
        cancelling finish_cancel cancelled
        cancelling succeed succeeded
        cancelling fail failed
        queued expire expired
        claimed expire expired
        cancelling expire expired
    """,
    "node": """
        enrolled report_ready ready
        enrolled await_approval pending
        pending approve ready
        pending reject retired
        pending retire retired
        ready drain draining
        draining finish_drain drained
        drained resume ready
        draining resume ready
        enrolled retire retired
        ready retire retired
        draining retire retired
        drained retire retired
    """,
    "service_account": """
        active disable disabled
        disabled enable active
        active delete deleted
        disabled delete deleted
    """,
    "attachment": """
        requested activate active
        active detach detaching
        detaching finish_detach detached
        requested refuse refused
    """,
    "statement": """
        open freeze closing
        closing close closed
    """,
}

FINAL: dict[str, set[str]] = {
    "promotion": {"retired"},
    "trust": {"revoked"},
    "artifact_check": {"succeeded", "failed", "cancelled"},
    "allocation": {"released"},
    "instance": {"stopped"},
    "member": {"removed"},
    "operation": {"succeeded", "failed", "cancelled"},
    "task": {"succeeded", "failed", "cancelled", "expired"},
    "node": {"retired"},
    "service_account": {"deleted"},
    "attachment": {"detached", "refused"},
    "statement": {"closed"},
}

WALK_STEPS_MAX = 60

CELLS = [
    pytest.param(machine, state, trigger, id=f"{machine.name}-{state}-{trigger}")
    for machine in LIFECYCLES
    for state in machine.states
    for trigger in machine.triggers
]
EACH = pytest.mark.parametrize("machine", LIFECYCLES, ids=lambda machine: machine.name)


def transcript_lines(machine: str) -> list[tuple[str, str, str]]:
    """The edges of one machine as they were written down."""
    lines = [line.split() for line in TRANSCRIPT[machine].strip().splitlines()]
    return [(source, trigger, target) for source, trigger, target in lines]


@every_row(("machine", "state", "trigger"), CELLS, by=lambda machine, *_: machine.name)
def test_every_cell_is_an_edge_or_a_refusal_that_says_what_is_accepted(
    machine: AnyLifecycle, state: StrEnum, trigger: StrEnum
) -> None:
    written = {(source, by): target for source, by, target in transcript_lines(machine.name)}
    target = written.get((state.value, trigger.value))
    if target is not None:
        edge = machine.step(state, trigger)
        assert (edge.source, edge.trigger, edge.target) == (state, trigger, target)
        return
    with pytest.raises(IllegalTransition) as caught:
        machine.step(state, trigger)
    accepted = {by for source, by in written if source == state.value}
    assert set(caught.value.allowed) == accepted
    assert len(caught.value.allowed) == len(accepted)
    assert (caught.value.machine, caught.value.state, caught.value.trigger) == (machine.name, state, trigger)
    assert caught.value.code is Code.ILLEGAL_TRANSITION
    assert caught.value.details == {
        "machine": machine.name,
        "state": state.value,
        "trigger": trigger.value,
        "allowed": [each.value for each in machine.allowed(state)],
    }


@EACH
def test_the_table_has_exactly_the_edges_that_were_written_down(machine: AnyLifecycle) -> None:
    in_table = [(edge.source.value, edge.trigger.value, edge.target.value) for edge in machine.edges]
    written = transcript_lines(machine.name)

    assert sorted(in_table) == sorted(written)
    assert len(set(written)) == len(written)


@EACH
def test_the_table_begins_and_ends_where_it_was_written_down(machine: AnyLifecycle) -> None:
    assert machine.initial == transcript_lines(machine.name)[0][0]
    assert machine.final == FINAL[machine.name]


def test_every_lifecycle_was_written_down_and_every_one_written_down_exists() -> None:
    assert [machine.name for machine in LIFECYCLES] == list(TRANSCRIPT)


def test_the_seed_has_every_edge_that_was_written_down_and_no_other() -> None:
    written = {(machine.name, *line) for machine in LIFECYCLES for line in transcript_lines(machine.name)}
    rows = edge_rows(LIFECYCLES)

    assert set(rows) == written
    assert len(rows) == len(written)
    assert all(type(word) is str for row in rows for word in row)


def test_every_machine_is_born_in_one_state() -> None:
    assert birth_rows(LIFECYCLES) == tuple(
        (machine.name, transcript_lines(machine.name)[0][0]) for machine in LIFECYCLES
    )


@given(st.data())
def test_a_random_walk_stays_in_the_table_and_rests_only_in_a_final_state(data: st.DataObject) -> None:
    machine = data.draw(st.sampled_from(LIFECYCLES))
    state, steps = machine.initial, 0
    while machine.allowed(state) and steps < WALK_STEPS_MAX:
        edge = machine.step(state, data.draw(st.sampled_from(machine.allowed(state))))
        assert edge.source is state
        state, steps = edge.target, steps + 1
    assert (state in machine.final) == (machine.allowed(state) == ())


@EACH
def test_every_final_state_requires_the_time_at_which_it_was_reached(machine: AnyLifecycle) -> None:
    for state in machine.final:
        assert machine.requires[state] & {f"{state}_at", "finished_at"}


@EACH
def test_every_reason_is_a_sentence_and_every_meaning_is_a_phrase(machine: AnyLifecycle) -> None:
    for edge in machine.edges:
        assert edge.why[0].isupper(), edge
        assert edge.why.endswith("."), edge
        assert isinstance(edge.by, Who)
    for meaning in machine.meaning.values():
        assert not meaning.endswith("."), meaning


def test_only_stopped_and_removed_need_closing_records() -> None:
    needing = {(machine.name, state.value) for machine in LIFECYCLES for state in machine.needs_closing_records}

    assert needing == {("instance", "stopped"), ("member", "removed")}


def test_a_refusal_of_a_final_state_says_that_nothing_is_accepted() -> None:
    with pytest.raises(IllegalTransition, match="cannot stop; it accepts nothing, the state is final"):
        INSTANCE.step(InstanceState.STOPPED, InstanceTrigger.STOP)


def test_text_from_a_row_becomes_a_state_and_unknown_text_is_a_mistake_of_ours() -> None:
    assert INSTANCE.parse_state("running") is InstanceState.RUNNING
    assert INSTANCE.parse_trigger("stop") is InstanceTrigger.STOP
    with pytest.raises(UnknownWord, match="instance does not know 'drained'"):
        INSTANCE.parse_state("drained")
    with pytest.raises(UnknownWord, match="instance does not know 'drain'"):
        INSTANCE.parse_trigger("drain")


def test_a_state_of_another_machine_is_not_answered_as_an_illegal_transition() -> None:
    foreign: AnyLifecycle = INSTANCE
    with pytest.raises(UnknownWord):
        foreign.step(MemberState.DRAINED, InstanceTrigger.STOP)
    with pytest.raises(UnknownWord):
        foreign.allowed(MemberState.DRAINED)


def test_a_lifecycle_is_found_by_its_name() -> None:
    assert [by_name(machine.name) for machine in LIFECYCLES] == list(LIFECYCLES)
    with pytest.raises(UnknownLifecycle, match="there is no lifecycle 'slot'; there are promotion, trust"):
        by_name("slot")


def test_two_lifecycles_cannot_share_a_name() -> None:
    with pytest.raises(DuplicateLifecycle, match="two lifecycles have the name 'member'"):
        index_by_name((MEMBER, INSTANCE, MEMBER))
