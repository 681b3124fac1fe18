"""``gantrymq completion``: the script that lets a shell complete commands and options."""

from __future__ import annotations

import rich_click as click

VARIABLE = "_GANTRYMQ_COMPLETE"
"""With this environment variable the program answers the shell's question instead of running a command."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands and options in a shell.

    bash: `source <(gantrymq completion bash)`; zsh: the same with zsh; fish: `gantrymq completion fish | source`. Put
    the line into the shell's startup file to have it always.
    """
    from click.shell_completion import get_completion_class

    from gantrymq.cli.group import cli

    found = get_completion_class(shell)
    assert found is not None  # click has all three
    script = found(cli, {}, "gantrymq", VARIABLE).source()
    # click's script for fish ends a description at its first comma.
    click.echo(script.replace('(string split "," $completion)', '(string split -m 1 "," $completion)'))
