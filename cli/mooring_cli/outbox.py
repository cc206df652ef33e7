"""The outbox: what is delivered to webhooks, and what could not be and waits for a replay."""

from typing import Any

import click

from mooring_cli import output
from mooring_cli.invocation import current, plain_call
from mooring_cli.main import MooringGroup
from mooring_cli.nouns import Endpoint
from mooring_cli.scope import PAGE_MAX, ScopeOptions, ScopeResolver, scope_options

COLUMNS = ("id", "event_type", "status", "attempts", "due_at", "last_status", "last_error")
ROUNDS_MAX = 1_000
STATUSES = ("queued", "claimed", "delivered", "dead")


def endpoints(operation: str) -> tuple[Endpoint, ...]:
    """The three endpoints of an operation, one for each kind of place."""
    scopes = (("project", "project_id"), ("tenant", "tenant_id"), ("platform", ""))
    return tuple(Endpoint(operation.format(scope), scope, place) for scope, place in scopes)


@click.group(cls=MooringGroup, no_args_is_help=True)
def outbox() -> None:
    """Show deliveries to webhooks, and send them again.

    A delivery that failed as often as it is tried is a dead letter: it waits until somebody sends it again.
    """


@outbox.command("list")
@scope_options
@click.option("--status", type=click.Choice(STATUSES), help="Only those in this state.")
@click.option("--dead", is_flag=True, help="Only dead letters: short for --status dead.")
@click.option("--webhook", metavar="ID", help="Only those of this webhook.")
@click.option("--limit", type=click.IntRange(min=0), default=50, help="At the most so many; 0 for all. [default: 50]")
def list_(
    *,
    project: str | None,
    tenant: str | None,
    platform: bool,
    status: str | None,
    dead: bool,
    webhook: str | None,
    limit: int,
) -> None:
    """List deliveries, the newest first."""
    invocation = current()
    endpoint, path = ScopeResolver(invocation).choose(endpoints("list_{}_deliveries"), ScopeOptions(project, tenant, platform))
    wanted = "dead" if dead else status
    query = {"status": wanted, "webhook_id": webhook, "limit": min(limit or PAGE_MAX, PAGE_MAX)}
    rows = list(invocation.client.pages(plain_call(endpoint.operation, path, query), most=limit or None))
    if not rows and invocation.output == "table":
        output.note(f"No {wanted or ''} deliveries.".replace("  ", " "))
        return
    output.show(invocation.output, rows, COLUMNS)


@outbox.command()
@click.argument("delivery")
@scope_options
def show(*, delivery: str, project: str | None, tenant: str | None, platform: bool) -> None:
    """Show one delivery, with the last error."""
    invocation = current()
    endpoint, path = ScopeResolver(invocation).choose(endpoints("get_{}_delivery"), ScopeOptions(project, tenant, platform))
    output.show(invocation.output, invocation.call(endpoint.operation, {**path, "delivery_id": delivery}))


@outbox.command()
@click.argument("deliveries", nargs=-1)
@click.option("--dead", is_flag=True, help="All dead letters of the place.")
@scope_options
def replay(*, deliveries: tuple[str, ...], dead: bool, project: str | None, tenant: str | None, platform: bool) -> None:
    """Send deliveries again: those that are named, or all dead letters with --dead."""
    if bool(deliveries) == dead:
        raise click.UsageError("name deliveries, or say --dead")
    invocation = current()
    resolver, chosen = ScopeResolver(invocation), ScopeOptions(project, tenant, platform)
    if dead:
        endpoint, path = resolver.choose(endpoints("replay_{}_dead_deliveries"), chosen)
        replayed = replay_dead(endpoint, path)
        output.show(invocation.output, {"replayed": replayed})
        return
    endpoint, path = resolver.choose(endpoints("replay_{}_delivery"), chosen)
    rows = [invocation.call(endpoint.operation, {**path, "delivery_id": each}) for each in deliveries]
    output.show(invocation.output, rows, COLUMNS)


def replay_dead(endpoint: Endpoint, path: dict[str, str]) -> int:
    """Ask until the server says that no more are left; how many are sent again."""
    count = 0
    for _ in range(ROUNDS_MAX):
        answer: dict[str, Any] = current().call(endpoint.operation, path)
        count += int(answer["replayed"])
        if not answer["more"]:
            break
    return count
