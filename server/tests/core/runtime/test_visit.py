"""Visits: who gets which right, for how long, and that a link and a command count once."""

from dataclasses import replace

import pytest

from mooring.core.kernel.decision import Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.runtime.visit import (
    ARGUMENTS_BYTES_MAX,
    COMMAND_LIFETIME,
    CONNECT_LIFETIME,
    LINK_LIFETIME,
    SESSION_LIFETIME,
    ExecRequest,
    RelayAddress,
    VisitKind,
    begin_command,
    open_session,
    visit_command,
    visit_endpoint,
)
from server.tests.support.decision_context import context
from server.tests.support.sample_decisions.visits import (
    HASH,
    REQUESTED,
    a_command,
    a_link,
    an_endpoint,
    as_somebody,
    standing,
)
from tests.support.rows import every_row


@every_row(("kind", "lifetime"), [("connect", CONNECT_LIFETIME), ("browse", LINK_LIFETIME)])
def test_a_visit_to_an_endpoint_names_its_port_and_is_bounded(kind: str, lifetime: object) -> None:
    now = as_somebody(context())
    decision = visit_endpoint(now, an_endpoint(now), VisitKind(kind), HASH)
    visit = decision.result
    assert (visit.port, visit.endpoint_id, visit.owner, visit.token_id) == (8_080, "tsk_1", "alc_1/web", "tok_1")
    assert visit.expires_at - now.now == lifetime
    (row,) = decision.writes
    assert isinstance(row, Insert)
    assert row.row["ticket_hash"] == HASH
    assert [each.type for each in decision.events] == [EventType.VISIT_GRANTED]
    assert [each.action for each in decision.audits] == ["instance.connect"]


def test_a_command_is_audited_with_its_arguments_and_published_without_them() -> None:
    now = as_somebody(context())
    decision = visit_command(now, standing(now), REQUESTED, HASH)
    assert decision.result.expires_at - now.now == COMMAND_LIFETIME
    assert decision.audits[0].action == "instance.exec"
    assert decision.audits[0].after is not None
    assert decision.audits[0].after["argv"] == ["id", "-u"]
    assert "argv" not in decision.events[0].data


def test_a_command_at_a_terminal_is_recorded_with_its_instance() -> None:
    now = as_somebody(context())
    requested = replace(REQUESTED, terminal=False, directory="/home/app", environment={"A": "b"})
    decision = visit_command(now, standing(now), requested, HASH, "ins_1")
    visit = decision.result
    assert (visit.terminal, visit.directory, visit.environment) == (False, "/home/app", {"A": "b"})
    assert (decision.events[0].app_instance_id, decision.audits[0].app_instance_id) == ("ins_1", "ins_1")


def test_a_browser_is_for_pages_alone() -> None:
    now = as_somebody(context())
    raw = replace(an_endpoint(now), protocol="tcp")
    assert visit_endpoint(now, raw, VisitKind.CONNECT, HASH).result.port == 8_080
    with pytest.raises(Refusal) as refused:
        visit_endpoint(now, raw, VisitKind.BROWSE, HASH)
    assert refused.value.code is Code.CONFLICT


@every_row("user", ["root", "0", "00", "0:0", "000:7", ""])
def test_no_command_runs_as_root(user: str) -> None:
    now = as_somebody(context())
    with pytest.raises(Refusal) as refused:
        visit_command(now, standing(now), replace(REQUESTED, run_as=user), HASH)
    assert refused.value.code is Code.VALIDATION_FAILED


@every_row("argv", [(), ("",), ("a\x00b",), ("x" * (ARGUMENTS_BYTES_MAX + 1),)])
def test_a_command_has_a_program_and_bounded_arguments(argv: tuple[str, ...]) -> None:
    now = as_somebody(context())
    with pytest.raises(Refusal) as refused:
        visit_command(now, standing(now), ExecRequest(argv, "app", 80, 24), HASH)
    assert refused.value.code is Code.VALIDATION_FAILED


def test_a_command_runs_in_what_stands() -> None:
    now = as_somebody(context())
    for allocation in (replace(standing(now), status="releasing"), replace(standing(now), node_id=None)):
        with pytest.raises(Refusal) as refused:
            visit_command(now, allocation, REQUESTED, HASH)
        assert refused.value.code is Code.CONFLICT


def test_nobody_without_a_token_makes_a_visit() -> None:
    with pytest.raises(Refusal) as refused:
        visit_endpoint(context(), an_endpoint(context()), VisitKind.CONNECT, HASH)
    assert refused.value.code is Code.UNAUTHENTICATED


def test_a_link_becomes_a_session_once_under_another_secret() -> None:
    now = as_somebody(context())
    opened = open_session(now, a_link(now), b"s" * 32)
    assert opened.result.expires_at - now.now == SESSION_LIFETIME
    (change,) = opened.writes
    assert isinstance(change, Update)
    assert (opened.result.ticket_hash, opened.result.revision) == (b"s" * 32, 1)
    assert [each.type for each in opened.events] == [EventType.VISIT_OPENED]
    with pytest.raises(Refusal) as refused:
        open_session(now, opened.result, b"t" * 32)
    assert refused.value.code is Code.UNAUTHENTICATED


def test_a_command_starts_once() -> None:
    now = as_somebody(context())
    started = begin_command(now, a_command(now)).result
    with pytest.raises(Refusal) as refused:
        begin_command(now, started)
    assert refused.value.code is Code.UNAUTHENTICATED


def test_an_endpoint_has_an_origin_of_its_own() -> None:
    address = RelayAddress("http://relay", "https://*.apps.example.org")
    assert address.origin_of("tsk_01abc") == "https://e-01abc.apps.example.org"
