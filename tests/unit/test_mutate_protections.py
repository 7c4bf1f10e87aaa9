"""Mistakes that `tests/mutate_protections.py` plants: each still fits the source."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import penstock
from find_ddl_defects import DEFECTS
from harness.faults.syntax_edit import SyntaxEdit
from mutate_protections import (
    HEADER,
    PAGE,
    ROOT,
    DoesNotFitError,
    Mutant,
    rates,
    read_mutants,
    read_outcomes,
    read_rates,
    write_page,
)

SOURCE = Path(penstock.__file__).parent
MUTANTS = read_mutants()


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_the_mistakes_of_a_file_fit_the_source(file: str) -> None:
    """A developer who moves a protection also moves its mistake, or it is never planted again."""
    misfits = [error for mutant in MUTANTS if mutant.file == file if (error := check_fit(mutant))]
    assert not misfits, "\n".join(misfits)


def check_fit(mutant: Mutant) -> str:
    """Return why a mistake cannot be planted; empty if it can."""
    try:
        text, changed = mutant.apply_in(SOURCE)
    except DoesNotFitError as error:
        return str(error)
    if changed == text:
        return f"{mutant.name!r} changes nothing"
    is_checked = any(isinstance(edit, SyntaxEdit) for edit in mutant.edits)
    if not is_checked and not mutant.is_kernel:
        compile(changed, mutant.file, "exec")
    paths = [part for part in mutant.tests.split() if part.startswith("tests/")]
    missing = [path for path in paths if not (ROOT / path.partition("::")[0]).is_file()]
    return "" if paths and not missing else f"{mutant.name!r} has no test {', '.join(missing)}"


@pytest.mark.parametrize("defect", read_mutants([DEFECTS]), ids=lambda defect: defect.name)
def test_a_defect_for_the_ddl_fuzzer_fits_the_source(defect: Mutant) -> None:
    """A change of how schema changes are followed keeps the defect, or comes with another one."""
    _, changed = defect.apply_in(SOURCE)
    compile(changed, defect.file, "exec")
    assert {"--source", "--target"} <= set(defect.tests.split())


def test_the_list_is_long_and_mostly_needs_no_server() -> None:
    """The list has at least 120 named mistakes; nine of ten are found without a server."""
    assert len(MUTANTS) >= 120
    assert [name for name, count in Counter(m.name for m in MUTANTS).items() if count > 1] == []
    alone = sum(not mutant.needs_server for mutant in MUTANTS)
    assert alone >= 0.9 * len(MUTANTS)


ROOMS = (
    "base",
    "consume",
    "consume/flexcdc",
    "engines/feeds",
    "engines/ignite",
    "feeds",
    "merge",
    "serve",
)


@pytest.mark.parametrize("room", ROOMS)
def test_a_newer_room_has_its_mistakes(room: str) -> None:
    """A room has at least 15; nine of ten are found without a server."""
    planted = [mutant for mutant in MUTANTS if mutant.room == room]
    assert len(planted) >= 15
    assert sum(not mutant.needs_server for mutant in planted) >= 0.9 * len(planted)


def test_the_page_has_the_rates_of_the_lists() -> None:
    """The command writes them, and keeps the results of earlier runs."""
    shown = read_rates(PAGE.read_text(encoding="utf-8"))
    planted = Counter(mutant.room for mutant in MUTANTS)
    found = {room: numbers[0] for room, numbers in shown.items()}
    wanted = {**planted, "all": len(MUTANTS)}
    assert found == wanted, "run python tests/mutate_protections.py --table"
    for planted_count, run, found, alone, missed in shown.values():
        assert run <= planted_count
        assert alone <= found == run - missed


FEW = [
    Mutant(name="a", file="log/x.py", tests="tests/unit/test_x.py"),
    Mutant(name="b", file="log/x.py", tests="tests/servers/test_x.py"),
    Mutant(name="c", file="engines/ignite/a/x.py", tests="tests/unit/test_x.py"),
    Mutant(name="d", file="web/x.py", tests="tests/unit/test_x.py"),
]


def test_the_rate_counts_what_was_found() -> None:
    """The rate counts by room, and in all; what only a server's test finds is counted apart."""
    wanted = [
        *HEADER,
        "| engines/ignite | 1 | 1 | 0 | 0 | 1 |",
        "| log | 2 | 2 | 2 | 1 | 0 |",
        "| web | 1 | 0 | 0 | 0 | 0 |",
        "| all | 4 | 3 | 2 | 1 | 1 |",
    ]
    assert rates(FEW, {"a": True, "b": True, "c": False}) == wanted
    assert read_rates("\n".join(["x", *wanted, "", "y"]))["log"] == (2, 2, 2, 1, 0)
    kept = rates(FEW, {"d": True}, {"log": (1, 1, 1, 0)})
    assert kept[3:] == [
        "| log | 2 | 1 | 1 | 1 | 0 |",
        "| web | 1 | 1 | 1 | 1 | 0 |",
        "| all | 4 | 2 | 2 | 2 | 0 |",
    ]


def test_the_page_is_written_from_what_runs_printed(tmp_path: Path) -> None:
    """The text around the table stays."""
    page, output = tmp_path / "page.md", tmp_path / "output"
    page.write_text(
        "\n".join(["before", "", *HEADER, "| all | 1 | 1 | 1 | 1 | 0 |", "", "after\n"])
    )
    first, second = (mutant.name for mutant in MUTANTS[:2])
    output.write_text(f"{first}: found by test_x.py::test\n{second}: NOT FOUND: 3 passed\n| x |\n")
    assert read_outcomes([output]) == {first: True, second: False}
    write_page([output], page)
    text = page.read_text()
    assert text.startswith(f"before\n\n{HEADER[0]}\n")
    assert text.endswith(" |\n\nafter\n")
    assert read_rates(text)["all"][:3] == (len(MUTANTS), 2, 1)


LIST = """
[[file]]
path = "log/x.py"
tests = "tests/unit/test_x.py"
"one piece" = ["f", 'a + 1', 'a']
"second of them" = ["f", 'a', 'b', { nth = 2 }]
"two pieces" = [["f", 'a + 1', 'a'], ["", 'A = 1', 'A = 2']]
[[file]]
path = "log/x.pyx"
tests = "tests/unit/test_x.py"
"a text" = ['cdef int a', 'cdef long a']
"""
PYTHON = "A = 1\n\n\ndef f(a):\n    # Once more.\n    return g(a  +  1), a\n"


def write_list(folder: Path) -> dict[str, Mutant]:
    """Return the mistakes of a written list, by name, with the files that they change."""
    (folder / "log").mkdir()
    (folder / "log/x.py").write_text(PYTHON)
    (folder / "log/x.pyx").write_text("cdef int a\n")
    path = folder / "some.toml"
    path.write_text(LIST)
    return {mutant.name: mutant for mutant in read_mutants([path])}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("one piece", PYTHON.replace("a  +  1", "(a)")),
        ("second of them", PYTHON.replace(", a", ", (b)")),
        ("two pieces", PYTHON.replace("a  +  1", "(a)").replace("A = 1", "A = 2")),
        ("a text", "cdef long a\n"),
    ],
)
def test_an_entry_of_a_list_changes_its_piece_alone(
    name: str, changed: str, tmp_path: Path
) -> None:
    """An entry with a place is compared as a tree, one without a place as a text."""
    mutant = write_list(tmp_path)[name]
    assert mutant.apply_in(tmp_path)[1] == changed
    assert mutant.tests == "tests/unit/test_x.py"


def test_a_mistake_that_no_longer_fits_is_named(tmp_path: Path) -> None:
    """The error has the mistake, its place, the piece, and the list where it has to be changed."""
    mutants = write_list(tmp_path)
    (tmp_path / "log/x.py").write_text(PYTHON.replace("+", "-"))
    (tmp_path / "log/x.pyx").unlink()
    with pytest.raises(DoesNotFitError) as error:
        mutants["one piece"].apply_in(tmp_path)
    assert str(error.value).splitlines() == [
        "'one piece' no longer fits log/x.py: f does not have the piece: a + 1",
        "Write the present place and code into some.toml, or delete the entry if the source no "
        "longer has what it protects.",
    ]
    with pytest.raises(DoesNotFitError, match=r"'a text' no longer fits log/x.pyx: there is no"):
        mutants["a text"].apply_in(tmp_path)
