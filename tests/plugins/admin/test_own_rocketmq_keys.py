"""A third-party plugin's settings have RocketMQ-style names in files, for administrators, and in changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from gantrymq.cli.loading import ConfigFlags, Loaded, load
from gantrymq.kernel import hookimpl
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.config.fields import duration, number
from gantrymq.kernel.config.rocketmq_keys import RocketmqKey
from gantrymq.kernel.config.sections import Config
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import LiveSettings
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.javaproperties import read_properties
from gantrymq.testing.harness import run_broker

pytestmark = pytest.mark.trio


def read_level(text: str) -> str:
    return {"LOUD": "3"}.get(text) or str(int(text))


@attrs.frozen
class NoiseConfig:
    every: float = duration("5s", minimum="1ms", rocketmq="noiseInterval")
    level: int = number(1, 0, 5, rocketmq=RocketmqKey("noiseLevel", read=read_level))
    fixed: int = number(1, rocketmq="noiseFixed")


class NoisePlugin:
    """Lets two of its settings be changed."""

    name = "noise"

    def __init__(self) -> None:
        self.received: list[NoiseConfig] = []

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        return "noise", NoiseConfig

    @hookimpl
    def configure(self, config: Config) -> None:
        self.config = config.section(NoiseConfig)

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        allow = broker.registry.get(LiveSettings).allow
        allow("plugin.noise", self.config, ("every", "level"), self.received.append)
        return []


def loaded(folder: Path) -> Loaded:
    conf = folder / "broker.conf"
    conf.write_text(
        f"noiseInterval=250\nnoiseFixed=7\nbrokerName=n\nmappedFileSizeCommitLog=1048576\nlistenPort=0\nstorePathRootDir={folder}\n"
    )
    return load(ConfigFlags(config=str(conf), enable=[f"{__name__}:NoisePlugin"], disable=["register"]))


async def test_settings_of_a_third_party_plugin_have_their_declared_rocketmq_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = loaded(tmp_path)
    assert "no counterpart" not in capsys.readouterr().err
    plugin = next(info.plugin for info in first.manager.plugins if info.name == "noise")
    broker = Broker(first.config, first.manager, SystemEnv())
    async with run_broker(broker), open_channel(broker.address) as channel:

        async def shown() -> dict[str, str]:
            return read_properties((await channel.call(Command(RequestCode.GET_BROKER_CONFIG))).body)

        async def change(body: bytes) -> Command:
            return await channel.call(Command(RequestCode.UPDATE_BROKER_CONFIG, body=body))

        found = await shown()
        assert (found["noiseInterval"], found["noiseLevel"], found["noiseFixed"]) == ("250", "1", "7")
        assert found["plugin.noise.level"] == "1"
        assert (await change(b"noiseInterval=90\nnoiseLevel=LOUD")).code == 0
        assert plugin.received[-1] == NoiseConfig(0.09, 3, 7)
        found = await shown()
        assert (found["noiseInterval"], found["noiseLevel"]) == ("90", "3")
        for body, said in [
            (b"noiseFixed=8", "'noiseFixed' cannot be changed while the broker runs; these can: "),
            (b"noiseLevel=QUIET", "noiseLevel = 'QUIET': invalid literal"),
            (b"noiseLevel=9", "noiseLevel = '9': out of range; allowed: 0 to 5"),
            (b"noiseInterval=soon", "noiseInterval = 'soon': allowed: a number with a unit"),
        ]:
            answer = await change(body)
            assert (answer.code, answer.remark.startswith(said)) == (1, True), answer.remark
        assert "noiseInterval, noiseLevel" in (await change(b"noiseFixed=8")).remark
    config = loaded(tmp_path).config
    rows = {row.key: (row.value, row.origin) for row in config.explain() if row.section == "plugin.noise"}
    assert rows == {"every": ("90ms", "override"), "level": (3, "override"), "fixed": (7, "file")}
