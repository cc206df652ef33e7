"""The root of the command: its global options, and which command is where.

Start-up is what people feel most, so that nothing is imported before it is needed: the list below says for
each command written by hand in which module it stands and what the help says of it; the nouns of the API
come from the generated table; plug-ins are entry points of the group `mooring.cli_plugins`, loaded when they
are called.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import click

from mooring_cli import failures
from mooring_cli.contexts import ContextsUnusable
from mooring_cli.invocation import Invocation
from mooring_cli.noun_table import NOUNS

PLUGINS = "mooring.cli_plugins"
BY_HAND: dict[str, tuple[str, str]] = {
    "up": ("mooring_cli.up", "Start Mooring on this machine, with a database of its own."),
    "login": ("mooring_cli.sign_in", "Sign in, and keep a personal access token."),
    "logout": ("mooring_cli.sign_in", "Revoke the token that is kept, and forget it."),
    "whoami": ("mooring_cli.sign_in", "Show who you are and what you may do."),
    "password": ("mooring_cli.sign_in", "Change your own password."),
    "context": ("mooring_cli.context_commands", "Choose between servers, tenants and projects."),
    "why": ("mooring_cli.why", "Say why an instance, a member or an operation is as it is."),
    "logs": ("mooring_cli.logs", "Show what a service or a container of an instance wrote, and follow it."),
    "connect": ("mooring_cli.connect", "Reach an app's endpoint, from a local port or in a browser."),
    "exec": ("mooring_cli.exec_command", "Run an interactive command in an allocation's sandbox."),
    "events": ("mooring_cli.events", "Show events, or follow them as they happen."),
    "audit": ("mooring_cli.audit", "Show the audit trail."),
    "outbox": ("mooring_cli.outbox", "Show deliveries to webhooks, and send dead ones again."),
    "receipts": ("mooring_cli.receipts", "Show and export receipts of teardowns, and verify them offline."),
    "manifest": ("mooring_cli.manifest", "Begin, lint and explain the manifest of an app's version."),
    "install": ("mooring_cli.install", "Put the app of a bundle into the catalog."),
    "adapter": ("mooring_cli.adapter", "Test an adapter against a simulated platform."),
    "schema": ("mooring_cli.schema", "Show the JSON Schemas of a noun."),
    "explain": ("mooring_cli.explain", "Explain an error code, a state, an action or an event type."),
    "completion": ("mooring_cli.completion", "Print the completion script for a shell."),
    "version": ("mooring_cli.version", "Show the versions of the command and of the server."),
}


def _remember(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Keep a global option, wherever on the line it stands."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        invocation = ctx.find_object(Invocation)
        if invocation is not None and value is not None and value is not False:
            setattr(invocation, name, value)
        return value

    return keep


def global_options(*, hidden: bool) -> list[click.Option]:
    """The options of every command; below the root they are taken too, and shown only here."""
    described: list[tuple[list[str], str, dict[str, Any]]] = [
        (
            ["-o", "--output"],
            "output",
            {
                "type": click.Choice(["table", "json", "yaml", "name"]),
                "help": "Form of the output.",
                "is_eager": True,
                "hidden": False,
            },
        ),
        (["--context"], "context_name", {"metavar": "NAME", "help": "The context to work in."}),
        (["--url"], "url_option", {"metavar": "URL", "help": "The server's address."}),
        (["--correlation-id"], "correlation_id", {"metavar": "ID", "help": "A label for everything that this does."}),
        (
            ["--timeout"],
            "timeout_seconds",
            {
                "type": click.FloatRange(min=0.1),
                "metavar": "SECONDS",
                "help": "Longest time for one request with its retries.",
            },
        ),
        (["--no-input"], "no_input", {"is_flag": True, "help": "Never ask; a missing value is an error."}),
        (["-v", "--verbose"], "verbose", {"is_flag": True, "help": "Show requests and correlation ids on stderr."}),
    ]
    return [
        click.Option(names, callback=_remember(name), expose_value=False, **{"hidden": hidden, **extra})
        for names, name, extra in described
    ]


class MooringCommand(click.Command):
    """A command that takes the global options too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        taken = {name for parameter in self.params for name in parameter.opts}
        self.params += [each for each in global_options(hidden=True) if not taken.intersection(each.opts)]


class MooringGroup(click.Group):
    """A group whose commands take the global options too."""

    command_class = MooringCommand
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += global_options(hidden=True)


class Root(click.Group):
    """`mooring` itself."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*BY_HAND, *sorted(set(NOUNS) - set(BY_HAND)), *sorted(set(plugins()) - set(BY_HAND) - set(NOUNS))]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in BY_HAND:
            command: click.Command = getattr(import_module(BY_HAND[name][0]), name)
            return command
        if name in NOUNS:
            from mooring_cli.commands import group_of

            return group_of(NOUNS[name])
        found = plugins().get(name)
        if found is None:
            return None
        loaded = found.load()
        if not isinstance(loaded, click.Command):
            raise click.ClickException(f"the plug-in {name!r} gives no command")
        return loaded

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = close_to(args[0], self.list_commands(ctx))
            if near:
                raise click.UsageError(f"there is no command {args[0]!r}; did you mean {near}?", ctx) from error
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table: showing it loads none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in BY_HAND.items()])
        with formatter.section("Nouns"):
            formatter.write_dl([(noun.name, noun.summary) for noun in NOUNS.values()])
        others = sorted(set(plugins()) - set(BY_HAND) - set(NOUNS))
        if others:
            with formatter.section("Plug-ins"):
                formatter.write_dl([(name, f"from {plugins()[name].module}") for name in others])

    def main(  # type: ignore[override]  # the form of the exit is not for the caller to choose
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run, and end with one of the exit codes that are promised."""
        arguments = list(sys.argv[1:] if args is None else args)
        invocation = extra.pop("obj", None) or Invocation()
        extra["standalone_mode"] = False
        try:
            result = super().main(arguments, prog_name or "mooring", obj=invocation, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            _forget_stdout()
            sys.exit(failures.BROKEN_PIPE)
        except (click.Abort, KeyboardInterrupt) as stop:
            sys.exit(_stopped(stop))
        except Exception as error:
            if not _is_expected(error):
                raise
            sys.exit(_told(error, as_json=invocation.output == "json" or failures.wants_json(arguments)))
        sys.exit(result if isinstance(result, int) else failures.DONE)


def _told(error: Exception, *, as_json: bool) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and not as_json:
        click.echo(error.ctx.get_help(), err=True)
        return failures.USAGE
    return failures.report(error, as_json=as_json)


def _stopped(stop: BaseException) -> int:
    """Ctrl-C is an interruption; the end of the input where an answer was needed is a missing value."""
    if isinstance(stop.__context__, EOFError):
        click.echo("error: there was nobody to answer; give the values as options", err=True)
        return failures.USAGE
    click.echo("", err=True)
    return failures.INTERRUPTED


def _is_expected(error: Exception) -> bool:
    """Whether this is an error that a user is told about; anything else is a bug, and is shown as one."""
    if isinstance(error, click.ClickException | ContextsUnusable) or failures.is_answer(error):
        return True
    sdk = sys.modules.get("mooring_sdk")
    return sdk is not None and isinstance(error, sdk.AddressRefusedHere | sdk.KeyUnusable | sdk.ValueRefusedHere)


def _forget_stdout() -> None:
    """Whoever read the output has gone; the interpreter must not complain about it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Plugin(NamedTuple):
    """A command that another distribution brings."""

    module: str
    attribute: str

    def load(self) -> Any:
        """The command itself."""
        found: Any = import_module(self.module)
        for name in self.attribute.split("."):
            found = getattr(found, name)
        return found


@cache
def plugins() -> dict[str, Plugin]:
    """The commands that other distributions bring, by name: whoever is first on the path wins."""
    found: dict[str, Plugin] = {}
    for directory in sys.path:
        for name, plugin in _brought(directory):
            found.setdefault(name, plugin)
    return found


def _brought(directory: str) -> Iterator[tuple[str, Plugin]]:
    """The plug-ins of what is installed there: a look that is cheaper than importlib's, for whoever asks for help."""
    try:
        installed = [
            entry.path for entry in os.scandir(directory or ".") if entry.name.endswith((".dist-info", ".egg-info"))
        ]
    except OSError:
        return
    for path in installed:
        try:
            with open(os.path.join(path, "entry_points.txt"), encoding="utf-8") as file:
                lines = file.read().splitlines()
        except OSError:
            continue  # most distributions have no entry points
        if f"[{PLUGINS}]" in lines:
            yield from _entries(lines[lines.index(f"[{PLUGINS}]") + 1 :])


def _entries(lines: Sequence[str]) -> Iterator[tuple[str, Plugin]]:
    """`name = module:attribute`, up to the next group."""
    for line in lines:
        if line.startswith("["):
            return
        name, _, place = line.partition("=")
        module, _, attribute = place.partition("[")[0].strip().partition(":")
        if name.strip() and module and attribute:
            yield name.strip(), Plugin(module, attribute)


def close_to(word: str, words: Sequence[str]) -> str | None:
    """The nearest of the words, if one is near."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, words, n=1, cutoff=0.6)), None)


mooring = Root(
    name="mooring",
    params=list(global_options(hidden=False)),
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
    help="Mooring: apps in GPU clouds.\n\nSay `mooring COMMAND --help` for more about one of them.",
    no_args_is_help=True,
)


def main() -> None:
    """The entry point."""
    mooring.main()


if __name__ == "__main__":
    main()
