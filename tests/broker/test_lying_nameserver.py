"""A broker serves its clients and registers again later, whatever a nameserver answers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from gantrymq.plugins.interfaces import Registration
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send

Answer = Callable[[Command], bytes]


def wrong_opaque(request: Command) -> bytes:
    answer = request.answer(0)
    answer.opaque += 1
    return encode(answer)


ANSWERS: dict[str, Answer] = {
    "rubbish": lambda request: b"\xff" * 100,
    "length of 2 GiB": lambda request: struct.pack(">iI", 2**31 - 1, 20),
    "part of a frame": lambda request: encode(request.answer(0))[:-3],
    "broken JSON": lambda request: struct.pack(">iI", 9, 5) + b'{"cod',
    "an error": lambda request: encode(request.answer(1, "no" * 10_000)),
    "an unknown code": lambda request: encode(request.answer(2**30)),
    "another opaque": wrong_opaque,
    "its own request": lambda request: encode(request),
    "a hundred answers": lambda request: encode(request.answer(1)) * 100,
    "fields that are none": lambda request: encode(request.answer(0, ext={"masterAddr": "\x00" * 1000})),
    "nothing": lambda request: b"",
}


@pytest.mark.trio
@pytest.mark.parametrize("what", ANSWERS)
async def test_a_nameserver_with_false_responses_affects_its_registration_only(what: str, tmp_path: Path) -> None:
    asked = trio.Event()

    async def lie(stream: trio.SocketStream) -> None:
        buffer = bytearray()
        with suppress(trio.BrokenResourceError):  # the broker has closed the connection before it read everything
            await answer(stream, buffer)

    async def answer(stream: trio.SocketStream, buffer: bytearray) -> None:
        async with stream:
            while data := await stream.receive_some(65536):
                buffer += data
                frames, taken = cut_frames(buffer)
                del buffer[:taken]
                for frame in frames:
                    asked.set()
                    await stream.send_all(ANSWERS[what](decode(frame)))

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, lie, 0)
        liar = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        settings = {"plugin.register.timeout": "100ms"}
        with trio.fail_after(10):
            async with run_broker(make_broker(tmp_path, [liar], settings=settings)) as broker:
                await asked.wait()
                await broker.registry.get(Registration).wait_first(5)
                async with open_channel(broker.address) as channel:
                    assert (await channel.call(send("T", b"x"), 5.0)).code == 0
        nursery.cancel_scope.cancel()
