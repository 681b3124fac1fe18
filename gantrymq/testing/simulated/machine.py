"""A machine of the simulated cluster: a disk and one process, which a test can end in any way."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from gantrymq.kernel.broker import Broker
from gantrymq.nameserver.server import NameServer, NameServerConfig
from gantrymq.testing.harness import make_broker
from gantrymq.testing.simulated.env import SimulatedEnv
from gantrymq.testing.simulated.network import Network, Process, on

_STORE = "store"
_NAMESERVER_PORT = 9876
_BROKER_PORT = 10911

_Body = Callable[[trio.TaskStatus[None]], Awaitable[None]]


class Machine:
    """Runs a broker or a nameserver at ``host``, with the complete code of the product."""

    def __init__(self, network: Network, nursery: trio.Nursery, host: str) -> None:
        self.host = host
        self.network = network
        self.env = SimulatedEnv(network, host, random.Random(f"{network.seed} {host}").randrange(1 << 30))  # noqa: S311
        self.broker: Broker | None = None
        """The broker that runs here, or None."""
        self._nursery = nursery
        self._process: Process | None = None
        self._scope = trio.CancelScope()
        self._gone = trio.Event()
        self._gone.set()

    @property
    def address(self) -> str:
        """The broker's address for clients."""
        return f"{self.host}:{_BROKER_PORT}"

    @property
    def running_broker(self) -> Broker:
        """The broker; RuntimeError if none runs."""
        if self.broker is None:
            raise RuntimeError(f"no broker runs at {self.host}")
        return self.broker

    # ------------------------------------------------------------------------------------------------- beginning

    async def start_nameserver(self, peers: Sequence[str] = ()) -> str:
        """Start a nameserver; returns its address when it listens. Only ``peers`` may change its routes; without any,
        all may."""

        async def body(status: trio.TaskStatus[None]) -> None:
            async with trio.open_nursery() as nursery:
                config = NameServerConfig(host=self.host, port=_NAMESERVER_PORT, peers=tuple(peers), insecure=True)
                await nursery.start(NameServer(config).serve)
                status.started()

        await self._start(body)
        return f"{self.host}:{_NAMESERVER_PORT}"

    async def start_broker(
        self, nameservers: Sequence[str], settings: Mapping[str, str], enable: Sequence[str] = ()
    ) -> Broker:
        """Start a broker; returns it when it listens. It is started again whenever it requests a restart.

        Settings that were changed at run time are kept in the store. An id that was changed so takes precedence over
        ``broker.id`` in ``settings``, as over a configuration file; all other settings in ``settings`` take precedence.
        """
        given = {
            "broker.listen": self.address,
            "broker.insecure": "true",
            "broker.watchdog": "0s",  # it is a thread with a clock outside the simulation
            "store.commit_log_file_bytes": "256 KiB",
            "store.queue_file_units": "1000",
            "plugin.index.slots": "1000",
            "plugin.index.entries": "4000",
            **settings,
        }

        file = f"[broker]\nid = {given.pop('broker.id', 0)}\n".encode()

        async def body(status: trio.TaskStatus[None]) -> None:
            again = False
            while True:
                self.broker = broker = make_broker(
                    _STORE, nameservers, settings=given, enable=enable, env=self.env, file=file
                )
                async with trio.open_nursery() as nursery:
                    await nursery.start(_run, broker)
                    if not again:
                        status.started()
                again = broker.restarting
                if not again:
                    return

        await self._start(body)
        return self.running_broker

    async def _start(self, body: _Body) -> None:
        await self._gone.wait()
        self._gone, self._scope = trio.Event(), trio.CancelScope()
        self._process = process = Process(self.host)
        self.network.switch_on(self.host)
        with on(process):
            await self._nursery.start(self._live, body, process, self.env, self._gone)

    async def _live(
        self,
        body: _Body,
        process: Process,
        env: SimulatedEnv,
        gone: trio.Event,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    env.spawn = nursery.start_soon
                    await body(task_status)
        except BaseExceptionGroup as group:
            # Errors of a process whose machine was removed are ignored.
            _, rest = group.split(Exception)
            if process.alive:
                raise
            if rest is not None:
                raise rest from None
        finally:
            self.broker = None
            gone.set()

    # ---------------------------------------------------------------------------------------------------- ending

    async def stop(self) -> None:
        """Stop it as by SIGTERM; returns when it has ended cleanly."""
        if self.broker is not None:
            self.broker.stop()
        else:
            self._scope.cancel()
        await self._gone.wait()

    def pause(self) -> None:
        """Pause it as by SIGSTOP: its tasks do not run, its connections stay open, and arriving data waits."""
        if self._process is not None:
            self._process.stop()

    def resume(self) -> None:
        """Resume it as by SIGCONT, after :meth:`pause`."""
        if self._process is not None:
            self._process.resume()

    def kill(self) -> None:
        """End it as by kill -9: written data remains, synced or not; the system closes its connections."""
        self._end(self.env.kill())
        self.network.kill(self.host)

    def power_cut(self, seed: int | None = None) -> None:
        """The machine loses power: no peer gets a signal, and unsynced data is lost, except for what ``seed`` picks.

        Without another start the machine is lost.
        """
        self._end(self.env.power_cut(seed))
        self.network.switch_off(self.host)

    def vanish(self) -> None:
        """Switch it off permanently, without a copy of its disk."""
        self.env.switch_off()
        self._end(self.env)
        self.network.switch_off(self.host)

    def _end(self, successor: SimulatedEnv) -> None:
        if self._process is not None:
            self._process.alive = False
            if self._process.stopped:
                self._process.resume()  # to be removed
        self.env = successor
        self._scope.cancel()


async def _run(broker: Broker, *, task_status: trio.TaskStatus[Broker]) -> None:
    await broker.run(task_status=task_status)
