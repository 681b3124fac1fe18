"""Epochs as text, and the choice between two masters."""

from __future__ import annotations

import pytest

from gantrymq.remoting.epoch import FIRST, NUMBER_MAX, TOKEN_MAX, Epoch, epoch_in, read_epoch


@pytest.mark.parametrize("epoch", [FIRST, Epoch(1, "a0"), Epoch(NUMBER_MAX, "x" * TOKEN_MAX)])
def test_epochs_are_decoded_as_they_were_encoded(epoch: Epoch) -> None:
    assert read_epoch(str(epoch)) == epoch
    assert epoch_in({"gantryEpoch": str(epoch)}) == epoch


@pytest.mark.parametrize("text", ["", "3", "-a", "x-a", "-1-a", f"{NUMBER_MAX + 1}-a", "1-a b", "1-" + "x" * 65, "٣-a"])
def test_an_invalid_epoch_is_rejected_and_treated_as_absent(text: str) -> None:
    with pytest.raises(ValueError, match="is not an epoch"):
        read_epoch(text)
    assert epoch_in({"gantryEpoch": text}) is None


def test_a_higher_epoch_wins_and_two_of_one_number_conflict() -> None:
    assert Epoch(2, "a").outranks(Epoch(1, "b"))
    assert not Epoch(2, "a").outranks(Epoch(2, "b"))
    assert Epoch(2, "a").contradicts(Epoch(2, "b"))
    assert not Epoch(2, "a").contradicts(Epoch(2, "a"))
    assert not Epoch(1, "a").contradicts(Epoch(2, "a"))
