"""The example plugin, installed and run in a real broker, seen through a client: by entry point and by module:attr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.client import connect
from support.processes import Child, gantrymq_child

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(120)]

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "plugins" / "stamp"
SETTINGS = ["plugin.stamp.topics=orders,payments", "plugin.stamp.name=region", "plugin.stamp.value=eu-1"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example, as a user would into an environment."""
    work = tmp_path_factory.mktemp("stamp")
    source = work / "source"
    source.mkdir()
    for path in SOURCE.iterdir():  # the build writes beside its sources
        if path.is_file():
            (source / path.name).write_bytes(path.read_bytes())
    target = work / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--disable-pip-version-check", "--target", str(target), str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


@contextmanager
def broker(tmp_path: Path, path: Path, enable: str) -> Iterator[tuple[Child, str]]:
    """A broker whose interpreter has ``path`` and that enables the plugin; and its nameserver's address."""
    sets = [word for text in (*SETTINGS, "store.commit_log_file_bytes=4 MiB") for word in ("--set", text)]
    addresses = ["--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"]
    arguments = ["serve", "--data", str(tmp_path / "store"), *addresses, "--enable", enable, *sets]
    with gantrymq_child(arguments, tmp_path / "log", env={"PYTHONPATH": str(path)}) as child:
        line = child.wait_line(lambda text: text.startswith("ready"))
        yield child, line.partition("nameserver=")[2]


async def exchange(nameserver: str) -> dict[str, list[dict[str, str]]]:
    """Send to three topics, one of which is not stamped; what a consumer gets, the properties by topic."""
    found: dict[str, list[dict[str, str]]] = {}
    async with connect(nameserver) as client, client.producer() as producer:
        for topic in ("orders", "payments", "others"):
            for number in range(5):
                await producer.send(topic, b"body %d" % number, tags="t", properties={"n": str(number)})
        for topic in ("orders", "payments", "others"):
            async with client.consumer(topic, f"readers-{topic}", start="first") as consumer:
                with trio.fail_after(20):
                    messages = [await anext(consumer) for _ in range(5)]
            assert {message.body for message in messages} == {b"body %d" % number for number in range(5)}
            found[topic] = [message.properties for message in messages]
    return found


def logged(child: Child, event: str) -> dict[str, Any]:
    """The broker's log line of ``event``."""
    rows = [json.loads(line) for line in child.log.read_text().splitlines() if line.startswith("{")]
    return next(row for row in rows if row["event"] == event)


@pytest.mark.parametrize("way", ["entry point", "module:attr"])
def test_the_plugin_stamps_the_messages_of_its_topics_and_counts_them(
    tmp_path: Path, installed: Path, way: str
) -> None:
    path, enable = (installed, "stamp") if way == "entry point" else (SOURCE, "gantrymq_stamp:StampPlugin")
    with broker(tmp_path, path, enable) as (child, nameserver):
        found = trio.run(exchange, nameserver)
        assert child.terminate() == 0
    assert [row["region"] for row in found["orders"] + found["payments"]] == ["eu-1"] * 10
    assert all("region" not in row for row in found["others"])
    assert all(row["TAGS"] == "t" and row["n"].isdigit() for rows in found.values() for row in rows)
    stamped = logged(child, "stamped")
    assert (stamped["counts"], stamped["total"]) == ({"orders": 5, "payments": 5}, 10)


def test_the_example_is_listed_with_its_origin_and_rejects_unknown_keys(tmp_path: Path, installed: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(installed)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gantrymq.cli", *arguments, "--enable", "stamp"]
        return subprocess.run(command, capture_output=True, text=True, env=environ, cwd=tmp_path)

    rows = json.loads(run("plugins", "list", "--json").stdout)
    assert (rows[-1]["name"], rows[-1]["version"], rows[-1]["origin"]) == ("stamp", "1.0.0", "stamp")
    refused = run("check-config", "--set", "plugin.stamp.topic=orders")
    assert refused.returncode == 2
    assert refused.stderr == (
        "gantrymq: plugin.stamp.topic (flag --set): there is no such key; did you mean 'topics'?\n"
    )
