"""The highest epoch of each broker name that has had a promotion, kept in the KV config: it outlives the nameserver.

Namespace ``GANTRYMQ_EPOCHS``, key ``NAME@CLUSTER``. Who rebuilds a broker from nothing under an old name takes its key
out: ``mqadmin deleteKvConfig -s GANTRYMQ_EPOCHS -k NAME@CLUSTER``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from gantrymq.nameserver.kv import KVConfig
from gantrymq.nameserver.live import BrokerIdentity
from gantrymq.remoting.epoch import FIRST, Epoch, epoch_in, read_epoch

EPOCHS_NAMESPACE: Final = "GANTRYMQ_EPOCHS"


class KnownEpochs:
    """What brokers said. ``change`` is :meth:`gantrymq.nameserver.kvrequests.KVRequests.change`."""

    def __init__(self, kv: KVConfig, change: Callable[..., Awaitable[None]]) -> None:
        self._kv = kv
        self._change = change

    def known(self, identity: BrokerIdentity) -> Epoch:
        """The highest that was said of the broker's name."""
        return epoch_in(self._kv.namespace(EPOCHS_NAMESPACE), _key(identity)) or FIRST

    async def learn(self, identity: BrokerIdentity, epoch: Epoch) -> Epoch:
        """A broker of the name says ``epoch``; returns the highest. Errors as of :meth:`KVConfig.put`."""
        if epoch.outranks(self.known(identity)):
            await self._change(self._raise, EPOCHS_NAMESPACE, _key(identity), str(epoch))
        return self.known(identity)

    def _raise(self, namespace: str, key: str, text: str) -> None:
        """Changes follow each other: a higher one may have come before."""
        if read_epoch(text).outranks(epoch_in(self._kv.namespace(namespace), key) or FIRST):
            self._kv.put(namespace, key, text)


def _key(identity: BrokerIdentity) -> str:
    return f"{identity.name}@{identity.cluster}"
