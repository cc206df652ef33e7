"""A statement that prints: one file without scripts, which loads nothing.

Every text is escaped, and the policy of the page allows its own style sheet alone, by its hash: a name that a tenant
chose can neither run nor fetch anything.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mooring_cli import money

Row = Mapping[str, Any]
STYLE = """
body { font: 10pt/1.4 sans-serif; margin: 2cm; color: #111; }
h1 { font-size: 16pt; margin: 0 0 .2em; } h2 { font-size: 12pt; margin: 1.6em 0 .4em; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .2em .6em .2em 0; }
th { border-bottom: 1pt solid #111; } td { border-bottom: .5pt solid #ccc; overflow-wrap: anywhere; }
.number { text-align: right; white-space: nowrap; } .preview { border: 2pt solid #a00; padding: .5em; color: #a00; }
.digest { font: 8pt monospace; overflow-wrap: anywhere; } tr { break-inside: avoid; }
"""
HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{HASH}'; base-uri 'none'; form-action 'none'"
TITLES = {
    "project": "By project", "app": "By app", "instance": "By instance", "member": "By member", "sku": "By SKU",
    "unit": "By unit",
}  # fmt: skip


def page(statement: Row, account_name: str, groups: Mapping[str, Sequence[Row]]) -> str:
    """The whole page; `groups` are the sums by project, app and so on."""
    currency = statement["currency"]
    title = f"Statement {statement['month']} · {account_name}"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        f'<meta name="referrer" content="no-referrer"><title>{escape(title)}</title>',
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
    ]
    if statement["preview"]:
        parts.append('<p class="preview">Preview: this month is not closed, and these figures may still change.</p>')
    parts.append(f"<p>Total: <strong>{escape(money.text(statement['amount_micro'], currency))}</strong></p>")
    if statement["shadow_micro"] is not None:
        shadow = money.text(statement["shadow_micro"], currency)
        parts.append(f"<p>Usage that allocations cover would have cost {escape(shadow)}; it is not charged.</p>")
    for name, rows in groups.items():
        for billing, heading in (("charged", TITLES[name]), ("covered", f"{TITLES[name]}: covered, not charged")):
            found = [row for row in rows if row["billing"] == billing]
            if found:
                parts += _table(heading, found, currency, "amount_micro" if billing == "charged" else "shadow_micro")
    parts.append(f'<p class="digest">{escape(statement["id"])}')
    for label, field in (("digest", "digest"), ("lines", "lines_digest"), ("previous", "previous_digest")):
        if statement[field]:
            parts.append(f"<br>{label} {escape(statement[field])}")
    parts.append("</p></body></html>")
    return "\n".join(parts) + "\n"


def _table(heading: str, rows: Sequence[Row], currency: str, field: str) -> list[str]:
    parts = [f"<h2>{escape(heading)}</h2><table><thead><tr><th>Name</th><th>Unit</th>"]
    parts.append('<th class="number">Quantity</th><th class="number">Amount</th></tr></thead><tbody>')
    for row in rows:
        named = row["name"] or row["key"] or "none"
        parts.append(
            f"<tr><td>{escape(str(named))}</td><td>{escape(row['unit'])}</td>"
            f'<td class="number">{escape(money.quantity(row["quantity_micro"]))}</td>'
            f'<td class="number">{escape(money.text(row[field], currency))}</td></tr>'
        )
    parts.append("</tbody></table>")
    return parts
