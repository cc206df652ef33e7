"""`mooring receipts`: the generated commands, and `verify`, which needs no platform."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from mooring_cli import failures, output
from mooring_cli.commands import NounGroup
from mooring_cli.invocation import current
from mooring_cli.main import MooringCommand
from mooring_cli.noun_table import NOUNS

BYTES_MAX = 64 * 1_048_576


class ReceiptGroup(NounGroup):
    """The commands of the noun, and one that needs no server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "verify"]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return verify if name == "verify" else super().get_command(ctx, name)


@click.command(cls=MooringCommand)
@click.argument("path", metavar="FILE")
@click.option("--require-clean", is_flag=True, help="Also exit with 1 when the node found something left.")
def verify(*, path: str, require_clean: bool) -> int:
    """Verify an exported receipt offline, and print what it proves.

    FILE is the output of `mooring receipts export RECEIPT -o json`; `-` reads stdin. Signature, chain and content are
    checked with the public key in it. The exit code is 0 when everything is valid, and 1 otherwise.
    """
    from mooring_sdk import BundleRefused, verify_bundle

    try:
        verified = verify_bundle(_read(path))
    except BundleRefused as refused:
        raise click.ClickException(f"{path}: NOT VERIFIED: {refused}") from refused
    proves, open_ = verified.proves(), verified.does_not_prove()
    seen = verified.receipt
    if current().output != "table":
        output.show(
            current().output,
            {
                "id": seen.id,
                "verified": True,
                "clean": seen.clean,
                "node_id": verified.node_id,
                "fingerprint": verified.fingerprint,
                "sequence": seen.sequence,
                "digest": seen.digest,
                "proves": proves,
                "does_not_prove": open_,
            },
        )
    else:
        click.echo(f"{seen.id}: verified, {'clean' if seen.clean else 'NOT clean'}")
        for line in proves:
            click.echo(output.plain(f"  + {line}"))
        for line in open_:
            click.echo(output.plain(f"  ? {line}"))
        for each in seen.document["remaining"]:
            click.echo(output.plain(f"  left: {each['kind']} {each['name']}"))
    return failures.USAGE if require_clean and not seen.clean else failures.DONE


def _read(path: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read(BYTES_MAX + 1) if path == "-" else _text(Path(path))
        bundle = json.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{path} is not JSON: {error}") from error
    if not isinstance(bundle, dict):
        raise click.ClickException(f"{path} is not a bundle of receipts")
    return bundle


def _text(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        text = file.read(BYTES_MAX + 1)
    if len(text) > BYTES_MAX:
        raise click.ClickException(f"{path} is larger than {BYTES_MAX} bytes")
    return text


receipts = ReceiptGroup(NOUNS["receipts"])
