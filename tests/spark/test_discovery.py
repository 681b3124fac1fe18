"""The module that Spark finds by its name, imported outside Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from gantrymq.spark import SparkMissing

ROOT = Path(__file__).parents[2]
IMPORT = """
import sys
sys.modules["pyarrow"] = None  # importing it fails
from pkgutil import iter_modules
assert "pyspark_gantrymq" in {module.name for module in iter_modules()}
import pyspark_gantrymq
assert pyspark_gantrymq.DefaultSource.name() == "gantrymq"
print(*sorted(name for name in sys.modules if name.partition(".")[0] in ("gantrymq", "trio")))
del sys.modules["pyarrow"]
import gantrymq.spark.source
print(*sorted({"trio", "structlog", "gantrymq.client.client", "gantrymq.spark.exports"}.intersection(sys.modules)))
"""


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> type:
    pytest.importorskip("pyspark")
    monkeypatch.syspath_prepend(str(ROOT))
    from pyspark_gantrymq import DefaultSource

    return DefaultSource


def test_the_module_imports_neither_pyarrow_nor_gantrymq() -> None:
    """The data source imports only modules that a read needs: each Python worker of Spark imports it."""
    pytest.importorskip("pyspark")
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_an_old_spark_gets_a_reason(source: type) -> None:
    with mock.patch("pyspark.__version__", "4.0.1"), pytest.raises(SparkMissing, match=r"pyspark 4\.0\.1 is too old"):
        source({}).schema()


def test_the_source_has_the_columns_and_options_of_the_registered_one(source: type) -> None:
    pytest.importorskip("pyarrow")
    assert source({"includeProperties": "false"}).schema().fieldNames()[-2:] == ["flag", "sysFlag"]
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        source({}).reader(source({}).schema())
