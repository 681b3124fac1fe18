"""RocketMQ's producers and push consumers, 4.9.7 and 5.3.3, with keys and TLS at our broker.

The combinations of TLS and plain connections are those of RocketMQ's own integration tests: both over TLS (``TLS_IT``),
a plain producer with a consumer over TLS (``TLS_Mix_IT``), and the other way round (``TLS_Mix2_IT``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import gantrymq.sync
from support.accounts import ACL, ADMIN, WORKER
from support.certificates import FOLDER, client_context
from support.clients import ForeignClient
from support.processes import free_ports, gantrymq_child
from support.transactions import Transactor

pytestmark = [pytest.mark.interop, pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(240)]

Homes = Callable[[str], Path]
Names = Callable[[str], str]
ACCOUNTS = """\
accounts:
- {accessKey: the-admin, secretKey: admin-secret, admin: true}
- accessKey: the-worker
  secretKey: worker-secret
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms: [secrets=DENY]
"""
TLS = "gantrymq.plugins.tls:TlsPlugin"
KEYS = {"accessKey": WORKER.access_key, "secretKey": WORKER.secret_key}
MESSAGES = 16


@contextmanager
def serving(home: Path, mode: str) -> Iterator[str]:
    """The address of our nameserver; it and its broker have TLS in this mode, and the broker has accounts."""
    home.mkdir()
    (home / "plain_acl.yml").write_text(ACCOUNTS)
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {
        "plugin.acl.file": home / "plain_acl.yml",
        "plugin.tls.certificate": FOLDER / "server.pem",
        "plugin.tls.mode": mode,
        "plugin.transaction.check_interval": "500ms",
        "plugin.transaction.timeout": "1s",
    }
    arguments = ["serve", "--data", str(home / "data"), "--listen", broker, "--nameserver-listen", nameserver,
                 "--enable", TLS, "--enable", ACL]  # fmt: skip
    arguments += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with gantrymq_child(arguments, home / "log") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        yield nameserver


@pytest.fixture(scope="module")
def enforcing(homes: Homes) -> Iterator[str]:
    with serving(homes("enforcing"), "enforcing") as nameserver:
        yield nameserver


@pytest.fixture(scope="module")
def permissive(homes: Homes) -> Iterator[str]:
    with serving(homes("permissive"), "permissive") as nameserver:
        yield nameserver


def create_topic(nameserver: str, topic: str) -> None:
    options: dict[str, Any] = {"access_key": ADMIN.access_key, "secret_key": ADMIN.secret_key}
    with gantrymq.sync.connect(nameserver, tls=client_context(), **options) as client:
        client.admin.create_topic(topic, 2)


@pytest.mark.parametrize(
    ("mode", "produces", "consumes"),
    [("enforcing", True, True), ("permissive", False, True), ("permissive", True, False)],
    ids=["both-tls", "plain-producer", "plain-consumer"],
)
def test_producers_and_push_consumers_with_keys_exchange_messages_over_tls_and_plain_connections(
    request: pytest.FixtureRequest, java_client: ForeignClient, names: Names, mode: str, produces: bool, consumes: bool
) -> None:
    nameserver: str = request.getfixturevalue(mode)
    topic = names("t")
    create_topic(nameserver, topic)
    with java_client.consumer(nameserver, topic, names("g"), tls=str(consumes).lower(), **KEYS) as consumer:
        sent = java_client.produce(
            nameserver, topic, MESSAGES, modes="sync,async,batch", tls=str(produces).lower(), **KEYS
        )
        assert {each.status for each in sent} == {"SEND_OK"}
        consumer.wait(3 * MESSAGES, 60.0)
        received = consumer.close()
    assert sorted(each.index for each in received) == list(range(3 * MESSAGES))


def test_transactions_with_keys_end_over_tls(java_client: ForeignClient, enforcing: str, names: Names) -> None:
    topic = names("t")
    create_topic(enforcing, topic)
    with Transactor.start(java_client, enforcing, topic, names("p"), tls="true", **KEYS) as transactor:
        for index, (local, checked) in enumerate([("commit", "commit"), ("rollback", "commit"), ("unknown", "commit")]):
            assert transactor.send(index, local, checked).status == "SEND_OK"
        transactor.wait_checks(1)
        received = java_client.consume_all(enforcing, topic, names("g"), 2, tls="true", **KEYS)
    assert sorted(each.index for each in received) == [0, 2]


def test_a_send_with_a_wrong_key_over_tls_fails(java_client: ForeignClient, enforcing: str, names: Names) -> None:
    topic = names("t")
    create_topic(enforcing, topic)
    wrong = {**KEYS, "secretKey": "not-the-secret"}
    with java_client.run("produce", f"namesrv={enforcing}", f"topic={topic}", "count=1", "tls=true",
                         *(f"{name}={value}" for name, value in wrong.items())) as child:  # fmt: skip
        assert child.wait(60.0) != 0
        assert "Check signature failed for accessKey=the-worker" in child.log.read_text()
