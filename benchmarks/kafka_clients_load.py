"""What Kafka's Python clients reach with the loads of the group ``client``; runs where they are installed.

The arguments are the address of a broker, seconds of each load, and how many messages there are to consume. Prints a
JSON object: for each client, what it did, with messages a second and microseconds of its processor time for a message;
for ``send and wait`` the median in microseconds instead.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

BODY = b"x" * 100
TASKS = 128
PARTITIONS = 8
SENT, STORED = "bench-client", "bench-client-stored"
BATCH_MESSAGES = 1000
STEP = 100
SETTLE_SHARE = 0.2
"""The share of a load's seconds for its warm-up, which does not count."""
WAIT_SECONDS = 60.0

Figures = dict[str, list[float]]


class Clock:
    """Elapsed time and this process's processor time since the object was created."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.used = time.process_time()

    def seconds(self) -> float:
        """Return the elapsed seconds."""
        return time.perf_counter() - self.began

    def pace(self, messages: int) -> list[float]:
        """Return messages a second, and microseconds of processor time for each."""
        return [messages / self.seconds(), (time.process_time() - self.used) / messages * 1e6]


def main() -> None:
    """Measure both clients and print the results."""
    address, seconds, stored = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    create_topics(address)
    fill(address, stored)
    found = {
        "confluent": measure_confluent(address, seconds, stored),
        "aiokafka": asyncio.run(measure_aiokafka(address, seconds, stored)),
    }
    print(json.dumps(found))


def create_topics(address: str) -> None:
    """Create both topics, with as many partitions as the other brokers' topics have queues."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics([NewTopic(SENT, PARTITIONS, 1), NewTopic(STORED, PARTITIONS, 1)]).values():
        created.result(WAIT_SECONDS)


def confluent_producer(address: str, **options: Any) -> Any:
    """Return a producer with the guarantee that the other systems are measured with: the leader has the message."""
    from confluent_kafka import Producer

    given = {name.replace("_", "."): value for name, value in options.items()}
    return Producer({"bootstrap.servers": address, "acks": 1, **given})


def produce(producer: Any, topic: str) -> None:
    """Buffer one message, once there is room."""
    while True:
        try:
            producer.produce(topic, BODY)
        except BufferError:
            producer.poll(0.01)
        else:
            return


def fill(address: str, messages: int) -> None:
    """Store the messages to consume."""
    producer = confluent_producer(address)
    for _ in range(messages):
        produce(producer, STORED)
    producer.flush()


def measure_confluent(address: str, seconds: float, stored: int) -> Figures:
    """Measure confluent-kafka, a binding to a client in C."""

    def enqueue(wanted: float) -> list[float]:
        producer = confluent_producer(address)
        clock, count = Clock(), 0
        while clock.seconds() < wanted:
            for _ in range(STEP):
                produce(producer, SENT)
            producer.poll(0)
            count += STEP
        producer.flush()
        return clock.pace(count)

    def send_and_wait(wanted: float) -> list[float]:
        producer, clock, times = confluent_producer(address, linger_ms=0), Clock(), []
        while clock.seconds() < wanted:
            before = time.perf_counter()
            producer.produce(SENT, BODY)
            producer.flush()
            times.append(time.perf_counter() - before)
        return [sorted(times)[len(times) // 2] * 1e6]

    def one_by_one(consumer: Any) -> int:
        message = consumer.poll(WAIT_SECONDS)
        return len(message.value()) // len(BODY)

    def in_batches(consumer: Any) -> int:
        return sum(len(message.value()) for message in consumer.consume(BATCH_MESSAGES, WAIT_SECONDS)) // len(BODY)

    def consume(take: Callable[[Any], int]) -> list[float]:
        from confluent_kafka import Consumer

        group = f"bench-{take.__name__}"
        consumer = Consumer({"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"})
        consumer.subscribe([STORED])
        count = take(consumer)
        clock, begin = Clock(), count
        while count < stored:
            count += take(consumer)
        pace = clock.pace(count - begin)
        consumer.close()
        return pace

    enqueue(seconds * SETTLE_SHARE)
    return {
        "enqueue": enqueue(seconds),
        "send and wait": send_and_wait(seconds),
        "consume one by one": consume(one_by_one),
        f"consume in batches of {BATCH_MESSAGES}": consume(in_batches),
    }


async def measure_aiokafka(address: str, seconds: float, stored: int) -> Figures:
    """Measure aiokafka, in Python with a compiled part."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def enqueue(producer: Any, wanted: float) -> list[float]:
        clock, count = Clock(), 0
        while clock.seconds() < wanted:
            for _ in range(STEP):
                await producer.send(SENT, BODY)
            count += STEP
        await producer.flush()
        return clock.pace(count)

    async def send_from_tasks(producer: Any, wanted: float) -> list[float]:
        clock, count = Clock(), 0

        async def work() -> None:
            nonlocal count
            while clock.seconds() < wanted:
                await producer.send_and_wait(SENT, BODY)
                count += 1

        await asyncio.gather(*(work() for _ in range(TASKS)))
        return clock.pace(count)

    async def send_and_wait(producer: Any, wanted: float) -> list[float]:
        clock, times = Clock(), []
        while clock.seconds() < wanted:
            before = time.perf_counter()
            await producer.send_and_wait(SENT, BODY)
            times.append(time.perf_counter() - before)
        return [sorted(times)[len(times) // 2] * 1e6]

    async def one_by_one(consumer: Any) -> int:
        return len((await consumer.getone()).value) // len(BODY)

    async def in_batches(consumer: Any) -> int:
        size = 0
        taken = await consumer.getmany(timeout_ms=int(WAIT_SECONDS * 1000), max_records=BATCH_MESSAGES)
        for messages in taken.values():
            size += sum(len(message.value) for message in messages)
        return size // len(BODY)

    async def consume(take: Callable[[Any], Any]) -> list[float]:
        group = f"bench-aiokafka-{take.__name__}"
        consumer = AIOKafkaConsumer(STORED, bootstrap_servers=address, group_id=group, auto_offset_reset="earliest")
        async with consumer:
            count = await take(consumer)
            clock, begin = Clock(), count
            while count < stored:
                count += await take(consumer)
            return clock.pace(count - begin)

    async with AIOKafkaProducer(bootstrap_servers=address, acks=1) as producer:
        await enqueue(producer, seconds * SETTLE_SHARE)
        return {
            "enqueue": await enqueue(producer, seconds),
            f"send, {TASKS} tasks": await send_from_tasks(producer, seconds),
            "send and wait": await send_and_wait(producer, seconds),
            "consume one by one": await consume(one_by_one),
            f"consume in batches of {BATCH_MESSAGES}": await consume(in_batches),
        }


if __name__ == "__main__":
    main()
