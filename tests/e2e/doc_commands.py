"""The commands of a page of the docs, in order, with the output that the page shows for them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"\s{2,}# .*$")
HEREDOC = re.compile(r"<< ?'(\w+)'")


@dataclass(frozen=True)
class DocCommand:
    """A command as a reader types it, and what the page shows below it."""

    text: str
    output: str


def commands_of(page: Path, section: str = "") -> Iterator[DocCommand]:
    """Every command of a page, or of one of its sections.

    In a block with lines that begin with `$ `, these are the commands, and the others are output. In a block without,
    every line is a command.
    """
    text = page.read_text(encoding="utf-8")
    if section:
        text = text[text.index(f"## {section}\n") :].partition("\n## ")[0]
    for kind, block in BLOCK.findall(text):
        if kind == "text" or " " in kind:
            continue  # output, or a file with its name
        lines = block.splitlines()
        prompted = any(line.startswith("$ ") for line in lines)
        while lines:
            first = lines.pop(0)
            if prompted and not first.startswith("$ "):
                continue
            command = COMMENT.sub("", first.removeprefix("$ "))
            while lines and not is_whole(command):
                more = lines.pop(0)
                command += "\n" + (more if HEREDOC.search(command) else COMMENT.sub("", more))
            output = []
            while prompted and lines and not lines[0].startswith("$ "):
                output.append(lines.pop(0))
            yield DocCommand(COMMENT.sub("", command), "\n".join(output))


def files_of(page: Path) -> dict[str, str]:
    """The files that a page shows; a file in several parts is one."""
    files: dict[str, str] = {}
    for kind, content in BLOCK.findall(page.read_text(encoding="utf-8")):
        name = kind.partition(" ")[2]
        if name:
            files[name] = f"{files[name]}\n\n{content}" if name in files else content
    return files


def is_whole(command: str) -> bool:
    """Whether the shell would not wait for more lines."""
    if found := HEREDOC.search(command):
        return command.splitlines()[-1] == found[1]
    return not command.endswith("\\") and command.count("'") % 2 == 0
