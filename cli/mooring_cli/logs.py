"""`mooring logs`: what a service or a container of an instance wrote, and what it goes on to write.

Parts are asked for one after the other, each from where the one before ended, so that none is missed and none is shown
twice, however often the connection breaks. A request waits at the server until there is more: following costs one quiet
request. What comes from a program is shown without what would steer a terminal.
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
@click.argument("instance")
@click.argument("member", required=False)
@click.option("--service", metavar="NAME", help="Which service or container, where the member has several.")
@click.option("--tail", type=click.IntRange(1, 10_000), metavar="N", help="How many of the last lines. [default: 100]")
@click.option("--offset", type=click.IntRange(0), metavar="N", help="Where to begin, as an earlier answer told.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what it writes, until interrupted.")
@click.option("--project", metavar="NAME", help="The project, by id or slug.")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json: an object a part.")
def logs(
    *,
    instance: str,
    member: str | None,
    service: str | None,
    tail: int | None,
    offset: int | None,
    follow: bool,
    project: str | None,
    as_json: bool,
) -> None:
    """Show what a service or a container of an instance wrote: the last lines, or all from an offset on.

    INSTANCE is its id or its name, MEMBER the id or the name of one of its members; an instance with one needs none.
    """
    if tail is not None and offset is not None:
        raise click.UsageError("--tail counts from the end and --offset from the beginning: give one of them")
    invocation = current()
    if as_json:
        invocation.output = "json"
    path = find(invocation, ScopeResolver(invocation).project_id(project), instance)
    path["member_id"] = _member(invocation, path, member)
    reading = Reading(invocation, path, service)
    reading.begin(tail or TAIL_LINES, offset)
    while follow:
        reading.more()


def _member(invocation: Invocation, path: dict[str, str], named: str | None) -> str:
    """The member that is meant; the only one that lives where none is named."""
    call = plain_call("list_members", path, {"limit": 500})
    members = list(invocation.client.pages(call))
    if named is not None:
        found = [each for each in members if each["name"] == named or each["id"].startswith(named)]
        found = [each for each in found if each["status"] not in GONE] or found[-1:]
    else:
        found = [each for each in members if each["status"] not in GONE] or members[-1:]
    if not found:
        raise NoSuchName(f"there is no member {named!r} here" if named else "the instance has no members")
    if len(found) > 1:
        listed = ", ".join(sorted(str(each["name"]) for each in found))
        raise click.UsageError(f"say which member: {listed}")
    return str(found[0]["id"])


class Reading:
    """One log while it is read."""

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
        """The last lines, or all from an offset on; where nobody can be asked, the last lines that are known."""
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
                click.echo("[the last lines that are known]", err=True)
                click.echo("\n".join(shown(str(line)) for line in known[-tail:]))
            raise

    def _to_the_end(self) -> None:
        while True:
            before = self.place
            part = self._take(self._asked(self._from_here()))
            if self.place >= part["size"] or (self.place == before and not part["text"]):
                return

    def more(self) -> None:
        """What comes next; waits for it at the server, and goes on when server or node are away for a while."""
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
        """Show a part, and go on after it."""
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


def shown(line: str) -> str:
    """A line of a program's: its tabs stay, and whatever else would act on a terminal does not."""
    return "\t".join(plain(each) for each in line.removesuffix("\r").split("\t"))
