"""Sphinx configuration: the Markdown of this folder as HTML (`make docs`)."""

from __future__ import annotations

from gantrymq import __version__

project = "GantryMQ"
author = "The GantryMQ developers"
release = __version__
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_title = f"GantryMQ {__version__}"
# code of the Java software's own formats is shown without a language
highlight_language = "none"
