"""Fixtures for pytest, available when GantryMQ is installed: a real broker in the process of the tests.

``gantry_broker`` runs from the first test that uses it to the end of the run, ``gantry_topic`` is a new topic on it for
each test, ``gantry_group`` the name of a new consumer group, ``gantry_client`` a connected blocking client. With
``--gantry-nameserver HOST:PORT`` the same tests run on an existing cluster, also one of RocketMQ; the ini options
``gantry_settings`` and ``gantry_enable`` configure the broker. How-to: ``docs/howto/test-your-code.md``.
``plugin_broker`` starts a broker with a plugin that is under test: ``docs/tutorial/write-a-plugin.md``.

pytest loads this module in each run if GantryMQ is installed, so it imports little.
"""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest

if TYPE_CHECKING:
    from gantrymq.sync import Client
    from gantrymq.testing.harness import ClusterInThread
    from gantrymq.testing.plugin_broker import PluginBroker

QUEUES: Final = 4
"""The number of queues of a test's topic."""
_NAME_CHARS: Final = 60
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]+")


@attrs.frozen
class GantryBroker:
    """The addresses for clients of any language: ``host:port`` of the nameserver and of the broker.

    :meth:`stopped` and :meth:`restart` keep both addresses. They block: with asyncio, call them with
    ``asyncio.to_thread``. With ``--gantry-nameserver`` they skip the test.
    """

    nameserver: str
    address: str
    _cluster: ClusterInThread | None = attrs.field(default=None, eq=False, repr=False)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the broker for the block; it starts again, on the same store, at the end of the block."""
        cluster = self._own_cluster()
        cluster.stop_broker()
        try:
            yield
        finally:
            cluster.start_broker()

    def restart(self, *, killed: bool = False) -> None:
        """Stop the broker and start it again on the same store; returns when clients find it. ``killed``: as after
        ``kill -9``, clients get no response to what the store lacks."""
        self._own_cluster().restart_broker(killed=killed)

    def _own_cluster(self) -> ClusterInThread:
        if self._cluster is None:
            pytest.skip("a test cannot stop a broker of --gantry-nameserver")
        return self._cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option, and two keys of the ini file."""
    parser.getgroup("gantrymq").addoption(
        "--gantry-nameserver",
        metavar="HOST:PORT",
        help="run on the cluster of this nameserver (GantryMQ's or RocketMQ's) instead of starting a broker",
    )
    parser.addini(
        "gantry_settings", "settings of the tests' broker: section.key=value, one a line", type="linelist", default=[]
    )
    parser.addini("gantry_enable", "plugins that the tests' broker has besides the usual ones", type="args", default=[])


@pytest.fixture(scope="session")
def gantry_broker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GantryBroker]:
    """A nameserver and a registered broker in a thread of this process; one pair for all tests of a worker.

    Its store is a temporary folder. With ``--gantry-nameserver`` it is the first master of that cluster.
    """
    given = pytestconfig.getoption("--gantry-nameserver")
    if given is not None:
        yield GantryBroker(given, _first_master(given))
        return
    _check_platform("run a broker in a container and pass --gantry-nameserver HOST:PORT")
    from gantrymq.testing.harness import cluster_in_thread

    settings = dict(_setting(line) for line in pytestconfig.getini("gantry_settings"))
    enable = pytestconfig.getini("gantry_enable")
    with ExitStack() as stack:
        with _configuration_errors():
            running = cluster_in_thread(tmp_path_factory.mktemp("gantrymq"), settings=settings, enable=enable)
            cluster = stack.enter_context(running)
        yield GantryBroker(cluster.nameserver, cluster.address, cluster)


@pytest.fixture
def gantry_client(gantry_broker: GantryBroker) -> Iterator[Client]:
    """A client of :mod:`gantrymq.sync` for this test, connected."""
    from gantrymq.sync import connect

    with connect(gantry_broker.nameserver) as client:
        yield client


@pytest.fixture
def gantry_topic(gantry_broker: GantryBroker, request: pytest.FixtureRequest) -> str:
    """The name of a new topic with four queues; it contains the name of the test."""
    from gantrymq.sync import connect

    topic = _new_name(request)
    with connect(gantry_broker.nameserver) as client:
        client.admin.create_topic(topic, queues=QUEUES)
    return topic


@pytest.fixture
def gantry_group(request: pytest.FixtureRequest) -> str:
    """The name of a new consumer group: a group's retries come to each of its members, whatever their topic."""
    return _new_name(request)


class StartPluginBroker:
    """Starts brokers with plugins under test, and stops them at the end of the test."""

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self._folder = folder
        self._running = running
        self._count = 0

    def __call__(
        self, *plugins: Any, settings: Mapping[str, str] | None = None, disable: Sequence[str] = ()
    ) -> PluginBroker:
        """Return a broker with an empty store and with ``plugins`` besides the default ones. Its ``client`` is
        connected.

        A plugin is a class, an object, or a name as for ``--enable``. ``settings``: ``section.key: value``.
        ``disable``: names of default plugins. ``StartError`` if the broker refuses to start, ``ConfigError`` if it
        refuses a setting.
        """
        from gantrymq.testing.plugin_broker import PluginBroker

        if not plugins:
            raise TypeError("plugin_broker() needs the plugin under test: a class, an object, or a name")
        self._count += 1
        folder = self._folder / f"plugin-broker-{self._count}"
        broker = PluginBroker(folder, plugins, settings=settings, disable=disable)
        self._running.callback(broker.stop)
        return broker


@pytest.fixture
def plugin_broker(tmp_path: Path) -> Iterator[StartPluginBroker]:
    """``plugin_broker(MyPlugin, settings={...})`` starts a broker with the plugin and connects a client."""
    _check_platform("run these tests in a container")
    with ExitStack() as running:
        yield StartPluginBroker(tmp_path, running)


def _check_platform(advice: str) -> None:
    if sys.platform != "linux":
        pytest.fail(f"the broker needs Linux: {advice}", pytrace=False)


def _new_name(request: pytest.FixtureRequest) -> str:
    name = _NOT_IN_NAMES.sub("-", request.node.name)[:_NAME_CHARS].strip("-")
    return f"{name}-{uuid.uuid4().hex[:8]}"


def _setting(line: str) -> tuple[str, str]:
    key, separator, value = (part.strip() for part in line.partition("="))
    if not separator:
        raise pytest.UsageError(f"gantry_settings: {line!r} is not of the form section.key=value")
    return key, value


@contextmanager
def _configuration_errors() -> Iterator[None]:
    """Report an error of the broker's configuration without the traceback."""
    from gantrymq.kernel.errors import StartError
    from gantrymq.remoting.errors import leaves

    try:
        yield
    except BaseException as error:
        found = list(leaves(error))
        if not all(isinstance(leaf, StartError) for leaf in found):
            raise
        reasons = "; ".join(str(leaf) for leaf in found)
        raise pytest.fail.Exception(f"the tests' broker does not start: {reasons}", pytrace=False) from None


def _first_master(nameserver: str) -> str:
    from gantrymq.remoting.errors import GantryError
    from gantrymq.sync import connect

    try:
        with connect(nameserver) as client:
            brokers = client.admin.cluster().broker_addr_table
    except GantryError as error:
        reason = str(error)
    else:
        masters = [data.broker_addrs[0] for _, data in sorted(brokers.items()) if 0 in data.broker_addrs]
        if masters:
            return masters[0]
        reason = "it reports no master"
    pytest.fail(f"--gantry-nameserver {nameserver}: {reason}", pytrace=False)
