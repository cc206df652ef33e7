"""`mooring billing`: prove the ledger, and correct it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import click

from mooring_cli import failures, output
from mooring_cli.invocation import current, plain_call
from mooring_cli.main import MooringGroup
from mooring_cli.nouns import CommandEndpoint
from mooring_cli.scope import ScopeOptions, ScopeResolver

PROOFS = (
    CommandEndpoint("prove_tenant_billing", "tenant", "tenant_id"),
    CommandEndpoint("prove_platform_billing", "platform", ""),
)
MICRO = 10**6
MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S%z"])
BROKEN = 1


@dataclass
class LawSum:
    """What all steps of a proof said about one law."""

    law: str
    sentence: str
    checked: int = 0
    broken: int = 0
    counterexample: str | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, step: dict[str, Any]) -> None:
        self.checked += step["checked"]
        self.broken += step["broken"]
        self.counterexample = self.counterexample or step["counterexample"]
        for name, count in step["counts"].items():
            self.counts[name] = self.counts.get(name, 0) + count

    @property
    def row(self) -> dict[str, Any]:
        shown = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        result = f"BROKEN {self.broken}×" if self.broken else "holds"
        return {"law": self.law, "checked": self.checked, "result": result, "counts": shown, "says": self.sentence}


@click.group(cls=MooringGroup)
def billing() -> None:
    """Prove that the ledger is right, and correct it."""


@billing.command()
@click.option("--tenant", metavar="NAME", help="Prove the part of this tenant, by id or slug.")
@click.option("--platform", is_flag=True, help="Prove the whole ledger.")
@click.option("--from", "since", type=MOMENT, help="Rate again from this hour on. [default: the previous month]")
@click.option("--to", "until", type=MOMENT, help="Rate again up to this hour. [default: the last charged one]")
def prove(*, tenant: str | None, platform: bool, since: datetime | None, until: datetime | None) -> int:
    """Recompute the ledger from the lifecycle log and the stored usage, and show each law with its counts.

    The exit code is 1 when a law is broken; the first counterexample is shown. Without --tenant or --platform it uses
    the scope of the context, otherwise your own.
    """
    invocation = current()
    endpoint, path = ScopeResolver(invocation).choose(PROOFS, ScopeOptions(None, tenant, platform))
    query = {name: at and in_utc(at) for name, at in (("since", since), ("until", until))}
    laws = proven(invocation.client.pages(plain_call(endpoint.operation, path, query)))
    broken = [each for each in laws if each.broken]
    if invocation.output == "table":
        output.show_table([each.row for each in laws], ("law", "checked", "result", "counts", "says"))
        for each in broken:
            click.echo(f"BROKEN {each.law}: {each.sentence}\n  {each.counterexample}", err=True)
    else:
        rows = [vars(each) for each in laws]
        output.show(invocation.output, {"proven": not broken, "laws": rows})
    return BROKEN if broken else failures.DONE


def in_utc(at: datetime) -> str:
    """The whole hour; a date begins at midnight in UTC, as billing does."""
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:00:00Z")


def proven(steps: Iterable[dict[str, Any]]) -> list[LawSum]:
    """The laws in their order, with the steps of each added up; a terminal shows how far the proof is."""
    found: dict[str, LawSum] = {}
    shows = output.on_terminal()
    for step in steps:
        found.setdefault(step["law"], LawSum(step["law"], step["sentence"])).add(step)
        if shows:
            at = f" up to {step['proven_until']}" if step["proven_until"] else ""
            click.echo(f"\r\033[K{len(found)} laws: {step['law']}{at}", nl=False, err=True)
    if shows:
        click.echo("\r\033[K", nl=False, err=True)
    return list(found.values())


@billing.command()
@click.argument("transaction")
@click.option(
    "--minor", required=True, metavar="AMOUNT", help="What the project owes more, in minor units; below 0: a credit."
)
@click.option("--reason", required=True, help="Why; it stays with the correction.")
@click.option("--idempotency-key", metavar="KEY", help="Requests with the same key take effect once.")
def correct(*, transaction: str, minor: str, reason: str, idempotency_key: str | None) -> None:
    """Credit a project, or charge it, for a booked transaction.

    The correction is a transaction of its own that names the corrected one. --minor takes up to six decimal places.
    """
    from mooring_sdk import CallOptions

    body = {"transaction_id": transaction, "micro": micro_of(minor), "reason": reason}
    options = CallOptions(idempotency_key=idempotency_key)
    output.show(current().output, current().call("create_billing_correction", body=body, options=options))


def micro_of(minor: str) -> int:
    """Minor units as an integer of millionths."""
    try:
        micro = Decimal(minor) * MICRO
    except InvalidOperation:
        micro = Decimal("nan")
    if not micro.is_finite() or micro != micro.to_integral_value():
        raise click.UsageError("--minor: an amount of minor units with up to six decimal places")
    return int(micro)
