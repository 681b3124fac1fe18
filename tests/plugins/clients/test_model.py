"""After any sequence of client requests, the groups equal a plain table of memberships."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.plugins.clients.clients import Clients
from gantrymq.plugins.clients.config import ClientsConfig
from gantrymq.remoting.bodies.clients import ConsumerData, SubscriptionData


class Peer:
    closed = False
    peer = ("127.0.0.1", 1)

    def __init__(self, number: int) -> None:
        self.id = number
        self.notified: list[str] = []

    def send(self, command: Any) -> None:
        self.notified.append(command.ext["consumerGroup"])


GROUPS = st.sampled_from(["g", "h"])
PEERS = st.integers(0, 3)
TOPICS = st.frozensets(st.sampled_from(["t", "u", "v"]), max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("beat"), PEERS, GROUPS, TOPICS),
        st.tuples(st.just("leave"), PEERS, GROUPS, TOPICS),
        st.tuples(st.just("close"), PEERS, GROUPS, TOPICS),
    ),
    max_size=30,
)


@given(STEPS)
def test_groups_follow_a_plain_table(steps: list[tuple[str, int, str, frozenset[str]]]) -> None:
    clients = Clients(SystemEnv(), ClientsConfig())
    peers: list[Any] = [Peer(number) for number in range(4)]
    model: dict[str, dict[int, frozenset[str]]] = {"g": {}, "h": {}}
    for action, number, group, topics in steps:
        before = {name: (set(table), frozenset().union(*table.values())) for name, table in model.items()}
        dropped = action == "beat" and model[group].get(number, frozenset()) - topics
        if action == "beat":
            data = ConsumerData(group, subscription_data_set=[SubscriptionData.for_tags(topic) for topic in topics])
            clients.join_consumers(
                clients.member(peers[number], f"c{number}"), data, 0, notify=True, keep_subscriptions=False
            )
            model[group][number] = topics
        elif action == "leave":
            clients.leave(peers[number], None, group)
            model[group].pop(number, None)
        else:
            clients.drop([peers[number]])
            for table in model.values():
                table.pop(number, None)
        clients.notify_changes()
        for name, table in model.items():
            wanted = frozenset().union(*table.values())
            assert sorted(clients.client_ids(name)) == [f"c{member}" for member in sorted(table)]
            assert {topic for topic in "tuv" if clients.subscription(name, topic)} == wanted
            assert (clients.message_model(name) is None) == (not table)
            # as in RocketMQ also where a member no longer wants a topic that another one wants
            changed = (set(table), wanted) != before[name] or (name == group and dropped)
            notified = {peer.id for peer in peers if name in peer.notified}
            assert notified == (set(table) if changed else set())
        for peer in peers:
            peer.notified.clear()
