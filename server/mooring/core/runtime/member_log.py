"""Reading what the programs of a member wrote: which there are, the task that reads, and what came of it.

The full log lies on the node, so a read goes there, as a task that only looks. It is asked for by a person, whose right
to read tasks and their logs was checked; the task is the platform's own and leaves no trace. What the platform knows
without the node, the last lines that somebody looked at, is told with every refusal.
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
"""What starts a program that has a log, and what that program is then."""
TELLS: Final = frozenset({"service.inspect", "container.control", "container.launch"})
"""Whose results hold the last lines of a program."""
REMOVES: Final = "container.remove"
WAIT_SECONDS_MAX: Final = 20.0
ANSWER_SECONDS: Final = 15.0
"""How long a node gets to answer, beside the time that the read itself waits."""
LIFETIME: Final = timedelta(seconds=45)
READS_OF_MEMBER: Final = 4
READS_OF_PROJECT: Final = 16
READS_OF_NODE: Final = 64
"""Reads that are open at once; the agent takes a few more, and other work beside them."""
TAIL_LINES: Final = 100
LIMIT_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class MemberProgram:
    """Something of a member that has a log."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class LogReadRequest:
    """Which part of the log is wanted."""

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
    """Where a read goes, and how many are under way there."""

    member: Member
    allocation: Allocation | None
    reachable: bool
    of_member: int = 0
    of_project: int = 0  # on this node, which other projects have too
    of_node: int = 0

    @property
    def open_reads(self) -> tuple[int, int, int]:
        """How many are under way: for the member, for its project and for all."""
        return self.of_member, self.of_project, self.of_node


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log that was read."""

    content: bytes
    offset: int
    next_offset: int
    size: int
    truncated_before: bool
    dropped_bytes: int | None
    log: str


def known_of(tasks: Sequence[Task]) -> KnownPrograms:
    """The programs that a member's tasks started and did not remove, and the last lines that were seen of each."""
    programs: dict[str, MemberProgram] = {}
    lines: dict[str, tuple[str, ...]] = {}
    for task in sorted(tasks, key=lambda each: each.id):
        name = str(task.arguments.get("name", ""))
        if task.type in STARTS and task.first_claimed_at is not None:
            programs[name] = MemberProgram(name, STARTS[task.type])
        elif task.type == REMOVES and task.status == TaskState.SUCCEEDED:
            programs.pop(name, None)
        told = (task.result or {}).get("last_lines") if task.type in TELLS else None
        if told:
            lines[name] = tuple(str(line) for line in told)
    return KnownPrograms(tuple(sorted(programs.values(), key=lambda each: each.name)), lines)


def chosen(known: KnownPrograms, member: Member, service: str | None) -> MemberProgram:
    """The program whose log is meant: the named one, or the only one."""
    names = [each.name for each in known.programs]
    found = [each for each in known.programs if service in (None, each.name)]
    if len(found) == 1:
        return found[0]
    details = {"services": names, "member_id": member.id}
    if not found:
        told = {**details, **last_known(known, member)}
        if service is not None:
            raise Refusal(Code.NOT_FOUND, f"member {member.name} has no service and no container {service!r}", told)
        raise Refusal(Code.CONFLICT, f"member {member.name} has no service and no container that was started", told)
    raise Refusal(Code.VALIDATION_FAILED, f"service: say which, of {', '.join(names)}", {"path": "service", **details})


def last_known(known: KnownPrograms, member: Member, program: MemberProgram | None = None) -> dict[str, Any]:
    """What is told beside a refusal: the last lines that somebody saw."""
    seen = known.lines.get(program.name, ()) if program is not None else ()
    return {"last_lines": list(seen or member.last_lines or ())}


def ask(
    context: DecisionContext,
    ground: LogReadContext,
    program: MemberProgram,
    known: KnownPrograms,
    wanted: LogReadRequest,
) -> Decision[Task]:
    """The task that reads; a refusal where nobody could answer it, or where too many read already."""
    told = {"member_id": ground.member.id, **last_known(known, ground.member, program)}
    allocation = _standing(ground, told)
    bounds = (READS_OF_MEMBER, READS_OF_PROJECT, READS_OF_NODE)
    if any(open_ >= most for open_, most in zip(ground.open_reads, bounds, strict=True)):
        raise Refusal(Code.RATE_LIMITED, "enough logs are being read there already", {"retry_after_seconds": 1, **told})
    arguments: dict[str, Any] = {"name": program.name, "kind": program.kind, "max_bytes": wanted.limit}
    if wanted.offset is None:
        arguments["tail_lines"] = wanted.tail or TAIL_LINES
    else:
        arguments |= {"offset": wanted.offset, "wait_seconds": wanted.wait_seconds, "log": wanted.log}
    made = make_task(
        context,
        TaskRequest(
            tenant_id=ground.member.tenant_id,
            project_id=ground.member.project_id,
            allocation_id=allocation.id,
            node_id=str(allocation.node_id),
            type=LOG_READ,
            step=f"{LOG_READ}/{context.mint(Prefix.CORRELATION)}",
            label=ground.member.id,
            arguments=arguments,
            lifetime=LIFETIME,
        ),
    )
    return Decision(made.task, made.writes, traceless=True)


def _standing(ground: LogReadContext, told: dict[str, Any]) -> Allocation:
    member, allocation = ground.member, ground.allocation
    if member.status in (MemberState.REMOVING, MemberState.REMOVED):
        raise Refusal(Code.CONFLICT, f"member {member.name} is {member.status}, and its logs go with it", told)
    if allocation is None or allocation.status not in STANDS or allocation.node_id is None:
        how = "in no allocation" if allocation is None else f"in an allocation that is {allocation.status}"
        raise Refusal(Code.CONFLICT, f"member {member.name} is {how}: there is no log to read", told)
    if not ground.reachable:
        raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the member's node does not answer now", told)
    return allocation


def outcome(task: Task, told: dict[str, Any]) -> LogPart:
    """What the node read, or why it did not; `told` goes into every refusal."""
    if task.status == TaskState.SUCCEEDED:
        return _read(task, told)
    detail = (task.failure_detail or "")[:500]
    if not task.is_over or task.status == TaskState.EXPIRED:
        raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the member's node did not answer in time", told)
    if task.failure_code == FailureCode.NOT_FOUND:
        raise Refusal(Code.NOT_FOUND, f"the node has no such log: {detail}", told)
    if task.failure_code == FailureCode.REFUSED and detail.startswith(RefusalReason.UNKNOWN_TYPE):
        raise Refusal(Code.NOT_SUPPORTED, "the agent of the member's node is too old to read logs", told)
    if task.failure_code in (FailureCode.REFUSED, FailureCode.CANCELLED) or task.status == TaskState.CANCELLED:
        raise Refusal(Code.CONFLICT, f"the log cannot be read any more: {detail or 'the read was cut short'}", told)
    raise Refusal(Code.TEMPORARILY_UNAVAILABLE, f"the node could not read the log: {detail}", told)


def _read(task: Task, told: dict[str, Any]) -> LogPart:
    result = task.result or {}
    try:
        content = base64.b64decode(result.get(CONTENT, ""), validate=True)
    except binascii.Error as error:  # the schema looks at the letters alone
        raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "what the node read cannot be understood", told) from error
    return LogPart(
        content=content,
        offset=int(result["offset"]),
        next_offset=int(result["next_offset"]),
        size=int(result["size"]),
        truncated_before=bool(result["truncated_before"]),
        dropped_bytes=result.get("dropped_bytes"),
        log=str(result.get("log", "")),
    )


def check_ask(wanted: LogReadRequest) -> LogReadRequest:
    """A place or the last lines, not both; and nobody waits for what was written already."""
    if wanted.offset is not None and wanted.tail is not None:
        raise invalid("tail", "an offset, or a number of lines from the end, not both")
    if wanted.offset is None and wanted.wait_seconds:
        raise invalid("wait", "an offset beside it: without one the last lines are told at once")
    return wanted
