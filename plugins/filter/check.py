"""CHECK_CLIENT_CONFIG (46): a consumer checks at its start whether its expression is valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gantrymq.kernel.filters import FilterCompiler, compile_steps
from gantrymq.kernel.network.time_slices import Pace
from gantrymq.kernel.processors import Heavy, Request
from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.clients import CheckClientConfig
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault

BYTES_MAX = 1_048_576
"""The most bytes of a request: twice the size of the longest expression with its tags and codes."""


class _Subscription(Body):
    """The checked fields of a subscription, without its tags: reading hundreds of thousands would take long."""

    sub_string: str = ""
    expression_type: str = "TAG"


class _Checked(Body):
    """The checked fields of :class:`CheckClientConfig`."""

    any_spelling = CheckClientConfig.any_spelling

    subscription_data: _Subscription | None = None


def check_client(compilers: Mapping[str, FilterCompiler], pace: Callable[[], Pace]) -> Heavy:
    """Return the handler: success, or the error of the subscription's expression (code 1: unknown type, 23: invalid).

    It pauses with ``pace()`` while it reads a long expression.
    """

    async def check(request: Request) -> Command:
        data = request.command.body
        if len(data) > BYTES_MAX:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"a request of {len(data)} bytes, {BYTES_MAX} are the limit")
        subscription = _Checked.from_request(data).subscription_data
        # Like RocketMQ, it does not check tags; a pull does.
        if subscription is not None and subscription.expression_type not in ("", "TAG"):
            compiler = compilers.get(subscription.expression_type)
            if compiler is None:
                raise RemoteFault(
                    ResponseCode.SYSTEM_ERROR,
                    f"The broker does not support consumer to filter message by {subscription.expression_type[:100]}",
                )
            slices = pace()
            for _ in compile_steps(compiler, subscription.sub_string):
                await slices.checkpoint()
        return request.command.answer(ResponseCode.SUCCESS)

    return Heavy(check)
