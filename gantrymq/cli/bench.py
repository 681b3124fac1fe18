"""``gantrymq bench``: measure a cluster of GantryMQ, or any other that speaks RocketMQ's protocol."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import rich_click as click

from gantrymq.cli.connecting import nameserver_option, plain_settings, with_client
from gantrymq.cli.options import duration_option, topic_parameter
from gantrymq.cli.tables import plural

if TYPE_CHECKING:
    from gantrymq.bench.plan import Load, Plan
    from gantrymq.bench.running import Outcome, Result
    from gantrymq.client import Client

F = TypeVar("F", bound=Callable[..., Any])

BUSY = 0.9
"""The share of a core above which the load generator may be the bottleneck."""
INTERRUPTED = 130
SEND_NAMES = {"send": "sent", "pull": "pulled", "follow": "received"}


@attrs.frozen(kw_only=True)
class Options:
    """The values of the shared options."""

    topic: str
    nameserver: str
    queues: int | None
    connections: int
    in_flight: int
    size: int
    batch: int
    count: int
    seconds: float
    warm_up: float | None
    timeout: float
    processes: int | None
    as_json: bool
    rate: int | None = None

    def requests(self) -> int:
        """``--count`` in requests, rounded up to whole batches; 0 to measure for a time."""
        return -(-self.count // self.batch)

    def plan(self, loads: list[Load]) -> Plan:
        """The loads with this warm-up and this end."""
        from gantrymq.bench.plan import Plan

        warm_up = self.warm_up if self.warm_up is not None else 0.0 if self.count else 1.0
        return Plan(loads=loads, warm_up=warm_up, seconds=self.seconds, timeout=self.timeout)


def _options(connections: int, in_flight: int, batch: int) -> Callable[[F], F]:
    count = click.IntRange(min=1)
    options = (
        topic_parameter(default="gantrymq-bench"),
        nameserver_option,
        click.option(
            "--queues", type=click.IntRange(1, 1024), help="Set the number of the topic's queues on each broker."
        ),
        click.option("--connections", type=count, default=connections, show_default=True),
        click.option(
            "--in-flight",
            type=click.IntRange(1, 65_536),
            default=in_flight,
            show_default=True,
            help="Requests in flight on each connection.",
        ),
        click.option(
            "--size", type=click.IntRange(1, 4_000_000), default=100, show_default=True, help="Bytes of each body."
        ),
        click.option(
            "--batch", type=click.IntRange(1, 1024), default=batch, show_default=True, help="Messages in each request."
        ),
        click.option("--count", type=count, default=None, help="Measure this many messages instead of a time."),
        duration_option("--seconds", 5.0, "How long to measure.", least=0, least_excluded=True),
        duration_option("--warm-up", None, "The time before the measurement; default 1s, and 0 with --count.", least=0),
        duration_option(
            "--timeout",
            10.0,
            "The time without a response, or without a message to pull, after which the run ends.",
            least=0,
            least_excluded=True,
        ),
        click.option("--processes", type=count, help="Processes of the load generator; default half of the cores."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    )

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@click.group()
def bench() -> None:
    """Measure a cluster.

    Requests are encoded beforehand, and only successful responses are counted. The output includes the load generator's
    own CPU use. The exit code is 1 when a request failed.
    """


@bench.command()
@_options(connections=8, in_flight=16, batch=1)
@click.option(
    "--rate",
    type=click.IntRange(min=1),
    help="Messages a second in all; each time begins when the message was due, not when it was sent.",
)
def produce(**given: Any) -> int:
    """Send messages as fast as they are acknowledged."""
    return _produce("produce", _read(given))


@bench.command()
@_options(connections=1, in_flight=1, batch=1)
def latency(**given: Any) -> int:
    """Send one message at a time and measure how long an acknowledgment takes."""
    return _produce("latency", _read(given))


@bench.command()
@_options(connections=4, in_flight=2, batch=32)
def consume(**given: Any) -> int:
    """Pull the messages of a topic, oldest first; at the end of a queue it starts over.

    Each pull in flight reads a different queue while there are enough queues. --size and --queues have no effect.
    """
    from gantrymq.bench.cluster import targets_from_first
    from gantrymq.bench.plan import Load, Target

    options = _read(given)

    async def find(client: Client) -> list[Target]:
        return await targets_from_first(client, options.topic)

    targets = with_client(options.nameserver, find)
    load = Load(
        kind="pull",
        topic=options.topic,
        targets=targets,
        connections=options.connections,
        in_flight=options.in_flight,
        batch=options.batch,
        requests=options.count,
    )
    return _run("consume", options, [load])


@bench.command()
@_options(connections=1, in_flight=1, batch=1)
def e2e(**given: Any) -> int:
    """Send and consume at the same time, and measure how long messages take from producer to consumer.

    A body needs 16 bytes for its send time. Both sides run in one process.
    """
    from gantrymq.bench.cluster import prepare_topic, targets_at_end
    from gantrymq.bench.plan import STAMP_BYTES, Load, Target
    from gantrymq.bench.running import new_mark

    options = _read(given)
    if options.size < STAMP_BYTES:
        raise click.BadParameter(f"a body needs {STAMP_BYTES} bytes for the time", param_hint="--size")
    if options.batch > 1:
        raise click.BadParameter("one message a request is timed", param_hint="--batch")

    async def find(client: Client) -> list[Target]:
        await prepare_topic(client, options.topic, options.queues)
        return await targets_at_end(client, options.topic)

    targets = with_client(options.nameserver, find)
    mark = new_mark()
    send = _send_load(options, targets, mark)
    # one connection for each broker, with a held pull for each queue
    follow = Load(
        kind="follow",
        topic=options.topic,
        targets=targets,
        connections=len(targets),
        in_flight=max(len(target.queues) for target in targets),
        batch=32,
        run=mark,
    )
    return _run("e2e", attrs.evolve(options, processes=1), [send, follow])


def _read(given: dict[str, Any]) -> Options:
    return Options(**given | {"count": given["count"] or 0})


def _send_load(options: Options, targets: list[Any], mark: str = "") -> Load:
    from gantrymq.bench.plan import Load

    return Load(
        kind="send",
        topic=options.topic,
        targets=targets,
        connections=options.connections,
        in_flight=options.in_flight,
        body_bytes=options.size,
        batch=options.batch,
        requests=options.requests(),
        rate=(options.rate or 0) / options.batch,
        run=mark,
    )


def _produce(name: str, options: Options) -> int:
    from gantrymq.bench.cluster import prepare_topic, targets_of
    from gantrymq.bench.plan import Target

    async def find(client: Client) -> list[Target]:
        await prepare_topic(client, options.topic, options.queues)
        return await targets_of(client, options.topic)

    return _run(name, options, [_send_load(options, with_client(options.nameserver, find))])


def _run(name: str, options: Options, loads: list[Load]) -> int:
    """Run the loads, signed and encrypted as the command's own requests, and print the results; returns the exit
    code."""
    import msgspec

    from gantrymq.bench.running import default_processes, run
    from gantrymq.cli.failures import warn
    from gantrymq.cli.progress import Meter

    processes = options.processes or default_processes()
    secured = plain_settings()
    loads = [msgspec.structs.replace(load, **secured) for load in loads]
    with Meter(f"{name} {options.topic}", options.count or None) as meter:
        result = run(options.plan(loads), processes, meter.set)
    if options.as_json:
        click.echo(json.dumps(_as_json(name, options, result), indent=2))
    else:
        _print(name, options, result)
    if result.ended:
        warn(f"ended early, this is what was measured so far: {result.ended}")
    if result.interrupted:
        return INTERRUPTED
    failed = any(outcome.failures for outcome in result.outcomes)
    return 1 if result.ended or failed or not result.outcomes[-1].messages else 0


def _as_json(name: str, options: Options, result: Result) -> dict[str, Any]:
    asked = attrs.asdict(options)
    del asked["as_json"]
    return {
        "bench": name,
        "options": asked,
        "outcomes": [outcome.as_json() for outcome in result.outcomes],
        "ended_early": "interrupted" if result.interrupted else result.ended or None,
    }


def _print(name: str, options: Options, result: Result) -> None:
    from gantrymq.bench.latencies import microseconds_text

    click.echo(
        f"{name} {options.topic}: {plural(options.connections, 'connection')} x {options.in_flight} in flight, "
        f"{options.batch} a request" + ("" if name == "consume" else f", bodies of {options.size} bytes")
    )
    for outcome in result.outcomes:
        click.echo(f"  {SEND_NAMES[outcome.kind]:9} {_volume(outcome)}")
        click.echo(f"  {'time':9} {microseconds_text(outcome.latencies.items()) or 'nothing was measured'}")
        for what, failure in outcome.failures.items():
            click.echo(f"  {'failed':9} {failure.count} x {what}: {failure.remark}")
    last = result.outcomes[-1]
    note = f": more --processes may show more ({last.processes} now)" if last.cpu_most >= BUSY else ""
    click.echo(f"  {'generator':9} {last.cpu:.2f} of a core in {plural(last.processes, 'process', 'processes')}{note}")


def _volume(outcome: Outcome) -> str:
    megabytes = outcome.bytes / outcome.seconds / 1e6 if outcome.seconds else 0.0
    return (
        f"{outcome.messages:,} messages in {outcome.seconds:.2f} s: "
        f"{outcome.rate:,.0f} messages/s, {megabytes:,.1f} MB/s"
    )
