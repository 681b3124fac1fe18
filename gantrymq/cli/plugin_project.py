"""The package that ``gantrymq plugins new`` writes: names, files, and the templates they are made from."""

from __future__ import annotations

import re
import shutil
from importlib import resources
from pathlib import Path
from string import Template
from typing import Final

from gantrymq.cli.failures import CommandFailed
from gantrymq.kernel.hookspecs import GANTRYMQ_API

NAME_CHARS: Final = 40
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_TEMPLATES: Final = "plugin_template"
_FILES: Final = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    ".github/workflows/test.yml": "test.yml",
    "{module}/__init__.py": "plugin.py",
    "tests/test_{name}.py": "test_plugin.py",
}
"""Path in the package to name of the template."""


def check_name(name: str) -> None:
    """ValueError unless ``name`` can be that of a new plugin."""
    if len(name) > NAME_CHARS or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be the name of a plugin: lower-case letters and digits, words separated by one '-' or"
            f" '_', a letter first, at most {NAME_CHARS} characters"
        )
    taken = plugin_names()
    if (plain := name.replace("-", "_")) in taken:
        raise ValueError(f"there is a plugin {plain!r} already, and a broker loads one of a name: choose another name")


def plugin_names() -> set[str]:
    """The names of the shipped plugins and of the entry points that are installed here."""
    from importlib import metadata

    from gantrymq.kernel.loading import ENTRY_POINTS, load_plugins
    from gantrymq.plugins import DEFAULT_PLUGINS

    shipped = {info.name for info in load_plugins(DEFAULT_PLUGINS).plugins}
    return shipped | {point.name for point in metadata.entry_points(group=ENTRY_POINTS)}


def write_project(name: str, parent: Path) -> tuple[Path, list[Path]]:
    """Write the package for the plugin ``name`` into a new folder of ``parent``: the folder, and its files in it.

    ``name`` has passed :func:`check_name`. :class:`CommandFailed` when the folder exists. Nothing stays of a package
    that cannot be written whole.
    """
    words = re.split("[-_]", name)
    values = {
        "name": "_".join(words),
        "distribution": "-".join(("gantrymq", *words)),
        "module": "_".join(("gantrymq", *words)),
        "class_name": "".join(word.capitalize() for word in words),
        "api_version": str(GANTRYMQ_API),
    }
    templates = resources.files("gantrymq.cli").joinpath(_TEMPLATES)
    texts = {
        Path(path.format_map(values)): Template(templates.joinpath(f"{template}.tmpl").read_text("utf-8")).substitute(
            values
        )
        for path, template in _FILES.items()
    }
    texts[Path(values["module"], "py.typed")] = ""
    folder = parent / values["distribution"]
    try:
        folder.mkdir()
    except FileExistsError:
        raise CommandFailed(f"{folder} exists; choose another name, or another folder with --into") from None
    try:
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, "utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, sorted(texts)
