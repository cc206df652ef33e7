"""`--wait`: wait for what a command started, and show its progress.

The command reads what it started, with a request that the server answers when it changed; no events are needed. What it
shows is one display for all commands: the operation with its step and the elapsed time, its members by name, and the
cause that `mooring why` names when nothing has moved for some time. The exit code is 0 if it succeeded, 1 if it failed.
Ctrl-C ends only the waiting.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import click

from mooring_cli import output
from mooring_cli.failures import INTERRUPTED
from mooring_cli.invocation import Invocation
from mooring_cli.nouns import Verb
from mooring_cli.output import plain
from mooring_cli.progress import ELAPSED, ProgressDisplay, in_words

FAILED_EXIT = 1
WAIT_SECONDS = 5
STILL_SECONDS = 10.0
OUTAGE_SECONDS_MAX = 600.0
MEMBERS_SHOWN = 12
LAST_LINES = 10
REFUSED = (403, 404)


class Goal(NamedTuple):
    """When the waiting is over, and how what was started is read."""

    read: str  # the operation of the API that reads it
    parameter: str
    good: tuple[str, ...]
    bad: tuple[str, ...] = ()
    noun: str = ""


OPERATION = Goal("get_operation", "operation_id", ("succeeded",), ("failed", "cancelled"), "operation")
ATTACHED = OPERATION._replace(read="get_attachment_operation")
INSTANCE = Goal("get_instance", "instance_id", ("running",), ("failed", "stopped"), "instance")
STOPPED = INSTANCE._replace(good=("stopped",), bad=("failed",))
ACTIVE = Goal("get_allocation", "allocation_id", ("active",), ("failed", "released", "release_failed"), "allocation")
RELEASED = ACTIVE._replace(good=("released",), bad=("release_failed",))
TASK = Goal("get_task", "task_id", ("succeeded",), ("failed", "cancelled", "expired"), "task")
ATTACHMENT = Goal("get_attachment", "attachment_id", ("active",), ("refused", "detached"), "attachment")
DETACHED = ATTACHMENT._replace(good=("detached",), bad=("refused",))
NODE = Goal("get_node", "node_id", ("drained",), ("retired",), "node")
GOALS: dict[str, Goal] = {
    **dict.fromkeys(
        (
            "add_members",
            "delete_instance",
            "drain_member",
            "reconcile_instance",
            "remove_member",
            "repair_instance",
            "replace_member",
            "restart_instance",
            "rollback_instance",
            "start_instance_action",
            "stop_instance",
            "update_instance",
            "upgrade_instance",
        ),
        OPERATION,
    ),
    "cancel_operation": OPERATION._replace(good=("cancelled",), bad=("failed", "succeeded")),
    "cancel_task": TASK._replace(good=("cancelled",), bad=("failed", "succeeded", "expired")),
    "create_allocation": ACTIVE,
    "create_allocation_group": ACTIVE,
    "create_allocation_task": TASK,
    "create_attachment": ATTACHMENT,
    "create_instance": INSTANCE,
    "delete_attachment": DETACHED,
    "detach_attachment": DETACHED,
    "drain_node": NODE,
    "release_allocation": RELEASED,
    "release_allocation_group": RELEASED,
    "retry_allocation": ACTIVE,
    "start_attachment_action": ATTACHED,
}
"""What each command that starts something waits for, by its operation of the API."""


def goal_of(verb: Verb) -> Goal | None:
    """What a verb waits for with --wait; None if it starts nothing."""
    return GOALS.get(verb.endpoints[0].operation)


def waits_at_server(verb: Verb) -> bool:
    """Whether the verb has a --wait of its own: the seconds that the server may wait with its answer."""
    return any(field.path == ("wait",) for endpoint in verb.endpoints for field in endpoint.query)


def wait_option() -> click.Option:
    about = "Wait until it has ended, and show its progress; the exit code is 1 if it failed."
    return click.Option(["--wait/--no-wait", "waits"], default=False, help=about)


def wait_for(invocation: Invocation, goal: Goal, path: dict[str, str], answer: dict[str, Any]) -> int | None:
    """Wait for what was started, show how it ended, and return the exit code; an answer may have several parts."""
    parts = answer["allocations"] if "allocations" in answer and goal.noun == "allocation" else [answer]
    with ProgressDisplay.of(invocation) as display:
        waiters = [Waiter(invocation, goal, {**path, goal.parameter: str(part["id"])}, part, display) for part in parts]
        try:
            ended = [each.run() for each in waiters]
        except KeyboardInterrupt:
            display.close()
            output.note(going_on(goal, path, parts[0]))
            raise click.exceptions.Exit(INTERRUPTED) from None
    if invocation.output != "table":
        output.show(invocation.output, ended[0] if len(ended) == 1 else ended)
    else:
        for each in ended:
            show_end(goal, each, display.elapsed_seconds)
    return None if all(each["status"] in goal.good for each in ended) else FAILED_EXIT


def going_on(goal: Goal, path: dict[str, str], started: dict[str, Any]) -> str:
    """What Ctrl-C does not end, and how to come back to it."""
    name = output.name_of(started)
    ways = {
        "operation": [
            f"mooring instances operations get {path.get('instance_id', 'INSTANCE')} {started['id']}",
            f"mooring why {started['id']}",
        ],
        "instance": [f"mooring instances watch {name}", f"mooring why {name}"],
    }
    back = ways.get(goal.noun, [f"mooring {goal.noun}s get {name}"])
    return "\n".join([f"You stopped waiting; the {goal.noun} goes on. To come back:", *(f"  {each}" for each in back)])


def show_end(goal: Goal, ended: dict[str, Any], seconds: float) -> None:
    """Say how it ended; of a failure also the cause, the last lines and where to read more."""
    what = ended["kind"] if goal.noun == "operation" else output.name_of(ended)
    is_good = ended["status"] in goal.good
    reasons = ("failure_detail", "refusal_reason", "cancel_reason", "blocker")
    reason = next((ended[name] for name in reasons if ended.get(name)), "")
    codes = [str(each) for each in (ended.get("failure_code"), reason) if each]
    cause = "" if is_good or not codes else ": " + ": ".join(codes)
    if goal.noun == "operation":
        click.echo(plain(f"{what} {ended['status']} after {in_words(seconds)}{cause}"))
    else:
        click.echo(plain(f"{what} is {ended['status']}{cause}"))
    if is_good:
        return
    for line in (ended.get("last_lines") or [])[-LAST_LINES:]:
        click.echo(plain(f"  | {line}"))
    if goal.noun in ("operation", "instance"):
        output.note(f"Run mooring why {ended['id']} to see what to do about it.")


@dataclass
class PatientReader:
    """Reads from the server, and waits while it cannot be reached."""

    invocation: Invocation
    retrying: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic

    def read(self, operation: str, path: dict[str, str], query: dict[str, Any]) -> Any:
        """The answer, with retries while the server cannot be reached; raises if that lasts too long."""
        from mooring_sdk import ConnectionFailed

        since = self.clock()
        while True:
            try:
                return self.invocation.call(operation, path, query)
            except ConnectionFailed:
                if self.clock() - since > OUTAGE_SECONDS_MAX:
                    raise
                self.retrying("the server does not answer; retrying")

    def read_if_allowed(self, operation: str, path: dict[str, str], query: dict[str, Any]) -> Any:
        """The answer, or None for a caller who may not see it."""
        from mooring_sdk import MooringError

        try:
            return self.read(operation, path, query)
        except MooringError as error:
            if error.status not in REFUSED:
                raise
            return None


@dataclass
class Waiter:
    """One thing that is waited for."""

    invocation: Invocation
    goal: Goal
    path: dict[str, str]
    state: dict[str, Any]
    display: ProgressDisplay
    clock: Callable[[], float] = time.monotonic
    names: dict[str, str] = field(default_factory=dict)  # of members, by id

    def __post_init__(self) -> None:
        self._reader = PatientReader(self.invocation, lambda text: self.display.show([text]), self.clock)
        self._seen = self._shown_state()
        self._moved_at = self.clock()

    def run(self) -> dict[str, Any]:
        """Show the progress until it has ended; returns its last state."""
        while self.state["status"] not in (*self.goal.good, *self.goal.bad):
            self.display.show(self._lines())
            query = {"wait": min(WAIT_SECONDS, self.invocation.timeout_seconds / 2)}
            if self.state.get("etag"):
                query["changed_from"] = self.state["etag"]
            self.state = dict(self._reader.read(self.goal.read, self._own_path(), query))
        return self.state

    def _own_path(self) -> dict[str, str]:
        """The path of what is read, without what the command's own path has too much."""
        from mooring_sdk.operations import BY_NAME

        wanted = BY_NAME[self.goal.read].path_parameters
        return {name: value for name, value in self.path.items() if name in wanted}

    def _shown_state(self) -> tuple[Any, ...]:
        return tuple(str(self.state.get(name)) for name in ("status", "phase", "steps", "progress", "members_summary"))

    def _lines(self) -> list[str]:
        """The operation, its members, and what it waits for if nothing moves."""
        members = self._members()
        lines = [*self._head(), *member_lines(members), *self._task_lines()]
        seen = (*self._shown_state(), *((each["status"], each["health"]) for each in members))
        if seen != self._seen:
            self._seen, self._moved_at = seen, self.clock()
        if self.clock() - self._moved_at >= STILL_SECONDS:
            lines += self._cause_lines()
        return lines

    def _head(self) -> list[str]:
        state = self.state
        if self.goal.noun == "operation":
            return [f"{operation_text(state, self.names)}  {ELAPSED}"]
        lines = [f"{self.goal.noun} {output.name_of(state)}: {state['status']}  {ELAPSED}"]
        opened = state.get("operation")
        if self.goal.noun == "instance" and opened:
            where = {**self._own_path(), "operation_id": str(opened["id"])}
            found = self._reader.read_if_allowed("get_operation", where, {})
            lines += [f"  {operation_text(found, self.names)}"] if found else []
        if state.get("blocker"):
            lines.append(f"  waits: {state['blocker']}")
        return lines

    def _members(self) -> list[dict[str, Any]]:
        """The members that it concerns: those of the operation, otherwise all that are not removed."""
        if "instance_id" not in self.path or self.goal.read not in ("get_operation", "get_instance"):
            return []
        where = {name: self.path[name] for name in ("project_id", "instance_id")}
        found = self._reader.read_if_allowed("list_members", where, {"limit": 500})
        members = [] if found is None else list(found["items"])
        self.names.update({str(each["id"]): str(each["name"]) for each in members})
        wanted = self.state.get("member_ids") or []
        return [each for each in members if (each["id"] in wanted if wanted else each["status"] != "removed")]

    def _task_lines(self) -> list[str]:
        """Long tasks with their progress, such as the pull of an image."""
        instance = self.path.get("instance_id")
        if instance is None or self.goal.read not in ("get_operation", "get_instance"):
            return []
        query = {"limit": 100, "instance_id": instance}
        page = self._reader.read_if_allowed("list_tasks", {"project_id": self.path["project_id"]}, query)
        tasks = [] if page is None else page["items"]
        return [
            f"  {each['type']}  {amount_of(each['progress'])}"
            for each in tasks
            if each["status"] in ("claimed", "queued") and each.get("progress")
        ]

    def _cause_lines(self) -> list[str]:
        """The last cause that `why` names, and who can do what."""
        reads = {"get_operation": "explain_operation", "get_instance": "explain_instance"}
        if self.goal.read not in reads:
            return []
        found = self._reader.read_if_allowed(reads[self.goal.read], self._own_path(), {})
        if not found or not found["chain"]:
            return []
        cause, following = found["chain"][-1], found["next"]
        code = f" [{cause['code']}]" if cause.get("code") else ""
        text = str(cause["text"]).replace("\n", " ")
        return [f"  because {cause['noun']} {cause['name']}: {text}{code}", f"  next: {following['what']}"]


def operation_text(operation: dict[str, Any], names: dict[str, str]) -> str:
    """An operation in one line: its kind and state, how far it is, and its present step."""
    steps = operation.get("steps") or []
    done = sum(each["status"] in ("done", "skipped", "succeeded") for each in steps)
    text = f"{operation['kind']}: {operation['status']}"
    if steps:
        text += f", {done} of {len(steps)} steps"
    running = next((each for each in steps if each["status"] == "running"), None)
    if running is not None:
        detail = f" ({running['detail']})" if running.get("detail") else ""
        text += f", now {step_name(str(running['name']), names)}{detail}"
    if not operation.get("blocker"):
        return text
    return f"{text}{'' if operation['status'] == 'blocked' else ', blocked'}: {operation['blocker']}"


def step_name(name: str, names: dict[str, str]) -> str:
    """A step with the names of members instead of their ids: `probe/1/mem_…` is `probe/1 of greeter-web-0`."""
    rest, _, last = name.rpartition("/")
    return f"{rest} of {names[last]}" if rest and last in names else names.get(name, name)


def member_lines(members: list[dict[str, Any]]) -> list[str]:
    """The members by name with their states; those that are not ready come first."""
    order = sorted(members, key=lambda each: (each["status"] == "ready" and each["health"] == "healthy", each["name"]))
    size = max((len(each["name"]) for each in order[:MEMBERS_SHOWN]), default=0)
    lines = [member_line(each, size) for each in order[:MEMBERS_SHOWN]]
    left = len(order) - len(lines)
    return [*lines, f"  … and {left} more"] if left else lines


def member_line(member: dict[str, Any], size: int) -> str:
    reason = member.get("failure_code") or member.get("blocker") or ""
    return f"  {member['name'].ljust(size)}  {member['status']}, {member['health']}  {reason}".rstrip()


def amount_of(progress: dict[str, Any]) -> str:
    """The progress of a task."""
    from mooring_cli.check_progress import size

    done, total = progress.get("done") or 0, progress.get("total") or 0
    if progress.get("unit") == "bytes":
        whole = f" of {size(total)} ({done * 100 // total} %)" if total else ""
        return f"{size(done)}{whole}"
    return f"{progress.get('stage') or ''} {done}{f'/{total}' if total else ''}".strip()
