"""`mooring instances replay`: an instance as it was at a moment, or every change of it in order."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from mooring_cli import output
from mooring_cli.columns import read_time
from mooring_cli.invocation import current, plain_call
from mooring_cli.main import MooringCommand
from mooring_cli.option_types import duration_seconds
from mooring_cli.output import plain
from mooring_cli.scope import PAGE_MAX, ScopeResolver
from mooring_cli.watch import find


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A time in ISO 8601, or how long ago."""

    name = "time|10m"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        seconds = duration_seconds(value)
        if seconds is not None:
            return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is neither a time such as 2030-01-31T12:00:00Z nor how long ago, such as 10m")
        return (moment if moment.tzinfo else moment.astimezone()).isoformat()


@click.command(cls=MooringCommand)
@click.argument("instance")
@click.option("--project", metavar="NAME", help="The project, by id or slug.")
@click.option("--at", type=Moment(), help="Show everything as it was at this time, or this long ago.")
def replay(*, instance: str, project: str | None, at: str | None) -> None:
    """Show how an instance, its members and its operations changed, or how they were at a moment.

    Without --at it lists every transition, oldest first. With --at it shows the state of everything at that moment,
    and the moments before and after it at which something changed.

    \b
    mooring instances replay hpc
    mooring instances replay hpc --at 2026-01-31T12:00:00Z
    mooring instances replay hpc --at 10m
    """
    invocation = current()
    path = find(invocation, ScopeResolver(invocation).project_id(project), instance)
    if at is None:
        call = plain_call("list_instance_transitions", path, {"limit": PAGE_MAX})
        found = list(invocation.client.pages(call))
        if invocation.output == "table":
            output.show_lines("table", found, transition_line)
        else:
            output.show(invocation.output, found)
        return
    answer = invocation.call("replay_instance", path, query={"at": at})
    if invocation.output != "table":
        output.show(invocation.output, answer)
        return
    for line in lines_of(answer):
        click.echo(line)


def transition_line(transition: dict[str, Any]) -> str:
    source = transition["source"] or "(new)"
    subject = f"{transition['noun']} {transition['name']}"
    return plain(f"{clock(transition['at'])}  {subject}  {source} → {transition['target']}  by {transition['trigger']}")


def lines_of(answer: dict[str, Any]) -> list[str]:
    """The state of everything, a line each, and how to step on."""
    rows = [("instance", answer["instance"])]
    rows += [("member", each) for each in answer["members"]]
    rows += [("operation", each) for each in answer["operations"]]
    cells = [[noun, each["name"], each["status"], clock(each["since"]), each["trigger"]] for noun, each in rows]
    lines = [f"at {clock(answer['at'])}, unchanged since {clock(answer['changed_at'])}", ""]
    lines += output.plain_lines(["NOUN", "NAME", "STATUS", "SINCE", "BY"], cells)
    lines.append("")
    lines += [
        f"{word}: --at {answer[field]}" if answer[field] else f"{word}: nothing"
        for word, field in (("before", "previous_at"), ("after", "next_at"))
    ]
    return [plain(line) for line in lines]


def clock(text: str) -> str:
    """A time in UTC, to the millisecond: several things change in one second."""
    moment = read_time(text)
    return moment.astimezone(UTC).isoformat(" ", "milliseconds").removesuffix("+00:00") if moment else text
