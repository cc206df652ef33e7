"""`mooring version`: the versions of the command, of the SDK and of the server."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

import click

from mooring_cli import output
from mooring_cli.invocation import current
from mooring_cli.main import MooringCommand


@click.command(cls=MooringCommand)
@click.option("--client", "client_only", is_flag=True, help="Do not ask the server.")
def version(*, client_only: bool) -> None:
    """Show the versions of the command and of the server."""
    invocation = current()
    shown = {"cli": installed("mooring-cli"), "sdk": installed("mooring-sdk")}
    if not client_only:
        from mooring_sdk import MooringError

        try:
            shown["server"] = str(invocation.public_call("get_openapi")["info"]["version"])
        except MooringError as error:
            shown["server"] = f"unknown: {error.detail}"
    output.show(invocation.output, shown)


def installed(name: str) -> str:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return "not installed"
