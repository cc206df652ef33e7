"""`mooring adapter`: test an adapter on the developer's machine.

The conformance suite is in the kit, a separate distribution (`mooring-adapter`). It is run as a program, so the CLI
does not depend on the kit.
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
@click.option("--manifest", "manifest_file", metavar="FILE", help="The app's manifest, in YAML or JSON.")
@click.option("--profile", metavar="FILE", help="Values for the run, in JSON: topology, config, actions, grows.")
@click.option("--only", multiple=True, metavar="PROMISE", help="Test only this promise; repeatable.")
@click.option("--every-crash", is_flag=True, help="Kill the adapter at every request instead of at some.")
@click.option("--patience", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Timeout of each step.")
@click.option("--list", "lists", is_flag=True, help="List the promises and exit.")
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
    """Run the conformance suite against an adapter, and report which promises it keeps.

    COMMAND is the adapter's program with its arguments. The platform is simulated, so no server is needed. The exit
    code is 0 when no promise is broken.
    """
    if find_spec(SUITE_PACKAGE) is None:
        raise click.ClickException("the conformance suite is not installed; install mooring-adapter")
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
