"""Events and the audit trail."""

from datetime import UTC, datetime
from typing import Any

import click

from mooring_cli import output
from mooring_cli.invocation import current, plain_call
from mooring_cli.main import MooringCommand
from mooring_cli.nouns import Endpoint
from mooring_cli.output import plain
from mooring_cli.places import Chosen, Places

EVENTS = (
    Endpoint("list_project_events", "project", "project_id"),
    Endpoint("list_tenant_events", "tenant", "tenant_id"),
    Endpoint("list_platform_events", "platform", ""),
)
STREAMS = (
    Endpoint("stream_project_events", "project", "project_id"),
    Endpoint("stream_tenant_events", "tenant", "tenant_id"),
    Endpoint("stream_platform_events", "platform", ""),
)
AUDITS = (
    Endpoint("list_project_audit", "project", "project_id"),
    Endpoint("list_tenant_audit", "tenant", "tenant_id"),
    Endpoint("list_platform_audit", "platform", ""),
)
AUDIT_COLUMNS = ("occurred_at", "outcome", "action", "subject_id", "actor_id", "reason", "correlation_id")
PAGE_MAX = 500


def place_options(command: Any) -> Any:
    """--project, --tenant and --platform."""
    for option in (
        click.option("--platform", is_flag=True, help="Those of the platform."),
        click.option("--tenant", metavar="NAME", help="Those of this tenant, by id or slug."),
        click.option("--project", metavar="NAME", help="Those of this project, by id or slug."),
    ):
        command = option(command)
    return command


@click.command(cls=MooringCommand)
@place_options
@click.option("--follow", is_flag=True, help="Go on and show events as they happen, until interrupted.")
@click.option("--correlation", metavar="ID", help="Only what happened under this correlation id.")
@click.option("--since", metavar="CURSOR", help="Begin after this cursor; `beginning` is the oldest that is kept.")
@click.option("--limit", type=click.IntRange(min=0), default=100, help="At the most so many; 0 for all. [default: 100]")
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
    """Show events, the oldest first, or follow them as they happen.

    Without an option for the place it is the context's project, else its tenant, else where you are at home. With
    --follow and without --since it begins now. It goes on over broken connections and misses nothing.
    """
    invocation = current()
    chosen = Chosen(project, tenant, platform)
    query = {"correlation_id": correlation}
    if follow:
        endpoint, path = Places(invocation).choose(STREAMS, chosen)
        stream = invocation.client.follow(plain_call(endpoint.operation, path, query), cursor=since)
        output.show_lines(invocation.output, stream, event_line)
        return
    endpoint, path = Places(invocation).choose(EVENTS, chosen)
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


def event_line(event: dict[str, Any]) -> str:
    """An event as one line."""
    moment = output.read_time(str(event.get("occurred_at", "")))
    clock = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if isinstance(moment, datetime) else "-"
    told = " ".join(f"{name}={output.nested(value)}" for name, value in (event.get("data") or {}).items())
    actor = f"by {event.get('actor_kind')} {event.get('actor_id')}"
    return plain(
        f"{clock}  {event.get('type')}  {event.get('subject_id')}  {told}  {actor}  [{event.get('correlation_id')}]"
    )


@click.command(cls=MooringCommand)
@place_options
@click.option("--correlation", metavar="ID", help="Only what was done under this correlation id.")
@click.option("--actor", metavar="ID", help="Only what this user or service account did.")
@click.option("--action", metavar="KEY", help="Only this action key.")
@click.option("--outcome", type=click.Choice(["done", "denied", "hidden", "refused"]), help="Only this outcome.")
@click.option("--limit", type=click.IntRange(min=0), default=50, help="At the most so many; 0 for all. [default: 50]")
def audit(
    *,
    project: str | None,
    tenant: str | None,
    platform: bool,
    correlation: str | None,
    actor: str | None,
    action: str | None,
    outcome: str | None,
    limit: int,
) -> None:
    """Show who did what, or was refused, the newest first.

    Without an option for the place it is the context's project, else its tenant, else where you are at home.
    """
    invocation = current()
    endpoint, path = Places(invocation).choose(AUDITS, Chosen(project, tenant, platform))
    query = {
        "correlation_id": correlation,
        "actor_id": actor,
        "action": action,
        "outcome": outcome,
        "limit": min(limit or PAGE_MAX, PAGE_MAX),
    }
    rows = list(invocation.client.pages(plain_call(endpoint.operation, path, query), most=limit or None))
    if not rows and invocation.output == "table":
        output.note("Nothing in the audit trail.")
        return
    output.show(invocation.output, rows, AUDIT_COLUMNS)
