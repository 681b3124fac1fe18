"""Cached route bytes: lookup by topic and view, invalidation, limited size."""

from __future__ import annotations

from gantrymq.nameserver.routecache import ENTRY_BYTES, RouteCache, RouteView

STRICT, BARE, NORTH = RouteView(strict=True), RouteView(strict=False), RouteView(zone="north")


def test_each_view_of_a_topic_has_its_own_cached_text() -> None:
    cache = RouteCache(4 * ENTRY_BYTES)
    for view, text in ((STRICT, b"strict"), (BARE, b"bare"), (NORTH, b"north")):
        assert cache.get("T", view) is None
        cache.put("T", view, text)
    assert [cache.get("T", view) for view in (STRICT, BARE, NORTH)] == [b"strict", b"bare", b"north"]
    assert cache.get("U", STRICT) is None
    assert cache.size == 3 * ENTRY_BYTES + 15 + 4 * len("north")


def test_a_dropped_topic_is_evicted_from_all_views() -> None:
    cache = RouteCache(10 * ENTRY_BYTES)
    for topic in "TU":
        cache.put(topic, STRICT, b"12345")
        cache.put(topic, BARE, b"123")
        cache.put(topic, NORTH, b"1")
    of_each = cache.size // 2
    cache.drop("T")
    cache.drop("unknown")
    assert cache.get("T", STRICT) is cache.get("T", BARE) is cache.get("T", NORTH) is None
    assert (cache.get("U", STRICT), cache.size) == (b"12345", of_each)
    cache.clear()
    assert (cache.get("U", STRICT), cache.size) == (None, 0)


def test_a_full_route_cache_is_cleared_and_oversized_entries_are_not_cached() -> None:
    cache = RouteCache(ENTRY_BYTES + 10)
    cache.put("T", STRICT, b"123456")
    cache.put("T", STRICT, b"12345")
    assert cache.size == ENTRY_BYTES + 5
    cache.put("U", STRICT, b"123456")
    assert (cache.get("T", STRICT), cache.get("U", STRICT), cache.size) == (None, b"123456", ENTRY_BYTES + 6)
    cache.put("V", STRICT, b"x" * 11)
    assert (cache.get("V", STRICT), cache.get("U", STRICT)) == (None, b"123456")


def test_entries_count_their_zones() -> None:
    """The cache keeps the zone of a request; a route without brokers has 57 bytes."""
    cache = RouteCache(100_000)
    for number in range(100):
        cache.put("T", RouteView(zone=f"{number:0500}"), bytes(57))
        assert cache.size <= 100_000
    kept = [number for number in range(100) if cache.get("T", RouteView(zone=f"{number:0500}")) is not None]
    assert 0 < len(kept) < 100
    assert cache.size >= len(kept) * (4 * 500 + 57)


def test_lists_are_dropped_with_each_change_and_count_for_the_limit() -> None:
    cache = RouteCache(10 * ENTRY_BYTES)
    for change in (cache.clear, lambda: cache.drop("T")):
        cache.put_list(206, b"1234")
        cache.put_list(206, b"12345")
        assert (cache.get_list(206), cache.get_list(106), cache.size) == (b"12345", None, ENTRY_BYTES + 5)
        change()
        assert (cache.get_list(206), cache.size) == (None, 0)
    cache.put_list(206, bytes(10 * ENTRY_BYTES))
    assert (cache.get_list(206), cache.size) == (None, 0)
