"""A warm start behaves as a new interpreter does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import warm
from support.processes import Child, gantrymq_child, wait_for
from support.warm import WarmProcess, write_command

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds")


@pytest.mark.parametrize("warm", [True, False])
def test_a_process_has_the_callers_environment_folder_and_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: bool
) -> None:
    monkeypatch.setenv("GANTRYMQ_BROKER__NAME", "of-the-environment")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text('[broker]\ncluster = "of-the-file"\n')
    with gantrymq_child(["print-config", "--config", "own.toml"], tmp_path / "log", warm=warm) as child:
        said = "\n".join(child.lines())
        assert child.wait() == 0
    assert isinstance(child.process, WarmProcess) is warm
    assert "of-the-environment" in said
    assert "of-the-file" in said
    with gantrymq_child(["print-config", "--set", "nonsense"], tmp_path / "log", warm=warm) as child:
        assert child.wait() == 2
    assert "nonsense" in (tmp_path / "log").read_text()


def test_signals_reach_the_process_and_its_end_is_reported(tmp_path: Path) -> None:
    serve = ["serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"]
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGKILL, -9)):
        with gantrymq_child(serve, tmp_path / "log") as child:
            child.wait_line(lambda line: line.startswith("ready"))
            with pytest.raises(subprocess.TimeoutExpired):
                child.process.wait(0)
            os.kill(child.pid, number)
            assert child.wait() == code
            assert child.process.poll() == code
            child.process.send_signal(signal.SIGTERM)  # as with subprocess.Popen, nothing happens


def test_a_process_inherits_no_stream_of_another(tmp_path: Path) -> None:
    serve = ["serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"]
    with gantrymq_child(["--version"], tmp_path / "log") as first, gantrymq_child(serve, tmp_path / "log"):
        assert first.wait() == 0
        assert len(list(first.lines(20))) == 1, "stdout ends although another process runs"


def test_a_process_finds_the_modules_of_its_path_although_it_is_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that forks would look for them where it had looked at its own start."""
    monkeypatch.setattr(warm, "_parents", [])
    (tmp_path / "own_plugin.py").write_text("class Own:\n    name = 'own'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with gantrymq_child(["print-config", "--enable", "own_plugin:Own"], tmp_path / "log") as child:
        assert child.wait() == 0, child.log.read_text()
    assert isinstance(child.process, subprocess.Popen)


def test_a_variable_that_counts_at_import_starts_an_interpreter(tmp_path: Path) -> None:
    with gantrymq_child(["--version"], tmp_path / "log") as fork:
        assert isinstance(fork.process, WarmProcess)
    with gantrymq_child(["--version"], tmp_path / "log", env={"GANTRYMQ_PURE": "1"}) as cold:
        assert isinstance(cold.process, subprocess.Popen) is (os.environ.get("GANTRYMQ_PURE") != "1")
        assert cold.wait() == 0
    with Child([sys.executable, "--version"], tmp_path / "log") as other:
        assert isinstance(other.process, subprocess.Popen)


@pytest.fixture
def command(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    write_command(tmp_path / "bin" / "gantrymq")
    return tmp_path / "bin" / "gantrymq"


def test_a_command_file_has_the_callers_environment_folder_and_streams(tmp_path: Path, command: Path) -> None:
    (tmp_path / "own.toml").write_text('[broker]\ncluster = "of-the-file"\n')
    environ = {
        **os.environ,
        "GANTRYMQ_BROKER__NAME": "of-the-environment",
        "PATH": f"{command.parent}:{os.environ['PATH']}",
    }
    script = "gantrymq print-config --config own.toml | grep -E 'of-the-|nothing'; gantrymq print-config --set nonsense"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "of-the-environment" in done.stdout
    assert "of-the-file" in done.stdout
    assert "nonsense" in done.stderr


@pytest.mark.parametrize("environ", [{}, {"PYTHONHASHSEED": "1"}], ids=["warm", "cold"])
def test_a_command_file_runs_python_text(tmp_path: Path, command: Path, environ: dict[str, str]) -> None:
    def run(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, "-c", text], cwd=tmp_path, env={**os.environ, **environ},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    text = "import os, sys\nclass A: pass\nprint(__name__, sys.argv, os.getcwd(), A.__module__)"
    done = run(text)
    assert (done.returncode, done.stdout) == (0, f"__main__ ['-c'] {tmp_path} __main__\n"), done.stderr
    failed = run("import warnings\nwarnings.warn('old')")
    assert failed.returncode == 1
    assert failed.stderr.endswith("UserWarning: old\n")
    assert "Traceback" in failed.stderr
    assert run("raise SystemExit(7)").returncode == 7


def test_signals_of_a_command_file_reach_the_fork_and_its_end_is_the_commands(tmp_path: Path, command: Path) -> None:
    serve = ["serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"]
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGKILL, -9)):
        with subprocess.Popen(
            [command, *serve], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            assert any(line.startswith("ready") for line in process.stdout)
            assert b"gantrymq-warm.py" in Path(f"/proc/{process.pid}/cmdline").read_bytes(), "it waits for a fork"
            process.send_signal(number)
            assert process.stdout.read() is not None, "it ends where the fork has ended"
            assert process.wait(60) == code


def test_a_command_file_starts_an_interpreter_for_a_variable_that_counts_at_import(
    tmp_path: Path, command: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.stderr.write('cold')")
    for environ, cold in (({}, False), ({"PYTHONPATH": str(tmp_path)}, True)):
        done = subprocess.run(
            [command, "--version"], env={**os.environ, **environ}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0
        assert ("cold" in done.stderr) is cold


def test_the_folder_of_a_killed_process_of_tests_is_deleted(tmp_path: Path) -> None:
    program = (
        "import os, signal; from pathlib import Path; from support.warm import write_command\n"
        "write_command(Path('gantrymq')); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environ, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_for(lambda: not list(tmp_path.glob("gantrymq-warm-*")))
