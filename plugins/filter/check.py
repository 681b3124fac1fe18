"""CHECK_CLIENT_CONFIG (46): a consumer asks at its start whether the broker can read its expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gantrymq.kernel.filters import FilterCompiler, compile_steps
from gantrymq.kernel.network.time_slices import Pace
from gantrymq.kernel.processors import Heavy, Request
from gantrymq.remoting.bodies import CheckClientConfig
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault


def check_client(compilers: Mapping[str, FilterCompiler], pace: Callable[[], Pace]) -> Heavy:
    """The handler: success, or why the subscription's expression will not do (code 1: unknown type, 23: not read).

    It rests by ``pace()`` while it reads a long expression.
    """

    async def check(request: Request) -> Command:
        subscription = CheckClientConfig.from_request(request.command.body).subscription_data
        # RocketMQ does not look at tags here: a pull does.
        if subscription is not None and subscription.expression_type not in ("", "TAG"):
            compiler = compilers.get(subscription.expression_type)
            if compiler is None:
                raise RemoteFault(
                    ResponseCode.SYSTEM_ERROR,
                    f"The broker does not support consumer to filter message by {subscription.expression_type}",
                )
            resting = pace()
            for _ in compile_steps(compiler, subscription.sub_string):
                await resting.rest()
        return request.command.answer(ResponseCode.SUCCESS)

    return Heavy(check)
