from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantrymq.spark import SparkMissing, local, session, spark_status
from gantrymq.spark.local import check_interpreter, java_available
from support.foreign import cache_folder
from support.spark_classes import archive_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTEROP = Path(__file__).parents[1] / "interop"


def fake_java(folder: Path, script: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("script", "available", "says"),
    [
        ("echo 'openjdk version \"17.0.15\" 2025-04-15' >&2", True, "Java 17 "),
        ("echo 'java version \"21\" 2023-09-19 LTS' >&2", True, "Java 21 "),
        ("echo 'java version \"1.8.0_392\"' >&2", False, "is Java 8: install a JDK or JRE of version 17"),
        ("echo 'no runtime present' >&2; exit 1", False, "does not print its version"),
    ],
)
def test_the_java_version_is_read_from_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, available: bool, says: str
) -> None:
    java = fake_java(tmp_path, script)
    for name, value in (("JAVA_HOME", str(tmp_path)), ("PATH", str(java.parent))):
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv(name, value)
        status = java_available()
        assert bool(status) is available
        assert says in status.reason


def test_missing_java_is_reported_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no Java was found: install a JDK or JRE" in java_available().reason
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "does not run" in java_available().reason
    monkeypatch.setattr(local, "find_running", lambda: None)
    with pytest.raises(SparkMissing, match=r"install a JDK or JRE|gantrymq\[spark\]"):
        session()


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_a_missing_package_is_reported_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda name: None if name == missing else object())
    assert spark_status().reason == f"{missing} is not installed: pip install 'gantrymq[spark]'"


def test_an_old_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(local.metadata, "version", lambda name: "4.1.9")
    assert "pyspark 4.1.9 is too old" in spark_status().reason


def test_the_pyspark_of_a_cluster_has_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """spark-submit puts its own on the path; pip knows nothing of it."""
    found = metadata.version

    def version(name: str) -> str:
        if name == "pyspark":
            raise metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(local.metadata, "version", version)
    monkeypatch.setattr(local, "find_running", lambda: None)
    assert spark_status().reason == f"pyspark {found('pyspark')}, {java_available().reason}"


def test_a_session_that_runs_needs_no_java_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark.sql")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(local, "find_running", lambda: None)
    assert not spark_status()
    monkeypatch.setattr(local, "find_running", object)
    assert spark_status()


@pytest.mark.parametrize(("cores", "partitions"), [(2, "8"), (64, "64")])
def test_a_local_session_has_few_shuffle_partitions(tmp_path: Path, cores: int, partitions: str) -> None:
    assert local._settings(tmp_path, cores, "1g")["spark.sql.shuffle.partitions"] == partitions


def test_an_interpreter_without_gantrymq_is_refused(tmp_path: Path) -> None:
    check_interpreter(sys.executable)
    link = tmp_path / "python"
    link.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    link.chmod(0o755)
    check_interpreter(str(link))
    link.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    with pytest.raises(SparkMissing, match=rf"'{link}', which has no module gantrymq: .* PYSPARK_PYTHON set to"):
        check_interpreter(str(link))
    with pytest.raises(SparkMissing, match="does not start on this machine"):
        check_interpreter(str(tmp_path / "nowhere"))


def test_importing_the_plugin_imports_no_module_of_the_command_line() -> None:
    code = (
        "import sys, gantrymq.plugins.spark\n"
        "print([name for name in sys.modules if name.startswith(('click', 'rich', 'gantrymq.cli'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_package_and_plugin_imports_neither_pyspark_nor_pyarrow() -> None:
    code = (
        "import sys, gantrymq.spark, gantrymq.plugins.spark, gantrymq.plugins.spark.command\n"
        "print([name for name in ('pyspark', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.spark
def test_the_session_of_tests_uses_the_archive_of_classes(spark: SparkSession) -> None:
    archive = archive_of(cache_folder(INTEROP / ".cache"))
    if archive is None or not archive.exists():
        pytest.skip("`make foreign` makes the archive")
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    assert str(archive) in Path(f"/proc/{java}/maps").read_text()


SESSIONS = """
from gantrymq.spark import session

session(log_level="off", memory="512m", cores=1).stop()
for memory in ("512m", "1g"):
    later = session(log_level="warn", memory=memory, cores=1)
    print(memory, later.sparkContext._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString())
    later.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_later_session_has_its_log_level_and_logs_a_smaller_heap() -> None:
    done = subprocess.run([sys.executable, "-c", SESSIONS], capture_output=True, text=True, check=True)
    before, _, after = done.stdout.partition("512m WARN\n")
    assert "jvm_heap_not_changed" not in before
    assert "jvm_heap_not_changed" in after
    assert "wanted_mb=1024" in after
    assert after.endswith("1g WARN\n")
