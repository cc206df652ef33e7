"""`mooring events`: what happened, in order, or as it happens."""

import sys
import textwrap
from datetime import UTC, datetime
from typing import Any

import click

from mooring_cli import output
from mooring_cli.columns import read_time
from mooring_cli.invocation import Invocation, current, plain_call
from mooring_cli.listing import COMPLETE, knows_no_newest
from mooring_cli.main import MooringCommand
from mooring_cli.nouns import CommandEndpoint
from mooring_cli.output import plain
from mooring_cli.scope import PAGE_MAX, ScopeOptions, ScopeResolver, scope_options

INDENT = " " * 4
EVENTS = (
    CommandEndpoint("list_project_events", "project", "project_id"),
    CommandEndpoint("list_tenant_events", "tenant", "tenant_id"),
    CommandEndpoint("list_platform_events", "platform", ""),
)
STREAMS = (
    CommandEndpoint("stream_project_events", "project", "project_id"),
    CommandEndpoint("stream_tenant_events", "tenant", "tenant_id"),
    CommandEndpoint("stream_platform_events", "platform", ""),
)


@click.command(cls=MooringCommand)
@scope_options
@click.option("--follow", is_flag=True, help="Show events as they happen, until interrupted.")
@click.option("--correlation", metavar="ID", help="Only events with this correlation id.")
@click.option(
    "--since", metavar="CURSOR", help="Start after this cursor; `beginning` is the oldest event that is kept."
)
@click.option(
    "--limit", type=click.IntRange(min=0), default=100, help="Show at most this many; 0 for all. [default: 100]"
)
def events(
    *,
    project: str | None,
    tenant: str | None,
    platform: bool,
    follow: bool,
    correlation: str | None,
    since: str | None,
    limit: int,
) -> None:
    """Show the newest events in order, or follow them as they happen.

    Without --project, --tenant or --platform it uses the scope of the context, otherwise your own.
    With --since it starts there. For programs (-o json and -o yaml) it starts with the oldest, so that they can page
    with --since. With --follow and without --since it starts now. It reconnects when a connection breaks and misses
    nothing.
    """
    invocation = current()
    chosen = ScopeOptions(project, tenant, platform)
    query = {"correlation_id": correlation}
    if follow:
        endpoint, path = ScopeResolver(invocation).choose(STREAMS, chosen)
        stream = invocation.client.follow(plain_call(endpoint.operation, path, query), cursor=since)
        output.show_lines(invocation.output, stream, event_line)
        return
    endpoint, path = ScopeResolver(invocation).choose(EVENTS, chosen)
    wants_newest = since is None and limit and invocation.output not in COMPLETE
    if wants_newest and show_newest(invocation, endpoint, path, {**query, "limit": min(limit, PAGE_MAX)}):
        return
    begins = None if since == "beginning" else since
    call = plain_call(endpoint.operation, path, {**query, "cursor": begins, "limit": min(limit or PAGE_MAX, PAGE_MAX)})
    found = list(invocation.client.pages(call, most=limit or None))
    if not found and invocation.output == "table":
        output.note("No events.")
    elif invocation.output == "table":
        output.show_lines("table", found, event_line)
    else:
        output.show(invocation.output, found)
    if limit and len(found) == limit:
        output.note(f"There may be more: --since {found[-1]['cursor']}")


def show_newest(invocation: Invocation, endpoint: CommandEndpoint, path: dict[str, str], query: dict[str, Any]) -> bool:
    """Show the last events; False if the server is too old to find them."""
    from mooring_sdk import MooringError

    try:
        found = invocation.call(endpoint.operation, path, {**query, "newest": True})["items"]
    except MooringError as error:
        if not knows_no_newest(error):
            raise
        return False
    output.show_lines(invocation.output, found, event_line)
    if not found:
        output.note("No events.")
    elif len(found) == query["limit"]:
        output.note("There may be earlier ones: --limit shows more, --since beginning starts with the oldest.")
    return True


def event_line(event: dict[str, Any]) -> str:
    moment = read_time(str(event.get("occurred_at", "")))
    clock = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if isinstance(moment, datetime) else "-"
    data = " ".join(f"{name}={output.nested(value)}" for name, value in (event.get("data") or {}).items())
    actor = f"by {event.get('actor_kind')} {event.get('actor_id')}"
    parts = (clock, event.get("type"), event.get("subject_id"), data, actor, f"[{event.get('correlation_id')}]")
    line = plain("  ".join(map(str, parts)))
    return wrapped(line, output.terminal_width()) if sys.stdout.isatty() else line


def wrapped(line: str, width: int) -> str:
    """The line in several that fit on a terminal; what is longer than one of them is broken, and nothing is cut off."""
    return "\n".join(textwrap.wrap(line, width, subsequent_indent=INDENT, break_on_hyphens=False))
