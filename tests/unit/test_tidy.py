"""Conventions of the project, checked as tests: sizes, names, twins, references, addresses."""

from __future__ import annotations

import importlib
import re
import runpy
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from harness.modules.facts import FOLDERS, GENERATED, ROOT, Facts, module_facts
from penstock.ports.registry import engines

pytestmark = pytest.mark.always

CODE_SUFFIXES = {".py", ".pyx", ".pxd", ".pxi", ".pyi"}
TEXT_SUFFIXES = {*CODE_SUFFIXES, ".md", ".toml", ".lock", ".sql", ".sh", ".ipynb", ""}

# Files are split by noun, so this is far above what most nouns need. A file of more lines is no
# longer read in one sitting, and most likely holds two nouns.
MODULE_LINES_MAX = 1000
FUNCTION_LINES_MAX = 70
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
PRINTS = {"src/penstock/cli/output.py"}
ENTRY_POINTS = {"penstock.cli", "penstock.__main__", "penstock.stage.script"}
# Names with which the tables of an Ignite source will begin, and rows that an Oracle source will
# read; until then only tests use them.
AWAITED = {
    "penstock.codec.ignite.cache_config",
    "penstock.codec.oracle.column_images",
    "penstock.codec.oracle.mined_rows",
    "penstock.codec.oracle.pieces",
    "penstock.codec.oracle.xml_statements",
    "penstock.engines.ignite.thin",
}
# The packages that name no engine, and the files that do so nevertheless. `serve` is not among
# them: it is the server's end of one engine's protocol.
DRIVING = (
    *("consume", "control", "extract", "feeds", "load", "log", "model", "ports", "sql", "web"),
)
NAMING_ENGINES = {
    "consume/flexcdc/ini.py": "the servers of FlexCDC's own file are of one family",
    "model/sections.py": "[serve] names whose server is imitated, FlexCDC's own file a program",
    "consume/plugins/json_file.py": "the keys of lines are those that FlexCDC writes",
    "control/run/new_pipeline.py": "a hint says how tables are named where a schema is a database",
    "ports/registry.py": "the folders of the engines that come with penstock",
    "web/app.py": "a hint says how tables are named where a schema is a database",
}

# Built from pieces, so that this file does not find itself.
MACHINE_PATHS = re.compile("|".join(("/" + "work/", "/" + "root/", r"\.\./" + "shared")))
REGISTRIES = re.compile(
    r"https?://[^\s)>\"']*(" + "|".join(("py" + "pi", "python" + "hosted", "ma" + "ven")) + ")"
)
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")


@cache
def files() -> tuple[Path, ...]:
    """Return every text file of the project, relative to its root."""
    ours = (path for path in ROOT.iterdir() if path.name not in ("LICENSE", ".git"))
    found = [path for path in ours if path.is_file()]  # .git is a file in a work tree
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    relative = [path.relative_to(ROOT) for path in found]
    return tuple(
        sorted(
            path
            for path in relative
            if path.suffix in TEXT_SUFFIXES and not GENERATED & set(path.parts)
        )
    )


def read(path: Path) -> str:
    """Return the text of a file of the project."""
    return (ROOT / path).read_text(encoding="utf-8")


def sources(folder: str = "") -> Iterator[tuple[Path, Facts]]:
    """Yield every Python module below a folder with its facts."""
    for path, facts in module_facts().items():
        if path.as_posix().startswith(folder):
            yield path, facts


def name_module(path: Path) -> str:
    """Return the dotted name of a module below src."""
    parts = path.relative_to("src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_modules_are_short() -> None:
    """No module is longer than 1,000 lines: it would hold more than one noun."""
    code = [path for path in files() if path.suffix in CODE_SUFFIXES]
    long = {str(path): len(read(path).splitlines()) for path in code}
    assert {path: n for path, n in long.items() if n > MODULE_LINES_MAX} == {}


def test_functions_are_short() -> None:
    """No function is longer than 70 lines, tests included."""
    long = {
        f"{path}:{function.line} {function.name}": function.lines
        for path, facts in sources()
        for function in facts.functions
    }
    assert {name: n for name, n in long.items() if n > FUNCTION_LINES_MAX} == {}


def test_modules_are_named_by_what_they_hold() -> None:
    """No module or folder has a name without a meaning."""
    assert [str(path) for path in files() if BANNED_NAMES & set(path.with_suffix("").parts)] == []


def test_code_that_tests_share_is_in_its_folders() -> None:
    """Plugins with fixtures are in tests/plugins, the rest in tests/harness; beside them are
    programs.

    What was `fix_kills` is `harness.faults.kills`, and `fix_postgres` is `plugins.postgres`.
    """
    beside = {path.name for path in (ROOT / "tests").glob("*.py") if "__main__" not in read(path)}
    assert beside == {"conftest.py", "fuzz_run.py"}, "its place is tests/harness/FOLDER"
    imported = {
        f"{path}:{statement.line}"
        for path, facts in [*sources("tests/"), *sources("bench/")]
        for statement in facts.imports
        for name in (statement.source or "", *statement.names)
        if name.startswith("fix_")
    }
    assert imported == set()


def test_only_the_command_line_prints() -> None:
    """print() is in cli/output.py alone; all other code returns values or logs."""
    printing = [
        f"{path}:{line}"
        for path, facts in sources("src/")
        for line in facts.prints
        if path.as_posix() not in PRINTS
    ]
    assert printing == []


def test_what_drives_names_no_engine() -> None:
    """Names and texts of code outside the engines' folders are checked; docstrings are free."""
    naming = {
        path.relative_to("src/penstock").as_posix()
        for package in DRIVING
        for path, facts in sources(f"src/penstock/{package}/")
        if facts.names_engine
    }
    assert naming == NAMING_ENGINES.keys()


def test_every_kernel_has_its_twin_and_its_types() -> None:
    """Beside each .pyx are the readable module of the same name and a .pyi."""
    kernels = [path for path in files() if path.suffix == ".pyx"]
    assert kernels, "the project has kernels"
    for kernel in kernels:
        assert kernel.name.startswith("_"), f"{kernel}: kernels are private"
        assert (ROOT / kernel.with_name(kernel.stem[1:] + ".py")).is_file(), f"{kernel}: no twin"
        assert (ROOT / kernel.with_suffix(".pyi")).is_file(), f"{kernel}: no types"


def test_every_module_is_used() -> None:
    """A module that no other one imports is dead, unless a program starts there."""
    modules = {name_module(path) for path, _ in sources("src/") if path.name != "__init__.py"}
    used = ENTRY_POINTS | AWAITED
    for path, facts in sources("src/"):
        for statement in facts.imports:
            if statement.source:
                used |= {statement.source}
                used |= {f"{statement.source}.{name}" for name in statement.names}
            elif statement.source is None:
                used |= set(statement.names)
        # Named in a string: programs started with -m, Spark's worker module.
        used |= modules & set(facts.dotted) - {name_module(path)}
    # The parts of engines are named in their descriptors.
    for engine in engines():
        used |= {where.partition(":")[0] for where in engine.parts.values()}
    assert modules - used == set()


def test_nothing_is_left_unfinished() -> None:
    """No note says that a part is still to be done: it is done, or it is an issue."""
    code = [path for path in files() if path.suffix in CODE_SUFFIXES | {".sql"}]
    assert [str(path) for path in code if UNFINISHED.search(read(path))] == []


def test_public_methods_have_a_docstring_or_override_one_that_has() -> None:
    """A method that only repeats what its base says has no docstring; any other one has."""
    silent = [
        f"{path}:{method.line} {method.owner}.{method.name}"
        for path, facts in sources("src/")
        if path.name != "__main__.py"
        for method in facts.silent
        if not _is_documented(
            getattr(importlib.import_module(name_module(path)), method.owner), method.name
        )
    ]
    assert silent == []


def _is_documented(kind: type, name: str) -> bool:
    """Return whether a base of a class has a docstring for this method."""
    return any(getattr(vars(base).get(name), "__doc__", None) for base in kind.__mro__[1:])


@pytest.mark.parametrize("pattern", [MACHINE_PATHS, REGISTRIES], ids=["paths", "registries"])
def test_files_know_no_machine(pattern: re.Pattern[str]) -> None:
    """No file names a folder of a developer's machine or the address of a package registry."""
    found = [f"{path}: {match[0]}" for path in files() if (match := pattern.search(read(path)))]
    assert found == []


def test_locks_hold_names_versions_and_hashes_alone() -> None:
    """Each line of a lock is a pinned name or a sha256, never an option or an address."""
    locks = sorted(ROOT.glob("requirements*.lock"))
    assert len(locks) == 4
    allowed = re.compile(
        r"(#.*|[a-z0-9._-]+==[A-Za-z0-9.!+_-]+( ;.*)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?|)\Z"
    )
    for lock in locks:
        lines = lock.read_text().splitlines()
        assert [line for line in lines if not allowed.match(line)] == [], lock.name


def error_classes() -> dict[str, str]:
    """Return class name -> code of every class that sets `code` and has `Error`-like bases."""
    return {name: code for _, facts in sources("src/") for name, code in facts.codes}


def test_error_codes_are_unique_and_well_formed() -> None:
    """A code is for one condition: two letters of its package and two digits."""
    codes = error_classes()
    assert {
        name: code for name, code in codes.items() if not re.fullmatch("[A-Z]{2}[0-9]{2}", code)
    } == {}
    shared = {code for code, count in Counter(codes.values()).items() if count > 1}
    assert {name: code for name, code in codes.items() if code in shared} == {}


def test_the_page_about_errors_is_current() -> None:
    """docs/errors.md is what `make error-page` writes: each code, its docstring and its hints."""
    page = runpy.run_path(str(ROOT / ".ci" / "error_page.py"))["page"]
    assert read(Path("docs/errors.md")) == page()


def test_every_error_in_the_documentation_says_what_to_do() -> None:
    """Below each code is at least one line that says what to do."""
    sections = read(Path("docs/errors.md")).split("\n## ")[1:]
    assert [text.splitlines()[0] for text in sections if "\n- " not in text] == []


def test_the_documented_example_counts_are_those_of_the_profiles() -> None:
    """docs/development.md has a row for each hypothesis profile, with its number of examples."""
    page = read(Path("docs/development.md"))
    rows = re.findall(r"^\| `([a-z]+)` \| ([0-9,]+) \|", page, re.MULTILINE)
    names = re.findall(r'register_profile\(\s*"([a-z]+)"', read(Path("tests/conftest.py")))
    profiles = {name: settings.get_profile(name).max_examples for name in names}
    assert {name: int(count.replace(",", "")) for name, count in rows} == profiles


@pytest.mark.parametrize("path", sorted((ROOT / "tests").glob("fuzz_*.py")), ids=lambda p: p.stem)
def test_a_fuzzer_can_start(path: Path) -> None:
    """No test imports it: only `make fuzz` would notice that it cannot start."""
    importlib.import_module(path.stem)


def test_references_between_files_hold() -> None:
    """A document that a docstring names exists, and so does the target of a relative link."""
    missing = []
    for path in files():
        text = read(path)
        if path.suffix in {".py", ".pyx", ".md"}:
            for name in re.findall(r"\bdocs/[a-z0-9-]+\.md\b", text):
                if not (ROOT / name).is_file():
                    missing.append(f"{path}: {name}")
        if path.suffix == ".md":
            for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
                if not (ROOT / path.parent / link).exists():
                    missing.append(f"{path}: {link}")
    assert missing == []
