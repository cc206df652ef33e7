"""Makes click commands of the table of nouns: one group for each noun, one command for each verb.

A command collects its values, finds its scope, calls the operation through the SDK, and shows the answer. Commands
that delete something ask for confirmation.
"""

from importlib import import_module
from typing import Any

import click

from mooring_cli import (
    blast_radius,
    check_progress,
    examples,
    keys,
    listing,
    option_types,
    output,
    request_body,
    waiting,
)
from mooring_cli.invocation import Invocation, current
from mooring_cli.main import MooringCommand, MooringGroup, close_to
from mooring_cli.nouns import REMOVALS, CommandEndpoint, Field, Noun, Verb
from mooring_cli.scope import ScopeOptions, ScopeResolver

PLACES = ("tenant_id", "project_id")
SCOPE_HELP = {
    "project": "The project, by id or slug.",
    "tenant": "The tenant, by id or slug.",
    "platform": "The platform itself.",
}
NAMED = ("tenant", "project", "reference", "sibling")

WHOLE_UPDATES = {
    "update_entitlement": ("get_entitlement", ("enabled", "versions", "rules", "agreed_actions", "revision")),
}
"""Updates that replace everything: how the present values are read, and which of them stay unless they are named."""

HAND_WRITTEN_VERBS: dict[str, dict[str, tuple[str, str]]] = {
    "apps": {
        "check": ("mooring_cli.apps_check", "check"),
        "from-image": ("mooring_cli.from_image", "from_image"),
    },
    "nodes": {"label": ("mooring_cli.node_label", "label")},
    "statements": {
        "show": ("mooring_cli.statements", "show"),
        "export": ("mooring_cli.statements", "export"),
    },
    "instances": {
        "launch": ("mooring_cli.launch", "launch"),
        "watch": ("mooring_cli.watch", "watch"),
        "stop": ("mooring_cli.launch", "stop"),
        "replay": ("mooring_cli.replay", "replay"),
    },
}
"""Hand-written commands of a noun, which make more than one call; they replace generated ones."""


class NounGroup(MooringGroup):
    """The commands of one noun, made on demand."""

    def __init__(self, noun: Noun, path: tuple[str, ...] = ()) -> None:
        super().__init__(name=noun.name, help=noun.summary, no_args_is_help=True)
        self._path = path
        self._by_hand = HAND_WRITTEN_VERBS.get(" ".join((*path, noun.name)), {})
        self._below = {each.name: each for each in noun.below}
        self._noun = noun

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*dict.fromkeys([*self._by_hand, *self._noun.operations]), *self._below]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        by_hand = self._by_hand.get(name)
        if by_hand is not None:
            command: click.Command = getattr(import_module(by_hand[0]), by_hand[1])
            return command
        if name in self._noun.operations:
            return command_of(self._noun, self._noun.verb(name), self._path)
        return NounGroup(self._below[name], (*self._path, self._noun.name)) if name in self._below else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = close_to(args[0], self.list_commands(ctx))
            listed = ", ".join(self.list_commands(ctx))
            hint = f"did you mean {near}?" if near else f"available: {listed}"
            raise click.UsageError(f"{ctx.command_path} has no {args[0]!r}; {hint}", ctx) from error


def group_of(noun: Noun) -> click.Group:
    return NounGroup(noun)


def command_of(noun: Noun, verb: Verb, path: tuple[str, ...] = ()) -> click.Command:
    """The command of a verb; `path` has the nouns above its own."""

    def run(**given: Any) -> int | None:
        return perform(current(), noun, verb, given)

    return MooringCommand(
        name=verb.name,
        callback=run,
        params=parameters_of(verb, noun),
        help="\n\n".join(text for text in (f"{verb.summary}.", verb.description, scope_text(verb)) if text),
        short_help=verb.summary,
        examples=examples.of_verb(" ".join((*path, noun.name, verb.name)), verb),
    )


def parameters_of(verb: Verb, noun: Noun) -> list[click.Parameter]:
    """Arguments and options of a verb, over all its endpoints."""
    first = verb.endpoints[0]
    parameters: list[click.Parameter] = [
        click.Argument([name], metavar=name.removesuffix("_id").upper(), required=name not in PLACES)
        for name in first.arguments
    ]
    parameters += scope_options(verb)
    for field in fields_of(verb):
        parameters.append(option_types.option_of(field))
    if any(endpoint.takes_body for endpoint in verb.endpoints):
        about = "Read the whole body from a file in JSON or YAML; - is stdin. Options override it."
        parameters.append(click.Option(["-f", "--from-file"], metavar="FILE", help=about))
    if takes_public_key(verb):
        about = "Generate an Ed25519 key pair: the private key goes to this new file, only the public key is sent."
        parameters.append(click.Option(["--generate-key"], metavar="FILE", help=about))
    if removes(first) or first.operation in blast_radius.IMPACT_OF:
        parameters.append(click.Option(["-y", "--yes"], is_flag=True, help="Do not ask for confirmation."))
    if first.lists:
        parameters += listing.list_options(verb, noun)
    if waiting.goal_of(verb) is not None and not waiting.waits_at_server(verb):
        parameters.append(waiting.wait_option())
    if check_progress.follows(verb):
        parameters.append(check_progress.follow_option())
    if mutates(verb):
        about = "Requests with the same key take effect once. [default: a new key]"
        parameters.append(click.Option(["--idempotency-key"], metavar="KEY", help=about))
    return parameters


def scope_options(verb: Verb) -> list[click.Parameter]:
    """--project, --tenant and --platform, as far as the verb has such endpoints."""
    options: list[click.Parameter] = []
    for endpoint in verb.endpoints:
        if endpoint.scope_parameter:
            name = endpoint.scope_parameter.removesuffix("_id")
            options.append(click.Option([f"--{name}", f"scope_{name}"], metavar="NAME", help=SCOPE_HELP[name]))
        elif endpoint.scope == "platform" and len(verb.endpoints) > 1:
            options.append(click.Option(["--platform", "scope_platform"], is_flag=True, help=SCOPE_HELP["platform"]))
    return options


def scope_text(verb: Verb) -> str:
    """How the scope is chosen, for the help."""
    names = [option.opts[0] for option in scope_options(verb)]
    if len(verb.endpoints) < 2 or not names:
        return ""
    listed = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
    return f"Without {listed} it uses the scope of the context, otherwise your own."


def fields_of(verb: Verb) -> list[Field]:
    """The fields of all endpoints, each once."""
    found: dict[str, Field] = {}
    for endpoint in verb.endpoints:
        for field in (*endpoint.query, *endpoint.body):
            found.setdefault(field.option, field)
    return list(found.values())


def takes_public_key(verb: Verb) -> bool:
    """Whether the command can generate the key pair."""
    return any(field.path == ("public_key",) for field in fields_of(verb))


def removes(endpoint: CommandEndpoint) -> bool:
    """Whether the operation ends something for good."""
    return endpoint.deletes or endpoint.operation in REMOVALS


def mutates(verb: Verb) -> bool:
    return not verb.endpoints[0].lists and verb.name not in ("list", "get")


def perform(invocation: Invocation, noun: Noun, verb: Verb, given: dict[str, Any]) -> int | None:
    """Run a command; returns its exit code if it is not 0."""
    resolver = ScopeResolver(invocation)
    chosen = ScopeOptions(given.get("scope_project"), given.get("scope_tenant"), given.get("scope_platform", False))
    endpoint, path = resolver.choose(verb.endpoints, chosen)
    resolver.whole_names = removes(endpoint)
    for name in endpoint.arguments:
        path[name] = named(resolver, name, given.get(name), path)
    query = gather_query(resolver, endpoint, path, given)
    if endpoint.lists:
        asked = listing.ListRequest(
            invocation,
            noun,
            listing.kind_of(verb, noun),
            endpoint,
            path=path,
            query=query,
            limit=given.get("limit"),
            everything=given.get("everything", False),
        )
        if given["watch"]:
            listing.watch_list(asked, scope=endpoint.scope)
        listing.show_list(asked, empty=empty_text(noun))
        return None
    affects = endpoint.operation in blast_radius.IMPACT_OF
    if affects and not given["yes"] and invocation.may_ask:
        blast_radius.show(invocation, endpoint.operation, path)
    if removes(endpoint) or affects:
        confirm(invocation, f"{verb.name} {noun.singular} {path[endpoint.arguments[-1]]}", given["yes"])
    with keys.offered(given.get("generate_key")) as key:
        if key is not None:
            given[option_types.destination(Field(("public_key",), "text", False))] = key.public
        body = gather(invocation, resolver, endpoint, path, given) if endpoint.takes_body else None
        if given.get("follow"):
            query["wait"] = 0

        def send() -> Any:
            return call(invocation, endpoint, path, query=query, body=body, key=given.get("idempotency_key"))

        answer = check_progress.followed(invocation, endpoint, path, send) if given.get("follow") else send()
    if key is not None:
        answer = keys.with_key_id(invocation, key, path, answer)
    goal = waiting.GOALS.get(endpoint.operation)
    if given.get("waits") and goal is not None:
        return waiting.wait_for(invocation, goal, path, answer)
    show_answer(invocation, noun, verb, endpoint, answer)
    if key is not None:
        keys.explain(invocation, key, answer)
    return waiting.FAILED_EXIT if "wait" in query and goal is not None and answer["status"] in goal.bad else None


def gather(
    invocation: Invocation,
    resolver: ScopeResolver,
    endpoint: CommandEndpoint,
    path: dict[str, str],
    given: dict[str, Any],
) -> dict[str, Any]:
    """The body of the request, with names replaced by ids."""
    before = present_terms(invocation, endpoint, path)
    body = request_body.gather_body(invocation, endpoint.body, given, given.get("from_file"), before)
    for name in endpoint.objects:
        body.setdefault(name, {})
    allocations = request_body.get(body, ("placement", "allocations"))
    if isinstance(allocations, list) and ("placement", "allocations") in [field.path for field in endpoint.body]:
        named_ids = [resolver.reference("allocation_id", str(each), path) for each in allocations]
        request_body.put(body, ("placement", "allocations"), named_ids)
    for field in endpoint.body:
        if field.kind in NAMED and isinstance(named := request_body.get(body, field.path), str):
            request_body.put(body, field.path, body_id(resolver, field, named, endpoint=endpoint, path=path))
    return body


def gather_query(
    resolver: ScopeResolver, endpoint: CommandEndpoint, path: dict[str, str], given: dict[str, Any]
) -> dict[str, Any]:
    """The query of the request, with names replaced by ids."""
    query = request_body.gather_query(endpoint.query, given)
    for field in endpoint.query:
        name = field.path[0]
        if field.kind == "reference" and isinstance(query.get(name), str):
            query[name] = resolver.reference(name, query[name], path)
    return query


def present_terms(invocation: Invocation, endpoint: CommandEndpoint, path: dict[str, str]) -> dict[str, Any]:
    """What an update starts from where the API replaces everything: the present values, and their revision."""
    if endpoint.operation not in WHOLE_UPDATES:
        return {}
    read, names = WHOLE_UPDATES[endpoint.operation]
    present = invocation.call(read, path)
    return {name: present[name] for name in names if present.get(name) is not None}


def body_id(
    resolver: ScopeResolver, field: Field, named: str, *, endpoint: CommandEndpoint, path: dict[str, str]
) -> str:
    """The id for a name in a body; a sibling is of the same noun as the command."""
    if field.kind in ("reference", "sibling"):
        parameter = endpoint.arguments[-1] if field.kind == "sibling" else field.path[-1]
        return resolver.reference(parameter, named, path)
    return resolver.tenant_id(named) if field.kind == "tenant" else resolver.project_id(named)


def call(
    invocation: Invocation,
    endpoint: CommandEndpoint,
    path: dict[str, str],
    *,
    query: dict[str, Any],
    body: Any,
    key: str | None,
) -> Any:
    """Call the operation; `key` is the Idempotency-Key."""
    from mooring_sdk import CallOptions

    options = CallOptions(idempotency_key=key)
    return invocation.call(endpoint.operation, path, query, body, options=options)


def named(resolver: ScopeResolver, name: str, value: str | None, path: dict[str, str]) -> str:
    """A path parameter by id or by name; tenant and project default to those of the context."""
    if name == "tenant_id":
        return resolver.tenant_id(value)
    if name == "project_id":
        return resolver.project_id(value)
    if not value:
        raise click.UsageError(f"{name} is empty")
    return resolver.reference(name, value, path)


def confirm(invocation: Invocation, what: str, agreed: bool) -> None:
    """Ask before something is deleted."""
    if agreed:
        return
    if not invocation.may_ask:
        raise click.UsageError(f"{what}: give --yes, because there is no terminal to ask on")
    if not click.confirm(f"{what}?", err=True):
        raise click.exceptions.Exit(1)


def empty_text(noun: Noun) -> str:
    """What to say about an empty list, and how to make the first item."""
    words = noun.name.replace("-", " ")
    if "create" not in noun.operations:
        return f"No {words}."
    from mooring_cli.examples import option

    making = noun.verb("create")
    context = click.get_current_context()
    group = context.parent.command_path if context.parent else f"mooring {noun.name}"
    needed = [f"{option(field)[0]} …" for field in making.endpoints[0].body if field.required]
    arguments = [name.removesuffix("_id").upper() for name in making.endpoints[0].arguments]
    return f"No {words} yet. Create the first one: {' '.join([group, 'create', *arguments, *needed])}"


def show_answer(invocation: Invocation, noun: Noun, verb: Verb, endpoint: CommandEndpoint, answer: Any) -> None:
    """Show the answer, with a warning if it contains a secret."""
    if answer is None:
        if invocation.output == "table":
            output.note(f"{verb.name}: done.")
        return
    if endpoint.operation == "get_task_log" and invocation.output == "table":
        output.show_text(answer["text"])
    else:
        output.show(invocation.output, answer)
    if endpoint.one_time_secret:
        output.note("Save this secret now; it will not be shown again.")
