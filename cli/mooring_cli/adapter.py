"""Adapters on the developer's machine: does one keep its promises?

The suite is in the kit, a distribution of its own (`mooring-adapter`): it is run as a program, so this command needs
the kit only when it is asked for it.
"""

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import click

from mooring_cli.invocation import current
from mooring_cli.main import MooringGroup

SUITE_PACKAGE = "mooring_adapter"
SUITE = f"{SUITE_PACKAGE}.conformance"


@click.group(cls=MooringGroup)
def adapter() -> None:
    """Test an adapter against a simulated platform."""


@adapter.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--manifest", "manifest_file", metavar="FILE", help="The app's manifest, YAML or JSON.")
@click.option("--profile", metavar="FILE", help="Values for the play, JSON: topology, config, actions, grows.")
@click.option("--only", multiple=True, metavar="PROMISE", help="Play this promise; may be said again.")
@click.option("--every-crash", is_flag=True, help="Kill the adapter at every request, not only at some.")
@click.option("--patience", type=click.FloatRange(min=0.1), metavar="SECONDS", help="How long anything may take.")
@click.option("--list", "lists", is_flag=True, help="Say which promises there are, and end.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def test(
    *,
    manifest_file: str | None,
    profile: str | None,
    only: tuple[str, ...],
    every_crash: bool,
    patience: float | None,
    lists: bool,
    command: tuple[str, ...],
) -> int:
    """Play the platform's worst day against an adapter, and say which promises it keeps.

    COMMAND is the adapter's program with its arguments. The platform is a simulated one and needs no server. It ends
    with 0 when no promise is broken.
    """
    if find_spec(SUITE_PACKAGE) is None:
        raise click.ClickException("the suite is in the kit, which is not installed here: install mooring-adapter")
    options = [word for name in only for word in ("--only", name)]
    options += ["--every-crash"] if every_crash else []
    options += ["--list"] if lists else []
    options += ["--json"] if current().output == "json" else []
    options += ["--patience", str(patience)] if patience is not None else []
    options += ["--profile", profile] if profile is not None else []
    if manifest_file is None:
        return _suite([*options, "--", *command])
    from mooring_cli.manifest import read

    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(read(manifest_file).values, file)
        file.flush()
        return _suite(["--manifest", str(Path(file.name)), *options, "--", *command])


def _suite(arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", SUITE, *arguments], check=False).returncode
