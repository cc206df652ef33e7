"""The root command: its global options, and where each command is.

Imports are lazy, so that the command starts fast. The list below has the module and the help text of each hand-written
command; the nouns of the API come from the generated table; plug-ins are entry points of the group
`mooring.cli_plugins`, loaded on their first call.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mooring_cli import failures
from mooring_cli.contexts import ContextsUnusable
from mooring_cli.invocation import Invocation
from mooring_cli.noun_table import NOUNS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PLUGINS = "mooring.cli_plugins"
HAND_WRITTEN: dict[str, tuple[str, str]] = {
    "up": ("mooring_cli.up", "Start Mooring on this machine, with its own database."),
    "try": ("mooring_cli.try_command", "Show or remove what `mooring up --try` made."),
    "launch": ("mooring_cli.launch", "Launch an app."),
    "open": ("mooring_cli.connect", "Open an app's page in a browser."),
    "login": ("mooring_cli.sign_in", "Sign in and store a personal access token."),
    "logout": ("mooring_cli.sign_in", "Revoke the stored token and delete it."),
    "whoami": ("mooring_cli.sign_in", "Show who you are and what you may do."),
    "password": ("mooring_cli.sign_in", "Change your own password."),
    "context": ("mooring_cli.context_commands", "Switch between servers, tenants and projects."),
    "why": ("mooring_cli.why", "Explain the state of an instance, a member or an operation."),
    "logs": ("mooring_cli.logs", "Show and follow the output of a service or a container."),
    "connect": ("mooring_cli.connect", "Connect to an app's endpoint, from a local port or in a browser."),
    "stop": ("mooring_cli.launch", "Stop an instance, and tear everything down."),
    "exec": ("mooring_cli.exec_command", "Run an interactive command in an allocation's sandbox."),
    "events": ("mooring_cli.events", "Show events, or follow them as they happen."),
    "attention": ("mooring_cli.attention", "Show what needs somebody, worst first."),
    "cost": ("mooring_cli.cost", "Show what a project, a tenant or all of them cost."),
    "usage": ("mooring_cli.cost", "Show how much a project or an instance used."),
    "ledger": ("mooring_cli.ledger", "Show what was booked, and the balances."),
    "audit": ("mooring_cli.audit", "Show the audit trail."),
    "billing": ("mooring_cli.billing", "Prove that the ledger is right, and correct it."),
    "outbox": ("mooring_cli.outbox", "Show webhook deliveries, and send failed ones again."),
    "receipts": ("mooring_cli.receipts", "Show, export and verify receipts of teardowns."),
    "root-key": ("mooring_cli.root_key", "Create the offline root key, and sign with it."),
    "manifest": ("mooring_cli.manifest", "Create, lint and explain the manifest of an app version."),
    "bundle": ("mooring_cli.bundle", "Check a bundle of an app version, and pack it into one file."),
    "publish": ("mooring_cli.publish", "Publish a version of an app from a bundle, and promote it."),
    "install": ("mooring_cli.install", "Install an app from a bundle into the catalog."),
    "adapter": ("mooring_cli.adapter", "Test an adapter against a simulated platform."),
    "schema": ("mooring_cli.schema", "Show the JSON Schemas of a noun."),
    "explain": ("mooring_cli.explain", "Explain an error code, a state, an action or an event type."),
    "completion": ("mooring_cli.completion_command", "Print the completion script for a shell."),
    "version": ("mooring_cli.version", "Show the versions of the command and of the server."),
    "help": ("mooring_cli.help_command", "Show the help of a command."),
}


def _remember(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Store a global option, wherever it is on the command line."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        invocation = ctx.find_object(Invocation)
        if invocation is not None and value is not None and value is not False:
            setattr(invocation, name, value)
        return value

    def keep_output(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        """A wide table is a table with more columns: commands ask only for the form."""
        invocation = ctx.find_object(Invocation)
        if invocation is not None and value is not None:
            invocation.wide = value == "wide"
        return keep(ctx, parameter, "table" if value == "wide" else value)

    return keep_output if name == "output" else keep


def _context_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The contexts that a shell completes."""
    invocation = ctx.find_object(Invocation)
    try:
        known = sorted(invocation.contexts.by_name) if invocation is not None else []
    except ContextsUnusable:
        return []
    return [name for name in known if name.startswith(incomplete)]


def global_options(*, hidden: bool) -> list[click.Option]:
    """The global options; commands accept them too, but only the root shows them."""
    described: list[tuple[list[str], str, dict[str, Any]]] = [
        (
            ["-o", "--output"],
            "output",
            {
                "type": click.Choice(["table", "wide", "json", "yaml", "name"]),
                "help": "Output format.",
                "is_eager": True,
                "hidden": False,
            },
        ),
        (
            ["--context"],
            "context_name",
            {"metavar": "NAME", "help": "The context to use.", "shell_complete": _context_names},
        ),
        (["--url"], "url_option", {"metavar": "URL", "help": "The server's address."}),
        (
            ["--ca-file"],
            "ca_file_option",
            {"metavar": "FILE", "help": "CA certificates to trust instead of the system's; login stores it."},
        ),
        (
            ["--allow-plain-http"],
            "allow_plain_http",
            {"is_flag": True, "help": "Allow plain http to another machine, on a network that nobody else uses."},
        ),
        (["--correlation-id"], "correlation_id", {"metavar": "ID", "help": "A correlation id for all requests."}),
        (
            ["--timeout"],
            "timeout_seconds",
            {
                "type": click.FloatRange(min=0.1),
                "metavar": "SECONDS",
                "help": "Timeout of one request with its retries.",
            },
        ),
        (["--no-input"], "no_input", {"is_flag": True, "help": "Never prompt; a missing value is an error."}),
        (["-v", "--verbose"], "verbose", {"is_flag": True, "help": "Show requests and correlation ids on stderr."}),
    ]
    return [
        click.Option(names, callback=_remember(name), expose_value=False, **{"hidden": hidden, **extra})
        for names, name, extra in described
    ]


class MooringCommand(click.Command):
    """A command that accepts the global options, and shows examples in its help."""

    def __init__(self, *args: Any, examples: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        taken = {name for parameter in self.params for name in parameter.opts}
        self.params += [each for each in global_options(hidden=True) if not taken.intersection(each.opts)]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        self._complete_names()
        return super().shell_complete(ctx, incomplete)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if extra.get("resilient_parsing"):  # a shell completes
            self._complete_names()
        return super().make_context(info_name, args, parent, **extra)

    def _complete_names(self) -> None:
        from mooring_cli.completion import complete_names

        complete_names(self)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from mooring_cli import examples

        examples.write(formatter, self.examples or examples.of_command(ctx.command_path.partition(" ")[2]))
        super().format_epilog(ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; an error about a value of the request names the option that the value came from."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            option = failures.refused_option(error, ctx.command)
            if option is None:
                raise
            raise failures.OptionRefused(option, error) from error


class MooringGroup(click.Group):
    """A group whose commands accept the global options."""

    command_class = MooringCommand
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += global_options(hidden=True)


def hand_written(name: str) -> click.Command:
    """The command of this name; its function is called `open_` where Python has that word already."""
    module, attribute = import_module(HAND_WRITTEN[name][0]), name.replace("-", "_")
    command: click.Command = getattr(module, f"{attribute}_", None) or getattr(module, attribute)
    return command


class Root(click.Group):
    """The `mooring` command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [
            *HAND_WRITTEN,
            *sorted(set(NOUNS) - set(HAND_WRITTEN)),
            *sorted(set(plugins()) - set(HAND_WRITTEN) - set(NOUNS)),
        ]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in HAND_WRITTEN:
            return hand_written(name)
        if name in NOUNS:
            from mooring_cli.commands import group_of

            return group_of(NOUNS[name])
        found = plugins().get(name)
        if found is None:
            return None
        loaded = found.load()
        if not isinstance(loaded, click.Command):
            raise click.ClickException(f"the plug-in {name!r} is not a command")
        return loaded

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = _below_a_noun(args[0]) or close_to(args[0], self.list_commands(ctx))
            if near:
                raise click.UsageError(f"there is no command {args[0]!r}; did you mean {near}?", ctx) from error
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without loading any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in HAND_WRITTEN.items()])
        with formatter.section("Nouns"):
            formatter.write_dl([(noun.name, noun.summary) for noun in NOUNS.values()])
        others = sorted(set(plugins()) - set(HAND_WRITTEN) - set(NOUNS))
        if others:
            with formatter.section("Plug-ins"):
                formatter.write_dl([(name, f"from {plugins()[name].module}") for name in others])

    def main(  # type: ignore[override]  # the caller cannot choose how it exits
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run, and exit with one of the documented exit codes."""
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
            as_json = invocation.output == "json" or failures.wants_json(arguments)
            sys.exit(_reported(error, invocation, as_json=as_json))
        sys.exit(result if isinstance(result, int) else failures.DONE)


def _reported(error: Exception, invocation: Invocation, *, as_json: bool) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and not as_json:
        click.echo(error.ctx.get_help(), err=True)
        return failures.USAGE
    return failures.report(error, as_json=as_json, hints=failures.hints_of(error, invocation))


def _stopped(stop: BaseException) -> int:
    """The exit code after Ctrl-C; the end of the input at a prompt counts as a missing value."""
    if isinstance(stop.__context__, EOFError):
        click.echo("error: the input ended at a prompt; give the values as options", err=True)
        return failures.USAGE
    click.echo("", err=True)
    return failures.INTERRUPTED


def _is_expected(error: Exception) -> bool:
    """Whether the error is shown as a message; any other is a bug, and is raised."""
    if isinstance(error, click.ClickException | ContextsUnusable | failures.OptionRefused) or failures.is_answer(error):
        return True
    sdk = sys.modules.get("mooring_sdk")
    return sdk is not None and isinstance(error, sdk.AddressRefusedHere | sdk.KeyUnusable | sdk.ValueRefusedHere)


def _forget_stdout() -> None:
    """The reader of the output is gone; keep the interpreter from complaining about it when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Plugin(NamedTuple):
    """A command from another distribution."""

    module: str
    attribute: str

    def load(self) -> Any:
        found: Any = import_module(self.module)
        for name in self.attribute.split("."):
            found = getattr(found, name)
        return found


@cache
def plugins() -> dict[str, Plugin]:
    """The commands of other distributions by name; the first one on the path wins."""
    found: dict[str, Plugin] = {}
    for directory in sys.path:
        for name, plugin in _installed_plugins(directory):
            found.setdefault(name, plugin)
    return found


def _installed_plugins(directory: str) -> Iterator[tuple[str, Plugin]]:
    """The plug-ins in a directory; faster than importlib, because every `--help` needs them."""
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
    """Parse `name = module:attribute`, up to the next group."""
    for line in lines:
        if line.startswith("["):
            return
        name, _, place = line.partition("=")
        module, _, attribute = place.partition("[")[0].strip().partition(":")
        if name.strip() and module and attribute:
            yield name.strip(), Plugin(module, attribute)


def close_to(word: str, words: Sequence[str]) -> str | None:
    """The most similar word, if one is similar."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, words, n=1, cutoff=0.6)), None)


def _below_a_noun(word: str) -> str | None:
    """Where a noun or a verb stands that was given without its noun: `members` is `instances members`."""
    below = [f"{noun.name} {each.name}" for noun in NOUNS.values() for each in noun.below if each.name == word]
    verbs = [f"{noun.name} {word}" for noun in NOUNS.values() if noun.name == "instances" and word in noun.operations]
    return " or ".join(below or verbs) or None


def _print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from mooring_cli.version import installed

        click.echo(f"mooring {installed('mooring-cli')}")
        ctx.exit()


VERSION_OPTION = click.Option(
    ["--version"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version of the command and exit.",
)

mooring = Root(
    name="mooring",
    params=[*global_options(hidden=False), VERSION_OPTION],
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
    help="Mooring: apps in GPU clouds.\n\nRun `mooring COMMAND --help` for more about a command.",
    no_args_is_help=True,
)


def main() -> None:
    mooring.main()


if __name__ == "__main__":
    main()
