"""``gantrymq worker`` and ``python -m gantrymq.client worker``: a program of handlers as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import gantrymq.sync
from gantrymq.testing.harness import cluster_in_thread

WAYS = {"full": ["gantrymq.cli"], "client": ["gantrymq.client"], "trio": ["gantrymq.cli", "--backend", "trio"]}

PROGRAM = """\
import gantrymq

app = gantrymq.App("{nameserver}")


@app.on("orders", group="{group}", start="first")
async def handle(text: str) -> None:
    print(text, flush=True)
"""

HANGING = """\
import time
import gantrymq

app = gantrymq.App("{nameserver}")


@app.on("orders", group="{group}", start="first", drain_timeout={drain_timeout})
def handle(text: str) -> None:
    print(text, flush=True)
    print("buffered")
    time.sleep(60)
"""

STARTUP_FAILS = """\
import os
import gantrymq

app = gantrymq.App("{nameserver}")
app.on("orders", group="g")(print)

@app.on_startup
async def open_db(name="DATABASE_URL"):
    os.environ[name]
"""


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster_in_thread(tmp_path_factory.mktemp("worker")) as cluster:
        with gantrymq.sync.connect(cluster.nameserver) as client:
            client.admin.create_topic("orders", queues=1)
            with client.producer() as producer:
                producer.send("orders", b"42")
        yield cluster.nameserver


def command(way: str, place: str) -> list[str]:
    module, *options = WAYS[way]
    return [sys.executable, "-W", "error", "-m", module, "worker", *options, place]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_program_handles_messages_until_sigterm(nameserver: str, tmp_path: Path, way: str) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM.format(nameserver=nameserver, group=f"g-{way}"))
    with subprocess.Popen(
        command(way, "shop:app"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "42\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "app_started" in errors
    assert "worker_draining" in errors
    with gantrymq.sync.connect(nameserver) as client:
        (queue,) = client.admin.queues("orders")
        assert client.admin.consumer_offset(f"g-{way}", queue) == 1


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("drain_timeout", "first", "second", "code"),
    [(0.1, signal.SIGTERM, None, 0), (50, signal.SIGINT, signal.SIGINT, 130)],
)
def test_a_plain_handler_that_hangs_does_not_keep_the_process(
    nameserver: str,
    tmp_path: Path,
    way: str,
    drain_timeout: float,
    first: signal.Signals,
    second: signal.Signals | None,
    code: int,
) -> None:
    text = HANGING.format(nameserver=nameserver, group=f"g-{way}-{code}", drain_timeout=drain_timeout)
    (tmp_path / "shop.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        command(way, "shop:app"),
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == "42\n"
            process.send_signal(first)
            while "worker_draining" not in process.stderr.readline():
                assert process.poll() is None
            if second is not None:
                time.sleep(0.5)  # the worker stops receiving signals right after that line, or later on a busy machine
                for _ in range(10):
                    process.send_signal(second)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(2)
                        break
            process.wait(20)
        finally:
            process.kill()
        output, errors = process.stdout.read(), process.stderr.read()
    assert process.returncode == code, errors
    assert output == "buffered\n"
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("way", ["full", "client"])
@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("import gantrymq\napp = gantrymq.App('127.0.0.1:1')\n", "gantrymq: the app has no handlers"),
        ("import gantrymq\napp = gantrymq.App()\napp.on('T', group='g')(print)\n", "gantrymq: no nameserver given"),
        (
            "import gantrymq\napp = gantrymq.App('127.0.0.1:1')\napp.on('T', group='g')(print)\n",
            "gantrymq: 127.0.0.1:1: no nameserver can be reached",
        ),
        (
            STARTUP_FAILS,
            "gantrymq: the startup function open_db failed: KeyError: 'DATABASE_URL' ({folder}/shop.py, line 9)",
        ),
        (
            STARTUP_FAILS.replace("os.environ[name]", "int('abc')"),
            "failed: ValueError: invalid literal for int() with base 10: 'abc' ({folder}/shop.py, line 9)",
        ),
        ("1/0", "gantrymq: the import of shop failed: ZeroDivisionError: division by zero"),
    ],
)
def test_an_app_that_cannot_run_is_one_line_with_the_reason(
    nameserver: str, tmp_path: Path, way: str, program: str, text: str
) -> None:
    (tmp_path / "shop.py").write_text(program.replace("{nameserver}", nameserver))
    environment = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
    done = subprocess.run(
        command(way, "shop:app"), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert text.replace("{folder}", str(tmp_path)) in done.stderr
    assert "bug in GantryMQ" not in done.stderr
    assert "Traceback" not in done.stderr
