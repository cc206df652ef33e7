"""`mooring completion`: the completion script for a shell."""

import click

from mooring_cli.completion import script
from mooring_cli.main import MooringCommand


@click.command(cls=MooringCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell: it completes commands, options, and names that the server knows.

    \b
    eval "$(mooring completion bash)"          in ~/.bashrc
    eval "$(mooring completion zsh)"           in ~/.zshrc, after compinit
    mooring completion fish | source           in ~/.config/fish/config.fish
    """
    click.echo(script(shell))
