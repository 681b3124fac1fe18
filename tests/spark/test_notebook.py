"""The notebook in JupyterLab, with GantryMQ from a wheel, as the tutorial tells its reader to run it."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import urllib.request
from pathlib import Path

import pytest

from gantrymq.spark import spark_status
from gantrymq.testing.harness import cluster_in_thread
from support.packed_environment import install
from support.processes import Child, free_ports, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(1200)]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "access_log.ipynb"
RUN_NOTEBOOK = Path(__file__).parents[1] / "support" / "run_notebook.py"  # its imports are in the other environment
TOKEN = "secret"


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/api", timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.soak(0)
def test_jupyterlab_runs_the_notebook(tmp_path: Path, gantrymq_wheel: Path) -> None:
    """JupyterLab comes from the package index; pyspark and pyarrow are those of this environment."""
    status = spark_status()
    if not status:
        pytest.skip(f"Spark cannot run here: {status.reason}")
    environment = install(gantrymq_wheel, tmp_path, "jupyterlab")
    [site] = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(environment / "bin" / "python")
    (port,) = free_ports()
    url = f"http://127.0.0.1:{port}"
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    variables = {"HOME": str(tmp_path), "JUPYTER_TOKEN": TOKEN, "PYTHONPATH": "", "TZ": "UTC"}
    options = ["--allow-root", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"]
    with (
        cluster_in_thread(tmp_path / "store") as cluster,
        Child([python, "-m", "jupyterlab", *options], tmp_path / "lab.log", env=variables, cwd=notebooks),
    ):
        text = NOTEBOOK.read_text()
        assert "127.0.0.1:9876" in text
        (notebooks / "access_log.ipynb").write_text(text.replace("127.0.0.1:9876", cluster.nameserver))
        wait_for(lambda: answers(url), 120)
        done = subprocess.run(
            [python, str(RUN_NOTEBOOK), url, TOKEN, "access_log.ipynb"],
            env=os.environ | variables, capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    cells = ["".join(outputs) for outputs in json.loads(done.stdout)]
    assert cells[3] == "1500 messages\n500 messages\n"
    assert cells[4] == cells[5], "the table of the export is that of the stream"
    for row in ("|2026-11-22 08:06:00|      90|    11|", "|2026-11-22 08:07:00|     100|    15|"):
        assert row in cells[4]
