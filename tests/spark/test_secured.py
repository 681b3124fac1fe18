"""Spark at a cluster that requires keys, TLS and client certificates, within a namespace."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from gantrymq import sync
from gantrymq.remoting.tls import ServerTls
from gantrymq.spark import Refused, UnknownTopic, Unreachable
from gantrymq.spark.options import read_options
from gantrymq.spark.ranges import plan_ranges
from gantrymq.spark.reader import read_range
from gantrymq.spark.wire import GROUP, Wire
from support.accounts import ACL
from support.authority import Authority
from support.processes import Child, free_ports, gantrymq_child
from support.spark_session import start_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

TLS = "gantrymq.plugins.tls:TlsPlugin"
ACCOUNTS = """\
accounts:
- {accessKey: the-admin, secretKey: admin-secret, admin: true}
- accessKey: the-pipeline
  secretKey: pipeline-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [shop%orders=PUB|SUB, shop%copy=PUB|SUB]
  groupPerms: [shop%dashboard=SUB, CID_GANTRYMQ_SPARK=SUB, shop%CID_GANTRYMQ_SPARK=SUB]
"""


@attrs.frozen
class Secured:
    """A nameserver and a broker that may be started again; ``options`` has what a pipeline needs."""

    folder: Path
    authority: Authority
    nameserver: str
    broker: str

    @property
    def options(self) -> dict[str, str]:
        return {
            "nameserver": self.nameserver, "accessKey": "the-pipeline", "secretKey": "pipeline-secret",
            "namespace": "shop", "tls": "true", "tlsCaFile": str(self.authority.file),
            "tlsCertFile": str(self.folder / "pipeline.pem"),
        }  # fmt: skip

    def serve(self) -> Child:
        settings = {
            "plugin.acl.file": self.folder / "plain_acl.yml", "plugin.acl.keys": self.folder / "tools.yml",
            "plugin.tls.certificate": self.folder / "server.pem", "plugin.tls.ca": self.authority.file,
            "plugin.tls.client_certificates": "required",
        }  # fmt: skip
        sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        return gantrymq_child(
            ("serve", "--data", str(self.folder / "data"), "--listen", self.broker, "--nameserver-listen",
             self.nameserver, "--enable", ACL, "--enable", TLS, *sets),
            self.folder / "log",
        )  # fmt: skip

    def connect(self, namespace: str | None = None) -> AbstractContextManager[sync.Client]:
        """A client with the keys of the administrator."""
        context = ServerTls(str(self.folder / "server.pem"), ca=str(self.authority.file)).make_client_context()
        keys = {"access_key": "the-admin", "secret_key": "admin-secret"}
        return sync.connect(self.nameserver, tls=context, namespace=namespace, **keys)

    def create(self, *topics: str) -> None:
        with self.connect("shop") as client:
            for topic in topics:
                client.admin.create_topic(topic, 2)

    def send(self, topic: str, body: bytes) -> None:
        with self.connect("shop") as client, client.producer() as producer:
            producer.send(topic, body)

    def committed(self, group: str, topic: str) -> int:
        with self.connect() as client:
            return sum(client.admin.consumer_offset(group, queue) or 0 for queue in client.admin.queues(topic))


def ready(child: Child) -> None:
    child.wait_line(lambda line: line.startswith("ready"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    authority.issue("server")
    authority.issue("pipeline")
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    (folder / "tools.yml").write_text("accessKey: the-admin\nsecretKey: admin-secret\n")
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    return Secured(folder, authority, nameserver, broker)


def test_a_frame_is_written_and_copied_by_a_stream_over_a_restart_of_the_broker(
    spark: SparkSession, secured: Secured, tmp_path: Path
) -> None:
    options = secured.options
    frame = spark.range(200).selectExpr("cast(id AS string) AS body")
    read: list[int] = []

    def collect(batch: DataFrame, number: int) -> None:
        rows = [int(row.body) for row in batch.select("body").collect()]
        batch.selectExpr("body").write.format("gantrymq").options(**options, topic="copy").mode("append").save()
        read.extend(rows)

    query = None
    for number in range(2):
        with secured.serve() as child:
            ready(child)
            if not number:
                secured.create("orders", "copy")
            frame.selectExpr(f"cast(body + {number * 200} AS string) AS body").write.format("gantrymq").options(
                **options, topic="orders"
            ).mode("append").save()
            if query is None:
                source = spark.readStream.format("gantrymq").options(**options, topic="orders", groupId="dashboard")
                writer = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "90").load()
                batches = writer.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path))
                query = start_query(batches.start)
            deadline = time.monotonic() + 120
            while len(read) < (number + 1) * 200 and time.monotonic() < deadline and query.isActive:
                time.sleep(0.1)
            if number:
                query.stop()
                copied = spark.read.format("gantrymq").options(**options, topicPattern="cop.").load()
                rows = copied.selectExpr("topic", "cast(body AS string) AS b").collect()
                assert sorted((row.topic, int(row.b)) for row in rows) == [("copy", n) for n in range(400)]
                assert secured.committed("shop%dashboard", "shop%orders") > 200
    assert query is not None
    assert query.exception() is None
    assert sorted(read) == list(range(400))


def test_wrong_credentials_have_a_reason(secured: Secured) -> None:
    plain = {"tls": "false", "tlsCaFile": "", "tlsCertFile": ""}
    with secured.serve() as child:
        ready(child)
        secured.create("orders")
        secured.send("orders", b"x")
        assert b"x" in read(secured, {})
        for wrong, error, says in (
            ({"secretKey": "guessed"}, Refused, "Check signature failed for accessKey=the-pipeline"),
            ({"namespace": "other"}, UnknownTopic, "topic 'orders' is not known"),
            ({"groupId": "foreign"}, Refused, "No default permission for group:shop%foreign"),
            (plain, Unreachable, "no answer from"),
            ({"tlsCertFile": ""}, Unreachable, "no answer from|cannot connect to"),
        ):
            with pytest.raises(error, match=says):
                read(secured, wrong)


def read(secured: Secured, changed: dict[str, str]) -> list[bytes]:
    """The bodies of the topic, without Spark; options whose ``changed`` value is empty are not given."""
    given = secured.options | {"topic": "orders", "retrySeconds": "0"} | changed
    options = read_options({name: value for name, value in given.items() if value})
    with Wire(group=options.group or GROUP, security=options.security) as wire:
        ranges = plan_ranges(options, wire)
        batches = [batch for item in ranges for batch in read_range(wire, item, options, ["body"])]
    return [body for batch in batches for body in batch["body"].to_pylist()]
