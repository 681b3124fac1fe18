"""RocketMQ's own ``mqadmin`` against two systems with the same data, with comparable output.

One Java process runs all commands, a push consumer and a producer are connected to both systems from another one. The
texts are compared after what must differ (addresses, ids, moments, measured times) is replaced by its kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import msgspec

from gantrymq.remoting import fastjson
from gantrymq.remoting.bodies.offsets import ConsumerOffsetSerializeWrapper
from gantrymq.remoting.bodies.stats import StatsData
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.brokers import StatsHeader
from gantrymq.remoting.signing import Credentials
from gantrymq.testing.requests import send
from support.foreign import Java, ask
from support.processes import Child, wait_for

TOPIC, CONSUMERS, PRODUCERS, TRACES = "orders", "readers", "senders", "traces"
QUEUES, MESSAGES = 4, 40
SECONDS = 30
"""The time limit of one command."""

KINDS = (
    (re.compile(r"\b\d+\.\d+\.\d+\.\d+@\d+(#\d+)+"), "<client>"),
    (re.compile(r"\b\d{1,3}(\.\d{1,3}){3}:\d+"), "<address>"),
    (re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b"), "<host>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d[:,.]?\d*"), "<time>"),
    (re.compile(r"(?<!\.)\b1[6-9]\d{11}\b"), "<ms>"),  # not the digits of a fraction
    (re.compile(r"\b[0-9A-F]{32}\b"), "<id>"),
    (re.compile(r"@[0-9a-f]{5,8}\b|0x[0-9a-f]{8,16}\b"), "<object>"),
    (re.compile(r"(?<!\.)\b20\d{12,15}\b"), "<time>"),
    # a trace names what the tool did, its first line says why; links lead to the same page by several ways
    (re.compile(r"(?m)^\s+at .*\n?|^\s*\.\.\. \d+ more\n?|^(See|For more information).*http.*\n?"), ""),
)


@attrs.frozen
class Site:
    """One of the two systems: its addresses, and the folder of this run for what the tool writes."""

    nameserver: str
    broker: str
    folder: str


@attrs.frozen
class Case:
    """One call of ``mqadmin``. ``{...}`` in an argument is filled in from the site.

    ``masks``: what else differs and is replaced by ``<...>``; ``drops``: lines of what only one of them has.
    ``by_line``: the order of the lines says nothing.
    ``written``: files that the command writes below the site's folder and that are compared as well, as sorted JSON.
    """

    name: str
    arguments: str
    masks: Sequence[str] = ()
    drops: Sequence[str] = ()
    by_line: bool = False
    seconds: int = SECONDS
    written: Sequence[str] = ()

    @property
    def command(self) -> str:
        """The command's name."""
        return self.arguments.split(" ", 1)[0]


class MqAdmin:
    """The tool, in a process of its own."""

    def __init__(self, child: Child) -> None:
        self.child = child
        child.wait_started()

    def run(self, arguments: Sequence[str], seconds: int = SECONDS) -> str:
        """The output of the command, of both streams."""
        self.child.say(f"{seconds} {msgspec.json.encode(list(arguments)).decode()}")
        return str(self.child.wait_event("printed", timeout=seconds + 20)["text"])


@contextmanager
def run_mqadmin(java: Java, home: Path) -> Iterator[MqAdmin]:
    """The tool; it is stopped at the end of the block."""
    options = ("-Xmx256m", "-XX:TieredStopAtLevel=1")
    command = java.command(home, "gantrymq.interop.Main", "mqadmin", options=options)
    with Child(command, home / "mqadmin.err", cwd=home) as child:  # some commands write into the current folder
        yield MqAdmin(child)


class KeyedMqAdmin:
    """The tool for commands of several users: it reads ``conf/tools.yml`` for each command."""

    def __init__(self, tool: MqAdmin, conf: Path) -> None:
        self._tool = tool
        self._keys = conf / "tools.yml"

    def __call__(self, credentials: Credentials | None, *arguments: str) -> str:
        """The output of the command, signed with these keys; unsigned with None."""
        if credentials is None:
            self._keys.unlink(missing_ok=True)
        else:
            text = f"accessKey: {credentials.access_key}\nsecretKey: {credentials.secret_key}\n"
            self._keys.write_text(text)
        return self._tool.run(arguments)


@contextmanager
def run_keyed_mqadmin(java: Java, home: Path) -> Iterator[KeyedMqAdmin]:
    """The tool with the keys of each command's user; it is stopped at the end of the block."""
    with run_mqadmin(java, home) as tool:
        yield KeyedMqAdmin(tool, home / "rocketmq" / "conf")


def fill(site: Site) -> list[str]:
    """Send the same messages to a site: queue by queue, with keys, tags, and ids that its index finds.

    Returns the ids that the broker gave them.
    """
    ids = []
    for number in range(MESSAGES):
        properties = "\x02".join(
            f"{name}\x01{value}"
            for name, value in (
                ("KEYS", f"key-{number}"), ("TAGS", ("red", "blue")[number % 2]), ("UNIQ_KEY", unique_id(number)),
                ("WAIT", "true"), ("index", str(number)),
            )
        )  # fmt: skip
        answer = ask(site.broker, send(TOPIC, b"body %d" % number, queue_id=number % QUEUES, properties=properties))
        if answer.code != ResponseCode.SUCCESS:
            raise AssertionError(f"{site.broker} refused a message: {answer.code} {answer.remark}")
        ids.append((answer.ext or {})["msgId"])
    return ids


def trace(site: Site, message: str) -> None:
    """Send what clients write into a trace topic when they send and consume: format of ``TraceDataEncoder``."""
    sent = (
        "Pub", "1600000000000", "DefaultRegion", PRODUCERS, TOPIC, message, "red", "key-7", "127.0.0.1:10911", "6", "3",
        "0", message, "true", "127.0.0.1",
    )  # fmt: skip
    consumed = ("SubAfter", "request", message, "5", "true", "key-7", "0", "1600000000001", CONSUMERS)
    body = "".join("\x01".join(fields) + "\x02" for fields in (sent, consumed))
    answer = ask(site.broker, send(TRACES, body.encode(), queues=1, properties=f"KEYS\x01{message}"))
    if answer.code != ResponseCode.SUCCESS:
        raise AssertionError(f"{site.broker} refused a trace: {answer.code} {answer.remark}")
    route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TRACES})
    wait_for(lambda: ask(site.nameserver, route).code == ResponseCode.SUCCESS)  # the send has created the topic
    key = {"topic": TRACES, "key": message, "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
    query = Command(RequestCode.QUERY_MESSAGE, key)
    wait_for(lambda: ask(site.broker, query).code == ResponseCode.SUCCESS)  # RocketMQ's index follows its log


def unique_id(number: int) -> str:
    """A client's message id as RocketMQ makes it: host, process, class loader, time in the month, count."""
    return f"7F0000010001000000020000000300{number:02X}"


@contextmanager
def stage(java: Java, home: Path, sites: Sequence[Site]) -> Iterator[Sequence[Mapping[str, str]]]:
    """Consumer and producer at each site; begins when the statistics of the last minute have what was consumed. Yields
    their ids."""
    arguments = {
        "namesrvs": ",".join(site.nameserver for site in sites),
        "topic": TOPIC,
        "consumers": CONSUMERS,
        "producers": PRODUCERS,
    }
    with java.program(home, "stage", *(f"{name}={value}" for name, value in arguments.items())) as child:
        clients = []
        for event in child.events(60):
            if event["event"] == "started":
                break
            clients.append({name: str(value) for name, value in event.items()})
        for site in sites:
            wait_for(lambda site=site: _has_counted(site), 60)  # type: ignore[misc]
        yield clients


def wait_settled(site: Site) -> None:
    """Wait until all that was sent is consumed and committed, and the broker knows the producer."""
    wait_for(lambda: _consumed(site) == MESSAGES, 60)
    wait_for(lambda: _knows_producer(site), 60)


def _consumed(site: Site) -> int:
    """Messages that the group has consumed; -1 as long as it has not taken up its retry topic, which may take 20 s."""
    if _committed(site, f"%RETRY%{CONSUMERS}", 0) is None:
        return -1
    return sum(_committed(site, TOPIC, queue_id) or 0 for queue_id in range(QUEUES))


def _committed(site: Site, topic: str, queue_id: int) -> int | None:
    known = Command(RequestCode.GET_ALL_CONSUMER_OFFSET)
    table = ConsumerOffsetSerializeWrapper.from_bytes(ask(site.broker, known).body).offset_table
    return table.get(f"{topic}@{CONSUMERS}", {}).get(queue_id)


def _knows_producer(site: Site) -> bool:
    command = Command(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": PRODUCERS})
    return ask(site.broker, command).code == ResponseCode.SUCCESS


def messages_pulled(site: Site) -> int:
    """How many messages the broker has given to consumers."""
    answer = ask(site.broker, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    return int(KVTable.from_bytes(answer.body).table["msgGetTotalTodayNow"])


def _has_counted(site: Site) -> bool:
    """Whether the statistics, which change each ten seconds, have the consumed messages."""
    header = StatsHeader(stats_name="GROUP_GET_NUMS", stats_key=f"{TOPIC}@{CONSUMERS}")
    answer = ask(site.broker, Command(RequestCode.VIEW_BROKER_STATS_DATA, header.to_ext()))
    return answer.code == ResponseCode.SUCCESS and StatsData.from_bytes(answer.body).stats_minute.sum == MESSAGES


def ask_raw(site: Site, name: str, fields: Mapping[str, str]) -> str:
    """The comparable text of the answer to the request of this name."""
    answer = ask(site.broker, Command(RequestCode[name], dict(fields)))
    # the order of an answer's maps and lists says nothing, nor does what RocketMQ says before there is a code
    value = _sorted(fastjson.loads(answer.body)) if answer.body else None
    remark = None if answer.remark == "not set any response code" else answer.remark
    text = f"{answer.code} {remark} {answer.ext or {}} {value}"
    masks = (r"(?<='delayTime', )\d+", r"(?<='tps', )[\d.e-]+", r"'statsDay'.*(?='statsMinute')")
    return normalised(Case(name, name, masks), text, site)


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        # Java adds times as texts to the times, and empty maps that are for the other direction
        pairs = [
            (str(key), _sorted(item)) for key, item in value.items() if not str(key).endswith("Str") and item != {}
        ]
        return sorted(pairs, key=repr)
    if isinstance(value, list):
        return sorted((_sorted(item) for item in value), key=repr)
    if isinstance(value, tuple):
        return tuple(map(_sorted, value))
    return value


def arguments_of(case: Case, site: Site, values: Mapping[str, str]) -> list[str]:
    """The case's arguments for a site; a space inside an argument is written as ``~``."""
    known = {"ns": site.nameserver, "broker": site.broker, "folder": site.folder, **values}
    return [part.format(**known).replace("~", " ") for part in case.arguments.split(" ")]


def normalised(case: Case, text: str, site: Site) -> str:
    """``text`` without what may differ between the sites."""
    text = text.replace(site.folder, "<folder>")
    for pattern, kind in KINDS:
        text = pattern.sub(kind, text)
    for mask in case.masks:
        text = re.sub(mask, "<...>", text)
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not any(re.search(drop, line) for drop in case.drops)]
    return "\n".join(sorted(lines) if case.by_line else lines)


def run_case(admin: MqAdmin, case: Case, site: Site, values: Mapping[str, str]) -> str:
    """The comparable text of what a case prints and writes at a site."""
    text = admin.run(arguments_of(case, site, values), case.seconds)
    for name in case.written:
        path = Path(site.folder) / name
        text += f"\n-- {name}\n{_sorted_json(path.read_bytes()) if path.exists() else 'is missing'}"
    return normalised(case, text, site)


def _sorted_json(data: bytes) -> str:
    return msgspec.json.format(msgspec.json.encode(msgspec.json.decode(data), order="sorted"), indent=1).decode()
