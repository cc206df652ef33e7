"""Every `mooring` command in the README, in the docs and in the console is one that the command line accepts."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from mooring_cli.invocation import Invocation
from mooring_cli.main import mooring

TOP = Path(__file__).resolve().parents[2]
PAGES = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
GENERATED = "cli.md"  # its commands are made from the command line itself
BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?(?:[A-Z_]+=(?:\$\()?[^ ]* )*(?:\.venv/bin/)?(mooring .*)$")
INSIDE = re.compile(r"\$\((?:\.venv/bin/)?(mooring [^)]*)\)")
ENDS = {"|", "||", "&", "&&", ";", ">", ">>", "2>", "2>&1"}
IN_CONSOLE = re.compile(r"[`\"](mooring [a-z][^`\"]*)[`\"]")
VALUE = re.compile(r"\$\{verb\}|\$\{count\}|\$\{[^}]*\}")
EXAMPLES = {"${verb}": "drain", "${count}": "1"}
MISSING_FILE = re.compile(r"does not exist\.$|No such file or directory")
NOT_WHOLE = ("…", "[", "COMMAND")


def commands() -> Iterator[tuple[str, str]]:
    """The commands in blocks of code, with their page; an example that leaves something out is not one."""
    for page in PAGES:
        if page.name == GENERATED or page.parent.name == "decisions":
            continue
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in whole_lines(block):
                found = [match[1] for match in (COMMAND.match(line.strip()),) if match] + INSIDE.findall(line)
                yield from ((page.name, each) for each in found if not any(mark in each for mark in NOT_WHOLE))


def console_commands() -> Iterator[tuple[str, str]]:
    """The commands that the console shows, with an example in the place of each value."""
    for file in sorted((TOP / "console" / "src").rglob("*.tsx")):
        for found in IN_CONSOLE.findall(file.read_text(encoding="utf-8")):
            yield file.name, VALUE.sub(lambda value: EXAMPLES.get(value[0], "x"), found)


def whole_lines(block: str) -> Iterator[str]:
    """The lines of a block; a command goes on after a backslash, and until its quotes are closed."""
    begun = ""
    for line in block.replace("\\\n", " ").splitlines():
        begun = f"{begun} {line}" if begun else line
        if COMMAND.match(begun.strip()) and begun.count("'") % 2 and "#" not in begun:
            continue
        yield begun
        begun = ""


def words_of(command: str) -> list[str]:
    """The words of the command itself, without what the shell does with it."""
    words = shlex.split(command, comments=True)
    return words[1 : next((number for number, word in enumerate(words) if word in ENDS), len(words))]


def parse(words: list[str]) -> None:
    """Parse the words as the command line would, without doing anything."""
    command: click.Command = mooring
    parent: click.Context | None = None
    name: str | None = "mooring"
    while True:
        parent = command.make_context(name, list(words), parent=parent, obj=Invocation({}))
        if not isinstance(command, click.Group):
            return
        words = [*parent._protected_args, *parent.args]
        if not words and command.invoke_without_command:
            return
        name, found, words = command.resolve_command(parent, words)
        assert found is not None
        command = found


def test_every_command_in_the_docs_and_the_console_is_one_that_the_command_line_accepts() -> None:
    wrong = []
    for page, command in (known := [*commands(), *(shown := list(console_commands()))]):
        try:
            parse(words_of(command))
        except click.ClickException as error:
            if not MISSING_FILE.search(error.format_message()):  # a file that the reader has
                wrong.append(f"{page}: {command}: {error.format_message()}")
        except ValueError as error:  # a quote that the block does not close
            wrong.append(f"{page}: {command}: {error}")
    assert len(known) > 100, "the pages are read"
    assert len(shown) > 15, "the console is read"
    assert wrong == []
