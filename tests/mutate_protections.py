"""Plant one mistake at a time, and see that a test finds it.

`python tests/mutate_protections.py [NAME...]` copies the source and the tests to a temporary
folder, plants each mistake of `mutants.toml` and `mutants/*.toml` there, runs the tests that have
to fail, and prints one line per mistake and at the end the rates of all rooms. The kernel is
compiled first if it has the mistake. Exits with 1 if a mistake is not found, or no longer fits.
`--unit` leaves out those whose tests start a server.

A list groups its mistakes by file and tests:

    [[file]]
    path = "base/changes.py"
    tests = "tests/unit/test_base_changes.py"
    "a reload empties" = ["", '(MarkerKind.TRUNCATE, MarkerKind.RELOAD)', '(MarkerKind.TRUNCATE,)']
    "a reset is kept" = ["Base.reset", 'self._save()', '']

Each names a place in the file, the present piece of Python there, and the wrong one. The place is
the qualified name of a function or class, or empty for the whole file. A piece is an expression or
statements; a block `...` in the present one equals any block, and an empty wrong one removes the
statements. Pieces are compared as syntax trees, so formatting and comments are ignored. The present
piece must be in its place once; with a fourth entry `{ nth = 2 }` it is the second of equal ones. A
mistake in several pieces is a list of such lists. An entry without a place has two texts that are
compared as they are: for files that are not Python, and where a piece would be longer.

`python tests/mutate_protections.py --table [OUTPUT...]` writes the rates into docs/faults.md, from
the output of earlier runs. Rooms without a line in any output keep their rates.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.faults.syntax_edit import SyntaxEdit, edit_syntax

OPTIONS = ("-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=line")
ROOT = Path(__file__).parents[1]
LISTS = (
    Path(__file__).with_name("mutants.toml"),
    *sorted(Path(__file__).with_name("mutants").glob("*.toml")),
)
COPIED = (
    "src",
    "tests",
    "docs",
    "bench",
    "changelog.d",
    "pyproject.toml",
    "setup.py",
    "Makefile",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    ".ci",
)
KERNEL_SUFFIXES = {".pyx", ".pxd", ".pxi"}
TESTS_TIMEOUT_S = 1200
IN_MEMORY = ("apply", "shapes", "together")  # files of tests with a table format in memory
WITHOUT_SERVER = (
    "tests/unit/",
    "tests/property/",
    "tests/lake/test_partitions_core",
    *(f"tests/lake/test_core_{name}" for name in IN_MEMORY),
)
PAGE = ROOT / "docs" / "faults.md"
HEADER = (
    "| room | planted | run | found | found without a server | not found |",
    "|---|--:|--:|--:|--:|--:|",
)
FOUND, NOT_FOUND = ": found by ", ": NOT FOUND: "


class DoesNotFitError(ValueError):
    """A mistake cannot be planted, since the source has changed."""


@dataclass(frozen=True, slots=True)
class TextEdit:
    """A text that a file has exactly once, and the text that replaces it."""

    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A mistake in one file below src/penstock, and the tests that must fail with it.

    Attributes:
        edits: what is changed together; all of them fit the file as it is.
        listed_in: the list that has the mistake, relative to the project.
    """

    name: str
    file: str
    tests: str
    edits: tuple[SyntaxEdit | TextEdit, ...] = ()
    listed_in: str = ""

    @property
    def room(self) -> str:
        """Package that has the mistake; for engines and FlexCDC, the package inside."""
        folders = self.file.split("/")[:-1]
        is_inside = folders[0] == "engines" or folders[:2] == ["consume", "flexcdc"]
        return "/".join(folders[: 2 if is_inside else 1])

    @property
    def is_kernel(self) -> bool:
        """Return whether the file has to be compiled."""
        return Path(self.file).suffix in KERNEL_SUFFIXES

    @property
    def needs_server(self) -> bool:
        """Return whether a test that finds it starts a server."""
        paths = [part for part in self.tests.split() if part.startswith("tests/")]
        return not all(path.startswith(WITHOUT_SERVER) for path in paths)

    def apply_in(self, source: Path) -> tuple[str, str]:
        """Return the text of the file below a folder `penstock`, and the text with the mistake.

        Raises:
            DoesNotFitError: the file or one of the pieces is not there exactly once.
        """
        try:
            whole = (source / self.file).read_text(encoding="utf-8")
            changed = self.apply_to(whole)
        except (OSError, ValueError) as error:
            problem = "there is no such file" if isinstance(error, OSError) else str(error)
            raise DoesNotFitError(
                f"{self.name!r} no longer fits {self.file}: {problem}\n"
                f"Write the present place and code into {self.listed_in}, or delete the entry if "
                "the source no longer has what it protects."
            ) from error
        return whole, changed

    def apply_to(self, text: str) -> str:
        """Return the changed file. Raises ValueError if a change does not fit exactly once."""
        for edit in self.edits:
            if isinstance(edit, TextEdit):
                if text.count(edit.old) != 1:
                    raise ValueError(f"it has the text {text.count(edit.old)} times: {edit.old}")
                text = text.replace(edit.old, edit.new)
        pieces = [edit for edit in self.edits if isinstance(edit, SyntaxEdit)]
        return edit_syntax(text, pieces) if pieces else text


def read_mutants(paths: Iterable[Path] = LISTS) -> tuple[Mutant, ...]:
    """Return the mistakes of all lists, in their order."""
    mutants: list[Mutant] = []
    for path in paths:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        listed_in = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
        for group in tables["file"]:
            mutants += _read_group(group, listed_in)
    return tuple(mutants)


def _read_group(group: dict[str, Any], listed_in: str) -> Iterator[Mutant]:
    """Yield the mistakes of one file that the same tests have to find."""
    path, tests = group.pop("path"), group.pop("tests")
    for name, pieces in group.items():
        parts = pieces if isinstance(pieces[0], list) else [pieces]
        yield Mutant(
            name=name,
            file=path,
            tests=tests,
            edits=tuple(
                TextEdit(*part) if len(part) == 2 else SyntaxEdit(*part[:3], **dict(*part[3:]))
                for part in parts
            ),
            listed_in=listed_in,
        )


class Tree:
    """A copy of the checkout in which mistakes are planted."""

    def __init__(self, folder: Path) -> None:
        """Copy the files that tests read, with the built kernels."""
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / name)

    def outcome(self, mutant: Mutant) -> tuple[bool, str]:
        """Return whether a test failed with the mistake, and which one failed first."""
        try:
            with self.plant(mutant):
                return self._run_tests(mutant.tests.split())
        except ValueError as error:
            return False, str(error)

    @contextmanager
    def plant(self, mutant: Mutant) -> Iterator[None]:
        """Plant a mistake for the time of a with block. Raises ValueError if it does not fit."""
        source = self.folder / "src/penstock"
        path = source / mutant.file
        whole, changed = mutant.apply_in(source)
        kernels = self._kernels_of(path) if mutant.is_kernel else []
        built = {binary: binary.read_bytes() for kernel in kernels for binary in _binaries(kernel)}
        try:
            path.write_text(changed, encoding="utf-8")
            for kernel in kernels:
                self._compile(kernel)
            yield
        finally:
            path.write_text(whole, encoding="utf-8")
            for binary, data in built.items():
                binary.write_bytes(data)

    def _kernels_of(self, path: Path) -> list[Path]:
        """Return the .pyx that is this file, includes it or imports names from it."""
        every = sorted(self.folder.rglob("src/**/*.pyx"))
        return [
            one for one in every if one == path or re.search(rf"\b{path.stem}\b", one.read_text())
        ]

    def _compile(self, kernel: Path) -> None:
        for binary in _binaries(kernel):
            binary.unlink()  # may be shared with other checkouts, and must not look new
        done = subprocess.run(
            [sys.executable, "-m", "Cython.Build.Cythonize", "-q", "-3", "-f", "-i", str(kernel)],
            cwd=self.folder,
            env={**os.environ, "CFLAGS": "-O1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ValueError(f"it does not compile: {done.stderr[-300:]}")

    def _run_tests(self, tests: list[str]) -> tuple[bool, str]:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *OPTIONS, *tests],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(self.folder / "src")},
                capture_output=True,
                text=True,
                timeout=TESTS_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True, "the tests did not end"
        failed = re.search(r"^(?:FAILED|ERROR) (\S+(?: \S+)*?)(?: - |$)", done.stdout, re.MULTILINE)
        if done.returncode == 1 and failed:
            return True, failed[1].rpartition("/")[2]
        if done.returncode < 0:
            return True, f"the tests' process ended by signal {-done.returncode}"
        said = (done.stdout.strip() or done.stderr.strip()).splitlines()
        return False, said[-1][-200:] if said else "no output"


def _binaries(kernel: Path) -> list[Path]:
    """Return the compiled files of a kernel, for any Python."""
    return sorted(kernel.parent.glob(f"{kernel.stem}.*.so"))


def rates(
    mutants: Iterable[Mutant],
    outcomes: Mapping[str, bool],
    earlier: Mapping[str, Sequence[int]] | None = None,
) -> list[str]:
    """Return the table of rates, a line per room and one of all.

    Args:
        mutants: the mistakes that are planted.
        outcomes: by name, whether a mistake was found; without those that were not run.
        earlier: by room, the numbers that follow that of the planted ones, for rooms that were not
            run.
    """
    rooms: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        rooms.setdefault(mutant.room, []).append(mutant)
    lines = []
    totals = [0] * 5
    for room, planted in sorted(rooms.items()):
        run = [mutant for mutant in planted if mutant.name in outcomes]
        found = [mutant for mutant in run if outcomes[mutant.name]]
        alone = sum(not mutant.needs_server for mutant in found)
        numbers = [len(run), len(found), alone, len(run) - len(found)]
        if not run and earlier is not None:
            numbers = list(earlier.get(room, numbers))
        line = [len(planted), *numbers]
        totals = [one + other for one, other in zip(totals, line, strict=True)]
        lines.append(_line(room, line))
    return [*HEADER, *lines, _line("all", totals)]


def _line(room: str, numbers: Iterable[int]) -> str:
    return f"| {room} | {' | '.join(map(str, numbers))} |"


def read_rates(text: str) -> dict[str, tuple[int, ...]]:
    """Return the numbers of each line of a page's table of rates, by room."""
    table = text.partition(HEADER[1])[2].partition("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line]
    return {room: tuple(map(int, numbers)) for room, *numbers in cells}


def read_outcomes(outputs: Iterable[Path]) -> dict[str, bool]:
    """Return, by name, whether runs with these outputs found a mistake."""
    found: dict[str, bool] = {}
    for path in outputs:
        for line in path.read_text(encoding="utf-8").splitlines():
            for mark, is_found in ((FOUND, True), (NOT_FOUND, False)):
                name, middle, _ = line.partition(mark)
                if middle:
                    found[name] = is_found
    return found


def write_page(outputs: Iterable[Path], page: Path = PAGE) -> None:
    """Replace the table of rates in a page."""
    text = page.read_text(encoding="utf-8")
    earlier = {room: numbers[1:] for room, numbers in read_rates(text).items()}
    before, header, rest = text.partition(HEADER[0])
    _, blank, behind = rest.partition("\n\n")
    assert header, f"{page} has no table of rates"
    lines = rates(read_mutants(), read_outcomes(outputs), earlier)
    page.write_text(before + "\n".join(lines) + blank + behind, encoding="utf-8")


def say(line: str) -> None:
    """Print a line now: a run takes long, and may be watched."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Plant all mistakes, or those whose names or files have one of the given words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--unit", action="store_true", help="only those found without a server")
    parser.add_argument("--table", action="store_true", help="write docs/faults.md from outputs")
    flags = parser.parse_args()
    if flags.table:
        write_page(map(Path, flags.names))
        return 0
    chosen = [
        mutant
        for mutant in read_mutants()
        if (not flags.names or any(word in mutant.name + mutant.file for word in flags.names))
        and not (flags.unit and mutant.needs_server)
    ]
    outcomes: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as folder:
        tree = Tree(Path(folder))
        for mutant in chosen:
            outcomes[mutant.name], text = tree.outcome(mutant)
            say(f"{mutant.name}{FOUND if outcomes[mutant.name] else NOT_FOUND}{text}")
    for line in rates(chosen, outcomes):
        say(line)
    return 0 if all(outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
