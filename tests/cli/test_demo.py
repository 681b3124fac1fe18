"""``make demo``: its counts, its comparison, and its folder."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from gantrymq.cli.demo import MARK, recreate, tag_of
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.tally import Tally
from support.processes import Child

LINES = b"".join(b'host%d - "%s /page HTTP/1.1" 200\n' % (n, [b"GET", b"POST"][n % 2]) for n in range(500))


def run_demo(tmp_path: Path, *arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "gantrymq.cli.demo", "--folder", str(folder), *arguments]
    with Child(command, tmp_path / "stderr", env=env, cwd=tmp_path) as child:
        text = "\n".join(child.lines(timeout=240))
        return child.wait(), text, child.log.read_text()


def counts(text: str) -> dict[str, str]:
    """Messages by step, from the table."""
    rows = re.findall(r"^(produce|consume|start again|export to Parquet) +(\S+)", text, re.MULTILINE)
    return dict(rows)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_demo_without_java_skips_the_export_only(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(LINES + b"\n\nlast")
    env = {"PATH": str(Path(sys.executable).parent), "JAVA_HOME": ""}
    code, text, errors = run_demo(tmp_path, "--file", "lines", env=env)
    assert (code, errors) == (0, "")
    assert counts(text) == {"produce": "501", "consume": "501", "start again": "501", "export to Parquet": "-"}
    assert "2 empty lines skipped" in text
    assert "no export to Parquet: no Java was found" in text
    assert text.endswith("ok: every message came out as it went in")
    assert "\x1b" not in text
    assert (tmp_path / "demo" / "store" / "commitlog").is_dir()


@pytest.mark.slow
@pytest.mark.spark
def test_the_demo_exports_what_it_sent(tmp_path: Path) -> None:
    code, text, _ = run_demo(tmp_path)
    assert code == 0, text
    assert counts(text) == {
        "produce": "1,000",
        "consume": "1,000",
        "start again": "1,000",
        "export to Parquet": "1,000",
    }
    assert list((tmp_path / "demo" / "parquet").glob("topic=*/date=*/*.parquet"))
    again, text, _ = run_demo(tmp_path, env={"PATH": str(Path(sys.executable).parent), "JAVA_HOME": ""})
    assert (again, counts(text)["consume"]) == (0, "1,000")
    assert not (tmp_path / "demo" / "parquet").exists(), "nothing is left of the first time"


@pytest.mark.parametrize(("data", "reported"), [(b"\n\n", "has no lines to send"), (None, "No such file or directory")])
@pytest.mark.slow
def test_a_file_without_lines_is_reported(tmp_path: Path, data: bytes | None, reported: str) -> None:
    if data is not None:
        (tmp_path / "lines").write_bytes(data)
    code, text, errors = run_demo(tmp_path, "--file", "lines")
    assert (code, text) == (1, "")
    assert reported in errors
    assert errors.count("\n") == 1


def test_a_folder_of_another_program_is_not_changed(tmp_path: Path) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "file").touch()
    with pytest.raises(CommandFailed, match="is not a folder of an earlier demo"):
        recreate(folder)
    with pytest.raises(CommandFailed, match="is not a folder of an earlier demo"):
        recreate(folder / "file")
    assert (folder / "file").exists()
    made = recreate(tmp_path / "made")
    (made / "store").mkdir()
    assert sorted(path.name for path in recreate(made).iterdir()) == [MARK]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert os.listdir(recreate(empty)) == [MARK]


def tally(*messages: tuple[str, str, bytes]) -> Tally:
    made = Tally()
    for key, tag, body in messages:
        made.note_key([key], tag, body)
    return made


def test_the_comparison_finds_lost_altered_invented_and_duplicate_messages() -> None:
    sent = tally(("line-1", "a", b"1"), ("line-2", "a", b"2"), ("line-3", "b", b"3"))
    same = tally(("line-3", "b", b"3"), ("line-1", "a", b"1"), ("line-2", "a", b"2"))
    assert same.differences(sent, "consumed") == []
    bad = tally(
        ("line-1", "b", b"1"), ("line-3", "b", b"3"), ("line-3", "b", b"3"), ("line-9", "a", b""), ("x", "a", b"")
    )
    assert bad.differences(sent, "consumed") == [
        "1 of 3 messages consumed are missing",
        "1 of 3 messages consumed are altered",
        "2 of 3 messages consumed were never sent",
        "1 of 3 messages consumed came twice",
    ]
    assert Tally().differences(sent, "exported") == ["3 of 3 messages exported are missing"]


def test_the_tag_is_the_method_of_an_access_log() -> None:
    assert tag_of(b'1.2.3.4 - - [x] "DELETE /a HTTP/1.1" 200') == "DELETE"
    assert tag_of(b"no log at all") == "line"
