"""Click commands out of the table of nouns: one group for each noun, one command for each verb.

A command gathers its values, finds its place, calls the operation through the SDK, and shows the answer.
What is removed is asked about first.
"""

from importlib import import_module
from typing import Any

import click

from mooring_cli import check_progress, keys, output, option_types, request_body
from mooring_cli.invocation import Invocation, current, plain_call
from mooring_cli.main import MooringCommand, MooringGroup, close_to
from mooring_cli.nouns import Endpoint, Field, Noun, Verb
from mooring_cli.scope import ScopeOptions, ScopeResolver

PLACES = ("tenant_id", "project_id")
SCOPE_HELP = {
    "project": "The project, by id or slug.",
    "tenant": "The tenant, by id or slug.",
    "platform": "The platform itself.",
}
NAMED = ("tenant", "project", "reference", "sibling")
LIMIT = 100
PAGE_MAX = 500
COLUMNS = {
    "allocations": ("id", "name", "sku", "gpu_count", "status", "region", "node_id", "created_at"),
    "nodes": ("id", "name", "host", "region", "status", "reachable", "slots_free", "slots_total", "last_seen_at"),
    "receipts": ("id", "clean", "task_type", "allocation_id", "node_id", "sequence", "created_at"),
    "skus": ("slug", "shape", "gpu_model", "allowed_gpu_counts", "regions", "price_minor_per_gpu_hour", "status"),
    "tasks": ("id", "type", "status", "failure_code", "allocation_id", "created_at"),
}
"""What a table shows of a noun whose first fields are not what a person looks for."""

BESIDE: dict[str, dict[str, tuple[str, str]]] = {
    "instances": {
        "launch": ("mooring_cli.launch", "launch"),
        "watch": ("mooring_cli.watch", "watch"),
        "stop": ("mooring_cli.launch", "stop"),
    },
}
"""Commands of a noun that somebody wrote by hand, because they do more than one call; they win over generated ones."""


class NounGroup(MooringGroup):
    """The commands of one noun, made when they are called."""

    def __init__(self, noun: Noun) -> None:
        super().__init__(name=noun.name, help=noun.summary, no_args_is_help=True)
        self._below = {each.name: each for each in noun.below}
        self._noun = noun

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*dict.fromkeys([*BESIDE.get(self._noun.name, ()), *self._noun.operations]), *self._below]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        by_hand = BESIDE.get(self._noun.name, {}).get(name)
        if by_hand is not None:
            command: click.Command = getattr(import_module(by_hand[0]), by_hand[1])
            return command
        if name in self._noun.operations:
            return command_of(self._noun, self._noun.verb(name))
        return group_of(self._below[name]) if name in self._below else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = close_to(args[0], self.list_commands(ctx))
            listed = ", ".join(self.list_commands(ctx))
            hint = f"did you mean {near}?" if near else f"there is {listed}"
            raise click.UsageError(f"{ctx.command_path} has no {args[0]!r}; {hint}", ctx) from error


def group_of(noun: Noun) -> click.Group:
    """The group of a noun."""
    return NounGroup(noun)


def command_of(noun: Noun, verb: Verb) -> click.Command:
    """The command of a verb."""

    def run(**given: Any) -> None:
        perform(current(), noun, verb, given)

    return MooringCommand(
        name=verb.name,
        callback=run,
        params=parameters_of(verb),
        help="\n\n".join(text for text in (f"{verb.summary}.", verb.description, scope_text(verb)) if text),
        short_help=verb.summary,
    )


def parameters_of(verb: Verb) -> list[click.Parameter]:
    """Arguments and options of a verb, over all its resolver."""
    first = verb.endpoints[0]
    parameters: list[click.Parameter] = [
        click.Argument([name], metavar=name.removesuffix("_id").upper(), required=name not in PLACES)
        for name in first.arguments
    ]
    parameters += scope_options(verb)
    for field in fields_of(verb):
        parameters.append(option_types.option_of(field))
    if any(endpoint.takes_body for endpoint in verb.endpoints):
        about = "The whole body from a file in JSON or YAML; - is stdin. Options win over it."
        parameters.append(click.Option(["-f", "--from-file"], metavar="FILE", help=about))
    if takes_public_key(verb):
        about = "Make an Ed25519 key pair: the private half goes to this new file, only the public half is sent."
        parameters.append(click.Option(["--generate-key"], metavar="FILE", help=about))
    if first.deletes:
        parameters.append(click.Option(["-y", "--yes"], is_flag=True, help="Do not ask."))
    if first.pages:
        about = f"At the most so many; 0 for all. [default: {LIMIT}]"
        parameters.append(click.Option(["--limit"], type=click.IntRange(min=0), default=LIMIT, help=about))
    if check_progress.follows(verb):
        parameters.append(check_progress.follow_option())
    if mutates(verb):
        about = "Repeats under this key have one effect. [default: a new one]"
        parameters.append(click.Option(["--idempotency-key"], metavar="KEY", help=about))
    return parameters


def scope_options(verb: Verb) -> list[click.Parameter]:
    """Options that choose the place, where there is something to choose."""
    options: list[click.Parameter] = []
    for endpoint in verb.endpoints:
        if endpoint.scope_parameter:
            name = endpoint.scope_parameter.removesuffix("_id")
            options.append(click.Option([f"--{name}", f"scope_{name}"], metavar="NAME", help=SCOPE_HELP[name]))
        elif endpoint.scope == "platform" and len(verb.endpoints) > 1:
            options.append(click.Option(["--platform", "scope_platform"], is_flag=True, help=SCOPE_HELP["platform"]))
    return options


def scope_text(verb: Verb) -> str:
    """How the place is found, for the help."""
    if len(verb.endpoints) < 2:
        return ""
    return "Without an option for the place it is the context's project, else its tenant, else where you are at home."


def fields_of(verb: Verb) -> list[Field]:
    """The fields of all endpoints, each once."""
    found: dict[str, Field] = {}
    for endpoint in verb.endpoints:
        for field in (*endpoint.query, *endpoint.body):
            found.setdefault(field.option, field)
    return list(found.values())


def takes_public_key(verb: Verb) -> bool:
    """Whether the private half of a key could be made here."""
    return any(field.path == ("public_key",) for field in fields_of(verb))


def mutates(verb: Verb) -> bool:
    """Whether it changes something."""
    return not verb.endpoints[0].lists and verb.name not in ("list", "get")


def perform(invocation: Invocation, noun: Noun, verb: Verb, given: dict[str, Any]) -> None:
    """Do what a command says."""
    resolver = ScopeResolver(invocation)
    chosen = ScopeOptions(given.get("scope_project"), given.get("scope_tenant"), given.get("scope_platform", False))
    endpoint, path = resolver.choose(verb.endpoints, chosen)
    for name in endpoint.arguments:
        path[name] = named(resolver, name, given.get(name), path)
    if endpoint.lists:
        show_list(invocation, noun, endpoint, (path, request_body.gather_query(endpoint.query, given), given.get("limit")))
        return
    if endpoint.deletes:
        confirm(invocation, f"{verb.name} {noun.singular} {path[endpoint.arguments[-1]]}", given["yes"])
    with keys.offered(given.get("generate_key")) as key:
        if key is not None:
            given[option_types.destination(Field(("public_key",), "text", False))] = key.public
        body = gather(invocation, resolver, endpoint, path, given) if endpoint.takes_body else None
        query = request_body.gather_query(endpoint.query, given)
        if given.get("follow"):
            query = {**query, "wait": 0}
            answer = check_progress.followed(
                invocation, endpoint, path, lambda: send(invocation, endpoint, path, (query, body), given)
            )
        else:
            answer = send(invocation, endpoint, path, (query, body), given)
    show_answer(invocation, noun, verb, endpoint, answer)
    if key is not None:
        keys.explain(invocation, key, path, answer)


def gather(
    invocation: Invocation, resolver: ScopeResolver, endpoint: Endpoint, path: dict[str, str], given: dict[str, Any]
) -> dict[str, Any]:
    """The body, with names made ids."""
    body = request_body.gather_body(invocation, endpoint.body, given, given.get("from_file"))
    for name in endpoint.objects:
        body.setdefault(name, {})
    for field in endpoint.body:
        if field.kind in NAMED and isinstance(named := request_body.get(body, field.path), str):
            request_body.put(body, field.path, body_id(resolver, field, named, (endpoint, path)))
    return body


def body_id(resolver: ScopeResolver, field: Field, named: str, at: tuple[Endpoint, dict[str, str]]) -> str:
    """The id for a name in a body; a sibling is of the same noun as what the command is about."""
    endpoint, path = at
    if field.kind in ("reference", "sibling"):
        parameter = endpoint.arguments[-1] if field.kind == "sibling" else field.path[-1]
        return resolver.reference(parameter, named, path)
    return resolver.tenant_id(named) if field.kind == "tenant" else resolver.project_id(named)


def send(
    invocation: Invocation,
    endpoint: Endpoint,
    path: dict[str, str],
    sent: tuple[dict[str, Any], Any],
    given: dict[str, Any],
) -> Any:
    """Call the operation."""
    from mooring_sdk import CallOptions

    options = CallOptions(idempotency_key=given.get("idempotency_key"))
    query, body = sent
    return invocation.call(endpoint.operation, path, query, body, options=options)


def named(resolver: ScopeResolver, name: str, value: str | None, path: dict[str, str]) -> str:
    """A path parameter, by id or by name; tenants and projects come from the context when they are not given."""
    if name == "tenant_id":
        return resolver.tenant_id(value)
    if name == "project_id":
        return resolver.project_id(value)
    if not value:
        raise click.UsageError(f"{name} is empty")
    return resolver.reference(name, value, path)


def confirm(invocation: Invocation, what: str, agreed: bool) -> None:
    """Ask before something is removed."""
    if agreed:
        return
    if not invocation.may_ask:
        raise click.UsageError(f"{what}: say --yes, since nobody can be asked")
    if not click.confirm(f"{what}?", err=True):
        raise click.exceptions.Exit(1)


def show_list(
    invocation: Invocation, noun: Noun, endpoint: Endpoint, asked: tuple[dict[str, str], dict[str, Any], int | None]
) -> None:
    """Show the items of a list, and say so when there are none, or more."""
    path, query, limit = asked
    if endpoint.pages:
        most = limit + 1 if limit else None
        sized = {**query, "limit": PAGE_MAX if most is None else min(most, PAGE_MAX)}
        items = list(invocation.client.pages(plain_call(endpoint.operation, path, sized), most=most))
    else:
        items = invocation.call(endpoint.operation, path, query)["items"]
    shown = items[:limit] if limit else items
    if shown or invocation.output != "table":
        wanted = [name for name in COLUMNS.get(noun.name, ()) if shown and name in shown[0]]
        output.show(invocation.output, shown, wanted)
    else:
        output.note(empty_text(noun))
    if len(shown) < len(items):
        output.note(f"There are more than {limit}; --limit 0 shows all.")


def empty_text(noun: Noun) -> str:
    """What to say when there is nothing, and how to change that."""
    words = noun.name.replace("-", " ")
    if "create" not in noun.operations:
        return f"No {words}."
    making = noun.verb("create")
    context = click.get_current_context()
    group = context.parent.command_path if context.parent else f"mooring {noun.name}"
    needed = [
        f"--{field.option.removesuffix('s') if field.kind == 'list' else field.option} …"
        for field in making.endpoints[0].body
        if field.required
    ]
    arguments = [name.removesuffix("_id").upper() for name in making.endpoints[0].arguments]
    return f"No {words} yet. Make the first one: {' '.join([group, 'create', *arguments, *needed])}"


def show_answer(invocation: Invocation, noun: Noun, verb: Verb, endpoint: Endpoint, answer: Any) -> None:
    """Show what came back, with a word about what is told once."""
    if answer is None:
        if invocation.output == "table":
            output.note(f"{verb.name}: done.")
        return
    if endpoint.operation == "get_task_log" and invocation.output == "table":
        output.show_text(answer["text"])
    else:
        output.show(invocation.output, answer)
    if endpoint.one_time_secret:
        output.note("This is told once: keep what is secret in it now, it is not shown again.")
