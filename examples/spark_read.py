"""Count the messages of a topic by tag with Spark, straight from the broker.

Needs ``pip install 'gantrymq[spark]'``, Java 17, and a cluster: ``gantrymq serve`` or any RocketMQ.

    python examples/spark_read.py orders 127.0.0.1:9876
"""

from __future__ import annotations

import sys

from gantrymq import spark


def main(topic: str, nameserver: str = "127.0.0.1:9876") -> None:
    session = spark.session()
    messages = session.read.format("gantrymq").option("nameserver", nameserver).option("topic", topic).load()
    messages.groupBy("tags").count().orderBy("tags").show()
    session.stop()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python spark_read.py TOPIC [NAMESERVER]")
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(f"spark_read: {spark.reason(error)}")
