"""The wheel installs two top-level names, with regular files where the source tree has links."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(gantrymq_wheel: Path) -> list[str]:
    return zipfile.ZipFile(gantrymq_wheel).namelist()


@pytest.mark.once
@pytest.mark.slow
def test_the_wheel_installs_the_package_and_the_module_that_spark_discovers(wheel: list[str]) -> None:
    assert {name.partition("/")[0] for name in wheel if ".dist-info/" not in name} == {"gantrymq", "pyspark_gantrymq"}
    assert "pyspark_gantrymq/__init__.py" in wheel


@pytest.mark.once
@pytest.mark.slow
def test_the_wheel_has_every_module_as_a_real_file(wheel: list[str]) -> None:
    for folder in ("kernel", "plugins", "gantrymq"):
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT).as_posix()
            expected = inside if inside.startswith("gantrymq/") else f"gantrymq/{inside}"
            assert expected in wheel
    assert "gantrymq/py.typed" in wheel
    templates = [path.relative_to(ROOT).as_posix() for path in (ROOT / "gantrymq").rglob("*.tmpl")]
    assert templates
    assert set(templates) <= set(wheel)


@pytest.mark.once
@pytest.mark.slow
def test_the_wheel_has_the_compiled_twins(wheel: list[str]) -> None:
    pytest.importorskip("Cython", reason="without Cython the wheel holds the plain twins only")
    twins = [
        path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("gantrymq/")
        for folder in ("gantrymq", "kernel", "plugins")
        for path in (ROOT / folder).rglob("*.pyx")
    ]
    assert len(twins) >= 5
    for module in twins:
        assert any(one.startswith(f"gantrymq/{module}.") and one.endswith(".so") for one in wheel)
    assert not [one for one in wheel if one.endswith((".c", ".pyx", ".pxi", ".pxd"))]
