"""`mooring attention`: what needs somebody, worst first, with the next step."""

from typing import Any

import click

from mooring_cli import output
from mooring_cli.invocation import current, plain_call
from mooring_cli.main import MooringCommand
from mooring_cli.nouns import CommandEndpoint
from mooring_cli.scope import PAGE_MAX, ScopeOptions, ScopeResolver, scope_options

ENDPOINTS = (
    CommandEndpoint("list_project_attention_items", "project", "project_id"),
    CommandEndpoint("list_tenant_attention_items", "tenant", "tenant_id"),
    CommandEndpoint("list_platform_attention_items", "platform", ""),
)
SEVERITIES = ("critical", "warning", "notice")
COLUMNS = ("severity", "what", "cause", "since", "next")


@click.command(cls=MooringCommand)
@scope_options
@click.option("--severity", type=click.Choice(SEVERITIES), help="Only what is so urgent.")
def attention(*, project: str | None, tenant: str | None, platform: bool, severity: str | None) -> None:
    """Show what needs somebody: what failed, what is blocked, and what runs out, with the next step for each.

    The most urgent is first. With --platform you see what an operator can do something about; of what belongs to a
    tenant it shows that there is something, and no name.
    """
    invocation = current()
    endpoint, path = ScopeResolver(invocation).choose(ENDPOINTS, ScopeOptions(project, tenant, platform))
    query = {"severity": severity, "limit": PAGE_MAX}
    rows = list(invocation.client.pages(plain_call(endpoint.operation, path, query)))
    if invocation.output != "table":
        output.show(invocation.output, rows)
    elif rows:
        output.show_table([_row(each) for each in rows], COLUMNS)
    else:
        output.note("Nothing needs you.")


def _row(item: dict[str, Any]) -> dict[str, Any]:
    step = item["next_step"]
    return {
        "severity": item["severity"],
        "what": f"{item['subject_noun']} {item['subject_name'] or item['subject_id']}",
        "cause": item["cause"],
        "since": item["since"],
        "next": step["command"] or f"{step['who']}: {step['what']}",
    }
