"""Which twin runs, and the switch to the plain one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gantrymq.kernel import fast

pytestmark = pytest.mark.once  # each asks for its twin itself


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python process with these variables."""
    inherited = {name: value for name, value in os.environ.items() if name != "GANTRYMQ_PURE"}
    return subprocess.run(
        [sys.executable, "-c", code], env={**inherited, **environment}, capture_output=True, text=True, check=False
    )


def kind(**environment: str) -> str:
    """The output of a process with these variables."""
    return run("from gantrymq.kernel.fast import KIND; print(KIND)", **environment).stdout.strip()


def test_the_plain_twin_runs_on_request() -> None:
    assert kind(GANTRYMQ_PURE="1") == "plain"


def test_the_compiled_twin_runs_where_it_was_built() -> None:
    built = all(
        importlib.util.find_spec(f"gantrymq.kernel.fast.{name}")
        for name in ("_flusher", "_memory", "_records", "_requests")
    )
    assert kind() == ("compiled" if built else "plain")


MISSING_FUNCTIONS = "sys.modules['gantrymq.kernel.fast._{0}'] = types.ModuleType('{0}')"
FAILING_IMPORT = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "gantrymq.kernel.fast._records":
            raise {}
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "begin",
    [
        "; ".join(MISSING_FUNCTIONS.format(name) for name in ("records", "requests")),
        FAILING_IMPORT.format("AttributeError('no _topic_parts')"),
        FAILING_IMPORT.format("ImportError('cannot import name Gone', name='gantrymq.kernel.batch')"),
    ],
)
def test_outdated_compiled_code_is_reported_with_what_to_do(begin: str) -> None:
    done = run(f"import sys, types\n{begin}\nimport gantrymq.kernel.fast")
    assert done.returncode == 1
    assert "make install" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["_memory", "_records", "_requests"])
def test_the_plain_twin_runs_if_compiled_code_cannot_be_loaded(name: str) -> None:
    begin = FAILING_IMPORT.replace("_records", name).format(
        f"ImportError('no such libc', name='gantrymq.kernel.fast.{name}')"
    )
    done = run(f"import sys\n{begin}\nfrom gantrymq.kernel.fast import KIND; print(KIND)")
    assert (done.stdout.strip(), done.stderr) == ("plain", "")


PLUGINS = pytest.mark.parametrize("plugin", ["acl", "consume", "produce", "transaction"])
"""Those whose compiled loops work on the kernel's requests and rows."""


def failing_plugin(plugin: str, error: str) -> str:
    """The begin of a program in which a plugin's compiled loops cannot be imported."""
    return FAILING_IMPORT.replace("kernel.fast._records", f"plugins.{plugin}._fast").format(error)


@PLUGINS
@pytest.mark.parametrize("error", ["ValueError('HotRequest size changed')", "ImportError('no function find_value')"])
def test_outdated_compiled_code_of_a_plugin_is_reported_with_what_to_do(plugin: str, error: str) -> None:
    pytest.importorskip("gantrymq.kernel.fast._requests", reason="the extension is not built")
    done = run(f"import sys\n{failing_plugin(plugin, error)}\nimport gantrymq.plugins.{plugin}")
    assert done.returncode == 1
    assert "make install" in done.stderr.splitlines()[-1]


@PLUGINS
def test_a_plugin_without_compiled_code_runs_its_plain_twin(plugin: str) -> None:
    begin = failing_plugin(plugin, f"ModuleNotFoundError('no', name='gantrymq.plugins.{plugin}._fast')")
    done = run(f"import sys\n{begin}\nfrom gantrymq.plugins.{plugin}.fast import KIND; print(KIND)")
    assert (done.stdout.strip(), done.stderr) == ("plain", "")


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="elsewhere there may be no compiler")
def test_ci_tests_both_twins() -> None:
    plugins = ("acl._fast", "consume._fast", "index._build", "produce._fast", "tls._fast", "transaction._fast")
    for name in ("kernel.fast._requests", *(f"plugins.{module}" for module in plugins)):
        assert importlib.util.find_spec(f"gantrymq.{name}") is not None


def test_sanitizer_runs_load_the_instrumented_build() -> None:
    """``make asan`` would prove nothing about extensions that were built without."""
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("only `make asan` runs under sanitizers")
    assert fast.KIND == "compiled"
    from gantrymq.kernel.fast import _requests

    assert b"__asan_report" in Path(_requests.__file__).read_bytes()
