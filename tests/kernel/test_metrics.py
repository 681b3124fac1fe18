"""Valid metrics of plugins, and the limit of series."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.kernel.metrics import Distribution, Metrics


def test_series_of_one_name_are_one_family() -> None:
    metrics = Metrics(100)
    metrics.gauge("gantrymq_rooms", "Rooms", 3, house="a", dry=True)
    metrics.gauge("gantrymq_rooms", "Rooms", 4, house="b", dry=False)
    metrics.gauge("gantrymq_rooms", "Rooms", 5, house="a", dry=True)
    (family,) = metrics.families.values()
    assert (family.kind, family.text, family.label_names) == ("gauge", "Rooms", ("house", "dry"))
    assert family.series == {("a", "true"): 5, ("b", "false"): 4}


def test_a_histogram_counts_up_to_each_bound() -> None:
    metrics = Metrics(100)
    metrics.histogram("gantrymq_sizes", "Sizes", (1, 10), (2, 0, 3), 77.0)
    assert metrics.families["gantrymq_sizes"].series == {
        (): Distribution([(1, 2), (10, 2), (float("inf"), 5)], 77.0),
    }
    with pytest.raises(ValueError, match="2 bounds need 3 counts, not 2"):
        metrics.histogram("gantrymq_sizes", "Sizes", (1, 10), (2, 0), 77.0)


def test_samples_that_do_not_match_their_family_are_rejected() -> None:
    metrics = Metrics(100)
    metrics.gauge("gantrymq_rooms", "Rooms", 3, house="a")
    with pytest.raises(ValueError, match="a gauge with the labels"):
        metrics.gauge("gantrymq_rooms", "Rooms", 3, street="a")
    with pytest.raises(ValueError, match="ends in _total"):
        metrics.counter("gantrymq_rooms", "Rooms", 3)
    with pytest.raises(ValueError, match="not the name of a metric"):
        metrics.gauge("Rooms here", "Rooms", 3)


def test_the_largest_families_are_truncated_at_the_limit() -> None:
    metrics = Metrics(10)
    metrics.gauge("gantrymq_one", "One", 1)
    for number in range(30):
        metrics.gauge("gantrymq_many", "Many", number, number=str(number))
    for number in range(4):
        metrics.gauge("gantrymq_some", "Some", number, number=str(number))
    assert (len(metrics.families["gantrymq_many"].series), metrics.dropped) == (10, 20)
    metrics.cut()
    sizes = {name: len(family.series) for name, family in metrics.families.items()}
    assert sizes == {"gantrymq_one": 1, "gantrymq_many": 5, "gantrymq_some": 4}
    assert metrics.dropped == 25
    assert list(metrics.families["gantrymq_many"].series) == [(str(number),) for number in range(5)]


def test_deferred_metrics_can_add_samples() -> None:
    metrics = Metrics(10)
    metrics.later(lambda: metrics.gauge("gantrymq_late", "Late", 1))
    assert not metrics.families
    for work in metrics.work():
        work()
    assert list(metrics.families) == ["gantrymq_late"]


def test_labels_that_are_no_texts_are_converted() -> None:
    metrics = Metrics(100)
    metrics.gauge("gantrymq_rooms", "Rooms", 3, number=7, size=1.5, house=None)
    metrics.gauge("gantrymq_rooms", "Rooms", 4, number=True, size="a\udcffb", house="Größe")
    assert metrics.families["gantrymq_rooms"].series == {
        ("7", "1.5", "None"): 3,
        ("true", "a?b", "Größe"): 4,
    }


@pytest.mark.parametrize("value", [None, "many", [1]])
def test_a_value_that_is_no_number_is_refused_in_the_call_of_its_plugin(value: Any) -> None:
    metrics = Metrics(100)
    with pytest.raises((TypeError, ValueError)):
        metrics.gauge("gantrymq_rooms", "Rooms", value)
    with pytest.raises((TypeError, ValueError)):
        metrics.counter("gantrymq_rooms_total", "Rooms", value)
    for bounds, counts, total in [((1,), (1, 1), value), ((value,), (1, 1), 2), ((1,), (1, value), 2)]:
        with pytest.raises((TypeError, ValueError)):
            metrics.histogram("gantrymq_sizes", "Sizes", bounds, counts, total)
    assert not metrics.families


def test_a_label_needs_a_name_that_prometheus_accepts() -> None:
    metrics = Metrics(100)
    with pytest.raises(ValueError, match="gantrymq_rooms: not the name of a label: 'the-house'"):
        metrics.gauge("gantrymq_rooms", "Rooms", 3, **{"the-house": "a"})
