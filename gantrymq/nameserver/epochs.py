"""The highest epoch of each broker name after a promotion, stored in the KV config so that it survives a restart.

Namespace ``GANTRYMQ_EPOCHS``, key ``NAME@CLUSTER``. Before a broker with an empty store takes an old name, delete its
key: ``mqadmin deleteKvConfig -s GANTRYMQ_EPOCHS -k NAME@CLUSTER``.

An epoch holds as soon as it is reported; a nameserver whose disk is full or slow refuses a former master, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from gantrymq.nameserver.kv import KVConfig
from gantrymq.nameserver.limits import check_lengths
from gantrymq.nameserver.live import BrokerIdentity
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.epoch import FIRST, Epoch, epoch_in
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.outages import Outages

EPOCHS_NAMESPACE: Final = "GANTRYMQ_EPOCHS"
UNSTORED_MAX: Final = 10_000
"""The most epochs in memory that could not be stored."""

log = structlog.get_logger("gantrymq.nameserver")


class KnownEpochs:
    """The epochs that brokers reported. ``change`` is :meth:`gantrymq.nameserver.kvrequests.KVRequests.change`,
    ``clock`` returns monotonic seconds."""

    def __init__(self, kv: KVConfig, change: Callable[..., Awaitable[None]], clock: Callable[[], float]) -> None:
        self._kv = kv
        self._change = change
        self._unstored: dict[str, Epoch] = {}
        self._storing: set[str] = set()
        self._outages = Outages(log, clock)

    def known(self, identity: BrokerIdentity) -> Epoch:
        """The highest reported epoch of the broker's name."""
        key = _key(identity)
        stored, unstored = self._stored(key), self._unstored.get(key, FIRST)
        return unstored if unstored.outranks(stored) else stored

    def learn(self, identity: BrokerIdentity, epoch: Epoch) -> Epoch:
        """Record in memory that a broker of the name reported ``epoch``; returns the highest one. :meth:`store` must
        follow. :class:`RemoteFault` (code 1) beyond the limits."""
        known = self.known(identity)
        if not epoch.outranks(known):
            return known
        key = _key(identity)
        check_lengths((identity.name, identity.cluster))
        if key not in self._unstored and len(self._unstored) >= UNSTORED_MAX:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{len(self._unstored)} epochs wait for the disk: the limit")
        self._unstored[key] = epoch
        return epoch

    async def store(self, identity: BrokerIdentity) -> None:
        """Store the epoch of the broker's name unless it is stored, or another task does so. A failure is logged, and
        the next call tries again."""
        key = _key(identity)
        if key not in self._unstored or key in self._storing:
            return
        self._storing.add(key)
        try:
            while key in self._unstored:  # a higher one may come meanwhile
                await self._change(self._put, EPOCHS_NAMESPACE, key)
                if not self._unstored.get(key, FIRST).outranks(self._stored(key)):
                    self._unstored.pop(key, None)
        except (RemoteFault, ValueError) as error:
            self._outages.error(
                "epoch_not_stored", key, broker=identity.name, cluster=identity.cluster,
                epoch=str(self._unstored.get(key, FIRST)), reason=str(error),
            )  # fmt: skip
        else:
            self._outages.over("epoch_not_stored", key)
        finally:
            self._storing.discard(key)

    def forget(self, namespace: str, key: str) -> None:
        """An administrator has deleted a key of the KV config."""
        if namespace == EPOCHS_NAMESPACE:
            self._unstored.pop(key, None)

    def _stored(self, key: str) -> Epoch:
        return epoch_in(self._kv.namespace(EPOCHS_NAMESPACE), key) or FIRST

    def _put(self, namespace: str, key: str) -> None:
        """Runs in a worker thread, after changes that began before."""
        epoch = self._unstored.get(key)
        if epoch is not None and epoch.outranks(self._stored(key)):
            self._kv.put(namespace, key, str(epoch))


def _key(identity: BrokerIdentity) -> str:
    return f"{identity.name}@{identity.cluster}"
