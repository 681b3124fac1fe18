"""Every command of RocketMQ's ``mqadmin`` 4.9.7 against our broker and nameserver and against the Java ones.

Both systems get the same topics, groups and messages, and the same clients are connected to both. Each
difference is a gap, listed with its reason in ``support.mqadmin_cases.GAPS``; a closed gap must be removed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from support.foreign import Java, start_broker, start_nameserver
from support.mqadmin import (
    MESSAGES,
    Case,
    MqAdmin,
    Site,
    ask_raw,
    fill,
    messages_pulled,
    run_case,
    run_mqadmin,
    stage,
    trace,
    unique_id,
    wait_settled,
)
from support.mqadmin_cases import ACCESS, CASES, CHANGES, GAPS, LAST, PREPARE, RAW, READS, RESET
from support.processes import ChildFailed, free_ports, gantrymq_child, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once]

BROKER = "broker-a"
STATISTICS = "VIEW_BROKER_STATS_DATA"
MESSAGE = 7
"""The message that is asked for by its ids."""

Texts = dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def sites(java: Java, homes: Callable[[str], Path]) -> Iterator[tuple[Site, Site]]:
    """RocketMQ's nameserver and broker, and ours."""
    home = homes("mqadmin")
    with ExitStack() as stack:
        nameserver = start_nameserver(java, home / "nameserver")
        stack.callback(nameserver.discard)
        broker = start_broker(java, home / "broker", nameserver.address, name=BROKER)
        stack.callback(broker.discard)
        ours, our_nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
        serve = ("serve", "--data", str(home / "data"), "--listen", ours, "--nameserver-listen", our_nameserver)
        serve = (*serve, "--set", "plugin.flush.mode=async")  # RocketMQ's default
        child = stack.enter_context(gantrymq_child(serve, home / "gantry.err"))
        child.wait_line(lambda line: line.startswith("ready"))
        for name in ("java", "ours"):
            (home / name).mkdir()
        yield (
            Site(nameserver.address, broker.address, str(home / "java")),
            Site(our_nameserver, ours, str(home / "ours")),
        )


@pytest.fixture(scope="module")
def texts(java: Java, sites: tuple[Site, Site], homes: Callable[[str], Path]) -> Texts:
    """The normalized output of each case for the Java system and for ours."""
    found: Texts = {}
    values: list[dict[str, str]] = [{}, {}]

    def run(cases: tuple[Case, ...]) -> None:
        for case in cases:
            theirs, ours = (run_case(admin, case, site, value) for site, value in zip(sites, values, strict=True))
            found[case.name] = (theirs, ours)

    def run_raw(name: str) -> None:
        theirs, ours = (ask_raw(site, name, RAW[name]) for site in sites)
        found[name] = (theirs, ours)

    with run_mqadmin(java, homes("tool")) as admin:
        run(PREPARE)
        ids = [fill(site) for site in sites]
        with stage(java, homes("stage"), sites) as clients:
            for number, value in enumerate(values):
                value.update(
                    msg_id=ids[number][MESSAGE], unique_id=unique_id(MESSAGE), consumer=clients[number]["consumer"]
                )
            run_raw(STATISTICS)  # first: those of the last minute soon lose the messages
            for site in sites:
                wait_settled(site)
            for name in RAW:
                if name != STATISTICS:
                    run_raw(name)
            run(READS)
            for site in sites:
                trace(site, unique_id(MESSAGE))
            run(CHANGES)
            run(ACCESS)
            before = [messages_pulled(site) for site in sites]
            run(RESET)
            for site, value, count in zip(sites, values, before, strict=True):
                wait_read_again(admin, site, value, count)
        run(LAST)
        found["help"] = (admin.run([]), "")
    return found


def wait_read_again(admin: MqAdmin, site: Site, values: dict[str, str], before: int) -> None:
    """Returns once the group has read everything again. RocketMQ's broker may answer the client's question for a
    queue's offset before the commit that came ahead of it, and that queue then stays: the command is said again."""
    for _ in range(3):
        with suppress(ChildFailed):
            return wait_for(lambda: messages_pulled(site) >= before + MESSAGES, 25)
        run_case(admin, RESET[0], site, values)
    raise ChildFailed(f"{site.broker}: the group did not go back")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mqadmin_prints_the_same_for_both_brokers(case: Case, texts: Texts):
    theirs, ours = texts[case.name]
    if case.name in GAPS:
        assert ours != theirs, "this gap is closed: take it out of GAPS and of docs/howto/mqadmin.md"
        pytest.xfail(GAPS[case.name])
    assert ours == theirs


@pytest.mark.parametrize("name", RAW)
def test_both_brokers_answer_requests_that_mqadmin_does_not_send_the_same(name: str, texts: Texts):
    theirs, ours = texts[name]
    assert ours == theirs


def test_every_mqadmin_command_is_covered(texts: Texts):
    listed = {line.split()[0] for line in texts["help"][0].splitlines() if line.startswith("   ")}
    assert listed == {case.command for case in CASES}
