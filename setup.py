"""The compiled twins of inner loops, and a reproducible source distribution; everything else is in ``setup.cfg``.

The twins are optional: without Cython or a C compiler the package installs all the same and runs its plain twins.
"""

from __future__ import annotations

import gzip
import os
import tarfile
from glob import glob
from importlib.util import find_spec

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

MODULES = (
    "gantrymq/bench/_loop",
    "gantrymq/remoting/_records",
    "gantrymq/spark/_columns",
    "gantrymq/spark/_rows",
    "gantrymq/spark/schemas/_avro",
    "kernel/fast/_flusher",
    "kernel/fast/_memory",
    "kernel/fast/_records",
    "kernel/fast/_requests",
    "plugins/acl/_fast",
    "plugins/consume/_fast",
    "plugins/index/_build",
    "plugins/produce/_fast",
    "plugins/tls/_fast",
    "plugins/transaction/_fast",
)
PARTS = sorted(path for folder in ("gantrymq/*", "kernel/fast", "plugins/*") for path in glob(f"{folder}/*.pxi"))
# By the name under which other modules look for it, which a source distribution has too.
SHARED = ["gantrymq/kernel/fast/_requests.pxd"]


def name_of(module: str) -> str:
    """The full name of a module; the kernel and the plugins lie beside the package, which links to them."""
    return f"gantrymq.{module.removeprefix('gantrymq/').replace('/', '.')}"


def compiled() -> list[Extension]:
    """The extensions; none where there is no Cython."""
    if find_spec("Cython") is None:
        return []
    # What an extension depends on is part of a source distribution; generated C is not.
    sources = [f"{module}.pyx" for module in MODULES]
    return [
        Extension(name_of(module), [source], depends=[*sources, *PARTS, *SHARED], optional=True)
        for module, source in zip(MODULES, sources, strict=True)
    ]


class BuildTwins(build_ext):
    """Generates the C where modules are compiled: a source distribution needs the names of the sources alone."""

    def finalize_options(self) -> None:
        """Compile on up to four processors, unless ``--parallel`` says otherwise: a compiler takes memory, and one that
        the system ends for it leaves its module out."""
        super().finalize_options()
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.parallel = self.parallel or min(4, usable)

    def build_extensions(self) -> None:
        """Generate the C in ``build/cython`` and compile it."""
        from Cython.Build import cythonize

        generated = cythonize(self.extensions, build_dir="build/cython", language_level=3)
        for extension, from_c in zip(self.extensions, generated, strict=True):
            extension.sources = from_c.sources
        super().build_extensions()


class ReproducibleSdist(sdist):
    """The archive's bytes follow from the files' names, contents and execute bits alone.

    All dates are ``SOURCE_DATE_EPOCH``, or the beginning of 1980, the first date that a zip file can have.
    """

    def make_archive(
        self, base_name: str, format: str, root_dir: str | None = None, base_dir: str | None = None,
        owner: str | None = None, group: str | None = None,
    ) -> str:  # fmt: skip
        """Write the ``.tar.gz``; other formats as setuptools does."""
        if format != "gztar" or base_dir is None:
            return str(super().make_archive(base_name, format, root_dir, base_dir, owner, group))
        date = int(os.environ.get("SOURCE_DATE_EPOCH") or 315532800)

        def same_everywhere(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.uid, member.gid, member.uname, member.gname = date, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        path = f"{base_name}.tar.gz"
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", 9, file, date) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            archive.add(os.path.join(root_dir or ".", base_dir), base_dir, filter=same_everywhere)  # in order of names
        return path


setup(ext_modules=compiled(), cmdclass={"build_ext": BuildTwins, "sdist": ReproducibleSdist})
