"""The page about the CLI is correct: its examples, variables and exit codes are the real ones."""

import re
import shlex
from pathlib import Path

import click

from mooring_cli import failures, invocation
from mooring_cli.main import mooring
from tests.support.rows import every_row

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SHOWN = re.search(r"```\n(.*?)```", TEXT, re.DOTALL)
EXAMPLES = [line for line in (SHOWN[1] if SHOWN else "").replace("\\\n", "").splitlines() if line]


@every_row("line", EXAMPLES)
def test_every_example_can_be_read_by_the_command(line: str) -> None:
    words = shlex.split(line, comments=True)
    assert words.pop(0) == "mooring"
    command: click.Command = mooring
    context = click.Context(mooring, info_name="mooring", obj=invocation.Invocation())
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
        context = click.Context(command, info_name=name, parent=context)
    command.parse_args(context, words)


def test_every_variable_and_every_exit_code_is_on_the_page() -> None:
    source = Path(invocation.__file__).read_text(encoding="utf-8")
    for name in set(re.findall(r'"(MOORING_[A-Z_]+)"', source)):
        assert f"`{name}`" in TEXT
    codes = {failures.DONE, failures.USAGE, failures.SERVER, failures.AUTH, failures.NOT_FOUND, failures.CONFLICT}
    for code in {*codes, failures.INTERRUPTED, failures.BROKEN_PIPE}:
        assert f"| {code} |" in TEXT
