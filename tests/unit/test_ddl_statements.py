"""The table of schema changes in the docs has the statements that the command runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddl_statements import CHANGES, NAMES, SOURCES, WITHOUT, Measured, table_of
from harness.pipelines.ddl_arena import DIFFERENT, EQUAL, REFUSED, STOPPED, Outcome
from harness.pipelines.ddl_script import Script
from harness.pipelines.ddl_types import POSTGRES

PAGE = Path(__file__).parents[2] / "docs/schema-changes.md"


def rows_of(page: str) -> list[list[str]]:
    """Return the cells of the page's table."""
    text = page.partition("<!-- statements -->\n")[2].partition("<!-- end of statements -->")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_the_page_has_every_statement_in_order() -> None:
    """The page has no statement that the command does not know."""
    head, _, *rows = rows_of(PAGE.read_text(encoding="utf-8"))
    assert head == ["statement", *NAMES.values()]
    assert [row[0] for row in rows] == [change.name for change in CHANGES]
    for row, change in zip(rows, CHANGES, strict=True):
        for cell, source in zip(row[1:], SOURCES, strict=True):
            assert (cell == WITHOUT) is not bool(change.on(source)), (change.name, source)
            assert cell.startswith((WITHOUT, "followed, ", "read again, ", "refused: "))


def test_a_table_is_what_the_command_prints() -> None:
    """A source that was not run appears as a question mark."""
    printed = table_of([{CHANGES[0].name: "followed, 0.0 / 0.0"}, {}, {}])
    assert printed.splitlines()[2] == f"| {CHANGES[0].name} | followed, 0.0 / 0.0 | ? | ? |"


@pytest.mark.parametrize(
    ("end", "is_read_again", "text"),
    [
        (EQUAL, False, "followed, 0.2 / 0.0"),
        (EQUAL, True, "read again, 0.2 / 0.0"),
        (REFUSED, False, "refused: TG20"),
        (STOPPED, True, "refused: TG20"),
        (DIFFERENT, False, "DIFFERENT"),
    ],
)
def test_a_cell(end: str, is_read_again: bool, text: str) -> None:
    """A difference is always printed as a difference."""
    outcome = Outcome(end, Script(POSTGRES, (), ()), code="TG20")
    measured = Measured(writers_s=0.21, is_read_again=is_read_again, outcome=outcome)
    assert measured.text == text
