"""How each function that decides about visits is driven, for the tests of every statement."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from mooring.core.fleet.allocation import Allocation
from mooring.core.kernel.decision import Actor, Decision, DecisionContext, PrincipalKind
from mooring.core.runtime import exec_recording
from mooring.core.runtime.visit import (
    ExecRequest,
    Visit,
    VisitEndpoint,
    VisitKind,
    begin_command,
    end_terminal,
    open_session,
    visit_command,
    visit_endpoint,
)
from server.tests.support.allocation_rows import requested

HASH: Final = b"h" * 32
REQUESTED: Final = ExecRequest(("id", "-u"), "app", 80, 24, "web")


def as_somebody(now: DecisionContext) -> DecisionContext:
    """The same moment, of somebody who holds a token."""
    return replace(now, actor=Actor(PrincipalKind.USER, "usr_1", "tok_1"))


def an_endpoint(now: DecisionContext) -> VisitEndpoint:
    """A web app's port."""
    return VisitEndpoint("tsk_1", "ten_1", "prj_1", "alc_1", "nod_1", "alc_1/web", None, "web", 8_080, "http", now.now)


def standing(now: DecisionContext) -> Allocation:
    """An allocation in which commands run."""
    return replace(requested(now, ("ten_1", "prj_1")), status="active", node_id="nod_1")


def a_link(now: DecisionContext) -> Visit:
    """A link that nobody used yet."""
    return visit_endpoint(as_somebody(now), an_endpoint(now), VisitKind.BROWSE, HASH).result


def a_command(now: DecisionContext) -> Visit:
    """A command that nobody started yet."""
    return visit_command(as_somebody(now), standing(now), REQUESTED, HASH).result


def _both_ways(now: DecisionContext) -> Iterator[Decision[Any]]:
    for kind in (VisitKind.CONNECT, VisitKind.BROWSE):
        yield visit_endpoint(as_somebody(now), an_endpoint(now), kind, HASH)


def a_recording(now: DecisionContext) -> exec_recording.ExecRecording:
    """The recording of a command."""
    return exec_recording.ExecRecording(
        "rec_1", "ten_1", "prj_1", "alc_1", "vis_1", "usr_1", now.correlation_id, now.now
    )


DRIVEN_VISITS: Final[dict[str, Callable[[DecisionContext], Decision[Any] | Iterator[Decision[Any]]]]] = {
    "visit.begin_command": lambda now: begin_command(as_somebody(now), a_command(now)),
    "visit.end_terminal": lambda now: end_terminal(as_somebody(now), a_command(now), "its user ended it"),
    "visit.open_session": lambda now: open_session(as_somebody(now), a_link(now), b"s" * 32),
    "visit.visit_command": lambda now: visit_command(as_somebody(now), standing(now), REQUESTED, HASH),
    "visit.visit_endpoint": _both_ways,
    "exec_recording.read_recording": lambda now: exec_recording.read_recording(
        a_recording(now), exec_recording.RecordingPart(a_recording(now), "", None), 0
    ),
}
