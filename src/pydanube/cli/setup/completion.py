"""`danube completion`: prints the script that completes commands and options in a shell."""

from __future__ import annotations

import click

from pydanube.cli.options import examples
from pydanube.cli.synonyms import Command


@click.command(
    cls=Command,
    epilog=examples(
        """
source <(danube completion bash)                            for this shell; in ~/.bashrc for every one
danube completion zsh > "${fpath[1]}/_danube"
danube completion fish > ~/.config/fish/completions/danube.fish
"""
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands in a shell.

    The script calls `danube` itself to find out what may follow, so it stays right when danube is upgraded.
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None, shell
    click.echo(script(context.find_root().command, {}, "danube", "_DANUBE_COMPLETE").source())
