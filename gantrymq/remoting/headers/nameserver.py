"""The headers of requests to the nameserver. Source: RocketMQ 4.9.7 and 5.3.3 ``header/namesrv``."""

from __future__ import annotations

from gantrymq.remoting.headers.header import Header, Int32, Int64


class RegisterBrokerHeader(Header, kw_only=True):
    """REGISTER_BROKER (103)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int64 = 0
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None


class RegisterBrokerResponse(Header, kw_only=True):
    """Response to 103: the master's addresses, for a slave."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerHeader(Header, kw_only=True):
    """UNREGISTER_BROKER (104), QUERY_DATA_VERSION (322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class DataVersionResponse(Header, kw_only=True):
    """Response to 322."""

    changed: bool


class BrokerHeartbeatHeader(Header, kw_only=True):
    """BROKER_HEARTBEAT (904); its fields for the controller are not read."""

    cluster_name: str
    broker_name: str
    broker_addr: str


class BrokerGroupHeader(Header, kw_only=True):
    """GET_BROKER_MEMBER_GROUP (901)."""

    cluster_name: str
    broker_name: str


class RouteHeader(Header, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


class BrokerNameHeader(Header, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER (205), ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class WipeWritePermResponse(Header, kw_only=True):
    """Response to 205."""

    wipe_topic_count: Int32


class AddWritePermResponse(Header, kw_only=True):
    """Response to 327."""

    add_topic_count: Int32


class ClusterHeader(Header, kw_only=True):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class NamespaceHeader(Header, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class KVConfigHeader(Header, kw_only=True):
    """GET_KV_CONFIG (101), DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class KVConfigResponse(Header, kw_only=True):
    """Response to 101."""

    value: str | None = None


class PutKVConfigHeader(Header, kw_only=True):
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str
