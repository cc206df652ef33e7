"""`mooring statements show` and `export`: a month in tables, and in the formats of other programs.

Exports are made here, from pages of lines, one line after the other: the server stays light, and a statement of any
length needs the memory of one page.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click

from mooring_cli import money, output
from mooring_cli.invocation import Invocation, current, plain_call
from mooring_cli.main import MooringCommand
from mooring_cli.scope import PAGE_MAX, ScopeResolver
from mooring_cli.statement_focus import VERSIONS, FocusOptions, rows, write_csv

GROUPS = ("project", "app", "instance", "member", "sku", "unit")
FORMATS = ("focus", "parquet", "json", "html", "beancount")
TOTALS = ("name", "unit", "quantity", "amount")

tenant_option = click.option("--tenant", metavar="NAME", help="Use this tenant, by id or slug.")
statement_argument = click.argument("statement", metavar="STATEMENT")


class StatementReader:
    """One statement of the server, by its id or its month."""

    def __init__(self, invocation: Invocation, tenant: str | None, named: str) -> None:
        scope = ScopeResolver(invocation)
        self._invocation = invocation
        place = {"tenant_id": scope.tenant_id(tenant)}
        self._path = place | {"statement_id": scope.reference("statement_id", named, place)}
        self.statement: dict[str, Any] = invocation.call("get_statement", self._path)

    def lines(self) -> Iterator[dict[str, Any]]:
        return self._pages("list_statement_lines", {})

    def groups(self, group_by: str) -> list[dict[str, Any]]:
        return list(self._pages("list_statement_groups", {"group_by": group_by}))

    def account_name(self) -> str:
        tenant = self._invocation.call("get_tenant", {"tenant_id": self._path["tenant_id"]})
        return str(tenant["display_name"])

    def _pages(self, operation: str, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return self._invocation.client.pages(plain_call(operation, self._path, query | {"limit": PAGE_MAX}))


@click.command(cls=MooringCommand)
@statement_argument
@tenant_option
@click.option(
    "--group-by",
    type=click.Choice(GROUPS),
    multiple=True,
    default=("project", "sku", "unit"),
    help="What to sum by; can be repeated. [default: project, sku, unit]",
)
def show(*, statement: str, tenant: str | None, group_by: tuple[str, ...]) -> None:
    """Show a month: its total, and what it is made of.

    STATEMENT is an id or a month such as 2026-10. Covered usage is shown apart: it costs nothing, and its amount is
    what it would have cost.
    """
    invocation = current()
    read = StatementReader(invocation, tenant, statement)
    found = {name: read.groups(name) for name in group_by}
    if invocation.output != "table":
        output.show(invocation.output, read.statement | {"groups": found})
        return
    seen = read.statement
    mark = "preview, may still change" if seen["preview"] else f"closed {seen['closed_at']}"
    click.echo(output.plain(f"{seen['month']}  {money.text(seen['amount_micro'], seen['currency'])}  ({mark})"))
    if seen["shadow_micro"] is not None:
        click.echo(f"covered by allocations, not charged: {money.text(seen['shadow_micro'], seen['currency'])}")
    for name, groups in found.items():
        for billing in ("charged", "covered"):
            shown = [_shown(row, billing) for row in groups if row["billing"] == billing]
            if shown:
                click.echo(f"\nby {name}" + ("" if billing == "charged" else ", covered"))
                output.show_table(shown, TOTALS)
    if seen["digest"]:
        click.echo(f"\ndigest    {seen['digest']}\nprevious  {seen['previous_digest'] or 'none'}")


@click.command(cls=MooringCommand)
@statement_argument
@tenant_option
@click.option("--format", "kind", type=click.Choice(FORMATS), default="focus", help="What to write. [default: focus]")
@click.option(
    "--focus", "version", type=click.Choice(VERSIONS), default="1.2", help="The version of FOCUS. [default: 1.2]"
)
@click.option(
    "--provider", default="Mooring", metavar="NAME", help="Who sends the invoice, in FOCUS. [default: Mooring]"
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file. [default: stdout]")
def export(*, statement: str, tenant: str | None, kind: str, version: str, provider: str, out: Path | None) -> None:
    """Export a month: FOCUS as CSV or Parquet, JSON, a page that prints, or beancount.

    STATEMENT is an id or a month such as 2026-10. Parquet needs --out and the extra `mooring-cli[parquet]`.
    """
    if kind == "parquet" and out is None:
        raise click.UsageError("--format parquet needs --out FILE")
    read = StatementReader(current(), tenant, statement)
    options = FocusOptions(read.account_name(), provider, version) if kind in ("focus", "parquet", "html") else None
    if out is None:
        _write(read, kind, options, sys.stdout)
        return
    part = out.with_name(out.name + ".part")
    try:
        if kind == "parquet" and options is not None:
            from mooring_cli.statement_parquet import write_parquet

            write_parquet(rows(read.statement, read.lines(), options), part, version)
        else:
            with part.open("w", encoding="utf-8", newline="") as target:
                _write(read, kind, options, target)
        os.replace(part, out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    if read.statement["preview"]:
        output.note(f"{read.statement['month']} is not closed: this is a preview.")


def _write(read: StatementReader, kind: str, options: FocusOptions | None, target: IO[str]) -> None:
    if kind == "focus" and options is not None:
        write_csv(rows(read.statement, read.lines(), options), target, options.version)
    elif kind == "html" and options is not None:
        from mooring_cli.statement_html import page

        groups = {name: read.groups(name) for name in GROUPS}
        target.write(page(read.statement, options.account_name, groups))
    elif kind == "beancount":
        from mooring_cli.statement_beancount import write_beancount

        write_beancount(read.statement, read.lines(), target)
    else:
        _write_json(read, target)


def _write_json(read: StatementReader, target: IO[str]) -> None:
    """One document, written line by line."""
    target.write('{"statement": ' + json.dumps(read.statement, ensure_ascii=False) + ',\n"lines": [')
    for number, line in enumerate(read.lines()):
        target.write(("," if number else "") + "\n" + json.dumps(line, ensure_ascii=False))
    target.write("\n]}\n")


def _shown(row: dict[str, Any], billing: str) -> dict[str, Any]:
    amount = row["amount_micro" if billing == "charged" else "shadow_micro"]
    return {
        "name": row["name"] or row["key"] or "-",
        "unit": row["unit"],
        "quantity": money.quantity(row["quantity_micro"]),
        "amount": money.text(amount, row["currency"]),
    }
