"""Requests of 5.x brokers beside a 4.x one: acting masters, zones, state versions, single topics, static topics."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from gantrymq.nameserver import limits
from gantrymq.nameserver.live import BrokerIdentity, MinimumChange, Registration
from gantrymq.nameserver.routes import Routes
from gantrymq.nameserver.views import of_zone, with_acting_masters
from gantrymq.remoting.bodies.routes import QueueData, TopicRouteData
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper, TopicQueueMapping
from gantrymq.remoting.errors import RemoteFault

MASTER = BrokerIdentity("c", "broker-a", 0, "10.0.0.1:10911")
SLAVE = BrokerIdentity("c", "broker-a", 1, "10.0.0.2:10911")
SECOND = BrokerIdentity("c", "broker-a", 2, "10.0.0.3:10911")
OTHER = BrokerIdentity("c", "broker-b", 0, "10.0.0.4:10911")


@attrs.define
class Heard:
    """Keeps what it hears."""

    topics: list[str] = attrs.field(factory=list)
    brokers: int = 0
    minimums: list[MinimumChange] = attrs.field(factory=list)

    def topic_changed(self, topic: str) -> None:
        self.topics.append(topic)

    def brokers_changed(self) -> None:
        self.brokers += 1

    def minimum_changed(self, change: MinimumChange) -> None:
        self.minimums.append(change)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def routes(heard: Heard) -> Routes:
    return Routes(lambda: 0.0, changes=heard)


def topics(*names: str, counter: int = 1, state: int | None = None) -> TopicConfigSerializeWrapper:
    return TopicConfigSerializeWrapper(
        {name: TopicConfig(name, 4, 4) for name in names}, DataVersion(counter, 7, state)
    )


def route(routes: Routes, topic: str = "T") -> TopicRouteData:
    found = routes.route(topic)
    assert found is not None
    return found


def perms(routes: Routes, topic: str = "T") -> dict[str, int]:
    return {row.broker_name: row.perm for row in route(routes, topic).queue_datas}


def test_the_lowest_5x_slave_registers_topics_and_others_do_not(routes: Routes) -> None:
    routes.register(SLAVE, topics("T"), acting_master=False)
    assert perms(routes) == {"broker-a": 6}
    routes.register(SECOND, topics("X"), acting_master=False)
    assert routes.route("X") is None


def test_an_acting_master_registers_its_topics_without_write_permission(routes: Routes) -> None:
    routes.register(SLAVE, topics("T"), acting_master=True)
    assert perms(routes) == {"broker-a": 4}
    assert route(routes).broker_datas[0].enable_acting_master


def test_a_leaving_master_revokes_the_write_permission_and_restores_it_on_return(routes: Routes) -> None:
    for broker in (MASTER, SLAVE):
        routes.register(broker, topics("T"), acting_master=True)
    routes.unregister(MASTER)
    assert perms(routes) == {"broker-a": 4}
    routes.register(MASTER, topics("T"), acting_master=True)
    assert perms(routes) == {"broker-a": 6}


def test_the_permission_is_unchanged_without_acting_masters(routes: Routes) -> None:
    for broker in (MASTER, SLAVE):
        routes.register(broker, topics("T"))
    routes.unregister(MASTER)
    assert perms(routes) == {"broker-a": 6}


def test_the_lowest_slave_is_shown_as_master_if_enabled(routes: Routes) -> None:
    for broker in (MASTER, SLAVE, SECOND):
        routes.register(broker, topics("T", "rmq_sys_SYNC_BROKER_MEMBER_broker-a"), acting_master=True)
    assert with_acting_masters("T", route(routes)) == route(routes)
    routes.unregister(MASTER)
    shown = with_acting_masters("T", route(routes))
    assert shown.broker_datas[0].broker_addrs == {0: SLAVE.address, 2: SECOND.address}
    assert routes.member_group("broker-a") == {1: SLAVE.address, 2: SECOND.address}, "the tables keep the broker"
    group = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    assert with_acting_masters(group, route(routes, group)) == route(routes, group)


def test_no_slave_acts_as_master_without_consent_of_its_broker_or_beside_writable_queues(routes: Routes) -> None:
    for broker in (MASTER, SLAVE):
        routes.register(broker, topics("T"), acting_master=False)
    routes.unregister(MASTER)
    assert with_acting_masters("T", route(routes)) == route(routes)
    routes.register(SLAVE, topics("T"), acting_master=True)
    routes.add_write_perm("broker-a")
    assert with_acting_masters("T", route(routes)) == route(routes)


def test_a_zone_gets_its_own_masters_and_all_names_without_one(routes: Routes) -> None:
    routes.register(MASTER, topics("T"), zone="north", filter_servers=["f:1"])
    routes.register(OTHER, topics("T"), zone="south", filter_servers=["f:2"])
    north = of_zone(route(routes), "North")
    assert [data.broker_name for data in north.broker_datas] == ["broker-a"]
    assert [row.broker_name for row in north.queue_datas] == ["broker-a"]
    assert list(north.filter_server_table) == [MASTER.address]
    assert of_zone(route(routes), "west").queue_datas == []
    routes.register(SLAVE, topics("T"), zone="north")
    routes.unregister(MASTER)
    assert {row.broker_name for row in of_zone(route(routes), "south").queue_datas} == {"broker-a", "broker-b"}


def test_an_older_state_does_not_replace_a_newer_one(routes: Routes) -> None:
    routes.register(MASTER, topics("T", state=5))
    late = attrs.evolve(MASTER, address="10.0.0.9:10911")
    assert routes.register(late, topics("T", "U", state=4)) == Registration()
    assert routes.member_group("broker-a") == {0: MASTER.address}
    assert routes.data_version(late.address) is None
    assert routes.route("U") is None


def test_the_second_of_two_brokers_with_one_id_is_refused_with_the_first_ones_address(routes: Routes) -> None:
    routes.register(MASTER, topics("T"))
    second = attrs.evolve(MASTER, address="10.0.0.9:10911")
    assert routes.register(second, topics("T")).replaced == MASTER.address
    assert routes.register(second, topics("T")).replaced is None
    assert routes.member_group("broker-a") == {0: second.address}


def test_a_single_topic_is_accepted_from_known_brokers_only(routes: Routes) -> None:
    assert not routes.register_topic("T", [QueueData("broker-a", 2, 2, 6)])
    assert routes.route("T") is None
    routes.register(MASTER, topics())
    assert routes.register_topic("T", [QueueData("broker-a", 2, 2, 6)])
    assert not routes.register_topic("T", [QueueData("broker-a", 9, 9, 6), QueueData("stranger", 9, 9, 6)])
    assert not routes.register_topic("T", [])
    assert route(routes).queue_datas == [QueueData("broker-a", 2, 2, 6)]
    with pytest.raises(RemoteFault, match="the limit"):
        routes.register_topic("x" * 600, [QueueData("broker-a", 2, 2, 6)])


def test_missing_topics_are_deleted_if_requested(routes: Routes) -> None:
    routes.register(MASTER, topics("T", "U"))
    routes.register(OTHER, topics("U"))
    routes.register(MASTER, topics("T"), drop_missing=True)
    assert perms(routes, "U") == {"broker-b": 6}
    assert routes.topics().topic_list == ["T", "U"]


def test_static_topic_mappings_are_returned_until_their_broker_leaves(routes: Routes) -> None:
    mapping = TopicQueueMapping("T", total_queues=2, bname="broker-a", curr_id_map={0: 0, 1: 1})
    wrapper = topics("T")
    wrapper.topic_queue_mapping_info_map = {"T": mapping}
    routes.register(MASTER, wrapper)
    routes.register(OTHER, topics("T"))
    assert route(routes).topic_queue_mapping_by_broker == {"broker-a": mapping}
    routes.unregister(MASTER)
    assert route(routes).topic_queue_mapping_by_broker is None


def static_topics(*names: str, broker: str, counter: int = 1) -> TopicConfigSerializeWrapper:
    wrapper = topics("T", counter=counter)
    wrapper.topic_queue_mapping_info_map = {
        name: TopicQueueMapping(name, total_queues=2, bname=broker, curr_id_map={0: 0, 1: 1}) for name in names
    }
    return wrapper


def test_a_broker_registers_no_mappings_of_other_broker_names(routes: Routes) -> None:
    """They would overwrite another broker's topics, and none would ever be removed with such a name."""
    routes.register(OTHER, static_topics("T", broker="broker-b"))
    before = route(routes).topic_queue_mapping_by_broker
    for name in ("broker-b", "nobody"):
        wrapper = static_topics("T", broker=name)
        assert wrapper.topic_queue_mapping_info_map is not None
        wrapper.topic_queue_mapping_info_map["T"].total_queues = 9
        routes.register(MASTER, wrapper)
        assert route(routes).topic_queue_mapping_by_broker == before
        routes.unregister(MASTER)
    routes.unregister(OTHER)
    assert routes._mappings == {}


def test_static_topics_have_a_limit(routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPICS_MAX", 2)
    routes.register(MASTER, static_topics("T", "U", broker="broker-a"))
    with pytest.raises(RemoteFault, match="more than 2 static topics"):
        routes.register(MASTER, static_topics("V", broker="broker-a", counter=2))
    routes.register(MASTER, static_topics("U", broker="broker-a", counter=2))
    routes.register(OTHER, static_topics("T", broker="broker-b"))
    routes.register(OTHER, static_topics("V", broker="broker-a", counter=2))
    assert set(routes._mappings) == {"T", "U"}


@pytest.mark.parametrize("field", ["topic", "bname", "scope"])
def test_names_in_mappings_have_a_limit(routes: Routes, field: str) -> None:
    wrapper = static_topics("T", broker="broker-a")
    assert wrapper.topic_queue_mapping_info_map is not None
    setattr(wrapper.topic_queue_mapping_info_map["T"], field, "x" * 513)
    with pytest.raises(RemoteFault, match="the limit"):
        routes.register(MASTER, wrapper)


def test_a_single_topic_is_refused_if_the_table_is_full(routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPICS_MAX", 1)
    routes.register(MASTER, topics("T"))
    assert not routes.register_topic("U", [QueueData("stranger", 2, 2, 6)])
    with pytest.raises(RemoteFault, match="more than 1 topics"):
        routes.register_topic("U", [QueueData("broker-a", 2, 2, 6)])
    assert routes.topics().topic_list == ["T"]
    assert routes.register_topic("T", [QueueData("broker-a", 2, 2, 6)])


def test_a_registration_without_new_topics_is_renewed_beyond_the_limit(
    routes: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes.register(MASTER, topics("T", "U"))
    monkeypatch.setattr(limits, "TOPICS_MAX", 1)
    routes.register(MASTER, topics("T", "U", counter=2))
    routes.register(OTHER, topics("U"))
    assert set(perms(routes, "U")) == {"broker-a", "broker-b"}


def test_a_broker_with_one_topic_beyond_the_limit_keeps_its_other_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPICS_MAX", 1)
    now = 0.0
    routes = Routes(lambda: now)
    routes.register(MASTER, topics("T"))
    for _ in range(5):
        now += 30
        with pytest.raises(RemoteFault, match="more than 1 topics"):
            routes.register(MASTER, topics("T", "U", counter=2))
        routes.expire()
    assert set(perms(routes, "T")) == {"broker-a"}


def test_the_limit_counts_topics_by_the_names_under_which_they_are_stored(
    routes: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registration's keys need not be the names in its topics."""
    monkeypatch.setattr(limits, "TOPICS_MAX", 2)
    routes.register(MASTER, topics("T", "U"))
    table = {"T": TopicConfig("X"), "U": TopicConfig("Y")}
    with pytest.raises(RemoteFault, match="more than 2 topics"):
        routes.register(MASTER, TopicConfigSerializeWrapper(table, DataVersion(2, 7)))
    assert routes.topics().topic_list == ["T", "U"]


# ---- who hears of what


def test_an_unchanged_registration_changes_nothing(routes: Routes, heard: Heard) -> None:
    routes.register(MASTER, topics("T", "U"), filter_servers=["f:1"])
    assert (heard.topics, heard.brokers) == (["T", "U"], 2)
    routes.register(MASTER, topics("T", "U"), filter_servers=["f:1"])
    routes.register(MASTER, topics("T", "U", counter=2), filter_servers=["f:1"])
    assert (heard.topics, heard.brokers) == (["T", "U"], 2)
    routes.register(MASTER, topics("V", counter=3))
    assert heard.topics == ["T", "U", "V"]


def test_every_route_change_is_notified(routes: Routes, heard: Heard) -> None:
    routes.register(MASTER, topics("T"))
    of_topics: list[Callable[[], object]] = [
        lambda: routes.wipe_write_perm("broker-a"),
        lambda: routes.add_write_perm("broker-a"),
        lambda: routes.register_topic("T", [QueueData("broker-a", 1, 1, 6)]),
        lambda: routes.delete_topic("T"),
    ]
    for change in of_topics:
        before = len(heard.topics)
        change()
        assert heard.topics[before:] == ["T"]
    of_brokers: list[Callable[[], object]] = [
        lambda: routes.register(SLAVE, topics()),
        lambda: routes.register(SLAVE, topics(), zone="north"),
        lambda: routes.register(SLAVE, topics(), zone="north", filter_servers=["f:1"]),
        lambda: routes.unregister(SLAVE),
    ]
    for change in of_brokers:
        brokers = heard.brokers
        change()
        assert heard.brokers == brokers + 1


def test_the_other_brokers_are_notified_of_a_new_lowest_id(routes: Routes, heard: Heard) -> None:
    routes.register(SECOND, topics("T"), acting_master=True)
    assert heard.minimums == []
    routes.register(SLAVE, topics("T"), ha_address="ha:1", acting_master=True)
    routes.register(SLAVE, topics("T"), ha_address="ha:1", acting_master=True)
    assert heard.minimums == [
        MinimumChange("broker-a", 1, SLAVE.address, (SECOND.address,), ha_address="ha:1", acting=True)
    ]


def test_the_remaining_brokers_are_notified_when_the_lowest_id_leaves(routes: Routes, heard: Heard) -> None:
    for broker in (MASTER, SLAVE, SECOND):
        routes.register(broker, topics("T"), acting_master=True)
    routes.unregister(SECOND)
    assert heard.minimums == []
    routes.register(SECOND, topics("T"), acting_master=True)
    routes.unregister(MASTER)
    assert heard.minimums == [
        MinimumChange("broker-a", 1, SLAVE.address, (SLAVE.address, SECOND.address), left=MASTER.address, acting=True)
    ]


def test_a_promotion_of_a_slave_is_one_change(routes: Routes, heard: Heard) -> None:
    for broker in (SLAVE, SECOND):
        routes.register(broker, topics("T"), acting_master=True)
    promoted = attrs.evolve(SLAVE, broker_id=0)
    routes.register(promoted, topics("T"), ha_address="ha:1", acting_master=True)
    assert heard.minimums == [
        MinimumChange("broker-a", 0, promoted.address, (SECOND.address,), ha_address="ha:1", acting=True)
    ]
