"""The switches of a nameserver, by RocketMQ's names (``NamesrvConfig`` of 5.3.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

PATH_SETTINGS: Final = frozenset({"kvConfigPath", "configStorePath"})


@attrs.frozen(kw_only=True)
class Switches:
    """The switches, with RocketMQ's defaults.

    ``order_message_enable``: routes have a topic's order from the KV config. ``return_order_topic_config_to_broker``:
    brokers receive all ordered topics when they register. ``support_acting_master``: a route shows the lowest slave
    as master while there is none, where brokers agree. ``notify_min_broker_id_changed``: brokers are notified when the
    lowest id of their name changes (905). ``enable_all_topic_list`` and ``enable_topic_list``: 206, and 224 and 311
    to 313, are answered. ``delete_topic_with_broker_registration``: a registration removes the topics that it does not
    name. ``need_wait_for_service``: no routes in the first 45 seconds, so that all brokers can register.
    """

    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    support_acting_master: bool = False
    notify_min_broker_id_changed: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    delete_topic_with_broker_registration: bool = False
    need_wait_for_service: bool = False

    def runtime_info(self) -> dict[str, str]:
        """All of them by RocketMQ's names, as GET_NAMESRV_CONFIG returns them."""
        return {key: "true" if getattr(self, name) else "false" for key, name in KEYS.items()}

    def changed(self, given: Mapping[str, str]) -> Switches:
        """The switches with the values in ``given``. :class:`RemoteFault` for an unknown name or value (1), and paths
        (16)."""
        if given.keys() & PATH_SETTINGS:
            raise RemoteFault(ResponseCode.NO_PERMISSION, "Can not update config path")
        values: dict[str, bool] = {}
        for key, text in given.items():
            if key not in KEYS:
                these = ", ".join(KEYS)
                raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{key[:100]!r} cannot be changed; these can: {these}")
            if text.strip() not in ("true", "false"):
                raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{key} = {text[:100]!r}; allowed: true or false")
            values[KEYS[key]] = text.strip() == "true"
        return attrs.evolve(self, **values)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


KEYS: Final = {_camel(field.name): field.name for field in attrs.fields(Switches)}
"""The field of each switch by RocketMQ's name."""


def read_switches(settings: Iterable[str]) -> Switches:
    """The switches of ``name=value`` texts; :class:`ValueError` names the invalid one."""
    given: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"{setting!r}: name=true or name=false is expected")
        given[name.strip()] = value
    try:
        return Switches().changed(given)
    except RemoteFault as fault:
        raise ValueError(fault.remark) from None
