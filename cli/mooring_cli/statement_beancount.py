"""A statement for beancount, as a second set of books: its checker adds up every entry again.

Each project has an account for each month, so that the files of several months can be read together. Covered usage
costs nothing and is left out.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal, localcontext
from typing import IO, Any

from mooring_cli.money import PRECISION, exact

Line = Mapping[str, Any]


def write_beancount(statement: Line, lines: Iterable[Line], target: IO[str]) -> None:
    """Write one transaction for each line, then the accounts, and what each must add up to at the end of the month."""
    currency, month = statement["currency"], statement["month"]
    first, after = (datetime.fromisoformat(statement[name]).date() for name in ("started_at", "ended_at"))
    sums: defaultdict[str, Decimal] = defaultdict(Decimal)
    target.write(
        f'option "title" {_text("Statement " + statement["id"])}\noption "operating_currency" "{currency}"\n\n'
    )
    for line in lines:
        if line["billing"] != "charged":
            continue
        amount = exact(line["amount_micro"], currency)
        account = _account(line["project_id"], month)
        with localcontext() as context:
            context.prec = PRECISION
            sums[account] += amount
        day = min(max(first, datetime.fromisoformat(line["hour"]).date()), after)
        target.write(
            f"{day} * {_text(line['project_slug'])} {_text(line['unit'] + ' of ' + line['source_id'])}\n"
            f"  line: {_text(line['id'])}\n"
            f"  transaction: {_text(line['transaction_id'] or '')}\n"
            f"  Assets:Receivable:{account}  {amount:f} {currency}\n"
            f"  Income:Revenue:{account}  {-amount:f} {currency}\n\n"
        )
    for account, amount in sorted(sums.items()):
        for name, owed in ((f"Assets:Receivable:{account}", amount), (f"Income:Revenue:{account}", -amount)):
            target.write(f"{first} open {name} {currency}\n{after} balance {name}  {owed:f} {currency}\n")
    with localcontext() as context:
        context.prec = PRECISION
        target.write(f"\n; total {sum(sums.values(), Decimal()):f} {currency}\n")


def _account(project_id: str, month: str) -> str:
    """The last parts of an account's name: letters, digits and dashes."""
    return f"{project_id.upper().replace('_', '-')}:{month}"


def _text(value: str) -> str:
    kept = "".join(each if each.isprintable() else " " for each in value)
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"') + '"'
