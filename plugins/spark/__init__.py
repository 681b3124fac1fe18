"""``gantrymq export``: topics to Parquet files through Spark, from any cluster that speaks the protocol.

Slot: none.
Hooks: add_commands.
Config: none.
Files: none in the store; the command writes into the given folder. ``gantrymq.spark`` does the work; it is imported
when the command runs, and never by the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel import hookimpl

if TYPE_CHECKING:
    import click


class SparkPlugin:
    """Adds the command; does nothing in a broker."""

    name = "spark"

    @hookimpl
    def add_commands(self, cli: click.Group) -> None:
        """``export``."""
        from gantrymq.plugins.spark.command import export

        cli.add_command(export)
