"""Reading the logs of a member's programs: which programs there are, the task that reads, and its result.

The full log is on the node, so each read is a task that goes there. A person asks for it, whose right to read tasks and
their logs was checked; the task itself belongs to the platform and leaves no trace. Every refusal contains the last
lines that the platform already has.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.task import Task, TaskState
from mooring.core.fleet.task_creation import TaskRequest, make_task
from mooring.core.fleet.task_family import FailureCode, RefusalReason
from mooring.core.fleet.task_log_read import CONTENT, LOG_READ
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.member import Member, MemberState
from mooring.core.runtime.member_task import STANDS

STARTS: Final = {"service.start": "service", "container.launch": "container"}
"""Task types that start a program with a log → the kind of that program."""
REPORTS_LAST_LINES: Final = frozenset({"service.inspect", "container.control", "container.launch"})
"""Task types whose results contain the last lines of a program."""
REMOVES: Final = "container.remove"
WAIT_SECONDS_MAX: Final = 20.0
ANSWER_SECONDS: Final = 15.0
"""How long a node has to answer, in addition to the time that the read itself waits."""
LIFETIME: Final = timedelta(seconds=45)
READS_OF_MEMBER: Final = 4
READS_OF_PROJECT: Final = 16
READS_OF_NODE: Final = 64
"""How many reads may be open at once; the agent accepts a few more, and other work at the same time."""
TAIL_LINES: Final = 100
LIMIT_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class MemberProgram:
    """A program of a member that has a log: a service or a container."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class LogReadRequest:
    """Which part of the log to read: from `offset`, or the last `tail` lines."""

    offset: int | None = None
    tail: int | None = None
    limit: int = LIMIT_BYTES
    wait_seconds: float = 0.0
    log: str = ""


@dataclass(frozen=True, slots=True)
class KnownPrograms:
    """What the platform knows of a member's programs without asking its node."""

    programs: tuple[MemberProgram, ...]
    lines: dict[str, tuple[str, ...]]  # by the program's name


@dataclass(frozen=True, slots=True)
class LogReadContext:
    """The member to read from, and how many reads are open there."""

    member: Member
    allocation: Allocation | None
    reachable: bool
    of_member: int = 0
    of_project: int = 0  # on this node, which other projects may share
    of_node: int = 0

    @property
    def open_reads(self) -> tuple[int, int, int]:
        """Open reads of the member, of its project, and of the node."""
        return self.of_member, self.of_project, self.of_node


@dataclass(frozen=True, slots=True)
class LogPart:
    content: bytes
    offset: int
    next_offset: int
    size: int
    truncated_before: bool
    dropped_bytes: int | None
    log: str


def known_programs(tasks: Sequence[Task]) -> KnownPrograms:
    """The programs that a member's tasks started and did not remove, with the last known lines of each."""
    programs: dict[str, MemberProgram] = {}
    lines: dict[str, tuple[str, ...]] = {}
    for task in sorted(tasks, key=lambda each: each.id):
        name = str(task.arguments.get("name", ""))
        if task.type in STARTS and task.first_claimed_at is not None:
            programs[name] = MemberProgram(name, STARTS[task.type])
        elif task.type == REMOVES and task.status == TaskState.SUCCEEDED:
            programs.pop(name, None)
        last_lines = (task.result or {}).get("last_lines") if task.type in REPORTS_LAST_LINES else None
        if last_lines:
            lines[name] = tuple(str(line) for line in last_lines)
    return KnownPrograms(tuple(sorted(programs.values(), key=lambda each: each.name)), lines)


def choose_program(known: KnownPrograms, member: Member, service: str | None) -> MemberProgram:
    """The named program, or the only one."""
    names = [each.name for each in known.programs]
    found = [each for each in known.programs if service in (None, each.name)]
    if len(found) == 1:
        return found[0]
    details = {"services": names, "member_id": member.id}
    if not found:
        details_with_lines = {**details, **last_known(known, member)}
        if service is not None:
            raise Refusal(
                Code.NOT_FOUND, f"member {member.name} has no service or container {service!r}", details_with_lines
            )
        raise Refusal(Code.CONFLICT, f"no service or container of member {member.name} was started", details_with_lines)
    raise Refusal(Code.VALIDATION_FAILED, f"service: must be one of {', '.join(names)}", {"path": "service", **details})


def last_known(known: KnownPrograms, member: Member, program: MemberProgram | None = None) -> dict[str, Any]:
    """The last known lines, which go into the details of every refusal."""
    lines = known.lines.get(program.name, ()) if program is not None else ()
    return {"last_lines": list(lines or member.last_lines or ())}


def build_read_task(
    context: DecisionContext,
    target: LogReadContext,
    program: MemberProgram,
    known: KnownPrograms,
    request: LogReadRequest,
) -> Decision[Task]:
    """The task that reads the log; refused if the node cannot answer, or too many reads are open."""
    details = {"member_id": target.member.id, **last_known(known, target.member, program)}
    allocation = _readable_allocation(target, details)
    bounds = (READS_OF_MEMBER, READS_OF_PROJECT, READS_OF_NODE)
    if any(count >= limit for count, limit in zip(target.open_reads, bounds, strict=True)):
        raise Refusal(
            Code.RATE_LIMITED, "too many log reads are already open there", {"retry_after_seconds": 1, **details}
        )
    arguments: dict[str, Any] = {"name": program.name, "kind": program.kind, "max_bytes": request.limit}
    if request.offset is None:
        arguments["tail_lines"] = request.tail or TAIL_LINES
    else:
        arguments |= {"offset": request.offset, "wait_seconds": request.wait_seconds, "log": request.log}
    new_task = make_task(
        context,
        TaskRequest(
            tenant_id=target.member.tenant_id,
            project_id=target.member.project_id,
            allocation_id=allocation.id,
            node_id=str(allocation.node_id),
            type=LOG_READ,
            step=f"{LOG_READ}/{context.mint(Prefix.CORRELATION)}",
            label=target.member.id,
            arguments=arguments,
            lifetime=LIFETIME,
        ),
    )
    return Decision(new_task.task, new_task.writes, traceless=True)


def _readable_allocation(target: LogReadContext, details: dict[str, Any]) -> Allocation:
    """The allocation to read from, refused if there is no log or the node does not answer."""
    member, allocation = target.member, target.allocation
    if member.status in (MemberState.REMOVING, MemberState.REMOVED):
        raise Refusal(
            Code.CONFLICT, f"member {member.name} is {member.status}, and its logs are removed with it", details
        )
    if allocation is None or allocation.status not in STANDS or allocation.node_id is None:
        how = "in no allocation" if allocation is None else f"in an allocation that is {allocation.status}"
        raise Refusal(Code.CONFLICT, f"member {member.name} is {how}: it has no log to read", details)
    if not target.reachable:
        raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the member's node does not answer at the moment", details)
    return allocation


def outcome(task: Task, details: dict[str, Any]) -> LogPart:
    """The part that the node read, or the refusal that says why not; `details` goes into every refusal."""
    if task.status == TaskState.SUCCEEDED:
        return _read(task, details)
    detail = (task.failure_detail or "")[:500]
    if not task.is_over or task.status == TaskState.EXPIRED:
        raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the member's node did not answer in time", details)
    if task.failure_code == FailureCode.NOT_FOUND:
        raise Refusal(Code.NOT_FOUND, f"the node has no such log: {detail}", details)
    if task.failure_code == FailureCode.REFUSED and detail.startswith(RefusalReason.UNKNOWN_TYPE):
        raise Refusal(Code.NOT_SUPPORTED, "the agent of the member's node is too old to read logs", details)
    if task.failure_code in (FailureCode.REFUSED, FailureCode.CANCELLED) or task.status == TaskState.CANCELLED:
        raise Refusal(Code.CONFLICT, f"the log can no longer be read: {detail or 'the read was cancelled'}", details)
    raise Refusal(Code.TEMPORARILY_UNAVAILABLE, f"the node could not read the log: {detail}", details)


def _read(task: Task, details: dict[str, Any]) -> LogPart:
    result = task.result or {}
    try:
        content = base64.b64decode(result.get(CONTENT, ""), validate=True)
    except binascii.Error as error:  # the schema only checks the alphabet
        raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the node sent malformed log content", details) from error
    return LogPart(
        content=content,
        offset=int(result["offset"]),
        next_offset=int(result["next_offset"]),
        size=int(result["size"]),
        truncated_before=bool(result["truncated_before"]),
        dropped_bytes=result.get("dropped_bytes"),
        log=str(result.get("log", "")),
    )


def check_request(request: LogReadRequest) -> LogReadRequest:
    """Refuse an offset together with a tail, and waiting without an offset."""
    if request.offset is not None and request.tail is not None:
        raise invalid("tail", "not allowed together with an offset")
    if request.offset is None and request.wait_seconds:
        raise invalid("wait", "needs an offset: without one the last lines are returned at once")
    return request
