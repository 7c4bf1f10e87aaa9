"""Edits by the syntax tree: what they change, what they leave, and what they say if they fail."""

from __future__ import annotations

import pytest

from harness.faults.syntax_edit import SyntaxEdit, edit_syntax

SOURCE = '''\
"""Module."""
LIMIT = 7  # bytes, see café


class Store:
    size: int = 0

    @property
    def name(self):
        return "é" + self.first  # the first

    @name.setter
    def name(self, value):
        self.first = value

    def load(self, rows, limit):
        if not rows:
            return None
        elif limit < len(
            rows,  # all of them
        ):
            raise ValueError("too many")
        with self.lock:
            self.note(rows)
        total = sum(row for row in rows)
        self.note(rows)

        def keep(row):
            return row and not self.is_old(row)

        return [row for row in rows if keep(row)], total
'''


def plant(place: str, old: str, new: str, nth: int = 0) -> str:
    """Return the lines that an edit changes, with those that replace them."""
    before = SOURCE.splitlines()
    after = edit_syntax(SOURCE, [SyntaxEdit(place, old, new, nth)]).splitlines()
    while before and after and before[0] == after[0]:
        before.pop(0), after.pop(0)
    while before and after and before[-1] == after[-1]:
        before.pop(), after.pop()
    return "\n".join(line.strip() for line in after)


@pytest.mark.parametrize(
    ("place", "old", "new", "changed"),
    [
        ("", "7", "8", "LIMIT = (8)  # bytes, see café"),
        ("Store", "size: int = 0", "size: int = 1", "size: int = 1"),
        ("Store.name", "self.first", "self.last", 'return "é" + (self.last)  # the first'),
        ("Store.name", "self.first = value", "", "pass"),
        ("Store.load", "not rows", "rows is None", "if (rows is None):"),
        ("Store.load", "len( rows )", "0", "elif limit < (0):"),
        ("Store.load", "raise ValueError('too many')", "", "pass"),
        ("Store.load", "sum(row for row in rows)", "len(rows)", "total = (len(rows))"),
        ("Store.load", "(row for row in rows)", "rows", "total = sum(rows)"),
        ("Store.load.keep", "not self.is_old(row)", "True", "return row and (True)"),
        ("Store.load", "with self.lock: ...", "", "pass"),
        ("Store.load", "if limit < len(rows): ...", "limit = 0", "else:\nlimit = 0"),
        ("Store.load", "if limit < len(rows): ...", "if rows: limit()", "else:\nif rows:\nlimit()"),
    ],
)
def test_a_piece_is_replaced_and_the_rest_stays(
    place: str, old: str, new: str, changed: str
) -> None:
    """A piece is found by its tree: layout, quotes and comments of the file are ignored."""
    assert plant(place, old, new) == changed


def test_one_of_several_equal_pieces_has_a_number() -> None:
    """The pieces are numbered as they stand in the file."""
    assert plant("Store.load", "self.note(rows)", "self.note(0)", 1) == "(self.note(0))"
    changed = edit_syntax(SOURCE, [SyntaxEdit("Store.load", "self.note(rows)", "", 2)])
    assert changed.index("pass") > changed.index("total =")


def test_several_statements_are_one_piece() -> None:
    """Statements that follow one another are compared one by one, in their order."""
    old = "total = sum(row for row in rows)\nself.note(rows)"
    assert plant("Store.load", old, "self.note(rows)\ntotal = 0") == "self.note(rows)\ntotal = 0"
    with pytest.raises(ValueError, match="does not have the piece"):
        plant("Store.load", "self.note(rows)\ntotal = sum(row for row in rows)", "")


def test_several_edits_are_found_in_the_file_as_it_was() -> None:
    """An edit does not see the text of another one; two edits of the same code are refused."""
    edits = [SyntaxEdit("", "7", "0"), SyntaxEdit("Store", "size: int = 0", "size: int = 7")]
    assert "LIMIT = (0)" in edit_syntax(SOURCE, edits)
    edits = [SyntaxEdit("", "self.lock", "0"), SyntaxEdit("", "with self.lock: ...", "")]
    with pytest.raises(ValueError, match="overlap"):
        edit_syntax(SOURCE, edits)


@pytest.mark.parametrize(
    ("place", "old", "nth", "problem"),
    [
        ("Store.save", "7", 0, "^it has no function or class Store.save"),
        ("Store.load", "7", 0, "^Store.load does not have the piece: 7"),
        ("Store.load", "self.note(rows)", 0, r"has 2 times the piece: self\.note"),
        ("Store.load", "self.note(rows)", 3, "2 times the piece, number 3 of them: "),
        ("", "8", 0, "^it does not have the piece: 8"),
    ],
)
def test_an_edit_that_does_not_fit_is_an_error(
    place: str, old: str, nth: int, problem: str
) -> None:
    """The error names the place and the piece."""
    with pytest.raises(ValueError, match=problem):
        plant(place, old, "0", nth)


def test_a_result_that_is_not_python_is_an_error() -> None:
    """A mistake that does not compile would be found by every test."""
    with pytest.raises(ValueError, match="not Python"):
        edit_syntax("if True: x = 1\n", [SyntaxEdit("", "x = 1", "while True: x = 2")])
