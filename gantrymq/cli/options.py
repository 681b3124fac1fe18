"""What all commands share: durations, the topic by position or by ``--topic``, and ``--json``.

``docs/reference/conventions.md`` describes them for users, and a test checks every command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar, cast

import rich_click as click

from gantrymq.cli.failures import CommandFailed

F = TypeVar("F", bound=Callable[..., Any])

SHORTEST_S: Final = 0.1
"""The default of the least duration, in seconds."""


class Duration(click.ParamType[float]):
    """A time as ``500ms``, ``3s``, ``5m``, ``1h`` or ``2d``, or a number of seconds; the value is in seconds.

    ``least``: the lowest value; ``least_excluded``: whether it must be exceeded.
    """

    name = "duration"

    def __init__(self, least: float = SHORTEST_S, *, least_excluded: bool = False) -> None:
        self._least = least
        self._excluded = least_excluded

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; wrong usage for other texts and for too short times."""
        from gantrymq.kernel.config.fields import parse_duration  # commands of clients start without the kernel

        try:
            seconds = parse_duration(value)
        except ValueError:
            self.fail(f"{value!r} is not a duration: give seconds, or a number with ms, s, m, h or d", param, ctx)
        if seconds < self._least or (self._excluded and seconds == self._least):
            limit = "more than" if self._excluded else "at least"
            self.fail(f"{value!r} is too short: {limit} {self._least:g}s is needed", param, ctx)
        return seconds


def duration_option(
    name: str, default: float | None, text: str, *, least: float = SHORTEST_S, least_excluded: bool = False
) -> Callable[[F], F]:
    """An option that is a :class:`Duration`; ``default`` in seconds."""
    return click.option(
        name,
        type=Duration(least, least_excluded=least_excluded),
        default=None if default is None else f"{default:g}s",
        show_default=default is not None,
        metavar="DURATION",
        help=text,
    )


def topic_parameter(text: str = "The topic.", *, required: bool = True, default: str = "") -> Callable[[F], F]:
    """The argument TOPIC and the option ``--topic``, of which one is given; the function gets ``topic``.

    Without both, ``topic`` is ``default``, or None if that is empty; ``required`` refuses this as wrong usage.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def call(*, topic: str | None, topic_by_position: str | None, **given: Any) -> Any:
            return function(topic=_one_topic(topic, topic_by_position, required, default), **given)

        argument = click.argument("topic_by_position", metavar="[TOPIC]", required=False)
        option = click.option(
            "--topic", metavar="TOPIC", show_default=default or False, help=f"{text} It can be given by position."
        )
        return cast(F, argument(option(call)))

    return decorate


def _one_topic(option: str | None, position: str | None, required: bool, default: str) -> str | None:
    if option is not None and position not in (None, option):
        raise click.UsageError(f"two topics are given, {position!r} and {option!r}: name one")
    topic = option if option is not None else position
    if topic is None and required and not default:
        raise click.UsageError("a topic is missing: give it by position or with --topic")
    return topic if topic is not None else default or None


def json_option(text: str = "Print one JSON object.") -> Callable[[F], F]:
    """The option ``--json``; the function gets ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def print_result(text: str, fields: Mapping[str, Any], as_json: bool) -> None:
    """Print the result of an action on stdout: ``text``, or ``fields`` as a JSON object."""
    click.echo(json.dumps(fields, indent=2) if as_json else text)


def confirm(question: str) -> None:
    """Ask on stderr. :class:`CommandFailed` unless the answer is yes, as for a command without a terminal."""
    try:
        is_wanted = click.confirm(question, err=True)
    except click.Abort as abort:
        if not isinstance(abort.__context__, EOFError):
            raise  # Ctrl-C
        click.echo(err=True)
        raise CommandFailed("no answer on stdin, so nothing was changed; use --yes to skip the question") from None
    if not is_wanted:
        raise CommandFailed("nothing was changed")
