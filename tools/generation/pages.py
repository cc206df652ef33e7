"""The generated lists in the docs: every method of the SDK, and every command of the CLI with its options.

They are below the last heading of pages that are otherwise written by hand.
"""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import click

from mooring_cli.commands import HAND_WRITTEN_VERBS, command_of
from mooring_cli.main import HAND_WRITTEN, hand_written
from mooring_cli.nouns import Noun
from mooring_sdk.operation import OperationTable
from tools.generation.document import ApiOperation, OpenApiDocument

METHODS_HEADING = "## Methods\n"
COMMANDS_HEADING = "## Commands\n"
LEFT_OUT = {"--help", "--output"}


def sdk_page(page: Path, document: OpenApiDocument) -> str:
    lines = [
        "Each method calls one operation and needs the action key in the last column. `iter_…` iterates over all "
        "pages of a list.",
        "",
    ]
    lines += ["| method | request | action |", "|---|---|---|"]
    for each in document.operations:
        if each.is_json or each.streams:
            lines.append(f"| {methods_of(each)} | `{each.method} {each.path}` | {action_of(each)} |")
    return _below(page, METHODS_HEADING, "\n".join(lines) + "\n")


def methods_of(operation: ApiOperation) -> str:
    rest = operation.name.partition("_")[2]
    if operation.streams:
        return f"`follow_{rest}`"
    return f"`{operation.name}`, `iter_{rest}`" if operation.pages else f"`{operation.name}`"


def action_of(operation: ApiOperation) -> str:
    return "none" if operation.is_public else f"`{operation.action}`"


def cli_page(page: Path, nouns: Iterable[Noun], table: OperationTable) -> str:
    """`docs/cli.md` with its list of commands."""
    parts: list[str] = []
    for name in HAND_WRITTEN:
        parts += _described(hand_written(name), f"mooring {name}")
    parts.append("### Global options\n\n" + _global_options())
    for noun in nouns:
        parts += _noun(noun, "mooring", table)
    return _below(page, COMMANDS_HEADING, "\n".join(parts))


def _noun(noun: Noun, before: str, table: OperationTable) -> list[str]:
    parts = []
    by_hand = HAND_WRITTEN_VERBS.get(noun.name, {}) if before == "mooring" else {}
    for name, (module, command) in by_hand.items():
        parts += _described(getattr(import_module(module), command), f"{before} {noun.name} {name}")
    for name in noun.operations:
        if name not in by_hand:
            parts += _described(command_of(noun, noun.verb(name, table)), f"{before} {noun.name} {name}")
    for below in noun.below:
        parts += _noun(below, f"{before} {noun.name}", table)
    return parts


def _described(command: click.Command, words: str) -> list[str]:
    if isinstance(command, click.Group):
        below = [part for name, each in command.commands.items() for part in _described(each, f"{words} {name}")]
        return [*_alone(command, words), *below] if command.invoke_without_command else below
    return _alone(command, words)


def _alone(command: click.Command, words: str) -> list[str]:
    arguments = [_argument(each) for each in command.params if isinstance(each, click.Argument)]
    lines = [f"### {' '.join([words, *arguments])}", "", _first_line(command), ""]
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    shown = [f"- {_option(each)}" for each in options if not LEFT_OUT & set(each.opts)]
    return ["\n".join(lines + shown + ([""] if shown else []))]


def _first_line(command: click.Command) -> str:
    return " ".join((command.help or "").strip().partition("\n\n")[0].split())


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or argument.make_metavar(click.Context(click.Command("x"))).strip("[].")
    shown = f"[{name}]" if not argument.required else name
    return f"{shown}…" if argument.nargs == -1 else shown


def _option(option: click.Option) -> str:
    names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
    text = (option.help or "").strip()
    return f"{names}: {text}" if text else names


def _global_options() -> str:
    root = import_module("mooring_cli.main").mooring
    return "\n".join(f"- {_option(each)}" for each in root.params if isinstance(each, click.Option)) + "\n"


def _below(page: Path, heading: str, text: str) -> str:
    """The page up to its last heading, with this text below it."""
    written, found, _ = page.read_text(encoding="utf-8").partition(heading)
    if not found:
        raise ValueError(f"{page} has no line {heading.strip()!r}")
    return f"{written}{heading}\n{text}"
