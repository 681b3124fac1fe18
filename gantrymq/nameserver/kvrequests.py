"""The requests that read and change the KV config (100 to 102, 219)."""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from gantrymq.nameserver.handlers import Handler, success
from gantrymq.nameserver.kv import KVConfig
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.nameserver import KVConfigHeader, KVConfigResponse, NamespaceHeader, PutKVConfigHeader

log = structlog.get_logger("gantrymq.nameserver")


class KVRequests:
    """Makes changes one at a time, in a worker thread; calls ``changed`` after each."""

    def __init__(self, kv: KVConfig, changed: Callable[[], None]) -> None:
        self._kv = kv
        self._changed = changed
        self.deleted: Callable[[str, str], None] | None = None
        """Called with the namespace and key that an administrator has deleted."""
        self._turn = trio.Lock()
        self.handlers: dict[int, Handler] = {
            RequestCode.PUT_KV_CONFIG: self._put,
            RequestCode.GET_KV_CONFIG: self._get,
            RequestCode.DELETE_KV_CONFIG: self._delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list,
        }

    async def _put(self, request: Command, connection: object) -> Command:
        header = read_header(PutKVConfigHeader, request.ext)
        await self.change(self._kv.put, header.namespace, header.key, header.value)
        return success(request)

    async def _delete(self, request: Command, connection: object) -> Command:
        header = read_header(KVConfigHeader, request.ext)
        await self.change(self._kv.delete, header.namespace, header.key)
        if self.deleted is not None:
            self.deleted(header.namespace, header.key)
        return success(request)

    async def change(self, change: Callable[..., None], *arguments: str) -> None:
        """Call ``change(namespace, key, ...)`` in a worker thread, after other changes have ended."""
        async with self._turn:
            await trio.to_thread.run_sync(change, *arguments)
        self._changed()
        log.info("kv_config_changed", namespace=arguments[0], key=arguments[1])

    async def _get(self, request: Command, connection: object) -> Command:
        header = read_header(KVConfigHeader, request.ext)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            return request.answer(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace} Key: {header.key}"
            )
        return success(request, KVConfigResponse(value=value))

    async def _list(self, request: Command, connection: object) -> Command:
        header = read_header(NamespaceHeader, request.ext)
        entries = self._kv.namespace(header.namespace)
        if entries is None:
            return request.answer(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}")
        return success(request, body=KVTable(entries))
