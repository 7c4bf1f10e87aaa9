"""The files of a release: built as `make dist` does, installed into bare environments, used there.

The dependencies come from the machine's package index, as for a user. Not here: the aarch64 wheels
are built and examined, but no machine of that kind runs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).parents[2]
KERNELS = sorted(path.stem for path in (ROOT / "src").rglob("*.pyx"))
MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of ELF
COMPILED = "from penstock.codec.kernels import all_compiled; print(all_compiled())"

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


def _load_dist() -> object:
    spec = spec_from_file_location("dist", ROOT / ".ci" / "dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PYTHONS: list[str] = list(_load_dist().find_pythons())  # type: ignore[attr-defined]


def run(*command: str | Path, **more: str) -> str:
    """Run a command; return what it printed."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**environment, **more}
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def install(folder: Path, python: str | Path, wheel: Path, extras: str = "") -> Path:
    """Make a bare environment with a wheel; return its folder of programs."""
    run(python, "-m", "venv", folder)
    run(folder / "bin" / "pip", "--quiet", "install", f"{wheel}{extras}")
    return folder / "bin"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with what `make dist` makes."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, ROOT / ".ci" / "dist.py", "--output", folder)
    return folder


def wheel_of(files: Path, python: str, arch: str) -> Path:
    """Return the wheel for a Python and an architecture."""
    number = Path(python).name.removeprefix("python").replace(".", "")
    (found,) = files.glob(f"*-cp{number}-cp{number}-manylinux2014_{arch}.*.whl")
    return found


def test_each_wheel_has_every_kernel_for_its_machine(files: Path) -> None:
    """The pure one has none, and the sdist has all sources."""
    assert PYTHONS
    for python in PYTHONS:
        for arch, machine in MACHINES.items():
            with zipfile.ZipFile(wheel_of(files, python, arch)) as wheel:
                found = [name for name in wheel.namelist() if name.endswith(".so")]
                heads = {wheel.read(name)[18] for name in found}
            assert sorted(Path(name).name.partition(".")[0] for name in found) == KERNELS
            assert heads == {machine}
    (pure,) = files.glob("*-none-any.whl")
    with zipfile.ZipFile(pure) as wheel:
        assert not [name for name in wheel.namelist() if name.endswith(".so")]
    (sdist,) = files.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {Path(name).stem for name in archive.getnames() if name.endswith(".pyx")}
    assert sorted(names) == KERNELS


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).name)
def test_each_python_runs_its_wheel(files: Path, tmp_path: Path, python: str) -> None:
    """Compiled, and without the checkout."""
    programs = install(tmp_path / "bare", python, wheel_of(files, python, "x86_64"))
    assert run(programs / "python", "-c", COMPILED).strip() == "True"
    assert "penstock 0." in run(programs / "penstock", "--version")
    # The extra's packages are taken from the installed penstock, which no index has.
    run(programs / "pip", "--quiet", "install", "penstock[mysql]")
    assert run(programs / "python", "-c", "import pymysql; print(1)") == "1\n"


def test_the_pure_wheel_runs_everywhere(files: Path, tmp_path: Path) -> None:
    """Without compiled parts, its decoders are the plain ones."""
    (pure,) = files.glob("*-none-any.whl")
    programs = install(tmp_path / "bare", PYTHONS[-1], pure)
    assert run(programs / "python", "-c", COMPILED).strip() == "False"
    assert "penstock 0." in run(programs / "penstock", "--version")


def test_a_table_is_copied_from_a_fresh_environment(
    files: Path,
    tmp_path: Path,
    source_url: str,
    target_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The time from the first command to the rows in the target is printed."""
    with psycopg.connect(source_url, autocommit=True) as source:
        source.execute("create table item (id int primary key, name text)")
        source.execute("insert into item select n, 'item ' || n from generate_series(1, 1000) n")
    began_s = time.monotonic()
    wheel = wheel_of(files, PYTHONS[0], "x86_64")
    programs = install(tmp_path / "bare", PYTHONS[0], wheel, "[postgres,spark]")
    installed_s = time.monotonic()
    command = [programs / "penstock", "copy", source_url, target_url, "--tables", "public.item"]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True)
    ended_s = time.monotonic()
    with capsys.disabled():
        print(  # noqa: T201
            f"\nfrom the first command to copied rows: {ended_s - began_s:.0f} s, "
            f"of which installing took {installed_s - began_s:.0f} s"
        )
    with psycopg.connect(target_url) as target:
        assert target.execute("select count(*), max(name) from item").fetchall() == [
            (1000, "item 999")
        ]
