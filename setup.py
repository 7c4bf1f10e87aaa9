"""Build the kernels; everything else is in pyproject.toml.

Every `.pyx` under src becomes an extension module beside its readable twin. Without a C compiler
the install goes on and the twins do the work. PENSTOCK_PURE=1 forbids the kernels,
PENSTOCK_REQUIRE_KERNEL=1 makes a failed build an error.
"""

import os
import tempfile
from pathlib import Path

from setuptools import Extension, setup

REQUIRED = os.environ.get("PENSTOCK_REQUIRE_KERNEL") == "1"
PURE = os.environ.get("PENSTOCK_PURE") == "1"


def compiler_works() -> bool:
    """Whether a C file that includes Python.h can be compiled here.

    Asked beforehand, because a wheel that lists an extension it does not hold gets a platform tag.
    """
    from distutils.ccompiler import new_compiler
    from distutils.errors import CCompilerError, DistutilsError
    from distutils.sysconfig import customize_compiler, get_python_inc

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text("#include <Python.h>\nint probe(void) { return PY_VERSION_HEX; }\n")
        try:
            compiler = new_compiler()
            customize_compiler(compiler)
            compiler.compile([str(source)], output_dir=folder, include_dirs=[get_python_inc()])
        except (CCompilerError, DistutilsError):
            return False
    return True


def kernels() -> list[Extension]:
    """Make one extension for each .pyx under src."""
    sources = sorted(Path("src").rglob("*.pyx"))
    if PURE or not sources or not (REQUIRED or compiler_works()):
        return []
    from Cython.Build import cythonize  # not needed for a pure build

    extensions = [
        Extension(
            ".".join(path.relative_to("src").with_suffix("").parts),
            [str(path)],
            extra_compile_args=os.environ.get("PENSTOCK_CFLAGS", "-O2").split(),
            extra_link_args=os.environ.get("PENSTOCK_LDFLAGS", "").split(),
        )
        for path in sources
    ]
    built: list[Extension] = cythonize(extensions, build_dir="build", language_level=3)
    for extension in built:
        extension.optional = not REQUIRED  # on the result: cythonize drops it from its input
    return built


setup(ext_modules=kernels())
