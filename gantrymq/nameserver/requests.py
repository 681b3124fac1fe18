"""What the nameserver answers to each request code. Knows commands and tables, no sockets.

Source: RocketMQ 4.9.7 ``DefaultRequestProcessor``; 901 and 904 from 5.3.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog
import trio

from gantrymq.nameserver.kv import ORDER_TOPIC_NAMESPACE, KVConfig
from gantrymq.nameserver.routes import UNIT_FLAG, UNIT_SUB_FLAG, BrokerIdentity, Routes
from gantrymq.remoting import headers
from gantrymq.remoting.bodies import (
    BrokerMemberGroup,
    BrokerMemberGroupBody,
    DataVersion,
    KVTable,
    TopicConfigSerializeWrapper,
)
from gantrymq.remoting.body import Body
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers import read_header
from gantrymq.remoting.javaproperties import read_properties, write_properties
from gantrymq.remoting.register_body import RegisterBrokerBody, body_crc32

STRICT_JSON_VERSION: Final = 401
"""Java clients from 4.9.4 on get routes with quoted keys; the Go client (317) cannot read those."""
FILTER_SERVER_VERSION: Final = 37
"""Brokers before 3.0.11 register their topics without the wrapping body."""
ZLIB_FIRST_BYTE: Final = 0x78

ORDER_SETTING: Final = "orderMessageEnable"
PATH_SETTINGS: Final = frozenset({"kvConfigPath", "configStorePath"})

log = structlog.get_logger()

Handler = Callable[[Command, object], Awaitable[Command]]


class Requests:
    """Answers requests from ``routes`` and ``kv``. ``order_topics``: routes carry the KV config's order of a topic."""

    def __init__(
        self,
        routes: Routes,
        kv: KVConfig,
        order_topics: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """``settings``: what administrators are told beside that, by RocketMQ's names; none of it can be changed."""
        self._routes = routes
        self._kv = kv
        self._order_topics = order_topics
        self._settings = dict(settings or {})
        self._kv_turn = trio.Lock()
        self.handlers: dict[int, Handler] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_sub_topics_of_no_unit,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
        }

    async def answer(self, request: Command, connection: object) -> Command:
        """The response to ``request``, whatever it is; ``connection`` stands for the peer in the tables."""
        handler = self.handlers.get(request.code)
        if handler is None:
            return request.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported"
            )
        try:
            return await handler(request, connection)
        except RemoteFault as fault:
            log.info("request refused", code=request.code, answer=fault.code, remark=fault.remark)
            return request.answer(fault.code, fault.remark)
        except Exception as error:
            # A fault of ours must not take the nameserver from everyone else.
            log.error("request failed", code=request.code, error=repr(error))
            return request.answer(ResponseCode.SYSTEM_ERROR, f"internal error: {type(error).__name__}")

    # ---- brokers

    async def _register(self, request: Command, connection: object) -> Command:
        header = read_header(headers.RegisterBrokerHeader, request.ext)
        if header.body_crc32 and header.body_crc32 != body_crc32(request.body):
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        wrapper, filter_servers = _read_register_body(request, header.compressed)
        identity = BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        lifetime = header.heartbeat_timeout_millis
        new = self._routes.data_version(identity.address) is None
        result = self._routes.register(
            identity,
            wrapper,
            ha_address=header.ha_server_addr,
            filter_servers=filter_servers,
            connection=connection,
            lifetime=lifetime / 1000 if lifetime is not None and lifetime > 0 else None,
        )
        if new:
            log.info("broker registered", **_fields(identity), topics=len(wrapper.topic_config_table))
        answer = headers.RegisterBrokerResponse(ha_server_addr=result.ha_address, master_addr=result.master_address)
        order = self._kv.namespace(ORDER_TOPIC_NAMESPACE)
        return _success(request, answer, None if order is None else KVTable(order))

    async def _unregister(self, request: Command, connection: object) -> Command:
        header = read_header(headers.BrokerHeader, request.ext)
        identity = BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        known = self._routes.unregister(identity)
        log.info("broker unregistered", **_fields(identity), known=known)
        return _success(request)

    async def _query_data_version(self, request: Command, connection: object) -> Command:
        header = read_header(headers.BrokerHeader, request.ext)
        known = self._routes.data_version(header.broker_addr)
        changed = known is None or known != DataVersion.from_bytes(request.body)
        if not changed:
            self._routes.renew(header.broker_addr)
        return _success(request, headers.DataVersionResponse(changed=changed), known)

    async def _heartbeat(self, request: Command, connection: object) -> Command:
        self._routes.renew(read_header(headers.BrokerHeartbeatHeader, request.ext).broker_addr)
        return _success(request)

    async def _member_group(self, request: Command, connection: object) -> Command:
        header = read_header(headers.BrokerGroupHeader, request.ext)
        addresses = self._routes.member_group(header.cluster_name, header.broker_name)
        group = BrokerMemberGroup(header.cluster_name, header.broker_name, addresses)
        return _success(request, body=BrokerMemberGroupBody(group))

    # ---- routes and lists

    async def _route(self, request: Command, connection: object) -> Command:
        header = read_header(headers.RouteHeader, request.ext)
        route = self._routes.route(header.topic)
        if route is None:
            return request.answer(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {header.topic}"
            )
        if self._order_topics:
            route.order_topic_conf = self._kv.get(ORDER_TOPIC_NAMESPACE, header.topic)
        strict = request.version >= STRICT_JSON_VERSION or bool(header.accept_standard_json_only)
        return request.answer(ResponseCode.SUCCESS, body=route.to_bytes(quoted_keys=strict))

    async def _cluster_info(self, request: Command, connection: object) -> Command:
        return _success(request, body=self._routes.cluster_info())

    async def _topics(self, request: Command, connection: object) -> Command:
        return _success(request, body=self._routes.topics())

    async def _topics_by_cluster(self, request: Command, connection: object) -> Command:
        header = read_header(headers.ClusterHeader, request.ext)
        return _success(request, body=self._routes.topics_by_cluster(header.cluster))

    async def _system_topics(self, request: Command, connection: object) -> Command:
        return _success(request, body=self._routes.system_topics())

    async def _unit_topics(self, request: Command, connection: object) -> Command:
        return _success(request, body=self._routes.topics_with_flag(UNIT_FLAG))

    async def _unit_sub_topics(self, request: Command, connection: object) -> Command:
        return _success(request, body=self._routes.topics_with_flag(UNIT_SUB_FLAG))

    async def _unit_sub_topics_of_no_unit(self, request: Command, connection: object) -> Command:
        return _success(request, body=self._routes.topics_with_flag(UNIT_SUB_FLAG, UNIT_FLAG))

    # ---- admin

    async def _delete_topic(self, request: Command, connection: object) -> Command:
        header = read_header(headers.DeleteTopicInNameserverHeader, request.ext)
        self._routes.delete_topic(header.topic, header.cluster_name)
        log.info("topic deleted", topic=header.topic, cluster=header.cluster_name)
        return _success(request)

    async def _wipe_write_perm(self, request: Command, connection: object) -> Command:
        name = read_header(headers.BrokerNameHeader, request.ext).broker_name
        count = self._routes.wipe_write_perm(name)
        log.info("write permission wiped", broker=name, topics=count)
        return _success(request, headers.WipeWritePermResponse(wipe_topic_count=count))

    async def _add_write_perm(self, request: Command, connection: object) -> Command:
        name = read_header(headers.BrokerNameHeader, request.ext).broker_name
        count = self._routes.add_write_perm(name)
        log.info("write permission added", broker=name, topics=count)
        return _success(request, headers.AddWritePermResponse(add_topic_count=count))

    # ---- configuration

    async def _get_config(self, request: Command, connection: object) -> Command:
        settings = {**self._settings, ORDER_SETTING: "true" if self._order_topics else "false"}
        return request.answer(ResponseCode.SUCCESS, body=write_properties(settings))

    async def _update_config(self, request: Command, connection: object) -> Command:
        """An allow list of one key; a change lasts until the nameserver ends. All of a request is taken or nothing."""
        try:
            given = read_properties(request.body)
        except ValueError as error:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from None
        if given.keys() & PATH_SETTINGS:
            raise RemoteFault(ResponseCode.NO_PERMISSION, "Can not update config path")
        for name, value in given.items():
            if name != ORDER_SETTING:
                raise RemoteFault(
                    ResponseCode.SYSTEM_ERROR, f"{name[:100]!r} cannot be changed; this can: {ORDER_SETTING}"
                )
            if value.strip() not in ("true", "false"):
                raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{name} = {value[:100]!r}; allowed: true or false")
        if given:
            self._order_topics = given[ORDER_SETTING].strip() == "true"
            log.info("configuration changed", order_topics=self._order_topics)
        return _success(request)

    # ---- KV config

    async def _put_kv(self, request: Command, connection: object) -> Command:
        header = read_header(headers.PutKVConfigHeader, request.ext)
        await self._change_kv(self._kv.put, header.namespace, header.key, header.value)
        return _success(request)

    async def _delete_kv(self, request: Command, connection: object) -> Command:
        header = read_header(headers.KVConfigHeader, request.ext)
        await self._change_kv(self._kv.delete, header.namespace, header.key)
        return _success(request)

    async def _change_kv(self, change: Callable[..., None], *arguments: str) -> None:
        async with self._kv_turn:
            await trio.to_thread.run_sync(change, *arguments)
        log.info("KV config changed", namespace=arguments[0], key=arguments[1])

    async def _get_kv(self, request: Command, connection: object) -> Command:
        header = read_header(headers.KVConfigHeader, request.ext)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            return request.answer(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace} Key: {header.key}"
            )
        return _success(request, headers.KVConfigResponse(value=value))

    async def _list_kv(self, request: Command, connection: object) -> Command:
        header = read_header(headers.NamespaceHeader, request.ext)
        entries = self._kv.namespace(header.namespace)
        if entries is None:
            return request.answer(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}")
        return _success(request, body=KVTable(entries))


def _success(request: Command, header: headers.Header | None = None, body: Body | None = None) -> Command:
    ext = None if header is None else header.to_ext()
    return request.answer(ResponseCode.SUCCESS, ext=ext, body=b"" if body is None else body.to_bytes())


def _read_register_body(request: Command, compressed: bool) -> tuple[TopicConfigSerializeWrapper, list[str] | None]:
    if not request.body:
        return TopicConfigSerializeWrapper(), []
    if request.version < FILTER_SERVER_VERSION:
        return TopicConfigSerializeWrapper.from_bytes(request.body), None
    # A 5.3.3 broker with compressedRegister compresses and says it did not; no JSON begins with zlib's first byte.
    body = RegisterBrokerBody.decode(request.body, compressed or request.body[0] == ZLIB_FIRST_BYTE)
    return body.topic_config_serialize_wrapper, body.filter_server_list


def _fields(identity: BrokerIdentity) -> dict[str, str | int]:
    return {
        "cluster": identity.cluster,
        "broker": identity.name,
        "broker_id": identity.broker_id,
        "address": identity.address,
    }
