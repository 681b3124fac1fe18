"""The compiled twins of ``kernel/fast``; everything else about the package is in ``setup.cfg``.

They are optional: without Cython or a C compiler the package installs all the same and runs its plain twins.
"""

from __future__ import annotations

from setuptools import Extension, setup

FOLDER = "kernel/fast"
NAMES = ("_records", "_requests")
SHARED = [f"{FOLDER}/{name}.pxi" for name in ("_bytes", "_crc")]


def compiled() -> list[Extension]:
    """The extensions; none where there is no Cython."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    # What an extension depends on is part of a source distribution; generated C is not.
    sources = [f"{FOLDER}/{name}.pyx" for name in NAMES]
    extensions: list[Extension] = cythonize(
        [
            Extension(f"gantrymq.kernel.fast.{name}", [source], depends=[*sources, *SHARED])
            for name, source in zip(NAMES, sources, strict=True)
        ],
        build_dir="build/cython",
        language_level=3,
    )
    for extension in extensions:
        extension.optional = True
    return extensions


setup(ext_modules=compiled())
