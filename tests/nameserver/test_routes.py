"""The nameserver's tables, without a socket."""

from __future__ import annotations

import attrs
import pytest

from gantrymq.nameserver import limits
from gantrymq.nameserver.live import BrokerIdentity, Registration
from gantrymq.nameserver.routes import Routes
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from gantrymq.remoting.errors import RemoteFault

MASTER = BrokerIdentity("c", "broker-a", 0, "10.0.0.1:10911")
SLAVE = BrokerIdentity("c", "broker-a", 1, "10.0.0.2:10911")
OTHER = BrokerIdentity("c", "broker-b", 0, "10.0.0.3:10911")
FAR = BrokerIdentity("far", "broker-f", 0, "10.0.0.4:10911")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def routes(clock: Clock) -> Routes:
    return Routes(clock)


def topics(*names: str, counter: int = 1, perm: int = 6, flag: int = 0) -> TopicConfigSerializeWrapper:
    rows = {name: TopicConfig(name, 4, 8, perm, topic_sys_flag=flag) for name in names}
    return TopicConfigSerializeWrapper(rows, DataVersion(counter, 7))


def addresses(routes: Routes, topic: str) -> dict[str, dict[int, str]]:
    route = routes.route(topic)
    return {} if route is None else {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}


def perm(routes: Routes, topic: str) -> int:
    route = routes.route(topic)
    assert route is not None
    return route.queue_datas[0].perm


def test_a_registered_topic_has_a_route(routes: Routes) -> None:
    assert routes.route("T") is None
    assert routes.register(MASTER, topics("T"), ha_address="10.0.0.1:10912") == Registration()
    route = routes.route("T")
    assert route is not None
    (queue,) = route.queue_datas
    assert (queue.broker_name, queue.read_queue_nums, queue.write_queue_nums, queue.perm) == ("broker-a", 4, 8, 6)
    (broker,) = route.broker_datas
    assert (broker.cluster, broker.broker_addrs) == ("c", {0: MASTER.address})


def test_a_slave_registers_its_address_gets_its_master_and_adds_no_topics(routes: Routes) -> None:
    assert routes.register(SLAVE, topics("X")) == Registration()
    assert routes.route("X") is None
    routes.register(MASTER, topics("T"), ha_address="ha:1")
    assert routes.register(SLAVE, topics("X")) == Registration(MASTER.address, "ha:1")
    assert addresses(routes, "T") == {"broker-a": {0: MASTER.address, 1: SLAVE.address}}
    assert routes.route("X") is None


def test_a_topic_on_two_brokers_has_both_in_its_route(routes: Routes) -> None:
    routes.register(MASTER, topics("T"))
    routes.register(OTHER, topics("T", "U"))
    assert addresses(routes, "T") == {"broker-a": {0: MASTER.address}, "broker-b": {0: OTHER.address}}
    assert addresses(routes, "U") == {"broker-b": {0: OTHER.address}}


def test_topics_are_updated_only_by_a_new_data_version(routes: Routes) -> None:
    routes.register(MASTER, topics("T", perm=6))
    routes.register(MASTER, topics("T", perm=4))
    assert perm(routes, "T") == 6
    routes.register(MASTER, topics("T", perm=4, counter=2))
    assert perm(routes, "T") == 4


def test_an_unknown_topic_is_added_even_with_the_old_data_version(routes: Routes) -> None:
    # an incremental registration may be the first that a restarted nameserver hears
    routes.register(MASTER, topics("New", counter=5))
    routes.register(MASTER, topics("T", "New", counter=5))
    assert routes.route("T") is not None


def test_a_topic_omitted_by_a_later_registration_remains(routes: Routes) -> None:
    routes.register(MASTER, topics("T", "U"))
    routes.register(MASTER, topics("T", counter=2))
    assert routes.route("U") is not None


def test_a_topic_without_a_name_is_registered_under_its_key(routes: Routes) -> None:
    routes.register(MASTER, TopicConfigSerializeWrapper({"T": TopicConfig()}, DataVersion(1, 1)))
    assert routes.route("T") is not None


def test_unregistering_the_last_broker_of_a_name_removes_its_queues_and_cluster(routes: Routes) -> None:
    routes.register(MASTER, topics("T"))
    routes.register(SLAVE, topics("T"))
    routes.register(OTHER, topics("T"))
    assert routes.unregister(MASTER)
    assert addresses(routes, "T") == {"broker-a": {1: SLAVE.address}, "broker-b": {0: OTHER.address}}
    assert routes.unregister(SLAVE)
    assert addresses(routes, "T") == {"broker-b": {0: OTHER.address}}
    assert routes.cluster_info().cluster_addr_table == {"c": ["broker-b"]}
    assert routes.unregister(OTHER)
    assert routes.route("T") is None
    assert routes.topics().topic_list == []
    assert routes.cluster_info().cluster_addr_table == {}
    assert not routes.unregister(OTHER)


def test_a_promoted_slave_keeps_one_entry(routes: Routes) -> None:
    routes.register(MASTER, topics("T"))
    routes.register(SLAVE, topics("T"))
    routes.unregister(MASTER)
    routes.register(BrokerIdentity("c", "broker-a", 0, SLAVE.address), topics("T"))
    assert addresses(routes, "T") == {"broker-a": {0: SLAVE.address}}


def test_an_address_registered_under_a_new_name_is_removed_from_the_old_one(routes: Routes) -> None:
    routes.register(MASTER, topics("T"))
    routes.register(BrokerIdentity("c", "renamed", 0, MASTER.address), topics("T"))
    assert addresses(routes, "T") == {"renamed": {0: MASTER.address}}


def test_unregistering_a_masters_former_address_removes_nothing(routes: Routes, clock: Clock) -> None:
    routes.register(MASTER, topics("T"))
    clock.now += 60
    moved = BrokerIdentity("c", "broker-a", 0, "10.0.0.9:10911")
    routes.register(moved, topics("T", counter=2))
    clock.now += 61
    assert [live.identity for live in routes.expire()] == [MASTER]
    assert addresses(routes, "T") == {"broker-a": {0: moved.address}}


def test_unregistering_a_former_name_of_an_address_leaves_the_broker_that_has_it_now(routes: Routes) -> None:
    connection = object()
    routes.register(MASTER, topics("T"), connection=connection, filter_servers=["f:1"])
    assert not routes.unregister(attrs.evolve(MASTER, name="broker-x"))
    assert routes.renew(MASTER.address)
    assert addresses(routes, "T") == {"broker-a": {0: MASTER.address}}
    route = routes.route("T")
    assert route is not None
    assert route.filter_server_table == {MASTER.address: ["f:1"]}
    assert [live.identity for live in routes.remove_connection(connection)] == [MASTER]
    assert (routes.route("T"), routes.count_brokers()) == (None, 0)


def test_a_broker_without_heartbeats_expires_after_120_seconds(routes: Routes, clock: Clock) -> None:
    routes.register(MASTER, topics("T"))
    clock.now += 120
    assert routes.expire() == []
    clock.now += 0.001
    assert [live.identity for live in routes.expire()] == [MASTER]
    assert routes.route("T") is None
    assert routes.expire() == []


def test_registering_and_renewing_postpone_the_expiry(routes: Routes, clock: Clock) -> None:
    routes.register(MASTER, topics("T"))
    for sign in (lambda: routes.register(MASTER, topics("T")), lambda: routes.renew(MASTER.address)):
        clock.now += 100
        sign()
        assert routes.expire() == []
    clock.now += 121
    assert routes.expire()
    assert not routes.renew(MASTER.address)


def test_a_broker_may_set_its_own_heartbeat_timeout(routes: Routes, clock: Clock) -> None:
    routes.register(MASTER, topics("T"), lifetime=10)
    clock.now += 9
    assert routes.renew(MASTER.address)
    clock.now += 9
    assert routes.expire() == []
    clock.now += 2
    assert routes.expire()


def test_a_closed_connection_removes_only_its_own_brokers(routes: Routes) -> None:
    first, second = object(), object()
    routes.register(MASTER, topics("T"), connection=first)
    routes.register(OTHER, topics("T"), connection=second)
    assert [live.identity for live in routes.remove_connection(first)] == [MASTER]
    assert addresses(routes, "T") == {"broker-b": {0: OTHER.address}}
    assert routes.remove_connection(first) == []


def test_closing_the_old_connection_of_a_reconnected_broker_has_no_effect(routes: Routes) -> None:
    first, second = object(), object()
    routes.register(MASTER, topics("T"), connection=first)
    routes.register(MASTER, topics("T"), connection=second)
    assert routes.remove_connection(first) == []
    assert routes.route("T") is not None


def test_filter_servers_are_listed_until_they_unregister(routes: Routes) -> None:
    def filter_servers() -> dict[str, list[str]]:
        route = routes.route("T")
        assert route is not None
        return route.filter_server_table

    routes.register(MASTER, topics("T"), filter_servers=["f:1"])
    assert filter_servers() == {MASTER.address: ["f:1"]}
    routes.register(MASTER, topics("T"), filter_servers=None)
    assert filter_servers() == {MASTER.address: ["f:1"]}
    routes.register(MASTER, topics("T"), filter_servers=[])
    assert filter_servers() == {}


def test_topics_are_listed_by_cluster_and_kind(routes: Routes) -> None:
    routes.register(MASTER, topics("T", "U"))
    routes.register(FAR, topics("U", "V"))
    assert routes.topics().topic_list == ["T", "U", "V"]
    assert routes.topics_by_cluster("c").topic_list == ["T", "U"]
    assert routes.topics_by_cluster("far").topic_list == ["U", "V"]
    assert routes.topics_by_cluster("unknown").topic_list == []
    system = routes.system_topics()
    assert system.topic_list == ["c", "broker-a", "far", "broker-f"]
    assert system.broker_addr == MASTER.address
    info = routes.cluster_info()
    assert info.cluster_addr_table == {"c": ["broker-a"], "far": ["broker-f"]}
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: MASTER.address}


def test_an_empty_nameserver_returns_empty_lists(routes: Routes) -> None:
    assert routes.topics().topic_list == []
    assert routes.system_topics().topic_list == []
    assert routes.system_topics().broker_addr is None
    assert routes.cluster_info().broker_addr_table == {}


def test_topics_are_listed_by_their_unit_flags(routes: Routes) -> None:
    routes.register(MASTER, topics("unit", flag=1))
    routes.register(OTHER, topics("sub", flag=2))
    routes.register(FAR, topics("both", flag=3))
    assert routes.topics_with_flag(1).topic_list == ["unit", "both"]
    assert routes.topics_with_flag(2).topic_list == ["sub", "both"]
    assert routes.topics_with_flag(2, 1).topic_list == ["sub"]


def test_write_permission_stays_revoked_until_the_broker_registers_a_change(routes: Routes) -> None:
    routes.register(MASTER, topics("T", "U"))
    routes.register(OTHER, topics("V"))
    assert routes.wipe_write_perm("broker-a") == 2
    assert [perm(routes, name) for name in "TUV"] == [4, 4, 6]
    routes.register(MASTER, topics("T", "U"))
    assert perm(routes, "T") == 4
    routes.register(MASTER, topics("T", "U", counter=2))
    assert perm(routes, "T") == 6
    routes.wipe_write_perm("broker-a")
    assert routes.add_write_perm("broker-a") == 2
    assert perm(routes, "T") == 6
    assert routes.wipe_write_perm("unknown") == 0


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(routes: Routes) -> None:
    routes.register(MASTER, topics("T", "U"))
    routes.register(FAR, topics("T", "U"))
    routes.delete_topic("T", "c")
    assert list(addresses(routes, "T")) == ["broker-f"]
    routes.delete_topic("T", "far")
    assert "T" not in routes.topics().topic_list
    routes.delete_topic("U")
    assert routes.topics().topic_list == []
    routes.delete_topic("unknown", "unknown")


def test_data_versions_are_kept_by_address(routes: Routes) -> None:
    assert routes.data_version(MASTER.address) is None
    routes.register(MASTER, topics("T", counter=3))
    assert routes.data_version(MASTER.address) == DataVersion(3, 7)


def test_groups_of_brokers_are_returned_with_their_members(routes: Routes) -> None:
    routes.register(MASTER, topics("T"))
    routes.register(SLAVE, topics("T"))
    assert routes.member_group("broker-a") == {0: MASTER.address, 1: SLAVE.address}
    assert routes.member_group("unknown") == {}


@pytest.mark.parametrize("field", ["cluster", "name", "address"])
def test_a_broker_without_a_name_is_refused(routes: Routes, field: str) -> None:
    fields = {"cluster": "c", "name": "n", "address": "a:1", field: " "}
    with pytest.raises(RemoteFault, match="blank"):
        routes.register(BrokerIdentity(fields["cluster"], fields["name"], 0, fields["address"]), topics("T"))
    assert routes.topics().topic_list == []


def test_tables_have_limits(routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPICS_MAX", 2)
    monkeypatch.setattr(limits, "BROKERS_MAX", 1)
    routes.register(MASTER, topics("T", "U"))
    with pytest.raises(RemoteFault, match="more than 2 topics"):
        routes.register(MASTER, topics("T", "V"))
    with pytest.raises(RemoteFault, match="1 brokers are registered"):
        routes.register(OTHER, topics("T"))
    routes.register(MASTER, topics("T", "U"))
    assert routes.topics().topic_list == ["T", "U"]


@pytest.mark.parametrize("long", ["topic", "broker", "cluster", "address", "ha", "filter", "filters"])
def test_names_have_a_limit(routes: Routes, long: str) -> None:
    name = "x" * 513
    identity = attrs.evolve(
        MASTER,
        name=name if long == "broker" else MASTER.name,
        cluster=name if long == "cluster" else MASTER.cluster,
        address=name if long == "address" else MASTER.address,
    )
    with pytest.raises(RemoteFault, match="the limit"):
        routes.register(
            identity,
            topics(name if long == "topic" else "T"),
            ha_address=name if long == "ha" else "",
            filter_servers={"filter": [name], "filters": ["a:1"] * 101}.get(long),
        )
    assert routes.topics().topic_list == []
    assert routes.cluster_info().broker_addr_table == {}
