"""The members of a local cluster, their addresses and folders; saved in the cluster's folder for the next start."""

from __future__ import annotations

import fcntl
import random
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import msgspec

from gantrymq.cli.dev.roles import changed_numbers, forget_changes, numbers_of
from gantrymq.cli.failures import CommandFailed

PLAN_FILE: Final = "cluster.json"
LOCK_FILE: Final = "lock"
HOST: Final = "127.0.0.1"
BROKER_STRIDE: Final = 10
METRICS_DISTANCE: Final = 2
HTTP_DISTANCE: Final = 3
BROKER_PORTS: Final = (-2, 0, 1, METRICS_DISTANCE, HTTP_DISTANCE)
"""The ports of a broker, relative to its port: RocketMQ's slaves fetch topics at -2, slaves copy the log at +1, metrics
are at +2, the health pages at +3."""
FIRST_PORT, LAST_PORT = 20_000, 32_000
"""The range of chosen ports, below the ports that the system uses for outgoing connections."""
FIRST_BROKER: Final = "broker-a-0"
TRIES: Final = 2000
SEGMENT: Final = "64 MiB"
"""The size of a commit log file; RocketMQ's gigabyte is too large for a development cluster."""


@attrs.frozen
class ClusterSpec:
    """The requested cluster. ``sync``: masters wait for their slaves. ``base_port``: 0 for any free ports."""

    cluster: str = "DevCluster"
    brokers: int = 1
    slaves: int = 0
    nameservers: int = 1
    base_port: int = 0
    sync: bool = False
    settings: Sequence[str] = ()
    enable: Sequence[str] = ()


@attrs.frozen
class Member:
    """One server: ``number`` is a broker's id at its start, None for a nameserver.

    ``label`` is its unique name, also of its folder and its log file; it stays when the number changes.
    """

    name: str
    number: int | None
    port: int
    arguments: Sequence[str]
    label: str

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{HOST}:{self.port}"


@attrs.frozen
class Plan:
    """All members in the order in which they start: nameservers, masters, slaves."""

    cluster: str
    folder: Path
    members: Sequence[Member]

    @property
    def nameservers(self) -> str:
        """The nameservers' addresses in the form for clients and brokers."""
        return ";".join(member.address for member in self.members if member.number is None)


class _Kept(msgspec.Struct):
    """The saved file: the cluster's name, and by label each member's port and, for a broker, its number."""

    cluster: str
    ports: dict[str, int]
    numbers: dict[str, int] = {}


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Create and lock the folder for the block; :class:`CommandFailed` if another cluster runs there."""
    folder.mkdir(parents=True, exist_ok=True)
    strange = (
        [] if (folder / PLAN_FILE).exists() else [path.name for path in folder.iterdir() if path.name != LOCK_FILE]
    )
    if strange:
        raise CommandFailed(
            f"{folder} holds something else ({min(strange)}); name an empty folder, or one of a cluster"
        )
    with (folder / LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CommandFailed(f"{folder}: another `gantrymq dev up` runs on this folder; stop it first") from None
        yield


def make_plan(spec: ClusterSpec, folder: Path) -> Plan:
    """The members with their ports: those of the last start, else from ``spec.base_port`` on, else free ones.

    :class:`CommandFailed` names a port in use, or the other cluster to which the folder belongs.
    """
    kept = _read(folder)
    if kept.cluster not in ("", spec.cluster):
        raise CommandFailed(f"{folder} has the data of the cluster {kept.cluster!r}, not {spec.cluster!r}")
    nameservers = [f"nameserver-{number}" for number in range(spec.nameservers)]
    names = [f"broker-{_letters(index)}" for index in range(spec.brokers)]
    brokers = {f"{name}-{index}": name for index in range(spec.slaves + 1) for name in names}
    numbers = {}
    for name in names:
        numbers.update(_numbers(spec, name, kept, folder))
    labels = [*nameservers, *brokers]
    ports = _ports(labels, spec.base_port, {} if spec.base_port else kept.ports)
    nameserver_list = ";".join(f"{HOST}:{ports[label]}" for label in nameservers)
    members = [
        Member(label, None, ports[label], _nameserver(label, ports[label], folder), label) for label in nameservers
    ]
    for label, name in sorted(brokers.items(), key=lambda item: numbers[item[0]]):
        arguments = _broker(spec, name, label, numbers[label], ports[label], nameserver_list, folder)
        members.append(Member(name, numbers[label], ports[label], arguments, label))
    known = _Kept(spec.cluster, {**kept.ports, **ports}, {**kept.numbers, **numbers})
    (folder / PLAN_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(known)))
    for label in brokers:
        (folder / f"{label}.toml").write_text(f"[broker]\nid = {numbers[label]}\n")
    forget_changes(folder, list(numbers))
    return Plan(spec.cluster, folder, members)


def _numbers(spec: ClusterSpec, name: str, kept: _Kept, folder: Path) -> dict[str, int]:
    """The numbers of all existing and planned brokers of that name, by their labels.

    :class:`CommandFailed` if the master is not among the brokers to start.
    """
    pattern = re.compile(rf"{name}-(\d+)")
    known = {label for label in kept.ports if pattern.fullmatch(label)}
    labels = sorted(
        known | {f"{name}-{index}" for index in range(spec.slaves + 1)}, key=lambda label: (len(label), label)
    )
    first = {label: int(label.rpartition("-")[2]) for label in labels}
    numbers = numbers_of(labels, {**first, **kept.numbers}, changed_numbers(folder, labels))
    master = min(numbers, key=numbers.__getitem__)
    if first[master] > spec.slaves:
        raise CommandFailed(
            f"the master of {name} is {master} since it was promoted: start with --slaves {first[master]} at least"
        )
    return numbers


def _read(folder: Path) -> _Kept:
    path = folder / PLAN_FILE
    if not path.exists():
        return _Kept("", {})
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Kept)
    except msgspec.MsgspecError as error:
        raise CommandFailed(f"{path}: {error}; it was written by `gantrymq dev up`, name another folder") from None


def _letters(index: int) -> str:
    """a, b ... z, aa, ab ..."""
    first, last = divmod(index, 26)
    return (_letters(first - 1) if first else "") + chr(ord("a") + last)


def _nameserver(label: str, port: int, folder: Path) -> list[str]:
    return ["nameserver", "--listen", f"{HOST}:{port}", "--data", str(folder / label)]


def _broker(
    spec: ClusterSpec, name: str, label: str, number: int, port: int, nameservers: str, folder: Path
) -> list[str]:
    settings = [
        f"broker.name={name}",
        f"broker.cluster={spec.cluster}",
        f"store.commit_log_file_bytes={SEGMENT}",
        f"plugin.http.listen={HOST}:{port + HTTP_DISTANCE}",
    ]
    enable = list(spec.enable)
    if spec.slaves:
        enable.insert(0, "ha")
        if spec.sync:  # also on slaves, which may be promoted
            settings.append("plugin.ha.role=sync_master")
    if "metrics" in enable:
        settings.append(f"plugin.metrics.listen={HOST}:{port + METRICS_DISTANCE}")
    data = str(folder / label)
    arguments = ["broker", "--nameserver", nameservers, "--listen", f"{HOST}:{port}", "--data", data]
    arguments += ["--config", str(folder / f"{label}.toml")]  # settings in this file can be changed at run time
    for plugin in dict.fromkeys(enable):
        arguments += ["--enable", plugin]
    if "dashboard" in enable and label != FIRST_BROKER:  # it shows all brokers, at one address
        arguments += ["--disable", "dashboard"]
    for setting in (*settings, *spec.settings):
        arguments += ["--set", setting]
    return arguments


def _ports(labels: Sequence[str], base: int, kept: dict[str, int]) -> dict[str, int]:
    """A port for each label; ``kept`` has those of the last start."""
    ports: dict[str, int] = {}
    brokers = 0
    for index, label in enumerate(labels):
        needs = (0,) if label.startswith("nameserver") else BROKER_PORTS
        if len(needs) > 1:
            brokers += 1
        if label in kept:
            port = kept[label]
        elif base:
            port = base + (index if len(needs) == 1 else BROKER_STRIDE * brokers)
        else:
            ports[label] = _find(needs, ports)
            continue
        for distance in needs:
            if not 0 < port + distance < 65536:
                raise CommandFailed(f"{label} would need the port {port + distance}; choose another --base-port")
            if not _free(port + distance):
                raise CommandFailed(
                    f"port {port + distance}, which {label} needs, is in use: stop the process that listens there, or "
                    "choose other ports with --base-port"
                )
        ports[label] = port
    return ports


def _find(needs: Sequence[int], taken: dict[str, int]) -> int:
    chance = random.SystemRandom()
    for _ in range(TRIES):
        port = chance.randrange(FIRST_PORT, LAST_PORT)
        if all(abs(port - other) > 5 for other in taken.values()) and all(_free(port + each) for each in needs):
            return port
    raise CommandFailed(f"no free port found between {FIRST_PORT} and {LAST_PORT}; choose some with --base-port")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as servers do: ports of closed connections count as free
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
