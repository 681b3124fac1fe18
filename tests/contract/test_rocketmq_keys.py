"""RocketMQ's names of settings are declared on the fields only; reading and showing them use the declarations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import pytest

from gantrymq.kernel.config.broker_conf import declared_keys, translate, write_keys
from gantrymq.kernel.config.declarations import KERNEL_SECTIONS, plugin_sections
from gantrymq.kernel.config.rocketmq_keys import KeyGroup
from gantrymq.kernel.loading import load_plugins
from gantrymq.plugins import DEFAULT_PLUGINS, OPTIONAL_PLUGINS
from gantrymq.plugins.acl.config import FIRST_USER, INNER_CREDENTIALS

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
PLUGIN_SECTIONS = plugin_sections(load_plugins([*DEFAULT_PLUGINS, *OPTIONAL_PLUGINS]))
SECTIONS = {**KERNEL_SECTIONS, **PLUGIN_SECTIONS}

OLDER = {name for key in declared_keys(SECTIONS).values() for name in key.older}
"""Spellings that are read and never written."""
SECRETS = {FIRST_USER, INNER_CREDENTIALS}
"""Keys that are read and never shown."""


def groups_of(sections: Mapping[str, type]) -> Iterator[KeyGroup]:
    for kind in sections.values():
        yield from getattr(kind, "broker_conf_groups", ())


def names_of(sections: Mapping[str, type]) -> set[str]:
    """Every key that the sections can read, older spellings included."""
    names = {name for key in declared_keys(sections).values() for name in (key.name, *key.older)}
    return names | {name for group in groups_of(sections) for name in group.keys}


def places_of(names: set[str], folder: str) -> list[str]:
    """The places in the folder's modules that name one of them, including comments."""
    pattern = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, sorted(names)))})(?!\w)")
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]


def test_the_kernel_names_no_key_of_a_plugin() -> None:
    assert len(names_of(PLUGIN_SECTIONS)) > 40
    assert places_of(names_of(PLUGIN_SECTIONS), "kernel") == []


def test_the_configuration_names_no_section_of_a_plugin() -> None:
    assert "plugin.flush" in PLUGIN_SECTIONS
    assert places_of(set(PLUGIN_SECTIONS), "kernel/config") == []


def test_the_kernels_keys_are_declared_with_their_sections() -> None:
    found = {place.partition(":")[0] for place in places_of(names_of(KERNEL_SECTIONS), "kernel/config")}
    assert found == {"kernel/config/declarations.py"}


def test_each_rocketmq_key_sets_one_setting_and_is_read() -> None:
    # two settings of one name are an error of declared_keys
    keys = declared_keys(SECTIONS)
    names = [name for key in keys.values() for name in (key.name, *key.older)]
    assert len(names) == len(set(names))
    in_groups = {name for group in groups_of(SECTIONS) for name in group.keys}
    for place, key in keys.items():
        for name in {key.name, *key.older} - in_groups:
            assert list(translate({name: "1"}, SECTIONS).settings) == [place]


def test_exactly_the_readable_keys_that_are_no_secrets_are_shown() -> None:
    sections = {name: kind() for name, kind in SECTIONS.items()}
    assert sections["plugin.ha"].listen == sections["broker"].advertise == "", "what is empty is not shown"
    sections["plugin.ha"] = attrs.evolve(sections["plugin.ha"], listen="127.0.0.1:10912")
    sections["broker"] = attrs.evolve(sections["broker"], advertise="10.0.0.7:10911")
    sections["plugin.acl"] = attrs.evolve(
        sections["plugin.acl"], users="/auth/users.json", first_user="{}", inner_credentials="{}"
    )
    shown = write_keys(sections)
    assert set(shown) == names_of(SECTIONS) - OLDER - SECRETS
    again = translate(shown, SECTIONS)
    assert again.unmapped == ()
    assert again.settings["plugin.ha", "listen"] == "127.0.0.1:10912"
    assert again.settings["broker", "advertise"] == "10.0.0.7:10911"


def test_the_configuration_page_lists_exactly_the_readable_keys() -> None:
    page = (ROOT / "docs" / "howto" / "configure.md").read_text().partition("## RocketMQ's broker.conf")[2]
    rows = re.findall(r"^\|(.*?)\|", page, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)(?:=\w+)?`", row)}
    assert listed == names_of(SECTIONS) - OLDER
