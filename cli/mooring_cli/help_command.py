"""`mooring help`: the help of a command, by its words."""

import click

from mooring_cli.main import MooringCommand, close_to, mooring


@click.command("help", cls=MooringCommand)
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
def help(words: tuple[str, ...]) -> None:
    """Show the help of a command; without one, of `mooring` itself."""
    context = click.Context(mooring, info_name="mooring")
    command: click.Command = mooring
    for word in words:
        found = command.get_command(context, word) if isinstance(command, click.Group) else None
        if found is None:
            near = close_to(word, command.list_commands(context)) if isinstance(command, click.Group) else None
            hint = f"; did you mean {near}?" if near else ""
            raise click.UsageError(f"{context.command_path} has no {word!r}{hint}")
        command, context = found, click.Context(found, parent=context, info_name=word)
    click.echo(command.get_help(context))
