"""The contract of filter compilers (hook ``register_filters``), as rules that a test can call.

Each of :data:`RULES` is a function of a :class:`Filter`, and raises ``AssertionError`` if the compiler, or what it
compiles, violates the rule.

    CASE = filterkit.Filter(
        compile_prefix,
        examples=(("eu-", {"region": "eu-1"}, True), ("eu-", {"region": "us-1"}, False), ("eu-", {}, False)),
        invalid=("",),
    )

    @pytest.mark.parametrize("rule", filterkit.RULES, ids=lambda rule: rule.__name__)
    def test_my_filter_keeps_the_contract(rule):
        rule(CASE)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import attrs

from gantrymq.kernel.fast import tag_code
from gantrymq.kernel.filters import (
    EXTENSION_ADDRESSES_END,
    FilterCompiler,
    MessageFilter,
    RecordFilter,
    compile_steps,
)
from gantrymq.kernel.guarded_filters import guard_compiler
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.properties import encode_properties
from gantrymq.testing.flushkit import expect

HOSTILE: Final = (
    b"", b"\x01", b"\x02", b"\x01\x02", b"\x02\x02\x02", b"no separator", b"a\x01", b"\x01b", b"a\x01b\x01c",
    b"a\x01\xff\xfe", b"\xff\x01b", b"a\x01" + b"9" * 30_000, b"TAGS\x01" + b"x" * 30_000, b"a\x011\x02" * 5_000,
)  # fmt: skip
"""Malformed and long encoded properties."""
SIZES: Final = (0, 1, 1000, 32_767)
"""Bytes of properties for the rule about the cost."""
SENSIBLE_STEPS: Final = 1_000_000
"""A compiler that yields more often than this for one expression counts as endless."""

Example = tuple[str, Mapping[str, str], bool]
"""An expression, the properties of a message (``TAGS`` is its tag), and whether the message must be delivered."""


@attrs.frozen
class Filter:
    """A compiler under test. ``examples`` should have a message that matches and one that does not;
    ``invalid`` has expressions that must be refused."""

    compile: FilterCompiler
    examples: Sequence[Example]
    invalid: Sequence[str] = ()

    def compiled(self, expression: str) -> MessageFilter:
        """Return the filter of the expression as the broker uses it. ``AssertionError`` if it is none, or later if it
        fails."""

        def explain(error: Exception) -> RemoteFault:
            raise AssertionError(f"the filter of {expression[:60]!r} raises {error!r}") from error

        return _compile(guard_compiler(self.compile, explain), expression)


def _encoded(properties: Mapping[str, str]) -> bytes:
    return encode_properties(dict(properties)).encode()


def _passes(made: MessageFilter, properties: bytes) -> bool:
    """Return whether a pull delivers the message: it tests the entry, then the record."""
    if not (made.matches_all or made.matches(tag_code(properties))):
        return False
    return made.select([properties])[0] if isinstance(made, RecordFilter) else True


def messages_that_match_are_delivered_and_no_others(case: Filter) -> None:
    """The tests of the queue entry and, if the filter has one, of the properties select exactly the matching messages.
    Without a test of the properties, a message that does not match may pass if its tag code is a wanted one, because
    the client tests the tag again."""
    expect({wanted for _, _, wanted in case.examples} == {True, False}, "the examples need a match and a mismatch")
    for expression, properties, wanted in case.examples:
        passes = _passes(case.compiled(expression), _encoded(properties))
        expect(passes == wanted, f"{expression!r} {'drops' if wanted else 'delivers'} {dict(properties)}")


def an_entry_with_an_unknown_tag_passes(case: Filter) -> None:
    """RocketMQ writes an address in place of the tag code when a queue has an extension."""
    for expression, _, _ in case.examples:
        made = case.compiled(expression)
        for code in (EXTENSION_ADDRESSES_END - 1, -(2**63)):
            expect(made.matches_all or made.matches(code), f"{expression!r} drops the address {code}")


def properties_of_any_bytes_are_decided(case: Filter) -> None:
    """``select`` and ``matches`` return a result for whatever clients have sent; an error would stop the pull."""
    for expression, _, _ in case.examples:
        made = case.compiled(expression)
        for properties in HOSTILE:
            try:
                made.matches(tag_code(properties))
                if isinstance(made, RecordFilter):
                    made.select([properties])
            except Exception as error:
                raise AssertionError(f"{error}, for the properties {properties[:40]!r}") from error


def many_messages_are_decided_as_single_ones(case: Filter) -> None:
    """One call for a batch returns an answer for each message, in order; a filter keeps no state between calls."""
    every = [_encoded(properties) for _, properties, _ in case.examples] + [HOSTILE[0]]
    for expression in dict.fromkeys(expression for expression, _, _ in case.examples):
        made, again = case.compiled(expression), case.compiled(expression)
        single = [_passes(made, properties) for properties in every]
        expect([_passes(again, properties) for properties in every] == single, f"{expression!r}: compiled differently")
        expect([_passes(made, properties) for properties in every] == single, f"{expression!r}: results differ")
        if isinstance(made, RecordFilter):
            alone = [made.select([properties])[0] for properties in every]
            expect(made.select(every) == alone, f"{expression!r}: the results for a batch differ")
            expect(made.select([]) == [], f"{expression!r}: there are results for an empty batch")


def the_work_for_a_message_is_known(case: Filter) -> None:
    """``cost`` is above 0 and does not shrink when properties grow: it limits what one pull examines."""
    for expression, _, _ in case.examples:
        made = case.compiled(expression)
        if isinstance(made, RecordFilter):
            costs = [made.cost(size) for size in SIZES]
            expect(costs == sorted(costs), f"the cost of {expression!r} is {costs} for {SIZES} bytes")


def invalid_expressions_are_refused(case: Filter) -> None:
    """They raise ``RemoteFault`` with code 23 and a remark, at any step."""
    for expression in case.invalid:
        try:
            _compile(case.compile, expression)
        except RemoteFault as fault:
            code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
            expect(fault.code == code, f"{expression[:60]!r} is refused with code {fault.code}, not {int(code)}")
            expect(bool(fault.remark), f"{expression[:60]!r} is refused without a remark")
        except Exception as error:
            raise AssertionError(f"{expression[:60]!r} raises {error!r}, not RemoteFault") from None
        else:
            raise AssertionError(f"{expression[:60]!r} is not refused")


def _compile(compiler: FilterCompiler, expression: str) -> MessageFilter:
    steps = compile_steps(compiler, expression)
    for _ in range(SENSIBLE_STEPS):
        try:
            next(steps)
        except StopIteration as done:
            return cast("MessageFilter", done.value)
    raise AssertionError(f"{expression[:60]!r} is not compiled in {SENSIBLE_STEPS} steps")


Rule = Callable[[Filter], None]
"""A rule of the contract; it raises ``AssertionError`` if the compiler violates it."""

RULES: Final[tuple[Rule, ...]] = (
    messages_that_match_are_delivered_and_no_others,
    an_entry_with_an_unknown_tag_passes,
    properties_of_any_bytes_are_decided,
    many_messages_are_decided_as_single_ones,
    the_work_for_a_message_is_known,
    invalid_expressions_are_refused,
)
"""All rules."""
