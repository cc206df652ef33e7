"""`mooring context`: list, show, use, set and delete contexts."""

from dataclasses import replace

import click

from mooring_cli import output
from mooring_cli.columns import OF_NOUN
from mooring_cli.commands import confirm
from mooring_cli.contexts import Context
from mooring_cli.invocation import Invocation, current
from mooring_cli.main import MooringGroup
from mooring_cli.scope import ScopeResolver


@click.group(cls=MooringGroup, no_args_is_help=True)
def context() -> None:
    """Switch between servers, tenants and projects.

    A context has a server, a tenant, a project and a token. MOORING_URL, MOORING_TOKEN, MOORING_TENANT,
    MOORING_PROJECT and MOORING_CONTEXT override what is stored.
    """


@context.command("list")
def list_() -> None:
    """List the contexts; a star marks the current one."""
    invocation = current()
    rows = []
    for name, each in sorted(invocation.contexts.by_name.items()):
        shown = each.shown()
        rows.append({"current": "*" if name == invocation.chosen_name else "", **shown})
    if not rows and invocation.output == "table":
        output.note("No contexts yet. Create the first one: mooring login --url URL --email ADDRESS")
        return
    output.show(invocation.output, rows, OF_NOUN["context"], wide=invocation.wide)


@context.command()
def show() -> None:
    """Show the current context, without its token."""
    invocation = current()
    output.show(invocation.output, invocation.context.shown())


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Switch to another context."""
    invocation = current()
    require(invocation, name)
    invocation.save(invocation.contexts.using(name))
    output.note(f"Switched to the context {name!r}.")


@context.command("set")
@click.argument("name", required=False)
@click.option("--tenant", metavar="SLUG", help="The default tenant; empty for none.")
@click.option("--project", metavar="SLUG", help="The default project; empty for none.")
def set_(name: str | None, tenant: str | None, project: str | None) -> None:
    """Change a context (the current one unless NAME is given), or create one with --url.

    A new address deletes the stored token: sign in again afterwards.
    """
    invocation = current()
    chosen = name or invocation.chosen_name
    address = invocation.url_option
    if chosen is None:
        raise click.UsageError("give a context, or sign in first: mooring login")
    if chosen not in invocation.contexts.by_name and address is None:
        require(invocation, chosen)
    before = invocation.contexts.by_name.get(chosen, Context(chosen))
    after = before
    if address is not None and address.rstrip("/") != before.url:
        after = replace(after, url=address.rstrip("/"), token=None, token_id=None, token_expires_at=None, ca_file=None)
    if invocation.ca_file_option is not None:
        after = replace(after, ca_file=invocation.given_ca_file if invocation.ca_file_option else None)
    if tenant is not None:
        after = replace(after, tenant=tenant or None)
    if project is not None:
        after = replace(after, project=project or None)
    if project:
        require_project(invocation, after)
    invocation.save(invocation.contexts.with_context(after, use=False))
    output.show(invocation.output, after.shown())


@context.command()
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(name: str, yes: bool) -> None:
    """Delete a context. Its token stays valid; run `mooring logout --context NAME` first to revoke it."""
    invocation = current()
    found = require(invocation, name)
    valid = " and leave its token valid" if found.token is not None else ""
    confirm(invocation, f"delete context {name}{valid}", yes)
    invocation.save(invocation.contexts.without(name))
    output.note(f"Deleted the context {name!r}.")


def require_project(invocation: Invocation, context: Context) -> None:
    """Refuse a project that the user of a context cannot see; without a token or a server it is only noted."""
    from mooring_sdk import ConnectionFailed

    asking = replace(invocation, context_name=context.name, url_option=None)
    asking.__dict__["contexts"] = invocation.contexts.with_context(context, use=False)
    resolver = ScopeResolver(asking)
    resolver.whole_names = True
    if asking.credentials() is None:
        output.note(f"The project {context.project!r} was not checked, because nobody is signed in.")
        return
    try:
        resolver.project_id(str(context.project))
    except ConnectionFailed:
        output.note(f"The project {context.project!r} was not checked, because {asking.url} does not answer.")


def require(invocation: Invocation, name: str) -> Context:
    """The context with this name, or a usage error."""
    found = invocation.contexts.by_name.get(name)
    if found is None:
        known = ", ".join(sorted(invocation.contexts.by_name)) or "none"
        raise click.UsageError(f"there is no context {name!r}; available: {known}")
    return found
