"""`mooring outbox`: webhook deliveries, and the dead ones that wait for a replay."""

from typing import Any

import click

from mooring_cli import output
from mooring_cli.invocation import current, plain_call
from mooring_cli.main import MooringGroup
from mooring_cli.nouns import CommandEndpoint
from mooring_cli.scope import PAGE_MAX, ScopeOptions, ScopeResolver, scope_options

COLUMNS = ("id", "event_type", "status", "attempts", "due_at", "last_status", "last_error")
ROUNDS_MAX = 1_000
STATUSES = ("queued", "claimed", "delivered", "dead")


def endpoints(operation: str) -> tuple[CommandEndpoint, ...]:
    """The three endpoints of an operation, one for each scope."""
    scopes = (("project", "project_id"), ("tenant", "tenant_id"), ("platform", ""))
    return tuple(CommandEndpoint(operation.format(scope), scope, place) for scope, place in scopes)


@click.group(cls=MooringGroup, no_args_is_help=True)
def outbox() -> None:
    """Show webhook deliveries, and send them again.

    A delivery that failed too often is a dead letter: it waits until somebody sends it again.
    """


@outbox.command("list")
@scope_options
@click.option("--status", type=click.Choice(STATUSES), help="Only deliveries in this state.")
@click.option("--dead", is_flag=True, help="Only dead letters; the same as --status dead.")
@click.option("--webhook", metavar="ID", help="Only deliveries of this webhook.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=50, help="Show at most this many; 0 for all. [default: 50]"
)
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
    """List deliveries, newest first."""
    invocation = current()
    endpoint, path = ScopeResolver(invocation).choose(
        endpoints("list_{}_deliveries"), ScopeOptions(project, tenant, platform)
    )
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
    endpoint, path = ScopeResolver(invocation).choose(
        endpoints("get_{}_delivery"), ScopeOptions(project, tenant, platform)
    )
    output.show(invocation.output, invocation.call(endpoint.operation, {**path, "delivery_id": delivery}))


@outbox.command()
@click.argument("deliveries", nargs=-1)
@click.option("--dead", is_flag=True, help="All dead letters of the scope.")
@scope_options
def replay(*, deliveries: tuple[str, ...], dead: bool, project: str | None, tenant: str | None, platform: bool) -> None:
    """Send deliveries again: the given ones, or all dead letters with --dead."""
    if bool(deliveries) == dead:
        raise click.UsageError("give deliveries, or --dead")
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


def replay_dead(endpoint: CommandEndpoint, path: dict[str, str]) -> int:
    """Repeat until the server has no more; returns how many are sent again."""
    count = 0
    for _ in range(ROUNDS_MAX):
        answer: dict[str, Any] = current().call(endpoint.operation, path)
        count += int(answer["replayed"])
        if not answer["more"]:
            break
    return count
