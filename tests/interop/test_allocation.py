"""Each allocation strategy gives the same results as RocketMQ's client, for a generated table."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gantrymq import MessageQueue
from gantrymq.client.allocation import (
    NAMED,
    Allocation,
    ConsistentHash,
    FixedQueues,
    MachineRooms,
    NearestRoom,
    allocate,
)
from support.foreign import Java

ORDERS = 1000
ROOMS = ("hz1", "hz2", "sh", "bj")
BROKERS = ("broker-a", "hz1@a", "hz2@b", "hz1@c@", "sh@", "@x", "bj@y@z")


def as_queue(name: str) -> MessageQueue:
    broker, _, number = name.rpartition("/")
    return MessageQueue(topic="T", broker_name=broker, queue_id=int(number))


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.split("@")[0]


def room_of_member(member: str) -> str:
    return member.split("@")[0]


@pytest.mark.interop
def test_generated_allocations_equal_those_of_java(java: Java, homes: Callable[[str], Path]) -> None:
    chance = random.Random(20261123)
    given = 0
    with java.program(homes("allocate"), "allocate") as theirs:
        for _ in range(ORDERS):
            kind = chance.choice(("average", "circle", "consistent_hash", "config", "machine_room", "nearby"))
            brokers = [room + "@b" for room in ROOMS] if kind == "nearby" else BROKERS
            queues = [
                MessageQueue(topic="T", broker_name=broker, queue_id=number)
                for broker in chance.sample(brokers, chance.randrange(1, len(brokers) + 1))
                for number in range(chance.randrange(1, 17))
            ]
            members = [f"{chance.choice(ROOMS)}@{chance.randrange(10**6)}#{number}" for number in range(12)]
            members = members[: chance.randrange(1, 13)]
            me = chance.choice((*members, *members, "stranger@1"))
            arguments: list[str] = []
            nodes = chance.choice((1, 10, 10, 100))
            strategy: Allocation = NAMED.get(kind, ConsistentHash(nodes))
            if kind == "consistent_hash":
                strategy = ConsistentHash(nodes)
            elif kind == "config":
                arguments = [f"{queue.broker_name}/{queue.queue_id}" for queue in chance.sample(queues, 1)]
                strategy = FixedQueues(as_queue(name) for name in arguments)
            elif kind == "machine_room":
                arguments = chance.sample((*ROOMS, ""), 2)
                strategy = MachineRooms(arguments)
            elif kind == "nearby":
                strategy = NearestRoom(room_of_queue, room_of_member)
            order = {
                "strategy": kind, "members": sorted(members), "me": me, "arguments": arguments, "nodes": nodes,
                "queues": [f"{queue.broker_name}/{queue.queue_id}" for queue in sorted(queues)],
            }  # fmt: skip
            theirs.say(msgspec.json.encode(order).decode())
            answer = msgspec.json.decode(theirs.wait_line(lambda line: line.startswith("{")))
            mine = allocate(queues, members, me, strategy)
            assert [f"{queue.broker_name}/{queue.queue_id}" for queue in mine] == answer["mine"], order
            given += len(mine)
    assert given > ORDERS
