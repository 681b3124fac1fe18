"""The consumer groups of this broker: ``subscriptionGroup.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from gantrymq.kernel.store.state_file import load_state
from gantrymq.plugins.topics.config import TopicsConfig
from gantrymq.plugins.topics.statetable import StateTable, Unknown
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import SYSTEM_GROUPS, is_system_group, retry_topic, validate_group, validate_topic

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

TABLE_KEY = "subscriptionGroupTable"
TABLE_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of all groups' settings as text; they stay in memory, and each change writes all of them."""
LOGGED_MAX = 10_000

log = structlog.get_logger("gantrymq.topics")


def validate_consumer_group(name: str) -> None:
    """:class:`RemoteFault` (code 1) unless ``name`` is a legal consumer group: its retry topic needs a name too."""
    validate_group(name)
    validate_topic(retry_topic(name))


class Groups:
    """Provides ``GroupTable``."""

    def __init__(self, env: Env, path: str, config: TopicsConfig) -> None:
        """:class:`StartError` when neither the file nor its ``.bak`` can be read."""
        self._config = config
        self._warned = False
        self._logged: set[str] = set()
        """Groups whose creation was logged: a slave's groups disappear with each fetch of the master's table and are
        created again."""
        self.table: StateTable[SubscriptionGroupConfig] = StateTable(env, path, TABLE_KEY)
        found = load_state(env, path, read_groups)
        if found is not None:
            stored, unknown = found
            self.table.take(stored.subscription_group_table, stored.data_version, validate_group, unknown)
        for name in sorted(SYSTEM_GROUPS - self.table.entries.keys()):
            self.table.put(name, SubscriptionGroupConfig(name))

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group's configuration, created on first use if settings, limit and the rules for names allow
        it."""
        config = self.table.entries.get(group)
        return config if config is not None else self._create(group)

    def reconfigure(self, config: TopicsConfig) -> None:
        """Apply other settings from now on."""
        self._config = config

    def names(self) -> list[str]:
        """Return all groups."""
        return list(self.table.entries)

    def set(self, config: SubscriptionGroupConfig) -> None:
        """Create or change a group; :class:`RemoteFault` for an illegal name or beyond the limit."""
        validate_consumer_group(config.group_name)
        if config.group_name not in self.table.entries and len(self.table.entries) >= self._config.max_groups:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR,
                f"the group {config.group_name} is not created: {self._config.max_groups} groups are the limit "
                "(plugin.topics.max_groups)",
            )
        if self.table.text_bytes + len(config.to_bytes()) > TABLE_BYTES_MAX:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR,
                f"group {config.group_name!r} is refused: the settings of all groups would have more than "
                f"{TABLE_BYTES_MAX} bytes; delete unused groups",
            )
        self.table.put(config.group_name, config)

    def adopt(self, body: bytes) -> bool:
        """Adopt the groups of a master from its response to code 201, in addition to those of every broker.

        False if their data version is known already. :class:`RemoteFault` for an invalid body.
        """
        told, unknown = read_groups(body)
        adopted = self.table.adopt(
            told.subscription_group_table, told.data_version, is_system_group, validate_consumer_group, unknown
        )
        if adopted:
            log.info("groups_adopted", groups=len(self.table.entries))
        return adopted

    def _create(self, group: str) -> SubscriptionGroupConfig | None:
        if not self._config.auto_create_groups and not is_system_group(group):
            return None
        try:
            self.set(SubscriptionGroupConfig(group))
        except RemoteFault as fault:
            if not self._warned:  # once, not for each request of a client that keeps trying
                self._warned = True
                log.warning("group_not_created", group=group[:200], reason=fault.remark)
            return None
        if group not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add(group)
            log.info("group_created", group=group)
        return self.table.entries[group]


def read_groups(data: bytes) -> tuple[SubscriptionGroupWrapper, Unknown]:
    """Decode the file, with the keys that this version does not know. :class:`RemoteFault`."""
    return SubscriptionGroupWrapper.from_bytes(data), Unknown.of(data, TABLE_KEY, SubscriptionGroupConfig)
