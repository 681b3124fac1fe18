"""The contract for plugins that change bodies: one keeps it, and the kit finds each violation."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import Source
from gantrymq.remoting.properties import find_property, replace_properties
from gantrymq.remoting.records import COMPRESSED, COMPRESSION_MASK, decompress
from gantrymq.testing import transformkit
from gantrymq.testing.fixtures import StartPluginBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

KEY = 0x5A


def turned(body: bytes) -> bytes:
    return bytes(byte ^ KEY for byte in body)


class Good:
    """Stores the bodies of one topic turned, and turns them back."""

    name = "turned"
    sources: tuple[str, ...] = (Source.CLIENT, Source.RESEND)

    @hookimpl(tryfirst=True)
    def before_append(self, batch: Any) -> None:
        for row in batch.live:
            if batch.topics[row] == "orders":
                batch.bodies[row] = turned(batch.bodies[row])
                batch.properties[row] = replace_properties(batch.properties[row], {b"TURNED": b"1"})

    @hookimpl
    def before_deliver(self, batch: Any) -> None:
        for row in batch.live:
            if find_property(batch.properties[row], b"TURNED"):
                batch.bodies[row] = turned(batch.bodies[row])


class Twice(Good):
    """Changes what the broker appends again, too."""

    sources = Source.ALL


class Everything(Good):
    """Changes all topics, and undoes nothing."""

    @hookimpl(tryfirst=True)
    def before_append(self, batch: Any) -> None:
        for row in batch.live:
            batch.bodies[row] = b"x" + batch.bodies[row]


class Unmarked(Good):
    """Turns all delivered bodies of the topic, also those that it has not turned."""

    @hookimpl
    def before_deliver(self, batch: Any) -> None:
        for row in batch.live:
            if batch.topics[row] in ("orders", "%RETRY%readers", "%DLQ%readers"):
                batch.bodies[row] = turned(batch.bodies[row])


class Growing:
    """Consumers get a longer body, a sender of a retry as well."""

    name = "growing"
    sources = (Source.CLIENT, Source.RESEND)

    @hookimpl(tryfirst=True)
    def before_append(self, batch: Any) -> None:
        for row in batch.live:
            if batch.topics[row] in ("orders", "%RETRY%readers") and not batch.sys_flags[row] & COMPRESSED:
                batch.bodies[row] += b"!"


class Upper:
    """Consumers get upper case."""

    name = "upper"

    @hookimpl(tryfirst=True)
    def before_append(self, batch: Any) -> None:
        for row in batch.live:
            if batch.topics[row] == "orders":
                if batch.sys_flags[row] & COMPRESSED:
                    batch.bodies[row] = decompress(batch.bodies[row], batch.sys_flags[row])
                    batch.sys_flags[row] &= ~(COMPRESSED | COMPRESSION_MASK)
                batch.bodies[row] = batch.bodies[row].upper()


def broken_by(plugin: type, plugin_broker: StartPluginBroker, rules: tuple[transformkit.Rule, ...]) -> set[str]:
    found = set()
    for rule in rules:
        try:
            rule(plugin_broker, transformkit.Transform(plugin))
        except AssertionError:
            found.add(rule.__name__)
    return found


@pytest.mark.twins
@pytest.mark.parametrize("rule", transformkit.RULES, ids=lambda rule: rule.__name__)
def test_a_correct_plugin_passes_the_transform_kit(plugin_broker: StartPluginBroker, rule: transformkit.Rule) -> None:
    rule(plugin_broker, transformkit.Transform(Good))


def test_a_plugin_that_transforms_bodies_twice_fails_the_kit(plugin_broker: StartPluginBroker) -> None:
    wrong = (transformkit.a_delayed_body_is_changed_once, transformkit.a_timed_body_is_changed_once,
             transformkit.a_committed_body_is_changed_once,
             transformkit.a_producer_is_asked_with_the_body_that_consumers_get)  # fmt: skip
    rules = (*wrong, transformkit.each_body_is_changed_once)
    assert broken_by(Twice, plugin_broker, rules) == {rule.__name__ for rule in wrong}


def test_a_plugin_that_reverses_changes_that_it_has_not_made_fails_the_kit(plugin_broker: StartPluginBroker) -> None:
    rules = (transformkit.a_body_of_another_plugin_is_delivered, transformkit.a_resent_body_is_changed_once,
             transformkit.bodies_from_before_the_plugin_are_delivered)  # fmt: skip
    assert broken_by(Unmarked, plugin_broker, rules) == {rule.__name__ for rule in rules}


def test_a_plugin_that_changes_a_resent_body_again_fails_the_kit(plugin_broker: StartPluginBroker) -> None:
    with pytest.raises(AssertionError, match="sent to the retry topic by its consumer"):
        transformkit.a_resent_body_is_changed_once(
            plugin_broker, transformkit.Transform(Growing, delivered=lambda body: body + b"!")
        )


def test_a_plugin_that_does_not_reverse_its_change_or_changes_other_topics_fails_the_kit(
    plugin_broker: StartPluginBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformkit, "WAIT_S", 5.0)
    rules = (transformkit.each_body_is_changed_once, transformkit.a_retried_body_is_changed_once,
             transformkit.a_dead_letter_has_the_body_that_consumers_got,
             transformkit.stored_bodies_are_read_after_a_kill, transformkit.a_query_finds_what_consumers_get,
             transformkit.other_topics_are_left_alone)  # fmt: skip
    assert broken_by(Everything, plugin_broker, rules) == {rule.__name__ for rule in rules}


def test_the_kit_accepts_a_different_expected_body(plugin_broker: StartPluginBroker) -> None:
    case = transformkit.Transform(Upper, delivered=bytes.upper)
    transformkit.stored_bodies_are_read_after_a_kill(plugin_broker, case)
    transformkit.a_delayed_body_is_changed_once(plugin_broker, case)
