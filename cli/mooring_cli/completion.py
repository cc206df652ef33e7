"""`mooring completion`, and what a shell completes: commands and options, and names that the server knows.

Names come from the lists of the API, those of contexts from their file. A shell waits for the answer, so a request has
two seconds. If the server cannot be asked, nothing is completed: an error would be written into the command line.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from mooring_cli.invocation import Invocation

TIMEOUT_SECONDS = 2.0
OPTIONS = {
    "--project": "project",
    "--tenant": "tenant",
    "--sku": "sku",
    "--placement-sku": "sku",
    "--allocation": "allocation",
    "--instance": "instance",
    "--member": "member",
    "--app": "app",
    "--user": "user",
    "--node": "node",
    "--service-account": "service_account",
}
"""The options whose values are names, and of which noun."""
ARGUMENTS = (
    "allocation",
    "app",
    "artifact",
    "attachment",
    "endpoint",
    "entitlement",
    "group",
    "instance",
    "member",
    "node",
    "operation",
    "project",
    "service_account",
    "sku",
    "source",
    "subject",
    "tenant",
    "user",
    "version",
    "webhook",
)
"""The arguments that are names, without `_id`."""
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def completer_for(parameter: click.Parameter) -> Complete | None:
    """What completes the value of a parameter; None if it is not a name."""
    if isinstance(parameter, click.Option):
        noun = next((OPTIONS[each] for each in parameter.opts if each in OPTIONS), None)
    else:
        name = str(parameter.name).removesuffix("_id")
        noun = name if name in ARGUMENTS else None
    if noun is None:
        return None

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        return [CompletionItem(each) for each in dict.fromkeys(names(ctx, noun)) if each.startswith(incomplete)]

    return complete


def names(ctx: click.Context, noun: str) -> list[str]:
    """The names of a noun; none if they cannot be read."""
    from mooring_cli.contexts import ContextsUnusable
    from mooring_cli.invocation import Invocation
    from mooring_sdk import MooringError

    invocation = ctx.find_object(Invocation)
    if invocation is None:
        return []
    invocation.timeout_seconds, invocation.retry_attempts = TIMEOUT_SECONDS, 1
    try:
        return list(known_names(invocation, ctx, noun))
    except (MooringError, click.ClickException, ContextsUnusable):
        return []


def known_names(invocation: "Invocation", ctx: click.Context, noun: str) -> Iterator[str]:
    """The names of the living resources of a noun, in the scope that the words before have chosen."""
    from mooring_cli.name_matching import alive_of, shown
    from mooring_cli.scope import ScopeResolver

    resolver = ScopeResolver(invocation)
    if noun in ("project", "tenant"):
        yield from (str(each["slug"]) for each in resolver.projects_or_tenants(noun))
        return
    path: dict[str, str] = {}
    given = {**ctx.params}
    for scope in ("project", "tenant"):
        if named := given.get(f"scope_{scope}") or (given.get(scope) if isinstance(given.get(scope), str) else None):
            path[f"{scope}_id"] = resolver.project_id(named) if scope == "project" else resolver.tenant_id(named)
    parameter = "instance_id" if noun == "subject" else f"{noun}_id"
    for before in ("instance", "app", "service_account", "attachment"):
        value = given.get(f"{before}_id") or given.get(before)
        if isinstance(value, str) and parameter != f"{before}_id":
            path[f"{before}_id"] = resolver.reference(f"{before}_id", value, path)
    rows, fields = resolver.candidates(parameter, "", path)
    singular = parameter.removesuffix("_id").replace("_", " ")
    yield from (shown(row, fields) for row in alive_of(rows, singular))


def complete_names(command: click.Command) -> None:
    """Let a shell complete the names that a command takes."""
    for parameter in command.params:
        if parameter._custom_shell_complete is None and isinstance(parameter.type, click.types.StringParamType):
            parameter._custom_shell_complete = completer_for(parameter)


def script(shell: str) -> str:
    """The completion script for a shell."""
    from click.shell_completion import get_completion_class

    from mooring_cli.main import mooring

    kind: Any = get_completion_class(shell)
    maker = kind(mooring, {}, "mooring", "_MOORING_COMPLETE")
    return str(maker.source_template % maker.source_vars())
