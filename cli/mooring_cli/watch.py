"""`mooring instances watch`: the timeline of an instance as it is written, and its progress.

Entries are read page by page, each from the cursor of the one before, so that none is missed or repeated when a
connection breaks. Between two pages the state is read, with details that have no events, such as the progress of an
image pull. On a terminal the last line is updated; in a pipe a line is printed when something changed; with JSON each
entry is one object per line.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

import click

from mooring_cli import output
from mooring_cli.columns import read_time
from mooring_cli.invocation import Invocation, current
from mooring_cli.main import MooringCommand
from mooring_cli.output import plain
from mooring_cli.progress import ProgressDisplay
from mooring_cli.scope import ScopeResolver
from mooring_cli.waiting import INSTANCE, REFUSED, STOPPED, PatientReader, amount_of, wait_for

WAIT_SECONDS = 2
LINE_SECONDS = 10.0
PAGE = 200
SETTLED = ("running", "failed", "stopped")
WHOLE = ("deploy", "upgrade", "rollback", "reconcile", "repair", "restart", "configure", "decommission")
UNDER_WAY = ("claimed", "queued", "cancelling")
FAILED_EXIT = 1


@click.command(cls=MooringCommand)
@click.argument("instance")
@click.option("--project", metavar="NAME", help="The project, by id or slug.")
@click.option("--all", "everything", is_flag=True, help="Start at the beginning, even if it has settled already.")
@click.option("--audit", is_flag=True, help="Include the audit trail.")
@click.option("--follow", is_flag=True, help="Keep watching after it has settled, until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json: one object per line.")
def watch(
    *, instance: str, project: str | None, everything: bool, audit: bool, follow: bool, as_json: bool
) -> int | None:
    """Watch an instance by id or name, until it runs, has failed or is stopped.

    It reconnects when a connection breaks. The exit code is 0 when it runs or is stopped, 1 when it failed.
    """
    invocation = current()
    if as_json:
        invocation.output = "json"
    path = find(invocation, ScopeResolver(invocation).project_id(project), instance)
    watched = InstanceWatch(invocation, path, audit=audit, follow=follow)
    return watched.run(from_beginning=everything)


def find(invocation: Invocation, project_id: str, named: str, *, whole: bool = False) -> dict[str, str]:
    """The path of an instance by its name, its id or a prefix of one of them; a living one is preferred."""
    path, resolver = {"project_id": project_id}, ScopeResolver(invocation)
    resolver.whole_names = whole
    return {**path, "instance_id": resolver.reference("instance_id", named, path)}


@dataclass
class InstanceWatch:
    """One instance that is being watched."""

    invocation: Invocation
    path: dict[str, str]
    audit: bool = False
    follow: bool = False
    clock: Callable[[], float] = time.monotonic
    screen: "Screen" = field(init=False)
    since: str | None = None  # earlier entries are not shown
    cursor: str | None = None
    blind: bool = False  # the caller may not read events: the state is read instead
    etag: str | None = None
    outcome: dict[str, Any] | None = None  # the last finished operation of the whole instance, from its event

    def __post_init__(self) -> None:
        self.screen = Screen(self.invocation, self.clock)
        self._reader = PatientReader(self.invocation, self.screen.progress, self.clock)

    def run(self, *, from_beginning: bool = False) -> int | None:
        """Show what happens until it has settled; returns the exit code."""
        state = self._state()
        if not from_beginning and self.since is None:
            if self._is_settled(state) and not self.follow:
                self.screen.end(state)
                return self._exit_code(state)
            self.since = self._begun(state)
        try:
            while True:
                fresh = list(self._entries())
                for entry in fresh:
                    self._note(entry)
                    if self.since is None or not is_before(str(entry["at"]), self.since):
                        self.screen.show(entry)
                state = self._state()
                if not fresh:
                    if self._is_settled(state) and not self.follow:
                        break
                    self.screen.progress(progress_of(state, self._operation(state), self._tasks(state)))
        finally:
            self.screen.close()
        self.screen.end(state)
        return self._exit_code(state)

    def _begun(self, state: dict[str, Any]) -> str | None:
        """The start of what is in progress: of the launch, or of the current operation."""
        if state["status"] not in ("running", "stopping"):
            return None
        operation = self._operation(state)
        return None if operation is None else str(operation["created_at"])

    def _entries(self) -> Iterator[dict[str, Any]]:
        """The next entries; waits a little for the first of them. None for a caller who may not read events."""
        from mooring_sdk import MooringError

        if self.blind:
            return
        query = {"limit": PAGE, "wait": WAIT_SECONDS, "audit": self.audit, "cursor": self.cursor}
        try:
            page = self._reader.read("list_instance_timeline", self.path, query)
        except MooringError as error:
            if error.status not in REFUSED or self.audit:
                raise
            self.blind = True
            output.note("You may not read events here (event.read), so only the state is shown.")
            return
        self.cursor = page["next_cursor"]
        yield from page["items"]

    def _note(self, entry: dict[str, Any]) -> None:
        data = entry["data"]
        if entry["kind"] == "operation" and data.get("kind") in WHOLE:
            over = data.get("status") in ("succeeded", "failed", "cancelled")
            self.outcome = data if over else None

    def _is_settled(self, state: dict[str, Any]) -> bool:
        if state["status"] == "failed":
            return True
        return state["status"] in SETTLED and state.get("operation") is None

    def _exit_code(self, state: dict[str, Any]) -> int | None:
        failed = state["status"] == "failed" or (self.outcome or {}).get("status") in ("failed", "cancelled")
        return FAILED_EXIT if failed and state["status"] != "stopped" else None

    def _state(self) -> dict[str, Any]:
        query = {"wait": WAIT_SECONDS, "changed_from": self.etag} if self.blind and self.etag else {}
        state = dict(self._reader.read("get_instance", self.path, query))
        self.etag = state.get("etag")
        return state

    def _operation(self, state: dict[str, Any]) -> dict[str, Any] | None:
        opened = state.get("operation")
        if opened is None:
            return None
        return dict(self._reader.read("get_operation", {**self.path, "operation_id": opened["id"]}, {}))

    def _tasks(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        if state["status"] not in ("created", "starting", "running", "stopping"):
            return []
        where, query = {"project_id": self.path["project_id"]}, {"limit": 100, "instance_id": state["id"]}
        page = self._reader.read_if_allowed("list_tasks", where, query)
        return [each for each in (page or {"items": []})["items"] if each["status"] in UNDER_WAY]


def wait_for_instance(
    invocation: Invocation, path: dict[str, str], made: dict[str, Any], *, since: str | None = None
) -> int | None:
    """Wait until an instance runs, or until the operation that stops it has ended; returns the exit code.

    With JSON the timeline is printed, one entry per line, as `mooring instances watch` does.
    """
    if invocation.output == "json":
        return InstanceWatch(invocation, path, since=since).run(from_beginning=since is None)
    return wait_for(invocation, INSTANCE if since is None else STOPPED, path, made)


def is_before(text: str, other: str) -> bool:
    """Whether one time of the API is before another."""
    moment, since = read_time(text), read_time(other)
    return moment is not None and since is not None and moment < since


def progress_of(state: dict[str, Any], operation: dict[str, Any] | None, tasks: list[dict[str, Any]]) -> str:
    """The progress in one line."""
    parts = [str(state["status"])]
    if operation is not None:
        steps = operation.get("steps") or []
        done = sum(1 for each in steps if each["status"] in ("done", "skipped"))
        parts.append(f"{operation['kind']} {done}/{len(steps)}" if steps else f"{operation['kind']}")
        if operation.get("blocker"):
            parts.append(f"blocked: {operation['blocker']}")
    for each in state.get("members_summary") or []:
        parts.append(f"{each['component_key']} {each['healthy']}/{each['desired']} healthy")
    for task in tasks:
        if task.get("progress"):
            parts.append(f"{task['type']} {amount_of(task['progress'])}")
    return plain(" · ".join(parts))


class Screen:
    """Where it is shown: a terminal, a pipe, or a program that reads JSON."""

    def __init__(self, invocation: Invocation, clock: Callable[[], float]) -> None:
        self._json = invocation.output == "json"
        self._drawn = sys.stderr.isatty() and not self._json
        self._clock = clock
        self._display = ProgressDisplay.of(invocation, clock)
        self._said: tuple[str, float] = ("", float("-inf"))

    def show(self, entry: dict[str, Any]) -> None:
        """Print one entry of the timeline."""
        if self._json:
            self._display.say(json.dumps(entry, ensure_ascii=False))
        else:
            moment = read_time(str(entry["at"]))
            at = moment.astimezone(UTC).strftime("%H:%M:%S") if moment is not None else "-"
            self._display.say(plain(f"{at}  {entry['text']}"))

    def progress(self, text: str) -> None:
        """Show the progress: updated on a terminal, otherwise printed when it changed, and not too often."""
        if self._json:
            return
        if self._drawn:
            self._display.show([text])
            return
        said, at = self._said
        if text != said and self._clock() - at >= LINE_SECONDS:
            self._said = (text, self._clock())
            click.echo(text, err=True)

    def close(self) -> None:
        """Clear the line that is being updated."""
        self._display.close()

    def end(self, state: dict[str, Any]) -> None:
        """Print the final state."""
        if self._json:
            result = {name: state.get(name) for name in ("id", "name", "status", "health", "failure_code")}
            click.echo(json.dumps({"kind": "result", **result}, ensure_ascii=False))
            return
        failed = f": {state['failure_code']}: {state['failure_detail']}" if state["status"] == "failed" else ""
        click.echo(plain(f"{state['name']} is {state['status']}{failed}"))
        if failed:
            for line in (state.get("last_lines") or [])[-10:]:
                click.echo(plain(f"  | {line}"))
            output.note(f"Run mooring why {state['id']} to see what to do about it.")
