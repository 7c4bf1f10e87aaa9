"""Further followers of the DDL fuzzer's log: a planted difference is reported, and no other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.ddl_changelog import changelog_differences, changelog_of, with_full_images
from harness.pipelines.ddl_followers import Marks, make_followers, table_of
from harness.pipelines.ddl_processes import ERRORS_MAX, Mark, Processes
from harness.pipelines.ddl_script import Statement, Step
from harness.pipelines.ddl_sides import Facts, base_differences
from harness.pipelines.ddl_types import MARIADB, POSTGRES
from harness.pipelines.ddl_view import View, ViewRow, text_of, view_differences

ID, NR = (1,), (2,)


class FakeSide:
    """A side with one table `t` of columns id and v."""

    def __init__(self, rows: list[Any], *, kind: str = POSTGRES, of: str = "text") -> None:
        self.kind, self._rows, self._of = kind, rows, of

    def facts(self, schema: str, table: str) -> Facts | None:
        types = {"id": "integer", "v": self._of}
        return Facts(types=types, key=frozenset(["id"]), nullable=frozenset(["v"]))

    def texts(self, schema: str, table: str, columns: Any) -> list[Any]:
        return self._rows


def row(v: str | None, *, since: int | None = 5, of: Any = (ID,), **more: str) -> ViewRow:
    """Return a row whose last event has this number."""
    return ViewRow({"id": "1", "v": v, **more}, since, 7, frozenset(of))


def view_of(rows: dict[Any, ViewRow], *, fence: int = 3, shapes: Any = (ID,)) -> View:
    """Return a view of t, and of the fence 9 with this gsn."""
    made = View()
    table = made.table("h0.t")
    table.rows, table.key, table.signatures = rows, ("id",), shapes
    made.table("fence.f").rows[("9",)] = ViewRow({"id": "9"}, fence, 1, frozenset([ID]))
    return made


MARK = Mark("fence.f", 9)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({("1",): row("a")}, []),
        ({}, ["consumer: t: lacks id='1'"]),
        ({("1",): row("a"), ("2",): row("b")}, ["consumer: t: has id='2'"]),
        (
            {("1",): row("b")},
            ["consumer: t: lacks id='1', v='a'", "consumer: t: has id='1', v='b'"],
        ),
        ({("1",): row("a", w="1")}, ["consumer: t: columns ['id', 'v'] became ['id', 'v', 'w']"]),
    ],
)
def test_how_a_view_differs(rows: Any, said: list[str]) -> None:
    """Views differ by keys, and by values of rows after the last DDL."""
    source: Any = FakeSide([("1", "a")])
    for mark in (MARK, None):
        assert view_differences(source, view_of(rows), "h0", "t", mark) == sorted(said)


def test_values_are_not_compared_of_rows_before_the_last_ddl() -> None:
    """Rows that lack a value are skipped too; rows of a snapshot after the DDL are compared."""
    source: Any = FakeSide([("1", "a")])
    for before in (row("b", since=2), row("b", since=None)):
        assert not view_differences(source, view_of({("1",): before}), "h0", "t", MARK)
    beside = view_of({("1",): row("b", since=-8)}, fence=-2)
    assert view_differences(source, beside, "h0", "t", MARK)


def test_all_keys_are_compared_after_ddl() -> None:
    """A table that got another name has all of its rows, too: they are put into the log."""
    source: Any = FakeSide([("1", "a")])
    assert view_differences(source, view_of({}), "h0", "t", MARK)
    assert view_differences(source, view_of({("2",): row("a")}), "h0", "t", MARK)


def test_keys_are_not_compared_whose_columns_changed() -> None:
    """A user has to refill such a table; if all rows have the last key, they are compared."""
    source: Any = FakeSide([("1", "a")])
    gone = view_of({("2",): row("a", of=(ID, NR))}, shapes=(ID, NR))
    assert not view_differences(source, gone, "h0", "t", None)
    assert view_differences(source, view_of({("2",): row("a")}), "h0", "t", None)


def test_bits_of_a_binlog_are_a_number() -> None:
    """A user sees the digits of the number."""
    source: Any = FakeSide([("1", "101")], kind=MARIADB, of="bit(8)")
    assert not view_differences(source, view_of({("1",): row("5")}), "h0", "t", None)
    assert view_differences(source, view_of({("1",): row("101")}), "h0", "t", None)


def test_values_as_text() -> None:
    """Values are printed as PostgreSQL prints them."""
    assert [text_of(one) for one in (None, True, b"\x00\xff", 1)] == [None, "t", "\\x00ff", "1"]


def test_how_a_merged_log_differs() -> None:
    """The difference is reported like one of the log's own fold, under another name."""

    class Served:
        def rows(self, schema: str, table: str) -> Any:
            return ["id", "v"], [("1", "b")]

    source, served = FakeSide([("1", "b"), ("2", "c")]), Served()
    lines = base_differences(source, served, "h0", "t", "merge")  # type: ignore[arg-type]
    assert lines == ["merge: t: lacks id='2', v='c'"]


class Dead:
    """A process that immediately ends with an error."""

    name, code, error = "merge", 1, {"code": "MG03", "error": "h3.t: shapes"}

    def __init__(self) -> None:
        self.starts = 0

    def start(self) -> None:
        self.starts += 1


def test_a_process_that_ends_with_an_error_again_and_again() -> None:
    """The process is restarted a few times; its error is kept."""
    child: Any = Dead()
    several = Processes([child], random.Random(1))
    for _ in range(9):
        several.tend()
    assert (child.starts, several.error) == (ERRORS_MAX - 1, "merge: MG03 h3.t: shapes")


def test_a_log_that_is_compared_has_a_base(tmp_path: Path) -> None:
    """The log's file is served; the merged log is created beside it and names it."""
    file = tmp_path / "shop.toml"
    file.write_text("")
    target: Any = FakeSide([])
    made = make_followers(
        ("consumer", "merge"), file, target, random.Random(1), has_zero_dates=True
    )
    assert [one.name for one in made] == ["merge", "consumer"]
    assert "[serve]" in file.read_text()
    assert 'logs = ["../shop.toml"]' in (tmp_path / "merged" / "merged.toml").read_text()


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("alter table t drop a", "t"),
        ('alter table "or der" add b int', "or der"),
        ('truncate table "a""b"', 'a"b'),
        ("create or replace table `a``b` (id int)", "a`b"),
        ("alter table t rename to r2", None),
        ("alter type mood add value 'x'", None),
        ("rename table t to a, b to t", None),
    ],
)
def test_which_table_ddl_concerns(text: str, table: str | None) -> None:
    """A result of None means any table."""
    assert table_of(Statement(text)) == table


def test_the_mark_after_the_last_ddl_of_a_table() -> None:
    """Rows do not move it; a statement that concerns any table moves it for all."""
    marks = Marks("fence.f")
    marks.note("h0", [Statement("alter table t", ("add b int",))], 3)
    marks.note("h0", [Statement("insert into r2 values (1)")], 4)
    assert marks.find("h0", "t") == Mark("fence.f", 3)
    assert marks.find("h0", "r2") is marks.find("h1", "t") is None
    marks.note("h0", [Statement("alter type mood add value 'x'")], 5)
    assert marks.find("h0", "t") == marks.find("h0", "r2") == Mark("fence.f", 5)
    marks.note("h0", [Statement("alter table t rename to `r``2`")], 6)
    assert marks.find("h0", "r`2") == Mark("fence.f", 6)


class Changelog:
    """A target with the changelog of t, as images (dml_type, number, id, v)."""

    kind = POSTGRES

    def __init__(self, images: list[Any], kind: str = "integer") -> None:
        self._images, self._kind = images, kind

    def facts(self, schema: str, table: str) -> Facts | None:
        assert (schema, table) == ("flexviews", changelog_of("h0", "t"))
        types = {"dml_type": "integer", "fv$gsn": "bigint", "id": self._kind, "v": "text"}
        return Facts(types=types, key=frozenset(), nullable=frozenset(types))

    def texts(self, schema: str, table: str, columns: Any) -> list[Any]:
        assert list(columns) == ["fv$gsn", "dml_type", "id", "v"]
        return [(str(gsn), str(dml), *row) for dml, gsn, *row in self._images]


INSERTED, UPDATED = (1, 2, "1", "a"), [(-1, 3, "1", "a"), (1, 4, "1", "b")]


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ([], []),
        ([INSERTED, *UPDATED], []),
        ([*UPDATED, INSERTED], []),
        ([INSERTED], ["has id='1', v='a'", "lacks id='1', v='b'"]),
        ([INSERTED, (-1, 5, "1", "a")], ["lacks id='1' (image 5)"]),
        ([INSERTED, *UPDATED, (1, 5, "2", "x")], ["has id='2' (image 5)"]),
        ([INSERTED, *UPDATED, (1, 5, "2", "x"), (-1, 6, "2", "x")], []),
        ([INSERTED, *UPDATED, (0, 4, None, None)], ["lacks id='1'"]),
        ([(1, 2, "2", "x"), (0, 3, None, None), (1, 4, "1", "b")], []),
        ([(1, 2, None, "x"), INSERTED], []),
    ],
)
def test_how_a_changelog_differs(images: list[Any], said: list[str]) -> None:
    """The last image of each key is compared; after the table was emptied, all rows are."""
    source: Any = FakeSide([("1", "b")])
    target: Any = Changelog(images)
    found = changelog_differences(source, target, "h0", "t", since=None)
    assert found == [f"flexcdc: t: {line}" for line in said]


@pytest.mark.parametrize(("kind", "is_equal"), [("numeric(65,30)", True), ("text", False)])
def test_a_changelog_may_keep_the_wider_type_of_numbers(kind: str, is_equal: bool) -> None:
    """The column was numeric before it became an integer; as text, `1.0` is another value."""
    target: Any = Changelog([(1, 2, "1.000", "a")], kind)
    found = changelog_differences(FakeSide([("1", "a")]), target, "h0", "t", since=None)  # type: ignore[arg-type]
    assert (not found) is is_equal


def test_a_changelog_in_postgres_has_null_for_a_day_that_no_calendar_has() -> None:
    """The pipeline file says so; the same in the fold that `penstock serve` sends."""
    source: Any = FakeSide([("1", "0000-00-00 00:00:00")], kind=MARIADB, of="datetime")
    found = changelog_differences(source, Changelog([(1, 2, "1", None)]), "h0", "t", since=None)  # type: ignore[arg-type]
    assert found == []


def test_values_of_images_before_the_last_ddl_are_not_compared() -> None:
    """Their keys are compared."""
    source: Any = FakeSide([("1", "b")])
    target: Any = Changelog([INSERTED, (1, 3, "2", "x")])
    found = changelog_differences(source, target, "h0", "t", since=3)
    assert found == ["flexcdc: t: has id='2' (image 3)"]


def test_tables_send_whole_old_rows() -> None:
    """Each created table does, and none stops doing so."""
    step = Step(
        (
            Statement('create table "or der" (id int)'),
            Statement('alter table "or der"', ("replica identity default",)),
        )
    )
    assert [one.sql for one in with_full_images(step).statements] == [
        'create table "or der" (id int)',
        'alter table "or der" replica identity full',
        'alter table "or der" replica identity full',
    ]
