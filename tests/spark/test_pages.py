"""The pages of the documentation that use Spark: all their blocks are run, in order, beside a real `gantrymq serve`.

:mod:`support.pages` describes the marks of the blocks. All pages share the Spark session of the tests: a session of its
own for each page would take longer than the page does.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gantrymq.cli.__main__ import run as cli
from support.pages import (
    PAGES,
    ROOT,
    Block,
    PageServer,
    blocks,
    check_output,
    name,
    run_page,
    run_page_server,
    uses_spark,
)
from support.schema_registry import StubRegistry
from support.spark_session import start_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

CANNOT_RUN = re.compile(r"not run: (installs from an index|needs a (YARN|Kubernetes) cluster)")

NOTEBOOK = ROOT / "examples" / "notebooks" / "access_log.ipynb"
ERRORS = """\
+-------------------+--------+------+
|             minute|requests|errors|
+-------------------+--------+------+
|2026-11-22 08:06:00|      90|    11|
|2026-11-22 08:07:00|     100|    15|
+-------------------+--------+------+
"""


class SparkBlocks:
    """Runs blocks in a session, and returns what they print."""

    def __init__(self, spark: SparkSession, server: PageServer) -> None:
        self._spark = spark
        self._server = server
        self._names: dict[str, Any] = {}

    def __call__(self, block: Block) -> str:
        run: dict[str, Callable[[str], None]] = {
            "python": self._run_python, "sql": self._run_sql, "sh": self._run_commands,
        }  # fmt: skip
        from pyspark.sql.streaming import DataStreamWriter

        start = DataStreamWriter.start

        def start_repeatedly(writer: DataStreamWriter, *arguments: Any, **options: Any) -> StreamingQuery:
            return start_query(lambda: start(writer, *arguments, **options))

        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as output:
            for variable in ("PATH", "GANTRYMQ_NAMESERVER", "GANTRYMQ_CONFIG_HOME"):
                patch.setenv(variable, self._server.environ[variable])
            patch.setattr(type(self._spark), "stop", lambda spark: None)
            patch.setattr(DataStreamWriter, "start", start_repeatedly)
            run[block.language](block.text)
        return output.getvalue()

    def _run_python(self, text: str) -> None:
        exec(compile(text, "<page>", "exec", dont_inherit=True), self._names)

    def _run_sql(self, text: str) -> None:
        for statement in filter(str.strip, text.split(";")):
            frame = self._spark.sql(statement)
            if frame.columns:
                frame.show()

    def _run_commands(self, text: str) -> None:
        for line in text.replace("\\\n", " ").splitlines():
            program, *arguments = shlex.split(line)
            assert program == "gantrymq", f"not a command that runs in this process: {line}"
            assert cli(arguments) == 0, line


@contextmanager
def working_folder(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Relative paths are those of ``folder``, also in Spark's file systems, which remember the one at their start."""
    jvm: Any = spark.sparkContext._jvm
    local = jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark.sparkContext._jsc.hadoopConfiguration())

    def enter(path: str) -> None:
        os.chdir(path)
        jvm.java.lang.System.setProperty("user.dir", path)
        local.setWorkingDirectory(jvm.org.apache.hadoop.fs.Path(path))

    before = os.getcwd()
    enter(str(folder))
    try:
        yield
    finally:
        enter(before)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    """A page server without running processes."""
    with run_page_server(tmp_path) as running:
        yield running


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in PAGES if uses_spark(page)], ids=name)
def test_the_blocks_of_a_page_run_in_spark(
    page: Path, tmp_path: Path, server: PageServer, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    if "s3://" in page.read_text():
        request.getfixturevalue("s3_settings")  # the server's environment, too
    if "127.0.0.1:8081" in page.read_text():
        pytest.importorskip("fastavro", reason="pip install 'gantrymq[spark-schemas]'")
        registry = StubRegistry()
        request.addfinalizer(registry.close)
        server.registry = registry.url.removeprefix("http://")
    views = {table.name for table in spark.catalog.listTables()}
    with working_folder(spark, tmp_path):
        try:
            run_page(page, tmp_path, server, SparkBlocks(spark, server))
        finally:
            for query in spark.streams.active:
                query.stop()
            for table in spark.catalog.listTables():
                if table.name not in views:
                    spark.catalog.dropTempView(table.name)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_cells_of_the_notebook_run_in_spark(
    tmp_path: Path, server: PageServer, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last cell compares the stream's result with that of the export. They run in the session of the tests, because
    a kernel would start a JVM of its own; ``test_notebook.py`` runs it in JupyterLab."""
    nbformat = pytest.importorskip("nbformat", reason="pip install nbformat")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the export stays for the reader
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not [cell for cell in cells if cell.outputs or cell.execution_count], "outputs are cleared before a commit"
    server.start("gantrymq serve")
    run = SparkBlocks(spark, server)
    with working_folder(spark, tmp_path):
        printed = [run(Block("spark", "python", server.on_this_server(cell.source))) for cell in cells]
    spark.catalog.dropTempView("rates")
    for output in printed[-3:-1]:
        check_output(ERRORS, output)


@pytest.mark.parametrize("page", [page for page in PAGES if uses_spark(page)], ids=name)
def test_a_page_of_spark_has_no_block_that_could_run_but_does_not(page: Path) -> None:
    for block in blocks(page):
        assert block.mark or block.language != "sql"
        assert not block.mark.startswith("not run") or CANNOT_RUN.fullmatch(block.mark), f"{name(page)}: {block}"
