"""The nameserver's handlers by request code. They use commands and tables, not sockets.

Source: RocketMQ 4.9.7 ``DefaultRequestProcessor``; 217, 901, 904 and the switches from 5.3.3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from typing import Final, TypeVar, cast

import structlog
import trio

from gantrymq.nameserver.access import Identity, check_right, identify
from gantrymq.nameserver.audit import Audit
from gantrymq.nameserver.epochs import KnownEpochs
from gantrymq.nameserver.handlers import Handler, success
from gantrymq.nameserver.kv import ORDER_TOPIC_NAMESPACE, KVConfig
from gantrymq.nameserver.kvrequests import KVRequests
from gantrymq.nameserver.limits import NAME_MAX_CHARACTERS
from gantrymq.nameserver.live import BrokerIdentity
from gantrymq.nameserver.refusals import RefusalLog
from gantrymq.nameserver.routecache import RouteCache, RouteView
from gantrymq.nameserver.routes import UNIT_FLAG, UNIT_SUB_FLAG, Routes
from gantrymq.nameserver.switches import Switches
from gantrymq.nameserver.views import of_zone, with_acting_masters
from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.registration import RegisterBrokerBody, body_crc32
from gantrymq.remoting.bodies.routes import BrokerMemberGroup, BrokerMemberGroupBody, TopicRouteData
from gantrymq.remoting.bodies.tables import DataVersion, KVTable
from gantrymq.remoting.bodies.topics import TopicConfigSerializeWrapper
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import EPOCH_FIELD, epoch_in
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.nameserver import (
    AddWritePermResponse,
    BrokerGroupHeader,
    BrokerHeader,
    BrokerHeartbeatHeader,
    BrokerNameHeader,
    ClusterHeader,
    DataVersionResponse,
    RegisterBrokerHeader,
    RegisterBrokerResponse,
    RouteHeader,
    WipeWritePermResponse,
)
from gantrymq.remoting.headers.topics import DeleteTopicInNameserverHeader, TopicHeader
from gantrymq.remoting.javaproperties import read_properties, write_properties
from gantrymq.remoting.log_levels import LogLevels, change_to, current
from gantrymq.remoting.rights import NAMESERVER_RIGHTS, Right

T = TypeVar("T")

SLICE_SECONDS: Final = 0.002
"""How long the nameserver processes a large registration before it serves other connections."""
STRICT_JSON_VERSION: Final = 401
"""Java clients from 4.9.4 on get routes with quoted keys; the Go client (317) cannot read those."""
FILTER_SERVER_VERSION: Final = 37
"""Brokers before 3.0.11 register their topics without the wrapping body."""
ZLIB_FIRST_BYTE: Final = 0x78

ZONE_MODE: Final = "__ZONE_MODE"
ZONE_NAME: Final = "__ZONE_NAME"
"""The fields with the zone of a 5.x client or broker, and whether it wants only routes of its zone (``MixAll``)."""
SERVICE_WAIT_SECONDS: Final = 45.0
"""The wait after the start with ``needWaitForService``, because not all brokers have registered yet (5.3.3)."""

CHANGES: Final = frozenset(code for code, right in NAMESERVER_RIGHTS.items() if right is Right.PEER)
"""The requests that change the tables or the expiry of a broker; only configured peers may send them."""
NOT_A_PEER: Final = "this address may not change routes or settings here; name it with the nameserver's --peers"

log = structlog.get_logger("gantrymq.nameserver")

LOG_LEVELS: Final = "logLevels"
"""A setting of ours; RocketMQ's nameserver ignores it."""


class Requests:
    """Answers requests from ``routes`` and ``kv`` according to ``switches``. ``cache`` must get the changes of
    ``routes``."""

    def __init__(
        self,
        routes: Routes,
        kv: KVConfig,
        switches: Switches | None = None,
        settings: Mapping[str, str] | None = None,
        cache: RouteCache | None = None,
        identities: Callable[[], Mapping[str, Identity] | None] = lambda: None,
        audit: Audit | None = None,
    ) -> None:
        """``settings`` are further values that administrators can read and cannot change. ``identities`` returns who
        may change the tables; None: every peer whose connection may. ``audit`` records changes and refusals."""
        self._identities = identities
        self._audit = audit
        self._routes = routes
        self._kv = kv
        self.switches = switches or Switches()
        self._settings = dict(settings or {})
        self._cache = cache if cache is not None else RouteCache(bytes_max=0)
        self._complete_at = 0.0
        self.refused_changes = 0
        """Changes of the tables whose sender had no right to them."""
        self._refusals = RefusalLog(trio.current_time)
        self._registering = trio.Lock()
        kv_requests = KVRequests(kv, self._cache.clear)
        self._epochs = KnownEpochs(kv, kv_requests.change, trio.current_time)
        kv_requests.deleted = self._epochs.forget
        self.handlers: dict[int, Handler] = {
            **kv_requests.handlers,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
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

    def begin(self) -> None:
        """The nameserver listens; with ``needWaitForService`` it returns routes 45 seconds later."""
        self._complete_at = trio.current_time() + SERVICE_WAIT_SECONDS

    async def answer(self, request: Command, connection: object) -> Command:
        """The response to any ``request``; ``connection`` identifies the peer in the tables."""
        handler = self.handlers.get(request.code)
        if handler is None:
            return request.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported"
            )
        if request.code not in CHANGES:
            return await self._handle(handler, request, connection)
        identity = None
        try:
            identity = self._check_sender(request, connection)
        except RemoteFault as fault:
            self.refused_changes += 1
            response, is_refused = self._refusal(request, connection, fault), True
        except Exception as error:
            response, is_refused = self._failure(request, error), True
        else:
            response, is_refused = await self._handle(handler, request, connection), False
        if self._audit is not None:
            peer, subject = getattr(connection, "peer", ""), getattr(connection, "subject", None)
            self._audit.answered(request, peer, subject, identity, response, is_refused)
        return response

    async def _handle(self, handler: Handler, request: Command, connection: object) -> Command:
        try:
            return await handler(request, connection)
        except RemoteFault as fault:
            return self._refusal(request, connection, fault)
        except Exception as error:
            return self._failure(request, error)

    @staticmethod
    def _failure(request: Command, error: Exception) -> Command:
        """A bug must not stop the nameserver for other peers."""
        log.error("request_failed", code=request.code, error=repr(error))
        return request.answer(ResponseCode.SYSTEM_ERROR, f"internal error: {type(error).__name__}")

    def _refusal(self, request: Command, connection: object, fault: RemoteFault) -> Command:
        peer = getattr(connection, "peer", "")
        self._refusals.report(request.code, peer, fault, is_change=request.code in CHANGES)
        return request.answer(fault.code, fault.remark)

    def _check_sender(self, request: Command, connection: object) -> str | None:
        """The name of the sender's identity, if there are identities; :class:`RemoteFault` unless it may send this
        change of the tables."""
        if not getattr(connection, "may_change", True):
            raise RemoteFault(ResponseCode.NO_PERMISSION, NOT_A_PEER)
        identities = self._identities()
        if identities is not None:
            subject = getattr(connection, "subject", None)
            identity = identify(identities, request, subject)
            check_right(identity, request, self._routes.name_at)
            return identity.name
        return None

    # ---- brokers

    async def _register(self, request: Command, connection: object) -> Command:
        header = read_header(RegisterBrokerHeader, request.ext)
        if header.body_crc32 and header.body_crc32 != body_crc32(request.body):
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        identity = BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        # One at a time, so that partly decoded registrations do not fill the memory and those of one broker do not mix.
        async with self._registering:
            response = await self._take_registration(request, connection, header, identity)
        await self._epochs.store(identity)
        return response

    async def _take_registration(
        self, request: Command, connection: object, header: RegisterBrokerHeader, identity: BrokerIdentity
    ) -> Command:
        wrapper, filter_servers = await _in_steps(_read_register_body(request, header.compressed))
        lifetime = header.heartbeat_timeout_millis
        said = epoch_in(request.ext)
        known = None if said is None else self._epochs.learn(identity, said)
        if said is not None and known is not None and not identity.broker_id and known.contradicts(said):
            if self._routes.unregister(identity):
                log.warning("fenced_master_refused", **_fields(identity), epoch=str(said), known=str(known))
            return request.answer(ResponseCode.SUCCESS, ext={EPOCH_FIELD: str(known)})
        new = self._routes.data_version(identity.address) is None
        result = await _in_steps(
            self._routes.register_in_steps(
                identity,
                wrapper,
                ha_address=header.ha_server_addr,
                filter_servers=filter_servers,
                connection=connection,
                lifetime=lifetime / 1000 if lifetime is not None and lifetime > 0 else None,
                zone=(request.ext or {}).get(ZONE_NAME),
                acting_master=header.enable_acting_master,
                drop_missing=self.switches.delete_topic_with_broker_registration,
            )
        )
        if new:
            log.info("broker_registered", **_fields(identity), topics=len(wrapper.topic_config_table))
        if result.replaced is not None:
            log.warning("duplicate_broker_registered", **_fields(identity), other=result.replaced)
        answer = RegisterBrokerResponse(ha_server_addr=result.ha_address, master_addr=result.master_address)
        order = self._kv.namespace(ORDER_TOPIC_NAMESPACE)
        response = success(
            request,
            answer,
            None if order is None or not self.switches.return_order_topic_config_to_broker else KVTable(order),
        )
        if known is not None:
            response.ext = {**(response.ext or {}), EPOCH_FIELD: str(known)}
        return response

    async def _unregister(self, request: Command, connection: object) -> Command:
        header = read_header(BrokerHeader, request.ext)
        identity = BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        known = self._routes.unregister(identity)
        log.info("broker_unregistered", **_fields(identity), known=known)
        return success(request)

    async def _register_topic(self, request: Command, connection: object) -> Command:
        topic = read_header(TopicHeader, request.ext).topic
        if not self._routes.register_topic(topic, TopicRouteData.from_request(request.body or b"{}").queue_datas):
            log.info("topic_of_unknown_broker_ignored", topic=topic)
        return success(request)

    async def _query_data_version(self, request: Command, connection: object) -> Command:
        header = read_header(BrokerHeader, request.ext)
        known = self._routes.data_version(header.broker_addr)
        changed = known is None or known != DataVersion.from_request(request.body)
        identity = BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        said = epoch_in(request.ext)
        highest = None if said is None else self._epochs.learn(identity, said)
        is_fenced = said is not None and highest is not None and not identity.broker_id and highest.contradicts(said)
        if not (changed or is_fenced):
            self._routes.renew(header.broker_addr)
        response = success(request, DataVersionResponse(changed=changed), known)
        if highest is not None:
            response.ext = {**(response.ext or {}), EPOCH_FIELD: str(highest)}
            await self._epochs.store(identity)
        return response

    async def _heartbeat(self, request: Command, connection: object) -> Command:
        self._routes.renew(read_header(BrokerHeartbeatHeader, request.ext).broker_addr)
        return success(request)

    async def _member_group(self, request: Command, connection: object) -> Command:
        header = read_header(BrokerGroupHeader, request.ext)
        addresses = self._routes.member_group(header.broker_name)
        group = BrokerMemberGroup(header.cluster_name, header.broker_name, addresses)
        return success(request, body=BrokerMemberGroupBody(group))

    # ---- routes and lists

    async def _route(self, request: Command, connection: object) -> Command:
        header = read_header(RouteHeader, request.ext)
        view = _view(request, bool(header.accept_standard_json_only))
        body = self._cache.get(header.topic, view)
        if body is None:
            body = self._route_text(header.topic, view)
            if len(view.zone or "") <= NAME_MAX_CHARACTERS:  # no broker has a longer zone
                self._cache.put(header.topic, view, body)
        return request.answer(ResponseCode.SUCCESS, body=body)

    def _route_text(self, topic: str, view: RouteView) -> bytes:
        if self.switches.need_wait_for_service and trio.current_time() < self._complete_at:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "name server not ready")
        route = self._routes.route(topic)
        if route is None:
            raise RemoteFault(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}"
            )
        if self.switches.order_message_enable:
            route.order_topic_conf = self._kv.get(ORDER_TOPIC_NAMESPACE, topic)
        if self.switches.support_acting_master:
            route = with_acting_masters(topic, route)
        if view.zone is not None:
            route = of_zone(route, view.zone)
        return route.to_bytes(quoted_keys=view.strict)

    async def _cluster_info(self, request: Command, connection: object) -> Command:
        return self._list(request, self._routes.cluster_info)

    async def _topics(self, request: Command, connection: object) -> Command:
        self._check_lists(self.switches.enable_all_topic_list)
        return self._list(request, self._routes.topics)

    def _list(self, request: Command, read: Callable[[], Body]) -> Command:
        body = self._cache.get_list(request.code)
        if body is None:
            body = read().to_bytes()
            self._cache.put_list(request.code, body)
        return request.answer(ResponseCode.SUCCESS, body=body)

    async def _topics_by_cluster(self, request: Command, connection: object) -> Command:
        self._check_lists(self.switches.enable_topic_list)
        header = read_header(ClusterHeader, request.ext)
        return success(request, body=self._routes.topics_by_cluster(header.cluster))

    async def _system_topics(self, request: Command, connection: object) -> Command:
        return success(request, body=self._routes.system_topics())

    async def _unit_topics(self, request: Command, connection: object) -> Command:
        self._check_lists(self.switches.enable_topic_list)
        return success(request, body=self._routes.topics_with_flag(UNIT_FLAG))

    async def _unit_sub_topics(self, request: Command, connection: object) -> Command:
        self._check_lists(self.switches.enable_topic_list)
        return success(request, body=self._routes.topics_with_flag(UNIT_SUB_FLAG))

    async def _unit_sub_topics_of_no_unit(self, request: Command, connection: object) -> Command:
        self._check_lists(self.switches.enable_topic_list)
        return success(request, body=self._routes.topics_with_flag(UNIT_SUB_FLAG, UNIT_FLAG))

    @staticmethod
    def _check_lists(enabled: bool) -> None:
        if not enabled:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "disable")

    # ---- admin

    async def _delete_topic(self, request: Command, connection: object) -> Command:
        header = read_header(DeleteTopicInNameserverHeader, request.ext)
        self._routes.delete_topic(header.topic, header.cluster_name)
        log.info("topic_deleted", topic=header.topic, cluster=header.cluster_name)
        return success(request)

    async def _wipe_write_perm(self, request: Command, connection: object) -> Command:
        name = read_header(BrokerNameHeader, request.ext).broker_name
        count = self._routes.wipe_write_perm(name)
        log.info("write_permission_wiped", broker=name, topics=count)
        return success(request, WipeWritePermResponse(wipe_topic_count=count))

    async def _add_write_perm(self, request: Command, connection: object) -> Command:
        name = read_header(BrokerNameHeader, request.ext).broker_name
        count = self._routes.add_write_perm(name)
        log.info("write_permission_added", broker=name, topics=count)
        return success(request, AddWritePermResponse(add_topic_count=count))

    async def _get_config(self, request: Command, connection: object) -> Command:
        return request.answer(
            ResponseCode.SUCCESS,
            body=write_properties({**self._settings, **self.switches.runtime_info(), LOG_LEVELS: str(current())}),
        )

    async def _update_config(self, request: Command, connection: object) -> Command:
        """Change switches and log levels until the process ends; other settings are refused. A request changes all of
        its values or none."""
        try:
            given = read_properties(request.body)
        except ValueError as error:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from None
        levels = given.pop(LOG_LEVELS, None)
        try:
            LogLevels.parse(levels or "")
        except ValueError as error:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{LOG_LEVELS}: {error}") from None
        self.switches = self.switches.changed(given)
        if levels is not None:
            given[LOG_LEVELS] = str(change_to(levels))
        self._cache.clear()
        log.info("config_changed", **{name: value.strip() for name, value in given.items()})
        return success(request)


def _view(request: Command, standard_json: bool) -> RouteView:
    ext = request.ext or {}
    zone = ext.get(ZONE_NAME, "").strip() if ext.get(ZONE_MODE, "").lower() == "true" else ""
    return RouteView(request.version >= STRICT_JSON_VERSION or standard_json, zone or None)


async def _in_steps(steps: Generator[None, None, T]) -> T:
    """Run ``steps`` to their end and return their result; other connections are served in between."""
    until = time.perf_counter() + SLICE_SECONDS
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("T", done.value)
        if time.perf_counter() > until:
            await trio.lowlevel.checkpoint()
            until = time.perf_counter() + SLICE_SECONDS


def _read_register_body(
    request: Command, compressed: bool
) -> Generator[None, None, tuple[TopicConfigSerializeWrapper, list[str] | None]]:
    if not request.body:
        return TopicConfigSerializeWrapper(), []
    if request.version < FILTER_SERVER_VERSION:
        return TopicConfigSerializeWrapper.from_request(request.body), None
    # A 5.3.3 broker with compressedRegister compresses the body without the flag. No JSON begins with zlib's first
    # byte.
    is_compressed = compressed or request.body[0] == ZLIB_FIRST_BYTE
    body = yield from RegisterBrokerBody.decode_in_steps(request.body, is_compressed)
    return body.topic_config_serialize_wrapper, body.filter_server_list


def _fields(identity: BrokerIdentity) -> dict[str, str | int]:
    return {
        "cluster": identity.cluster,
        "broker": identity.name,
        "broker_id": identity.broker_id,
        "address": identity.address,
    }
