"""Reading members' logs: which programs there are, which nodes may be asked, and what is shown when none can be."""

import base64
from dataclasses import replace
from typing import Any

import pytest

from mooring.core.fleet.task import SYSTEM_MAKER, Task
from mooring.core.fleet.task_report import TaskResultReport, counted, why_no_result
from mooring.core.fleet.task_transitions import TaskEnd, TaskOutcome, cancel, finish, lapse
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.member_log import (
    READS_OF_MEMBER,
    READS_OF_NODE,
    READS_OF_PROJECT,
    KnownPrograms,
    LogReadContext,
    LogReadRequest,
    MemberProgram,
    build_read_task,
    check_request,
    choose_program,
    known_programs,
    outcome,
)
from server.tests.core.runtime.test_why import BEFORE, allocation, member, task
from server.tests.support.lifecycle_rows import context
from tests.support.rows import every_row

WEB = MemberProgram("web", "service")
KNOWN = KnownPrograms((WEB,), {"web": ("it broke",)})
READ_CONTEXT = LogReadContext(member(), allocation(node_id="nod_1"), reachable=True)


def started(number: int, type_: str, name: str, **columns: Any) -> Task:
    """A task that concerns a program."""
    given = {"status": "succeeded", "first_claimed_at": BEFORE} | columns
    return task(id=f"tsk_{number:03}", type=type_, arguments={"name": name}, **given)


def read_task() -> Task:
    """A read that a person asked for."""
    return build_read_task(context(), READ_CONTEXT, WEB, KNOWN, LogReadRequest(4, None, 4_096, 20.0)).result


def test_programs_are_those_that_were_begun_and_not_removed() -> None:
    known = known_programs(
        [
            started(5, "container.remove", "gone"),
            started(1, "service.start", "web", status="failed"),
            started(2, "container.launch", "gone"),
            started(3, "container.launch", "db", result={"last_lines": ["first"]}),
            started(4, "service.start", "never", status="cancelled", first_claimed_at=None),
            started(6, "container.control", "db", result={"last_lines": ["later"]}),
            started(7, "service.inspect", "web", result={"last_lines": []}),
        ]
    )
    assert known.programs == (MemberProgram("db", "container"), WEB)
    assert known.lines == {"db": ("later",)}


def test_the_only_program_needs_no_name_and_of_several_one_is_named() -> None:
    two = KnownPrograms((MemberProgram("db", "container"), WEB), {})
    assert choose_program(KNOWN, member(), None) == WEB
    assert choose_program(two, member(), "db") == MemberProgram("db", "container")
    with pytest.raises(Refusal) as vague:
        choose_program(two, member(), None)
    assert vague.value.code is Code.VALIDATION_FAILED
    assert vague.value.details["services"] == ["db", "web"]
    with pytest.raises(Refusal) as unknown:
        choose_program(two, member(last_lines=["bye"]), "other")
    assert unknown.value.code is Code.NOT_FOUND
    assert unknown.value.details["last_lines"] == ["bye"]
    with pytest.raises(Refusal) as early:
        choose_program(KnownPrograms((), {}), member(), None)
    assert early.value.code is Code.CONFLICT


def test_the_task_is_the_members_and_leaves_no_trace_from_its_beginning_to_its_end() -> None:
    made = build_read_task(context(), READ_CONTEXT, WEB, KNOWN, LogReadRequest(tail=3))
    assert (made.result.owner, made.result.maker, made.result.type) == ("alc_1/mem_1", SYSTEM_MAKER, "log.read")
    assert made.result.arguments == {"name": "web", "kind": "service", "max_bytes": 65_536, "tail_lines": 3}
    held = replace(made.result, status="claimed", fence=1, lease_expires_at=context().now)
    ended = finish(context(), held, TaskEnd(TaskOutcome.SUCCEEDED, result={}))
    decisions = [made, ended, cancel(context(), made.result), cancel(context(), held), lapse(context(), [held])]
    assert [(each.events, each.audits) for each in decisions] == [((), ())] * 5
    assert all(each.writes for each in decisions)


def test_a_read_for_an_adapter_is_published_as_its_other_tasks_are() -> None:
    own = replace(read_task(), maker="sac_1")
    assert not own.is_quiet
    assert finish(context(), replace(own, status="claimed"), TaskEnd(TaskOutcome.SUCCEEDED, result={})).events


@every_row(
    ("read_context", "code"),
    [
        (replace(READ_CONTEXT, member=member(status="removed")), Code.CONFLICT),
        (replace(READ_CONTEXT, member=member(status="removing")), Code.CONFLICT),
        (replace(READ_CONTEXT, allocation=None), Code.CONFLICT),
        (replace(READ_CONTEXT, allocation=allocation(status="released", node_id="nod_1")), Code.CONFLICT),
        (replace(READ_CONTEXT, reachable=False), Code.TEMPORARILY_UNAVAILABLE),
        (replace(READ_CONTEXT, of_member=READS_OF_MEMBER), Code.RATE_LIMITED),
        (replace(READ_CONTEXT, of_project=READS_OF_PROJECT), Code.RATE_LIMITED),
        (replace(READ_CONTEXT, of_node=READS_OF_NODE), Code.RATE_LIMITED),
    ],
)
def test_a_node_that_cannot_be_asked_is_not_asked_and_the_last_lines_are_shown(
    read_context: LogReadContext, code: Code
) -> None:
    with pytest.raises(Refusal) as refused:
        build_read_task(context(), read_context, WEB, KNOWN, LogReadRequest())
    assert refused.value.code is code
    assert refused.value.details["last_lines"] == ["it broke"]


@every_row(
    ("columns", "code"),
    [
        ({"status": "queued"}, Code.TEMPORARILY_UNAVAILABLE),
        ({"status": "expired"}, Code.TEMPORARILY_UNAVAILABLE),
        ({"status": "failed", "failure_code": "not_found"}, Code.NOT_FOUND),
        ({"status": "failed", "failure_code": "capacity"}, Code.TEMPORARILY_UNAVAILABLE),
        ({"status": "failed", "failure_code": "cancelled"}, Code.CONFLICT),
        ({"status": "cancelled"}, Code.CONFLICT),
        ({"status": "failed", "failure_code": "refused", "failure_detail": "owner_closed: x"}, Code.CONFLICT),
        ({"status": "failed", "failure_code": "refused", "failure_detail": "unknown_type: x"}, Code.NOT_SUPPORTED),
        ({"status": "succeeded", "result": {"content_base64": "A"}}, Code.TEMPORARILY_UNAVAILABLE),
    ],
)
def test_a_failure_on_the_node_is_reported_by_its_meaning(columns: dict[str, Any], code: Code) -> None:
    with pytest.raises(Refusal) as refused:
        outcome(replace(read_task(), **columns), {"last_lines": ["x"]})
    assert (refused.value.code, refused.value.details) == (code, {"last_lines": ["x"]})


def test_a_place_and_lines_from_the_end_exclude_each_other_and_only_a_place_is_waited_at() -> None:
    for wrong in (LogReadRequest(offset=1, tail=1), LogReadRequest(wait_seconds=1.0)):
        with pytest.raises(Refusal) as refused:
            check_request(wrong)
        assert refused.value.code is Code.VALIDATION_FAILED
    assert check_request(LogReadRequest(offset=1, wait_seconds=1.0)).offset == 1


def test_a_node_gives_no_more_of_a_log_than_it_was_asked_for_and_nothing_beside_a_read() -> None:
    asked, content = read_task(), base64.b64encode(b"x" * 4_096).decode()
    at = {"offset": 4, "next_offset": 5, "size": 9, "truncated_before": False}

    def verdict(of: Task, given: str, how: TaskOutcome = TaskOutcome.SUCCEEDED) -> bool:
        ended = TaskEnd(how, "host_error", "no", result={"content_base64": given, **at})
        return why_no_result(of, TaskResultReport(of.id, 1, ended)) is None

    assert verdict(asked, content)
    assert not verdict(asked, content * 2)
    assert not verdict(asked, content * 2, TaskOutcome.FAILED)
    assert not verdict(task(type="process.run"), content, TaskOutcome.FAILED)
    assert not verdict(asked, "not base64!")
    assert counted({"content_base64": content, "size": 1}) == {"size": 1}
