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
IN_CONSOLE = re.compile(r"[`\"](?=mooring [a-z])")
EXAMPLES = {
    "flagOf(place)": "--tenant x",
    "whereOf(tenantId, place)": "--project x",
    "where": "--project x",
    "place": " --project x",
    "flags": "",
    "words": "",
    "limits": "",
    'flags.join("")': " --app x",
    'words.join(" ")': "--gpus-max 1",
    "verb": "drain",
    'move.replace("_", "-")': "drain",
    "move": "drain",
    "change": "disable",
    "open.kind": "disable",
    "command": "stop",
    "noun": "allocations",
    "by": "app",
    "role": "project_viewer",
    "item": "unit",
    "billing": "charged",
    "status": "enabled",
    "gpus": "1",
    "count": "1",
    "text": "{}",
    "minor ?? 0": "1",
    "body.minor": "1",
    "days * 86_400": "86400",
    "JSON.stringify(thresholds)": "[]",
    "JSON.stringify(shown).replaceAll(\"'\", `'\\\\''`)": "{}",
    'sku?.shape ?? "SHAPE"': "gpu_slice",
    "WhyPanel.tsx each": "repair",
    "Entitlements.tsx verb": "disable",
    "LateUsage.tsx verb": "accept",
}
"""What stands for an expression in a command of the console, in one file where that is named; otherwise `x`."""
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
    """The commands that the console shows, with an example in the place of each expression."""
    for file in sorted((TOP / "console" / "src").rglob("*.tsx")):
        text = file.read_text(encoding="utf-8")
        for found in IN_CONSOLE.finditer(text):
            command, _ = template(text, found.end(), text[found.start()], file.name)
            yield from ((file.name, each) for each in command.split("\\n"))


def template(text: str, at: int, quote: str, file: str) -> tuple[str, int]:
    """The text of the literal that begins here, and the place behind it."""
    said = ""
    while text[at] != quote:
        if text.startswith("${", at):
            end = closing_brace(text, at + 2)
            said += example(text[at + 2 : end], file)
            at = end
        else:
            said += text[at]
        at += 1
    return said, at + 1


def closing_brace(text: str, at: int) -> int:
    depth = 1
    while True:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
        at += 1


def example(expression: str, file: str) -> str:
    """What an expression may be: its example, otherwise the first text in it that begins with a space, otherwise x."""
    for known in (f"{file} {expression}", expression):
        if known in EXAMPLES:
            return EXAMPLES[known]
    for match in re.finditer(r"[`\"](?= )", expression):
        return template(expression, match.end(), expression[match.start()], file)[0]
    return "x"


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
        except click.exceptions.Exit as ended:  # --help
            if ended.exit_code != 0:
                wrong.append(f"{page}: {command}: exit code {ended.exit_code}")
        except click.ClickException as error:
            if not MISSING_FILE.search(error.format_message()):  # a file that the reader has
                wrong.append(f"{page}: {command}: {error.format_message()}")
        except ValueError as error:  # a quote that the block does not close
            wrong.append(f"{page}: {command}: {error}")
    assert len(known) > 100, "the pages are read"
    assert len(shown) > 15, "the console is read"
    assert wrong == []
