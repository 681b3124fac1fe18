"""The compiled twins of inner loops; everything else about the package is in ``setup.cfg``.

They are optional: without Cython or a C compiler the package installs all the same and runs its plain twins.
"""

from __future__ import annotations

from glob import glob

from setuptools import Extension, setup

MODULES = (
    "gantrymq/remoting/_records",
    "gantrymq/spark/_columns",
    "kernel/fast/_flusher",
    "kernel/fast/_memory",
    "kernel/fast/_records",
    "kernel/fast/_requests",
    "plugins/acl/_fast",
    "plugins/consume/_fast",
    "plugins/index/_build",
    "plugins/produce/_fast",
    "plugins/transaction/_fast",
)
PARTS = sorted([*glob("kernel/fast/*.pxi"), *glob("plugins/*/*.pxi")])
# By the name under which other modules look for it, which a source distribution has too.
SHARED = ["gantrymq/kernel/fast/_requests.pxd"]


def name_of(module: str) -> str:
    """The full name of a module; the kernel and the plugins lie beside the package, which links to them."""
    return f"gantrymq.{module.removeprefix('gantrymq/').replace('/', '.')}"


def compiled() -> list[Extension]:
    """The extensions; none where there is no Cython."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    # What an extension depends on is part of a source distribution; generated C is not.
    sources = [f"{module}.pyx" for module in MODULES]
    extensions: list[Extension] = cythonize(
        [
            Extension(name_of(module), [source], depends=[*sources, *PARTS, *SHARED])
            for module, source in zip(MODULES, sources, strict=True)
        ],
        build_dir="build/cython",
        language_level=3,
    )
    for extension in extensions:
        extension.optional = True
    return extensions


setup(ext_modules=compiled())
