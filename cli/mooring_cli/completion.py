"""`mooring completion`: completion of commands and options in a shell."""

from typing import Any

import click

from mooring_cli.main import MooringCommand


@click.command(cls=MooringCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    eval "$(mooring completion bash)"          in ~/.bashrc
    eval "$(mooring completion zsh)"           in ~/.zshrc, after compinit
    mooring completion fish | source           in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    from mooring_cli.main import mooring

    kind: Any = get_completion_class(shell)
    maker = kind(mooring, {}, "mooring", "_MOORING_COMPLETE")
    click.echo(maker.source_template % maker.source_vars())
