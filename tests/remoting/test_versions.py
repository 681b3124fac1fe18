"""Ordinals of RocketMQ's ``MQVersion``: 407 is 4.9.7, 479 is 5.3.3 (written in its source)."""

from __future__ import annotations

import pytest

from gantrymq.remoting.versions import version_name


@pytest.mark.parametrize(
    ("ordinal", "name"),
    [
        (0, "V3"), (211, "V3"), (212, "V4_0_0_SNAPSHOT"), (213, "V4_0_0"), (406, "V4_9_7_SNAPSHOT"), (407, "V4_9_7"),
        (412, "V5_0_0_SNAPSHOT"), (479, "V5_3_3"), (611, "V5_9_9"), (612, "HIGHER_VERSION"), (9999, "HIGHER_VERSION"),
    ],
)  # fmt: skip
def test_version_numbers_have_the_names_of_their_releases(ordinal: int, name: str) -> None:
    assert version_name(ordinal) == name
