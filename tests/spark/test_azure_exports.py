"""Exports in Azure's blob storage, as Microsoft's emulator has it. ``make soak``: npm installs the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.spark import ExportFenced, ExportResult, compact_export, export, export_status
from gantrymq.spark.exports.object_store import open_store
from support.exporting import published_rows
from support.foreign import ToolMissing, cache_folder
from support.object_storage import azure_settings, run_azure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import FakeCluster

pytest.importorskip("pyarrow", reason="exports are Parquet files: pip install 'gantrymq[spark]'")
pytest.importorskip("obstore", reason="pip install 'gantrymq[objectstore]'")
pytestmark = [pytest.mark.slow, pytest.mark.soak(0), pytest.mark.timeout(300)]


def go(cluster: FakeCluster, to: str, **options: Any) -> ExportResult:
    return export("orders", to, cluster.address, engine="local", **options)


CACHE = cache_folder(Path(__file__).parents[1] / "interop" / ".cache")


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with run_azure(CACHE, tmp_path_factory.mktemp("azure")) as address:
            yield address
    except ToolMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(autouse=True)
def _settings(azure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in azure_settings(azure).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "to",
    ["az://bucket/my exports", "abfs://bucket/date=1", "abfss://bucket@devstoreaccount1.dfs.core.windows.net/a[1]"],
)
def test_an_export_to_azure_has_each_message_once(orders: FakeCluster, to: str) -> None:
    assert go(orders, to, file_rows=5).rows == 20
    assert go(orders, to).rows == 0
    orders.fill(10)
    assert go(orders, to, file_rows=3).rows == 10
    assert published_rows(open_store(to), to) == orders.everything()
    compact_export(to)
    assert published_rows(open_store(to), to) == orders.everything()
    assert go(orders, to, overwrite=True).rows == 30
    assert published_rows(open_store(to), to) == orders.everything()
    assert export_status(to).number == 4


def test_azure_creates_an_object_of_one_name_once(orders: FakeCluster) -> None:
    """Conditional writes: the second of two runs fails instead of replacing what the first has published."""
    objects = open_store("az://bucket/conditions")
    objects.create("one", b"first")
    with pytest.raises(FileExistsError):
        objects.create("one", b"second")
    assert objects.read("one") == b"first"


def test_a_run_to_azure_that_was_overtaken_is_fenced(orders: FakeCluster) -> None:
    to = "az://bucket/fenced"

    def overtake(request: Command) -> None:
        if request.code != RequestCode.PULL_MESSAGE:
            return
        orders.script = lambda request: None
        go(orders, to, discard_plan=True)

    orders.script = overtake
    with pytest.raises(ExportFenced):
        go(orders, to)
    assert published_rows(open_store(to), to) == orders.everything()
