"""The contract of transaction strategies (``[plugin.transaction] strategy``), as rules that a test can call.

Each of :data:`RULES` takes a strategy, and raises ``AssertionError`` if the strategy violates the rule. A strategy is
given as the ``StrategyKind`` of a plugin, or as the name of a shipped one. Machine and clock are simulated, so minutes
pass at once.

    @pytest.mark.parametrize("rule", transactionkit.RULES, ids=lambda rule: rule.__name__)
    def test_my_strategy_keeps_the_contract(rule):
        rule(StrategyKind(MyStrategy, count_open))
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import attrs

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.store.log.record import encode
from gantrymq.kernel.store.store import StoreConfig
from gantrymq.plugins.transaction.strategies import STRATEGIES, StrategyKind
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC
from gantrymq.remoting.records import HEADS
from gantrymq.testing.flushkit import expect
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.transacted import COMMIT, OWN, RESTARTS, ROLLBACK, Half, TransactedStore, in_order

OPEN_HALVES: Final = int(os.environ.get("GANTRYMQ_OPEN_HALVES", "1500"))
"""The number of open transactions in the rule about many."""
_ROOMY: Final = StoreConfig(commit_log_file_bytes=16 * 1024 * 1024, queue_file_units=30_000)
_WAIT_S: Final = 90
"""The time until a check-back, in seconds; less than two intervals."""

Strategy = str | StrategyKind
"""The name of a shipped strategy, or a ``gantrymq.plugins.transaction.strategies.StrategyKind``."""

Rule = Callable[[Strategy], None]
"""A rule of the contract; it raises ``AssertionError`` if the strategy violates it."""


def _fresh(strategy: Strategy, **settings: Any) -> TransactedStore:
    """Return an empty store."""
    return TransactedStore(MemoryEnv(), strategy, **settings)


# ---------------------------------------------------------------------------------------------------------------- ends


def a_half_message_is_seen_only_when_it_is_committed(strategy: Strategy) -> None:
    """After the commit, consumers get it once, as it was sent, with the tag for their filters."""
    world = _fresh(strategy)
    half = world.half(b"paid", queue_id=3)
    world.commit()
    expect(world.bodies(queue_id=3) == [], "a half message can be read")
    expect(world.plugin.strategy.open_count == 1, "one transaction is open")
    stored = world.log.read_record(half.offset)
    expect(world.end_now(half, COMMIT) == ResponseCode.SUCCESS, "a commit is answered")
    expect(world.plugin.strategy.open_count == 0, "none is open")
    [message] = world.messages(queue_id=3)
    expect((message.body, message.flag) == (b"paid", 7), f"{message} is not what was sent")
    expect(message.sys_flag & 12 == COMMIT, f"sys flag {message.sys_flag}")
    expect(message.prepared_offset == half.offset, "it does not name its half message")
    kept = (stored.born_timestamp, stored.born_host, stored.reconsume_times)
    expect((message.born_timestamp, message.born_host, message.reconsume_times) == kept, "the sender's fields changed")
    expect(b"TAGS\x01a" in message.properties and b"UNIQ_KEY\x01paid" in message.properties, "properties are missing")


def what_is_rolled_back_is_never_seen(strategy: Strategy) -> None:
    """It is not visible after a scan or a restart either, and there is no check-back for it."""
    world = _fresh(strategy)
    expect(world.end_now(world.half(b"no"), ROLLBACK) == ResponseCode.SUCCESS, "a rollback is answered")
    for restart in RESTARTS:
        producer = world.producers.join()
        world.pass_time(_WAIT_S)
        world.scan()
        expect(producer.take_check_backs() == [], "a producer was asked about a transaction that was rolled back")
        expect(world.bodies() == [], "what was rolled back can be read")
        world = restart(world, strategy)


def the_first_outcome_wins(strategy: Strategy) -> None:
    """Commit twice, commit then rollback, rollback then commit; in one turn, later, and after any restart."""
    for first, second in ((COMMIT, COMMIT), (COMMIT, ROLLBACK), (ROLLBACK, COMMIT), (ROLLBACK, ROLLBACK)):
        wanted = [b"x"] if first == COMMIT else []
        for restart in (None, *RESTARTS):
            for oneway in (False, True):
                world = _fresh(strategy)
                half = world.half(b"x")
                world.commit()
                world.end(half, first, oneway=oneway)
                world.end(half, second, oneway=oneway)
                world.commit()
                if restart is not None:
                    world = restart(world, strategy)
                code = world.end_now(half, second)
                same = first == second
                expect(not same or code == ResponseCode.SUCCESS, f"a repeated {first} is answered {code}")
                expect(world.bodies() == wanted, f"{first}, then {second}: {world.bodies()}")
                expect(world.plugin.strategy.open_count == 0, "it is still open")


def an_unknown_outcome_changes_nothing(strategy: Strategy) -> None:
    """An unknown outcome gets no response, and the transaction stays open."""
    world = _fresh(strategy)
    half = world.half(b"x")
    world.commit()
    for state in (0, 4, 99):
        expect(world.end_now(half, state) is None, f"the state {state} was answered")
    expect(world.plugin.strategy.open_count == 1, "it is not open any more")


def forged_ends_are_refused(strategy: Strategy) -> None:
    """Another group, queue offset or log offset, or the log offset of another message: code 1, and no effect."""
    world = _fresh(strategy)
    batch = AppendBatch()
    batch.add("T", 0, b"ordinary", b"PGROUP\x01orders")
    world.append(batch)
    half, other = world.half(b"x"), world.half(b"y")
    world.commit()
    forged: list[dict[str, object]] = [
        {"group": "others"},
        {"group": ""},
        {"queue_offset": half.queue_offset + 1},
        {"queue_offset": -1},
        {"queue_offset": 2**62},
        {"offset": other.offset},
        {"offset": half.offset + 1},
        {"offset": -1},
        {"offset": 2**62},
        {"offset": batch.offsets[0], "queue_offset": 0},
    ]
    for fields in forged:
        for state in (COMMIT, ROLLBACK):
            code = world.end_now(half, state, **fields)
            expect(code == ResponseCode.SYSTEM_ERROR, f"{fields} was answered {code}")
    expect(world.bodies() == [b"ordinary"], "a forged commit had an effect")
    expect(world.end_now(half, COMMIT) == ResponseCode.SUCCESS, "a valid commit is refused")
    expect(world.bodies() == [b"ordinary", b"x"], "a valid commit has no effect")


def forged_records_in_bodies_end_nothing(strategy: Strategy) -> None:
    """A request with the log offset of a half message that is forged in the body of another message is refused (code
    1).

    Tested with the queue offset of an open transaction, of one that is not dispatched yet, and of the next one.
    """
    for is_dispatched in (True, False):
        for ahead in (0, 1):
            world = TransactedStore(MemoryEnv(), strategy)
            first, victim = world.half(b"first"), world.half(b"victim")
            world.end(first, ROLLBACK)
            if is_dispatched:
                world.commit()
            queue_offset = victim.queue_offset + ahead
            named = Half(b"forged", _forge(world, victim, queue_offset), queue_offset, "thieves")
            if is_dispatched:
                world.commit()
            for state in (COMMIT, ROLLBACK):
                code = world.end_now(named, state)
                expect(code == ResponseCode.SYSTEM_ERROR, f"an end by a forged record was answered {code}")
            expect(b"forged" not in world.bodies(), "forged text was delivered")
            expect(world.plugin.strategy.open_count == 1, f"{world.plugin.strategy.open_count} are open, not the one")
            expect(world.end_now(victim, COMMIT) == ResponseCode.SUCCESS, "its own producer cannot end it")
            expect(world.bodies()[-1:] == [b"victim"], f"{world.bodies()}")


def _forge(world: TransactedStore, victim: Half, queue_offset: int) -> int:
    """Send an ordinary message whose body is a forged half message, a changed copy of the victim's; returns the log
    offset of the forgery."""
    offset = world.log.end + HEADS[0].size
    stored = world.log.read_record(victim.offset)
    properties = stored.properties.replace(b"PGROUP\x01orders", b"PGROUP\x01thieves")
    record = attrs.evolve(stored, body=b"forged", properties=properties, queue_offset=queue_offset, offset=offset)
    batch = AppendBatch()
    batch.add("T", 0, encode(record), b"")
    world.append(batch)
    expect(batch.offsets[0] + HEADS[0].size == offset, "the forged record is at another offset than expected")
    return offset


def properties_of_the_broker_from_a_producer_have_no_effect(strategy: Strategy) -> None:
    """Properties of checked messages, if a producer sends them, do not connect its message with another transaction."""
    world = _fresh(strategy)
    victim = world.half(b"victim")
    more = b"\x02TRAN_PREPARED_QUEUE_OFFSET\x01%d\x02TRANSACTION_CHECK_TIMES\x0199" % victim.queue_offset
    forged = world.half(b"forged", more=more)
    world.commit()
    expect(world.end_now(forged, ROLLBACK) == ResponseCode.SUCCESS, "it can be ended")
    expect(world.end_now(victim, COMMIT) == ResponseCode.SUCCESS, "the other one is open")
    expect(world.bodies() == [b"victim"], f"{world.bodies()}")


def a_commit_that_is_refused_may_be_repeated(strategy: Strategy) -> None:
    """If the message cannot be stored, for any reason, the transaction stays open, also after a restart."""
    for restart in (None, *RESTARTS):
        world = _fresh(strategy)
        half = world.half(b"x")
        world.commit()

        def refuse(batch: AppendBatch) -> None:
            for row, topic in enumerate(batch.topics):
                if topic == "T":
                    batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, "not now")

        world.refuse = refuse
        code = world.end_now(half, COMMIT)
        expect(code == ResponseCode.SERVICE_NOT_AVAILABLE, f"a message that was not stored is answered {code}")
        world.refuse = lambda batch: None
        if restart is not None:
            world = restart(world, strategy)
        expect(world.plugin.strategy.open_count == 1, "it is not open any more")
        expect(world.end_now(half, COMMIT) == ResponseCode.SUCCESS, "it cannot be committed later")
        expect(world.bodies() == [b"x"], f"{world.bodies()}")


# ------------------------------------------------------------------------------------------------------- check-backs


def _asked(world: TransactedStore) -> list[Half]:
    """Return the half messages for which a scan sends check-backs, in order."""
    world.scan()
    groups = world.producers.groups.values()
    return [check_back.half for group in groups for producer in group for check_back in producer.take_check_backs()]


def a_producer_gets_a_check_back_and_its_outcome_counts(strategy: Strategy) -> None:
    """No check-back is sent early, an outcome with its offsets is valid, and producers get only those of their own
    group."""
    world = _fresh(strategy)
    world.producers.join("orders")
    stranger = world.producers.join("others")
    world.half(b"x", queue_id=2)
    world.commit()
    expect(_asked(world) == [], "the check-back was sent at once")
    world.pass_time(_WAIT_S)
    world.scan()
    expect(stranger.take_check_backs() == [], "a producer of another group was asked")
    [check_back] = world.producers.groups["orders"][0].take_check_backs()
    record = check_back.record
    expect((record.topic, record.queue_id, record.body) == ("T", 2, b"x"), f"it was asked about {record}")
    expect(check_back.header.msg_id == check_back.header.transaction_id == "x", f"{check_back.header}")
    expect(world.end_now(check_back.half, COMMIT, checked=True) == ResponseCode.SUCCESS, "its answer is refused")
    expect(world.bodies(queue_id=2) == [b"x"], "its answer has no effect")
    world.pass_time(_WAIT_S)
    expect(_asked(world) == [], "it gets another check-back")


def an_outcome_may_have_the_offsets_of_the_send(strategy: Strategy) -> None:
    """A local branch takes long, and the producer ends it with the offsets from the response to its send (issue
    8158)."""
    for state in (COMMIT, ROLLBACK):
        for restart in (None, *RESTARTS):
            world = _fresh(strategy)
            half = world.half(b"x")
            world.commit()
            for _ in range(3):
                world.producers.join()
                world.pass_time(_WAIT_S)
                expect(len(_asked(world)) == 1, "it was not asked")
            if restart is not None:
                world = restart(world, strategy)
            expect(world.end_now(half, state) == ResponseCode.SUCCESS, "its outcome is refused")
            world.producers.join()
            world.pass_time(_WAIT_S)
            expect(_asked(world) == [], "it gets another check-back")
            expect(world.end_now(half, COMMIT) is not None, "no answer")
            expect(world.bodies() == ([b"x"] if state == COMMIT else []), f"{world.bodies()}")


def ended_transactions_get_no_check_back(strategy: Strategy) -> None:
    """Many transactions end before the scan, and one while it writes (issue 1517)."""
    world = TransactedStore(MemoryEnv(), strategy, config=_ROOMY)
    world.producers.join()
    halves = [world.half(b"%d" % number) for number in range(200)]
    world.commit()
    for half in halves[:-1]:
        world.end(half, COMMIT, oneway=True)
    world.commit()
    world.pass_time(_WAIT_S)
    for _ in world.plugin.strategy.scan():
        pass
    [producer] = world.producers.groups["orders"]
    early = [check_back.half.body for check_back in producer.take_check_backs()]
    expect(early in ([], [halves[-1].body]), f"{early} were asked")
    [producer] = world.producers.groups["orders"]
    before = {check_back.half.body for check_back in producer.take_check_backs()}
    expect(before <= {halves[-1].body}, "a producer was asked about a transaction that had ended")
    world.end(halves[-1], COMMIT, oneway=True)
    world.commit()
    expect(producer.take_check_backs() == [], "a producer was asked about a transaction that had just ended")
    expect(Counter(world.bodies()) == Counter(half.body for half in halves), "messages are missing or doubled")


def a_group_without_producers_waits_for_one(strategy: Strategy) -> None:
    """The producer disconnects before it answers; another one of the group, which connects hours later, gets the
    check-back."""
    world = _fresh(strategy)
    gone = world.producers.join()
    gone.closed = True
    world.half(b"x")
    world.commit()
    for _ in range(60):
        world.pass_time(_WAIT_S)
        world.scan()
    world = in_order(world, strategy)
    expect(world.plugin.strategy.open_count == 1, "it was given up")
    world.producers.join()
    world.pass_time(_WAIT_S)
    [half] = _asked(world)
    world.end_now(half, COMMIT)
    expect(world.bodies() == [b"x"], f"{world.bodies()}")


def what_has_no_outcome_is_moved_to_the_topic_of_discarded_messages(strategy: Strategy) -> None:
    """After ``check_max`` check-backs, or at ``max_age``, also if a producer of the group is connected; not before."""
    world = _fresh(strategy, check_max=2)
    world.producers.join()
    world.half(b"x")
    world.commit()
    for _ in range(2):
        world.pass_time(_WAIT_S)
        expect([half.body for half in _asked(world)] == [b"x"], "there are fewer check-backs than check_max")
    world.pass_time(_WAIT_S)
    expect(_asked(world) == [], "there are more check-backs than check_max")
    _expect_discarded(world)

    for immunity in (b"", b"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x017200"):
        world = _fresh(strategy, max_age=3600.0)
        if immunity:
            world.producers.join()
        world.half(b"x", more=immunity)
        world.commit()
        world.pass_time(3600 - _WAIT_S)
        world.scan()
        expect(world.plugin.strategy.open_count == 1, "it was discarded before max_age")
        world.pass_time(2 * _WAIT_S)
        expect(_asked(world) == [], "there is a check-back at max_age")
        _expect_discarded(world)


def _expect_discarded(world: TransactedStore) -> None:
    expect(world.bodies() == [], "a message without an outcome was delivered")
    expect(world.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [b"x"], f"{TRANS_CHECK_MAX_TIME_TOPIC} does not have it")
    expect(world.plugin.strategy.open_count == 0, "it is still open")


def many_open_transactions_are_all_asked_about(strategy: Strategy) -> None:
    """Each of many open transactions gets one check-back in a scan, in slices, and is committed once (row 65)."""
    world = TransactedStore(MemoryEnv(), strategy, config=_ROOMY, max_open=OPEN_HALVES)
    producer = world.producers.join()
    for first in range(0, OPEN_HALVES, 500):
        world.halves([b"%d" % number for number in range(first, min(first + 500, OPEN_HALVES))])
        world.commit()
    expect(world.halves([b"more"]).statuses == [ResponseCode.SYSTEM_BUSY], "max_open does not limit open transactions")
    world.pass_time(_WAIT_S)
    check_backs: list[Half] = []
    turns = most = 0
    for _ in world.plugin.strategy.scan():
        world.commit()
        now = [check_back.half for check_back in producer.take_check_backs()]
        most, turns = max(most, len(now)), turns + 1
        check_backs += now
    world.commit()
    check_backs += [check_back.half for check_back in producer.take_check_backs()]
    expect(
        len(check_backs) == len({half.body for half in check_backs}) == OPEN_HALVES, f"{len(check_backs)} were asked"
    )
    expect(most <= 256 and turns >= OPEN_HALVES // 256, f"{most} at once, {turns} turns")
    for half in check_backs:
        world.end(half, COMMIT, oneway=True)
    world.commit()
    expect(sorted(world.bodies()) == sorted(half.body for half in check_backs), "messages are missing or doubled")
    expect(world.plugin.strategy.open_count == 0, "some are still open")


def an_error_with_one_does_not_stop_other_check_backs(strategy: Strategy) -> None:
    """A producer's connection raises an error: the producers of other groups are asked, and the failed check-backs are
    retried."""
    world = _fresh(strategy)
    world.producers.join()
    world.producers.join("broken").error = RuntimeError("on purpose")
    for number in range(9):
        world.half(b"%d" % number, group="broken" if number % 3 == 1 else "orders")
    world.commit()
    for _ in range(3):
        world.pass_time(_WAIT_S)
        expect({half.body for half in _asked(world)} == {b"0", b"2", b"3", b"5", b"6", b"8"}, "some were left out")
    for producer in world.producers.groups["broken"]:
        producer.error = None
    world.pass_time(_WAIT_S)
    expect(len(_asked(world)) == 9, "failed check-backs are not retried")


# ------------------------------------------------------------------------------------------------------------ restarts


def a_restart_in_any_state_forgets_nothing(strategy: Strategy) -> None:
    """Open, committed, rolled back, checked, checked and ended; after a clean stop or not, with written state files or
    not."""
    for restart in RESTARTS:
        world = TransactedStore(MemoryEnv(), strategy)
        world.producers.join()
        halves = {name: world.half(name) for name in (b"open", b"asked", b"done", b"undone", b"late")}
        world.commit()
        world.end_now(halves[b"done"], COMMIT)
        world.end_now(halves[b"undone"], ROLLBACK)
        world.pass_time(_WAIT_S)
        check_backs = {half.body: half for half in _asked(world)}
        expect(set(check_backs) == {b"open", b"asked", b"late"}, f"{set(check_backs)} were asked")
        world.end_now(check_backs[b"late"], COMMIT)
        for _ in range(2):
            world = restart(world, strategy)
            expect(world.bodies() == [b"done", b"late"], f"{world.bodies()}")
            expect(world.plugin.strategy.open_count == 2, f"{world.plugin.strategy.open_count} are open")
            expect(world.end_now(halves[b"done"], COMMIT) == ResponseCode.SUCCESS, "a repeated commit is refused")
            world.end_now(halves[b"undone"], COMMIT)
        world.producers.join()
        world.pass_time(_WAIT_S)
        again = {half.body: half for half in _asked(world)}
        expect(set(again) == {b"open", b"asked"}, f"{set(again)} were asked")
        world.end_now(again[b"open"], COMMIT)
        world.end_now(check_backs[b"asked"], COMMIT)
        expect(sorted(world.bodies()) == [b"asked", b"done", b"late", b"open"], f"{world.bodies()}")


def open_transactions_keep_their_files(strategy: Strategy) -> None:
    """The offset below which log files may be deleted is not above an open half message."""
    world = _fresh(strategy)
    expect(world.plugin.strategy.floor() == world.log.end, "an empty store needs something")
    first, second = world.half(b"x"), world.half(b"y")
    expect(world.plugin.strategy.floor() <= first.offset, "a half message that is not yet dispatched")
    world.commit()
    expect(world.plugin.strategy.floor() <= first.offset, "the first is open")
    world.end_now(first, COMMIT)
    expect(world.plugin.strategy.floor() <= second.offset, "the second is open")
    world.end_now(second, ROLLBACK)
    world.persist()
    expect(world.plugin.strategy.floor() == world.log.end, "nothing is open")


def another_strategy_refuses_to_start(strategy: Strategy) -> None:
    """If there are open transactions of this strategy; otherwise the other one starts."""
    name, own = (strategy, None) if isinstance(strategy, str) else (OWN, strategy)
    for other in STRATEGIES:
        if other == name or (own is not None and STRATEGIES[other].count_open is own.count_open):
            continue  # it has the same half messages
        world = _fresh(strategy)
        half = world.half(b"x")
        world.close()
        try:
            TransactedStore(world.env, other, also=own)
        except StartError as refused:
            expect(name in str(refused) and other in str(refused), f"the text does not name both: {refused}")
        else:
            raise AssertionError(f"{other!r} started on open transactions of {name!r}")
        world = TransactedStore(world.env, strategy)
        world.end_now(half, COMMIT)
        world = in_order(world, strategy)
        world.close()
        world = TransactedStore(world.env, other, also=own)
        expect(world.bodies() == [b"x"], f"{world.bodies()}")


RULES: Final[tuple[Rule, ...]] = (
    a_half_message_is_seen_only_when_it_is_committed,
    what_is_rolled_back_is_never_seen,
    the_first_outcome_wins,
    an_unknown_outcome_changes_nothing,
    forged_ends_are_refused,
    forged_records_in_bodies_end_nothing,
    properties_of_the_broker_from_a_producer_have_no_effect,
    a_commit_that_is_refused_may_be_repeated,
    a_producer_gets_a_check_back_and_its_outcome_counts,
    an_outcome_may_have_the_offsets_of_the_send,
    ended_transactions_get_no_check_back,
    a_group_without_producers_waits_for_one,
    what_has_no_outcome_is_moved_to_the_topic_of_discarded_messages,
    many_open_transactions_are_all_asked_about,
    an_error_with_one_does_not_stop_other_check_backs,
    a_restart_in_any_state_forgets_nothing,
    open_transactions_keep_their_files,
    another_strategy_refuses_to_start,
)
"""All rules."""
