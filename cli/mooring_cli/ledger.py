"""`mooring ledger`: what was booked for a project or a tenant, and the balances."""

from collections.abc import Mapping
from typing import Any

import click

from mooring_cli import money, output
from mooring_cli.columns import Columns
from mooring_cli.invocation import current, plain_call
from mooring_cli.main import MooringGroup
from mooring_cli.nouns import CommandEndpoint
from mooring_cli.option_types import TimeAgo
from mooring_cli.scope import PAGE_MAX, ScopeOptions, ScopeResolver, scope_options

COLUMNS = Columns(("hour", "kind", "amount"), (), ("project_id", "price_id", "id", "corrects_id"))
BALANCE_COLUMNS = Columns(("account", "balance", "entries"))
KINDS = ("charge", "correction")


def endpoints(operation: str) -> tuple[CommandEndpoint, ...]:
    """The two endpoints of an operation, one for each scope."""
    scopes = (("project", "project_id"), ("tenant", "tenant_id"))
    return tuple(CommandEndpoint(operation.format(scope), scope, place) for scope, place in scopes)


@click.group(cls=MooringGroup, invoke_without_command=True)
@scope_options
@click.option("--since", type=TimeAgo(), help="Only of hours from this time on, or from so long ago.")
@click.option("--until", type=TimeAgo(), help="Only of hours before this time.")
@click.option("--kind", metavar="KIND", help=f"Only transactions of this kind: {', '.join(KINDS)}.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=50, help="Show at most this many; 0 for all. [default: 50]"
)
@click.pass_context
def ledger(
    ctx: click.Context,
    *,
    project: str | None,
    tenant: str | None,
    platform: bool,
    since: str | None,
    until: str | None,
    kind: str | None,
    limit: int,
) -> None:
    """Show what was booked, newest first: one transaction for each project, price and hour.

    A transaction is never changed; what turns out to be different later is a correction that names it. A table shows
    money, and -o json the entries with integers of 10⁻⁶ minor unit.
    """
    if ctx.invoked_subcommand is not None:
        if project or tenant or platform or since or until or kind:
            raise click.UsageError(f"options of `{ctx.invoked_subcommand}` come after its name")
        return
    invocation = current()
    chosen = ScopeOptions(project, tenant, platform)
    endpoint, path = ScopeResolver(invocation).choose(endpoints("list_{}_ledger_transactions"), chosen)
    query = {"since": since, "until": until, "kind": kind, "limit": min(limit or PAGE_MAX, PAGE_MAX)}
    rows = list(invocation.client.pages(plain_call(endpoint.operation, path, query), most=limit or None))
    _show(rows, COLUMNS, "Nothing is booked.")


@ledger.command()
@scope_options
def balances(*, project: str | None, tenant: str | None, platform: bool) -> None:
    """Show the balance of each account: the sum of its entries in each currency."""
    invocation = current()
    chosen = ScopeOptions(project, tenant, platform)
    endpoint, path = ScopeResolver(invocation).choose(endpoints("list_{}_ledger_balances"), chosen)
    rows = invocation.call(endpoint.operation, path)["items"]
    _show(rows, BALANCE_COLUMNS, "Nothing is booked.")


def _show(rows: list[Any], columns: Columns, nothing: str) -> None:
    form = current().output
    if not rows and form == "table":
        output.note(nothing)
    elif form == "table":
        output.show_table([_row(each) for each in rows], columns, wide=current().wide)
    else:
        output.show(form, rows)


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A transaction with what the project owes for it, or a balance, as money."""
    if "amount_micro" in row:
        return {**row, "balance": money.text(row["amount_micro"], row["currency"])}
    owed = [each for each in row["entries"] if each["account"] == "receivable"] or row["entries"][:1]
    amounts = [money.text(each["amount_micro"], each["currency"]) for each in owed]
    return {**row, "amount": ", ".join(amounts)}
