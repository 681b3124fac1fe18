"""The group of commands: a table of names and modules; the module of a command is imported when the command runs.

Commands of plugins (hook ``add_commands``) are collected only for a name that is not in the table, and for the help.
"""

from __future__ import annotations

import importlib
import os

import rich_click as click

from gantrymq._version import __version__

COMMANDS = {
    "serve": "gantrymq.cli.serve:serve",
    "broker": "gantrymq.cli.serve:broker",
    "nameserver": "gantrymq.cli.serve:nameserver",
    "topic": "gantrymq.cli.topics:topic_commands",
    "produce": "gantrymq.cli.produce:produce",
    "consume": "gantrymq.cli.consume:consume",
    "worker": "gantrymq.cli.worker:worker",
    "query": "gantrymq.cli.query:query",
    "top": "gantrymq.cli.top:top",
    "group": "gantrymq.cli.consumer_groups:group_commands",
    "client": "gantrymq.cli.clients:client_commands",
    "dlq": "gantrymq.cli.dead_letters:dlq",
    "message": "gantrymq.cli.message:message",
    "delayed": "gantrymq.cli.delayed:delayed",
    "definitions": "gantrymq.cli.definitions:definitions",
    "store": "gantrymq.cli.store:store",
    "cluster": "gantrymq.cli.cluster:cluster",
    "config": "gantrymq.cli.settings:config",
    "dashboard": "gantrymq.cli.dashboard:dashboard",
    "dev": "gantrymq.cli.dev.commands:dev",
    "plugins": "gantrymq.cli.plugins:plugins",
    "bench": "gantrymq.cli.bench:bench",
    "doctor": "gantrymq.cli.doctor:doctor",
    "acl": "gantrymq.cli.acl:acl",
    "check-config": "gantrymq.cli.configuration:check_config",
    "print-config": "gantrymq.cli.configuration:print_config",
    "context": "gantrymq.cli.context:context",
    "version": "gantrymq.cli.version:version",
    "completion": "gantrymq.cli.completion:completion",
}


class LazyGroup(click.RichGroup):
    """Commands by name; imports a module when its command runs, and collects the plugins' commands when needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the table, then those of plugins."""
        return [*COMMANDS, *sorted(self._from_plugins().keys() - COMMANDS.keys())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None if neither the table nor a plugin has this name."""
        if cmd_name in COMMANDS:
            module, _, attribute = COMMANDS[cmd_name].partition(":")
            command = getattr(importlib.import_module(module), attribute)
            return command if isinstance(command, click.Command) else None
        return self._from_plugins().get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """click's method, with a "did you mean" for an unknown command."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from gantrymq.kernel.manager import did_you_mean

            names = self.list_commands(ctx)
            raise click.UsageError(f"{error.message.rstrip('.')}{did_you_mean(args[0], names)}", ctx) from None

    def _from_plugins(self) -> dict[str, click.Command]:
        if not hasattr(self, "_plugin_commands"):
            self._plugin_commands = collect_plugin_commands()
        return self._plugin_commands


def collect_plugin_commands() -> dict[str, click.Command]:
    """The commands of the default and the installed plugins, and of those in ``GANTRYMQ_PLUGINS__ENABLE`` and
    ``GANTRYMQ_PLUGINS__LOAD``, by name.

    A plugin that fails here loses its own commands and causes a warning, but does not affect other commands.
    """
    from importlib import metadata

    from gantrymq.cli.failures import warn
    from gantrymq.kernel.loading import ENTRY_POINTS, load_plugins
    from gantrymq.plugins import DEFAULT_PLUGINS

    texts = (os.environ.get(f"GANTRYMQ_PLUGINS__{key}", "") for key in ("ENABLE", "LOAD"))
    named = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    installed = [point.name for point in metadata.entry_points(group=ENTRY_POINTS)]
    commands = click.Group()
    for origin in dict.fromkeys((*DEFAULT_PLUGINS, *installed, *named)):
        try:
            load_plugins((origin,)).hook.add_commands(cli=commands)
        except Exception as error:
            warn(f"the commands of plugin {origin!r} are missing: {error}")
    return dict(commands.commands)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gantrymq")
def cli() -> None:
    """A message broker that speaks RocketMQ's protocol and keeps RocketMQ's files."""
    from gantrymq.cli.logs import configure_logs

    # servers log more; commands that print data log only warnings and errors
    configure_logs("warning")
