"""`mooring logs`: show and follow the output of a service or a container of an instance.

The log is read in parts, each from the end of the one before, so that no output is missed or repeated when a
connection breaks. A request waits at the server until there is more output. Output of programs is shown without
terminal control sequences.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from mooring_cli.failures import NoSuchName
from mooring_cli.invocation import Invocation, current, plain_call
from mooring_cli.main import MooringCommand
from mooring_cli.output import plain
from mooring_cli.scope import ScopeResolver
from mooring_cli.watch import find

WAIT_SECONDS = 20
AGAIN_SECONDS = 2.0
TAIL_LINES = 100
LIMIT_BYTES = 262_144
GONE = ("removed", "removing")


@click.command(cls=MooringCommand)
@click.argument("instance", metavar="INSTANCE[/ENDPOINT]")
@click.argument("member", required=False)
@click.option("--service", metavar="NAME", help="The service or container, if the member has several.")
@click.option("--tail", type=click.IntRange(1, 10_000), metavar="N", help="Number of last lines. [default: 100]")
@click.option(
    "--offset", type=click.IntRange(0), metavar="N", help="Offset to start from, as returned by an earlier call."
)
@click.option("--follow", "-f", is_flag=True, help="Follow the output until interrupted.")
@click.option("--merged", is_flag=True, help="All members as one log, by the times that their lines begin with.")
@click.option("--grep", metavar="TEXT", help="Only lines with this text, from the oldest that is stored.")
@click.option("--regex", is_flag=True, help="--grep is a regular expression.")
@click.option("--project", metavar="NAME", help="The project, by id or slug.")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json: one object for each part.")
def logs(
    *,
    instance: str,
    member: str | None,
    service: str | None,
    tail: int | None,
    offset: int | None,
    follow: bool,
    merged: bool,
    grep: str | None,
    regex: bool,
    project: str | None,
    as_json: bool,
) -> None:
    """Show the output of a service or a container of an instance: the last lines, or everything from an offset.

    INSTANCE is an id or a name, MEMBER the id or name of one of its members; it may be omitted if there is only one.
    INSTANCE/ENDPOINT is the member that has this endpoint.

    \b
    mooring logs greeter --follow
    mooring logs hpc hpc-worker-0
    mooring logs hpc --merged --grep ERROR
    """
    if (merged or grep is not None) and offset is not None:
        raise click.UsageError("--offset counts in one log: it does not go with --merged or --grep")
    if regex and grep is None:
        raise click.UsageError("--regex says how --grep is read: give --grep too")
    if tail is not None and offset is not None:
        raise click.UsageError("--tail counts from the end and --offset from the start: give only one of them")
    invocation = current()
    if as_json:
        invocation.output = "json"
    instance, _, part = instance.partition("/")
    path = find(invocation, ScopeResolver(invocation).project_id(project), instance)
    if merged or grep is not None:
        named = None if merged and not (member or part) else find_member(invocation, path, member or part or None)
        asked = {"member": named, "service": service, "grep": grep, "regex": regex or None}
        joint = InstanceLogReader(invocation, path, {name: value for name, value in asked.items() if value is not None})
        joint.begin(tail or TAIL_LINES)
        while follow:
            joint.more()
        return
    path["member_id"] = find_member(invocation, path, member or part or None)
    reading = LogReader(invocation, path, service)
    reading.begin(tail or TAIL_LINES, offset)
    while follow:
        reading.more()


def find_member(invocation: Invocation, path: dict[str, str], named: str | None) -> str:
    """The member with this id, name or endpoint; without a name, the only live one."""
    call = plain_call("list_members", path, {"limit": 500})
    members = list(invocation.client.pages(call))
    found = members if named is None else [each for each in members if _is(each, named)]
    if named is not None and not found:
        call = plain_call("list_endpoints", {"project_id": path["project_id"]}, {"limit": 500})
        own = [each for each in invocation.client.pages(call) if each["instance_id"] == path["instance_id"]]
        places = {each["allocation_id"] for each in own if named in (each["id"], each["name"])}
        found = [each for each in members if each["allocation_id"] in places]
    found = [each for each in found if each["status"] not in GONE] or found[-1:]
    if not found:
        raise NoSuchName(f"there is no member {named!r} here" if named else "the instance has no members")
    if len(found) > 1:
        listed = ", ".join(sorted(str(each["name"]) for each in found))
        raise click.UsageError(f"give a member: {listed}")
    return str(found[0]["id"])


def _is(member: dict[str, Any], named: str) -> bool:
    return bool(member["name"] == named or member["id"].startswith(named))


class LogReader:
    """One log that is being read."""

    def __init__(
        self,
        invocation: Invocation,
        path: dict[str, str],
        service: str | None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.invocation = invocation
        self.path = path
        self.service = service
        self.place = 0
        self.log = ""
        self._pause = pause

    def begin(self, tail: int, offset: int | None) -> None:
        """The last lines, or everything from an offset; if the node cannot be asked, the last lines that are known."""
        from mooring_sdk import MooringError

        try:
            if offset is None:
                self._take(self._asked({"tail": tail}))
            else:
                self.place = offset
                self._to_the_end()
        except MooringError as error:
            known = error.details.get("last_lines")
            if known and self.invocation.output != "json":
                click.echo("[the node cannot be reached; these are the last known lines]", err=True)
                click.echo("\n".join(shown(str(line)) for line in known[-tail:]))
            raise

    def _to_the_end(self) -> None:
        while True:
            before = self.place
            part = self._take(self._asked(self._from_here()))
            if self.place >= part["size"] or (self.place == before and not part["text"]):
                return

    def more(self) -> None:
        """The next part; waits for it at the server, and keeps trying while server or node are unavailable."""
        from mooring_sdk import ConnectionFailed, MooringError

        try:
            self._take(self._asked({**self._from_here(), "wait": WAIT_SECONDS}))
        except ConnectionFailed:
            self._pause(AGAIN_SECONDS)
        except MooringError as error:
            if error.code not in ("temporarily_unavailable", "rate_limited"):
                raise
            self._pause(AGAIN_SECONDS)

    def _from_here(self) -> dict[str, Any]:
        return {"offset": self.place, "log": self.log}

    def _asked(self, query: dict[str, Any]) -> dict[str, Any]:
        asked = {"limit": LIMIT_BYTES, **query}
        if self.service is not None:
            asked["service"] = self.service
        return dict(self.invocation.call("get_member_log", self.path, asked))

    def _take(self, part: dict[str, Any]) -> dict[str, Any]:
        """Show a part, and continue after it."""
        self.place, self.log, self.service = part["next_offset"], part["log"], part["service"]
        if self.invocation.output == "json":
            click.echo(json.dumps(part))
            return part
        if part["truncated_before"]:
            count = part["dropped_bytes"]
            click.echo(f"[{'some' if count is None else count} bytes were dropped here]", err=True)
        sys.stdout.write("\n".join(shown(line) for line in part["text"].split("\n")))
        sys.stdout.flush()
        return part


class InstanceLogReader:
    """The logs of all members, or one that is searched, as one log."""

    def __init__(
        self,
        invocation: Invocation,
        path: dict[str, str],
        query: dict[str, Any],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.invocation = invocation
        self.path = path
        self.query = query
        self.cursor = ""
        self._pause = pause

    def begin(self, tail: int) -> None:
        """The last lines of each; or everything that matches, in as many requests as the search takes."""
        is_over = self._take(self._asked({} if "grep" in self.query else {"tail": tail}), first=True)
        while "grep" in self.query and not is_over:
            is_over = self._take(self._asked({"cursor": self.cursor}))

    def more(self) -> None:
        """What came since; waits for it at the server, and keeps trying while server or nodes are unavailable."""
        from mooring_sdk import ConnectionFailed, MooringError

        try:
            part = self._asked({"cursor": self.cursor, "wait": WAIT_SECONDS})
        except ConnectionFailed:
            self._pause(AGAIN_SECONDS)
            return
        except MooringError as error:
            if error.code not in ("temporarily_unavailable", "rate_limited"):
                raise
            self._pause(AGAIN_SECONDS)
            return
        if self._take(part) and not part["items"] and part["unread"]:
            self._pause(AGAIN_SECONDS)

    def _asked(self, query: dict[str, Any]) -> dict[str, Any]:
        return dict(self.invocation.call("get_instance_log", self.path, {**self.query, **query}))

    def _take(self, part: dict[str, Any], *, first: bool = False) -> bool:
        """Show a part, and continue after it; whether everything that is written was read."""
        self.cursor = part["next_cursor"]
        if self.invocation.output == "json":
            click.echo(json.dumps(part))
            return bool(part["at_end"])
        for gap in part["gaps"] if not first else ():
            count = "some" if gap["bytes"] is None else gap["bytes"]
            click.echo(f"[{gap['member']}: {count} bytes were dropped here]", err=True)
        for each in part["unread"] if first else ():
            click.echo(f"[{each['member']}: {plain(each['detail'])}]", err=True)
        for line in part["items"]:
            label = "" if "member" in self.query else f"{line['member']} | "
            sys.stdout.write(f"{label}{shown(line['text'])}\n")
        sys.stdout.flush()
        return bool(part["at_end"])


def shown(line: str) -> str:
    """A line of a program's output: tabs stay, other control characters are removed."""
    return "\t".join(plain(each) for each in line.removesuffix("\r").split("\t"))
