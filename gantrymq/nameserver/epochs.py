"""The highest epoch of each broker name after a promotion, stored in the KV config so that it survives a restart.

Namespace ``GANTRYMQ_EPOCHS``, key ``NAME@CLUSTER``. Before a broker with an empty store takes an old name, delete its
key: ``mqadmin deleteKvConfig -s GANTRYMQ_EPOCHS -k NAME@CLUSTER``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from gantrymq.nameserver.kv import KVConfig
from gantrymq.nameserver.live import BrokerIdentity
from gantrymq.remoting.epoch import FIRST, Epoch, epoch_in, read_epoch

EPOCHS_NAMESPACE: Final = "GANTRYMQ_EPOCHS"


class KnownEpochs:
    """The epochs that brokers reported. ``change`` is :meth:`gantrymq.nameserver.kvrequests.KVRequests.change`."""

    def __init__(self, kv: KVConfig, change: Callable[..., Awaitable[None]]) -> None:
        self._kv = kv
        self._change = change

    def known(self, identity: BrokerIdentity) -> Epoch:
        """The highest reported epoch of the broker's name."""
        return epoch_in(self._kv.namespace(EPOCHS_NAMESPACE), _key(identity)) or FIRST

    async def learn(self, identity: BrokerIdentity, epoch: Epoch) -> Epoch:
        """Record that a broker of the name reported ``epoch``; returns the highest one. Errors as of
        :meth:`KVConfig.put`."""
        if epoch.outranks(self.known(identity)):
            await self._change(self._raise, EPOCHS_NAMESPACE, _key(identity), str(epoch))
        return self.known(identity)

    def _raise(self, namespace: str, key: str, text: str) -> None:
        """Store ``epoch`` unless a change that ran before has stored a higher one."""
        if read_epoch(text).outranks(epoch_in(self._kv.namespace(namespace), key) or FIRST):
            self._kv.put(namespace, key, text)


def _key(identity: BrokerIdentity) -> str:
    return f"{identity.name}@{identity.cluster}"
