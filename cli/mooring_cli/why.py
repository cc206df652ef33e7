"""`mooring why`: the causes behind the state of an instance, a member or an operation, and the next step."""

from typing import Any

import click

from mooring_cli import output
from mooring_cli.invocation import current
from mooring_cli.logs import find_member
from mooring_cli.main import MooringCommand
from mooring_cli.output import plain
from mooring_cli.scope import ScopeResolver
from mooring_cli.watch import find

WHO = {
    "you": "you",
    "project_admin": "an admin of the project",
    "app_team": "the operator of the app's adapter",
    "operator": "the platform's operator",
    "nobody": "nobody",
}
LINES_SHOWN = 10


@click.command(cls=MooringCommand)
@click.argument("subject")
@click.option("--project", metavar="NAME", help="The project, by id or slug.")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
def why(*, subject: str, project: str | None, as_json: bool) -> None:
    """Explain the state of an instance, a member or an operation, and who can do what about it.

    SUBJECT is an id, a prefix of one, or the name of an instance. INSTANCE/MEMBER and INSTANCE/ENDPOINT are a member.

    \b
    mooring why greeter
    mooring why hpc/hpc-worker-0
    """
    invocation = current()
    if as_json:
        invocation.output = "json"
    path = {"project_id": ScopeResolver(invocation).project_id(project)}
    instance, _, part = subject.partition("/")
    path["subject"] = find_member(invocation, find(invocation, path["project_id"], instance), part) if part else subject
    answer = invocation.call("explain_anything", path)
    if invocation.output != "table":
        output.show(invocation.output, answer)
        return
    for line in lines_of(answer):
        click.echo("\n".join(output.wrapped(line, 0)))


def lines_of(answer: dict[str, Any]) -> list[str]:
    """An explanation as a tree: each cause below what it explains."""
    lines: list[str] = []
    for depth, cause in enumerate(answer["chain"]):
        indent = "   " * (depth - 1) + "└─ " if depth else ""
        code = f" [{cause['code']}]" if cause.get("code") else ""
        head = f"{cause['noun']} {cause['name']} is {cause['status']}{code}"
        if cause["name"] != cause["id"]:
            head += f"  ({cause['id']})"
        lines.append(plain(indent + head))
        inner = "   " * depth + "   "
        lines.append(plain(inner + cause["text"].replace("\n", " ")))
        lines += [plain(f"{inner}| {line}") for line in cause.get("last_lines", [])[-LINES_SHOWN:]]
    following = answer["next"]
    lines.append("")
    lines.append(plain(f"next: {WHO.get(following['who'], following['who'])}: {following['what']}"))
    if following.get("command"):
        lines.append(plain(f"      {following['command']}"))
    return lines
