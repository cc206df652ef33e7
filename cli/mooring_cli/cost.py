"""`mooring cost`: what a project or a tenant pays, and the operator's totals over all tenants."""

from collections.abc import Mapping
from typing import Any

import click

from mooring_cli import money, output
from mooring_cli.invocation import current, plain_call
from mooring_cli.main import MooringCommand
from mooring_cli.nouns import CommandEndpoint
from mooring_cli.option_types import TimeAgo
from mooring_cli.scope import PAGE_MAX, ScopeOptions, ScopeResolver, scope_options
from mooring_cli.watch import find

ENDPOINTS = (
    CommandEndpoint("get_project_cost", "project", "project_id"),
    CommandEndpoint("get_tenant_cost", "tenant", "tenant_id"),
    CommandEndpoint("list_billing_overview", "platform", ""),
)
GROUPS = (
    "tenant",
    "project",
    "app",
    "instance",
    "member",
    "allocation",
    "sku",
    "unit",
    "day",
    "hour",
    "day_unit",
    "hour_unit",
)
COLUMNS = ("name", "charged", "covered", "quantity")
USED_BY = ("unit", "project", "app", "instance", "day", "day_unit", "hour_unit")
USED_COLUMNS = ("name", "quantity", "charged", "covered")


@click.command(cls=MooringCommand)
@scope_options
@click.option("--since", type=TimeAgo(), help="From this time on, or from so long ago. [default: this month]")
@click.option("--until", type=TimeAgo(), help="Before this time. [default: now]")
@click.option("--by", type=click.Choice(GROUPS), help="Sum by this. [default: project; with --platform: tenant]")
@click.option("--instance", metavar="NAME", help="Only of this instance of a project.")
def cost(
    *,
    project: str | None,
    tenant: str | None,
    platform: bool,
    since: str | None,
    until: str | None,
    by: str | None,
    instance: str | None,
) -> None:
    """Show what was charged, what the open hour costs so far, and where the month leads.

    An allocation is charged from active until the release was requested. What it already pays for is covered: it costs
    nothing, and the table shows what it would have cost. With --platform you see the totals of all tenants. A table
    shows money, and -o json integers of 10⁻⁶ minor unit.
    """
    invocation = current()
    endpoint, path = ScopeResolver(invocation).choose(ENDPOINTS, ScopeOptions(project, tenant, platform))
    query = {"since": since, "until": until, "group_by": by, "limit": PAGE_MAX}
    if instance is not None:
        if endpoint.scope != "project":
            raise click.UsageError("--instance is a name in a project: add --project")
        query["instance_id"] = find(invocation, path["project_id"], instance)["instance_id"]
    if endpoint.scope == "platform":
        rows = list(invocation.client.pages(plain_call(endpoint.operation, path, query)))
        _show(invocation.output, rows, rows)
        return
    whole = _whole(endpoint.operation, path, query)
    _show(invocation.output, whole, whole["items"])
    if invocation.output == "table":
        _show_totals(whole)


@click.command(cls=MooringCommand)
@click.argument("instance", required=False)
@click.option("--project", metavar="NAME", help="The project, by id or slug.")
@click.option("--since", type=TimeAgo(), help="From this time on, or from so long ago. [default: this month]")
@click.option("--until", type=TimeAgo(), help="Before this time. [default: now]")
@click.option("--by", type=click.Choice(USED_BY), default="unit", help="Sum by this. [default: unit]")
def usage(*, instance: str | None, project: str | None, since: str | None, until: str | None, by: str) -> None:
    """Show how much a project or one of its instances used, in each unit, and what that cost.

    These are closed hours. What an allocation already pays for costs nothing, and is shown as covered. The records of
    an instance, one by one, are in `mooring instances usage list`.
    """
    invocation = current()
    path = {"project_id": ScopeResolver(invocation).project_id(project)}
    query: dict[str, Any] = {"since": since, "until": until, "group_by": by, "limit": PAGE_MAX}
    if instance is not None:
        query["instance_id"] = find(invocation, path["project_id"], instance)["instance_id"]
    whole = _whole("get_project_cost", path, query)
    _show(invocation.output, whole, whole["items"], USED_COLUMNS)


def _whole(operation: str, path: dict[str, str], query: dict[str, Any]) -> dict[str, Any]:
    """The cost with the lines of all pages."""
    invocation = current()
    whole: dict[str, Any] = invocation.call(operation, path, query)
    cursor = whole["next_cursor"]
    while cursor:
        following = invocation.call(operation, path, query | {"cursor": cursor})
        whole["items"] += following["items"]
        cursor = whole["next_cursor"] = following["next_cursor"]
    return whole


def _show(form: str, whole: Any, rows: list[dict[str, Any]], columns: tuple[str, ...] = COLUMNS) -> None:
    if form != "table":
        output.show(form, whole)
    elif rows:
        output.show_table([_row(each) for each in rows], columns)
    else:
        output.note("Nothing was charged in this period.")


def _row(line: Mapping[str, Any]) -> dict[str, Any]:
    quantity = line["quantity_micro"]
    return {
        "name": line["name"] or "(none)",
        "charged": money.text(line["charged_micro"], line["currency"]),
        "covered": money.text(line["covered_micro"], line["currency"]) if line["covered_micro"] else "",
        "quantity": "" if quantity is None else f"{money.quantity(quantity)} {line['unit']}",
    }


def _show_totals(whole: Mapping[str, Any]) -> None:
    """One line for each number: they are never added up where they mean different things."""
    for each in whole["totals"]:
        total = money.text(each["total_micro"], each["currency"])
        estimated = money.text(each["estimated_micro"], each["currency"])
        click.echo(f"total {total}, of which {estimated} is estimated (hours that are not closed yet)")
        if each["covered_micro"]:
            click.echo(f"covered by allocations: {money.text(each['covered_micro'], each['currency'])}")
    for each in whole["forecasts"]:
        month, rate = (money.text(each[name], each["currency"]) for name in ("month_micro", "micro_per_hour"))
        click.echo(f"forecast for this month: {month} at {rate} an hour, if {each['assumes']}")
    click.echo(f"allocations are {whole['clock']}")
