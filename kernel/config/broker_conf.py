"""RocketMQ's ``broker.conf``, whose keys the fields of the sections declare (:mod:`...config.rocketmq_keys`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from gantrymq.kernel.config.rocketmq_keys import GROUPS, METADATA, KeyGroup, NoCounterpart, RocketmqKey, SettingKey
from gantrymq.kernel.errors import StartError

Sections = Mapping[str, type[Any]]
"""Configuration classes by section."""


@attrs.frozen
class BrokerConf:
    """One file. ``optional``: sections of plugins that are not loaded yet and that the file can enable."""

    path: str
    properties: Mapping[str, str]
    optional: Sections = attrs.field(factory=dict)


@attrs.frozen
class Translation:
    """GantryMQ's settings as text, and the keys without a counterpart."""

    settings: Mapping[SettingKey, str]
    unmapped: tuple[str, ...]


def declared_keys(sections: Sections) -> dict[SettingKey, RocketmqKey]:
    """RocketMQ's names by section and key, in the order of declaration, without groups.

    :class:`StartError` if two settings declare the same name.
    """
    found: dict[SettingKey, RocketmqKey] = {}
    owners: dict[str, SettingKey] = {}
    for setting, names, key in _declarations(sections):
        for name in names:
            owner = owners.setdefault(name, setting)
            # a group and a field of one section may share a key: the group reads it, the field writes it
            if owner != setting and (owner[0] != setting[0] or (owner[1] and setting[1])):
                raise StartError(
                    f"RocketMQ's key {name!r} is declared for {_shown(owner)} and for {_shown(setting)}: one name is "
                    "one setting, change it in the plugin or disable one of them"
                )
        if key is not None:
            found[setting] = key
    return found


def translate(properties: Mapping[str, str], sections: Sections, absent: Sections | None = None) -> Translation:
    """Return the settings for ``sections`` in ``properties``; keys of ``absent`` sections count as known unless another
    section has them.

    An invalid value is passed on unchanged, and the typed section refuses it with GantryMQ's key. ValueError if a value
    cannot be read or two values contradict each other.
    """
    keys: dict[str, tuple[SettingKey, RocketmqKey]] = {}
    groups: dict[str, KeyGroup] = {}
    for kinds in (sections, absent or {}):
        known = keys.keys() | groups.keys()
        for setting, names, key in _declarations(kinds):
            if key is not None and known.isdisjoint(names):
                keys |= dict.fromkeys(names, (setting, key))
        groups |= {name: group for group in _groups(kinds) if known.isdisjoint(group.keys) for name in group.keys}
    given = {name: value.strip() for name, value in properties.items()}
    settings: dict[SettingKey, str] = {}
    for name, value in given.items():
        if name in keys and name not in groups:
            setting, key = keys[name]
            settings[setting] = _read(name, key, value)
    unmapped = [name for name in given if name not in keys and name not in groups]
    ignored = []
    for group in dict.fromkeys(groups[name] for name in groups if name in given):
        try:
            settings.update(group.read(given))
        except NoCounterpart as error:
            ignored.append(error.key)
    unmapped += [name for name in ignored if name not in keys or keys[name][0] not in settings]
    return Translation(settings, tuple(unmapped))


def write_keys(sections: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of the typed sections, under RocketMQ's names and in its form."""
    keys = declared_keys({name: type(section) for name, section in sections.items()})
    found = {key.name: key.write(getattr(sections[setting[0]], setting[1])) for setting, key in keys.items()}
    for section in sections.values():
        for group in getattr(section, GROUPS, ()):
            found |= group.write(section)
    return found


def _declarations(sections: Sections) -> Iterator[tuple[SettingKey, tuple[str, ...], RocketmqKey | None]]:
    """Setting, names and key of every field with a RocketMQ name, and of every group, with only the section."""
    for section, kind in sections.items():
        for field in attrs.fields(kind):
            key = field.metadata.get(METADATA)
            if field.init and key is not None:
                yield (section, field.alias or field.name), (key.name, *key.older), key
        for group in getattr(kind, GROUPS, ()):
            yield (section, ""), group.keys, None


def _groups(sections: Sections) -> Iterator[KeyGroup]:
    for kind in sections.values():
        yield from getattr(kind, GROUPS, ())


def _read(name: str, key: RocketmqKey, value: str) -> str:
    try:
        return key.read(value)
    except ValueError as error:
        raise ValueError(f"{name} = {value!r}: {error}") from None


def _shown(setting: SettingKey) -> str:
    return ".".join(setting).removesuffix(".")
