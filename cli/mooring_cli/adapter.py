"""`mooring adapter`: begin and test an adapter on the developer's machine.

The templates and the conformance suite are in the kit, a separate distribution (`mooring-adapter`). They are run as
programs, so the CLI does not depend on the kit.
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
SCAFFOLD = f"{SUITE_PACKAGE}.scaffold"
DEV = f"{SUITE_PACKAGE}.dev"
LANGUAGES = ("python", "node", "shell", "go")


@click.group(cls=MooringGroup)
def adapter() -> None:
    """Begin an adapter, and test it against a simulated platform."""


@adapter.command()
@click.option("--language", type=click.Choice(LANGUAGES), required=True, help="The language of the adapter.")
@click.option("--app", metavar="SLUG", help="The app's name. [default: that of the directory]")
@click.argument("directory", type=click.Path(file_okay=False))
def init(*, language: str, app: str | None, directory: str) -> int:
    """Write a small adapter into a new directory: an app, its manifest, and a program that keeps every promise.

    The next commands are printed, and stand in its README.md.
    """
    return _kit_program(SCAFFOLD, ["--language", language, *(["--app", app] if app else []), "--", directory])


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
    options = [word for name in only for word in ("--only", name)]
    options += ["--every-crash"] if every_crash else []
    options += ["--list"] if lists else []
    options += ["--json"] if current().output == "json" else []
    options += ["--patience", str(patience)] if patience is not None else []
    options += ["--profile", profile] if profile is not None else []
    return _with_manifest(SUITE, manifest_file, [*options, "--", *command])


@adapter.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--manifest", "manifest_file", metavar="FILE", required=True, help="The app's manifest, in YAML or JSON.")
@click.option("--profile", metavar="FILE", help="The same values as for `adapter test`, in JSON.")
@click.option("--before", metavar="COMMAND", help="Run this before each start, such as a build.")
@click.option("--watch", metavar="DIRECTORY", help="Start again when a file here changes. [default: this directory]")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def dev(
    *, manifest_file: str, profile: str | None, before: str | None, watch: str | None, command: tuple[str, ...]
) -> int:
    """Run an adapter on a simulated platform, show each of its requests, and start it again when a file changes.

    COMMAND is the adapter's program with its arguments. There is one instance of the app; type add, drain, remove,
    upgrade or stop to change it. A refused request is marked with an exclamation mark.
    """
    given = {"--profile": profile, "--before": before, "--watch": watch}
    options = [word for name, value in given.items() if value is not None for word in (name, value)]
    return _with_manifest(DEV, manifest_file, [*options, "--", *command])


def _with_manifest(module: str, manifest_file: str | None, arguments: list[str]) -> int:
    """Run a program of the kit, which reads manifests as JSON only."""
    if manifest_file is None:
        return _kit_program(module, arguments)
    from mooring_cli.manifest import read

    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(read(manifest_file).values, file)
        file.flush()
        return _kit_program(module, ["--manifest", str(Path(file.name)), *arguments])


def _kit_program(module: str, arguments: list[str]) -> int:
    if find_spec(SUITE_PACKAGE) is None:
        raise click.ClickException("the adapter kit is not installed; install mooring-adapter")
    with subprocess.Popen([sys.executable, "-m", module, *arguments]) as program:
        while True:
            try:
                return program.wait()
            except KeyboardInterrupt:
                continue  # Ctrl-C reaches the program too, which ends in its own way
