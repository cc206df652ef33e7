"""`mooring audit`: who did what, or was refused."""

import click

from mooring_cli import output
from mooring_cli.invocation import current, plain_call
from mooring_cli.main import MooringCommand
from mooring_cli.nouns import CommandEndpoint
from mooring_cli.scope import PAGE_MAX, ScopeOptions, ScopeResolver, scope_options

AUDITS = (
    CommandEndpoint("list_project_audit", "project", "project_id"),
    CommandEndpoint("list_tenant_audit", "tenant", "tenant_id"),
    CommandEndpoint("list_platform_audit", "platform", ""),
)
AUDIT_COLUMNS = ("occurred_at", "outcome", "action", "subject_id", "actor_id", "reason", "correlation_id")


@click.command(cls=MooringCommand)
@scope_options
@click.option("--correlation", metavar="ID", help="Only entries with this correlation id.")
@click.option("--actor", metavar="ID", help="Only entries of this user or service account.")
@click.option("--action", metavar="KEY", help="Only entries with this action key.")
@click.option(
    "--outcome", type=click.Choice(["done", "denied", "hidden", "refused"]), help="Only entries with this outcome."
)
@click.option(
    "--limit", type=click.IntRange(min=0), default=50, help="Show at most this many; 0 for all. [default: 50]"
)
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
    """Show who did what, or was refused, newest first.

    Without --project, --tenant or --platform it uses the scope of the context, otherwise your own.
    """
    invocation = current()
    endpoint, path = ScopeResolver(invocation).choose(AUDITS, ScopeOptions(project, tenant, platform))
    query = {
        "correlation_id": correlation,
        "actor_id": actor,
        "action": action,
        "outcome": outcome,
        "limit": min(limit or PAGE_MAX, PAGE_MAX),
    }
    rows = list(invocation.client.pages(plain_call(endpoint.operation, path, query), most=limit or None))
    if not rows and invocation.output == "table":
        output.note("No audit entries.")
        return
    output.show(invocation.output, rows, AUDIT_COLUMNS)
