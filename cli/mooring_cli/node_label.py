"""`mooring nodes label`: set and remove labels, written as `rack=a7` and `spare-`."""

import click

from mooring_cli import output
from mooring_cli.invocation import current
from mooring_cli.main import MooringCommand
from mooring_cli.scope import ScopeResolver


@click.command(cls=MooringCommand)
@click.argument("node")
@click.argument("labels", nargs=-1, required=True, metavar="LABEL=VALUE|LABEL-...")
@click.option(
    "--idempotency-key", metavar="KEY", help="Requests with the same key take effect once. [default: a new key]"
)
def label(*, node: str, labels: tuple[str, ...], idempotency_key: str | None) -> None:
    """Set labels of a node, as in rack=a7, and remove them, as in spare-; others stay."""
    from mooring_sdk import CallOptions

    invocation = current()
    path = {"node_id": ScopeResolver(invocation).reference("node_id", node, {})}
    body = {"labels": dict(map(read_label, labels))}
    options = CallOptions(idempotency_key=idempotency_key)
    output.show(invocation.output, invocation.call("label_node", path, None, body, options=options))


def read_label(text: str) -> tuple[str, str | None]:
    name, given, value = text.partition("=")
    if given and name:
        return name, value
    if not given and len(text) > 1 and text.endswith("-"):
        return text[:-1], None
    raise click.UsageError(f"{text}: expected LABEL=VALUE to set a label, or LABEL- to remove it")
