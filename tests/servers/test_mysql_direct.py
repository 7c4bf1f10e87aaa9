"""Upserts that MySQL and MariaDB read straight into their table, as lines in penstock's files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import Applying, LogMaker
from harness.pipelines.loading import add
from harness.pipelines.merge import ITEM, delete, insert, update
from harness.servers.both_ways import batches_both_ways, both_results, both_tables
from penstock.engines.mysql.target.rows_files import RowsFile, files_of
from penstock.model import MarkerKind, TableName
from penstock.ports.target import StagingChanged
from plugins.mysql_loader import COUNTED, ITEMS, MyStart, Target, run_killed

UNSURE = frozenset(TableName("public", name) for name in ("t", "direct", "merged"))


@pytest.fixture
def my_start(my_start: MyStart) -> MyStart:
    """Maker of tables and a loader as there; rows of the tables are not written as events."""
    return partial(my_start, unsure=UNSURE)


def staged_files(target: Applying, **more: Any) -> tuple[RowsFile, ...]:
    """Apply the log, and return the files in which its upserts waited."""
    staged = target.batch(**more)
    return tuple(
        file for phase in staged.phases for spec in phase.merges for file in files_of(spec)
    )


def test_upserts_wait_in_files_and_deletes_in_the_merge_table(
    my_start: MyStart, log: LogMaker
) -> None:
    """Upserts wait in a folder of their own, which the next batch but one removes."""
    target = my_start(ITEMS + "; insert into t values (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    log.transaction(
        insert(ITEM, 4, "tab\t\\N\n\0", 4),
        update(ITEM, 1, "A", None),
        update(ITEM, 5, "moved", 3, old=(3, None, None)),
        delete(ITEM, 2, None, None),
    )
    log.close_segment()
    staged = target.stage()
    (spec,) = staged.phases[0].merges
    (file,) = files_of(spec)
    assert (file.row_count, spec.staged_row_count) == (3, 2)
    assert file.path.stat().st_size == file.size_bytes
    assert target.rows("select id from wirekite.t_wkm order by 1") == [(2,), (3,)]
    target.target.apply(staged)
    target.applied = staged.after
    expected = [(1, "A", None), (4, "tab\t\\N\n\0", 4), (5, "moved", 3)]
    assert target.rows("select * from t order by id") == expected
    for place in (1, 0):
        log.transaction(insert(ITEM, 10 + place, "x", 1))
        log.close_segment()
        assert staged_files(target, place=place)
        assert file.path.exists() == (place == 1)
    target.close()
    assert list(file.path.parent.parent.iterdir()) == []


def test_buckets_and_truncations(my_start: MyStart, log: LogMaker, monkeypatch: Any) -> None:
    """Each bucket of a large table has a file; a truncated table is emptied first."""
    monkeypatch.setattr("penstock.load.plan.BUCKET_BYTES", 1)
    target = my_start(ITEMS + "; insert into t values (1, 'a', 1)")
    log.transaction((MarkerKind.TRUNCATE, [TableName("public", "t")]))
    for number in range(2, 400):
        log.transaction(insert(ITEM, number, "x" * (number % 100), number))
    log.close_segment()
    files = staged_files(target, threads=2)
    assert sum(file.row_count for file in files) == 398
    assert all(file.row_count > 100 for file in files)
    found = target.rows("select count(*), min(id), sum(length(name)), sum(n) from t")
    length = sum(number % 100 for number in range(2, 400))
    assert found == [(398, 2, length, sum(range(2, 400)))]


def test_one_bucket_has_unsent_columns(my_start: MyStart, log: LogMaker, monkeypatch: Any) -> None:
    """No bucket writes a file if one has unsent columns, which the merge table fills."""
    monkeypatch.setattr("penstock.load.plan.BUCKET_BYTES", 1)
    target = my_start(ITEMS + "; insert into t values (1, 'kept', 1)")
    log.transaction(update(ITEM, 1, None, 7, absent=(1,)))
    log.transaction(*[insert(ITEM, number, "x", number) for number in range(2, 200)])
    log.close_segment()
    assert staged_files(target, threads=2) == ()
    assert target.rows("select count(*), sum(name = 'kept' and n = 7) from t") == [(199, 1)]


VALUES: list[tuple[str, str, list[Any]]] = [
    ("bool", "tinyint(1)", [True, False]),
    ("int16", "smallint", [-32768, 32767]),
    ("int32", "int", [-(2**31), 2**31 - 1]),
    ("int64", "bigint", [-(2**63), 2**63 - 1]),
    ("int32", "decimal(12,2)", [-(2**31), 2**31 - 1]),
    ("uint32", "int unsigned", [0, 2**32 - 1]),
    ("uint64", "bigint unsigned", [0, 2**64 - 1]),
    ("float32", "float", [16777216.0, 1.401298464324817e-45]),
    ("float64", "double", [0.1, 1.7976931348623157e308]),
    ("decimal(38,10)", "decimal(38,10)", [Decimal("9" * 28 + ".5"), Decimal("-0.0000000001")]),
    ("date", "date", [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    ("time", "time(6)", [dt.time(0, 0), dt.time(23, 59, 59, 999999)]),
    ("timestamp", "datetime(6)", [dt.datetime.min, dt.datetime.max]),  # noqa: DTZ901
    ("timestamp", "datetime", [dt.datetime(2024, 2, 29, 23, 59, 59, 500000)] * 2),  # noqa: DTZ001
    ("timestamptz", "timestamp(6)", [dt.datetime(2037, 3, 28, 1, 30, 0, 12, tzinfo=dt.UTC)] * 2),
    ("string", "longtext", ["tab\tline\n\\N\\ 'quote' \r\0 Größe 表 😀", ""]),
    ("string", "varchar(9) character set utf8mb3", ["表 ü", "a "]),
    ("string", "char(9)", ["ü", ""]),
    ("string", "json", ['{"a": [1, null, "é\\n"]}', "1.5"]),
    ("string", "enum('x','it''s','ü','1','')", ["1", ""]),
    ("string", "set('a','b','d')", ["a,d", ""]),
    ("binary", "longblob", [bytes(range(256)), b""]),
    ("binary", "varbinary(10)", [b"\\\t\n\0", b"\xff\xf0"]),
    ("binary", "binary(4)", [b"\\\t\n\0", b"\xf0\x9f\t\n"]),
    ("uuid", "char(36)", [bytes(range(16)), b"\xff" * 16]),
]


@pytest.mark.parametrize("row", range(2))
def test_values_are_those_that_go_through_a_merge_table(
    my_start: MyStart, log: LogMaker, row: int
) -> None:
    """Both paths give the same new and updated rows for every type that is loaded directly."""
    ddl = ", ".join(f"c{place} {sql}" for place, (_, sql, _) in enumerate(VALUES))
    columns = [(f"c{place}", "x", neutral) for place, (neutral, _, _) in enumerate(VALUES)]
    target = both_tables(my_start, f"{ddl}, d int as (id * 2)")
    rows = [[values[number] for _, _, values in VALUES] for number in (row, 1 - row)]
    for _ in batches_both_ways(target, log, columns, rows):
        for name, _, _ in columns:
            direct, merged = both_results(target, f"id, d, {name}")
            assert direct == merged, name
            assert direct[0][2] is not None


def change_nothing(target: Applying) -> None:
    """Leave the target as it is."""


def own_column(target: Applying) -> None:
    """Add a column that no row has."""
    target.execute("alter table t add column own int default 7")


def unique(target: Applying) -> None:
    """Add another unique key."""
    target.execute("alter table t add unique (name)")


def trigger(target: Applying) -> None:
    """Add a trigger, which an update by replacement would fire as a delete."""
    target.execute("create trigger one before delete on t for each row set @seen = 1")


UNFIT: list[tuple[str, Callable[[Applying], None]]] = [
    ("v int", own_column),
    ("v int", unique),
    ("v int", trigger),
    ("v year", change_nothing),
    ("v bit(4)", change_nothing),
    ("v varchar(9)", change_nothing),
]


@pytest.mark.parametrize(("column", "alter"), UNFIT)
def test_what_needs_more_goes_through_a_merge_table(
    my_start: MyStart, log: LogMaker, column: str, alter: Callable[[Applying], None]
) -> None:
    """Rows that need more than a file go through a merge table, and arrive correctly."""
    shape = relation(("id", "x", "int32"), ("name", "x", "string"), ("v", "x", "int16"))
    ddl = f"create table t (id int primary key, name varchar(9), {column})"
    target = my_start(ddl, allow_triggers=True)
    alter(target)
    one = 2001 if "year" in column else 1
    log.transaction(insert(shape, 1, "a", one), insert(shape, 2, "b", 0))
    log.close_segment()
    assert staged_files(target) == ()
    log.transaction(update(shape, 1, "A", 0))
    log.close_segment()
    assert staged_files(target) == ()
    assert target.rows("select id, name, v + 0 from t order by id") == [(1, "A", 0), (2, "b", 0)]
    if alter is own_column:
        assert target.rows("select own from t") == [(7,), (7,)]


@pytest.mark.parametrize(
    "settings", [{"local_infile": "0"}, {"binlog_format": "'STATEMENT'"}], ids=["files", "binlog"]
)
def test_servers_that_take_no_files(
    my_start: MyStart, log: LogMaker, settings: dict[str, str]
) -> None:
    """Merge tables are used if files are refused, or would be written into the binlog."""
    target_settings = settings
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    starting = my_start("create table other (id int)")
    with starting.place.server.globals(**target_settings):
        target = my_start(ITEMS)
        assert staged_files(target) == ()
    assert target.rows("select * from t") == [(1, "a", 1)]


def test_labels_without_a_number(my_start: MyStart, log: LogMaker) -> None:
    """A batch with an ENUM's 0, which has no text in strict mode, uses a merge table."""
    shape = relation(("id", "x", "int32"), ("e", "enum('a','b')", "string"))
    target = my_start("create table t (id int primary key, e enum('a','b'))")
    log.transaction(insert(shape, 1, "a"), insert(shape, 3, None))
    log.close_segment()
    assert len(staged_files(target)) == 1
    log.transaction(insert(shape, 2, ""), update(shape, 1, "b"))
    log.close_segment()
    assert staged_files(target) == ()
    assert target.rows("select id, e + 0 from t order by id") == [(1, 2), (2, 0), (3, None)]


def test_one_bucket_in_a_file_and_another_not(
    my_start: MyStart, log: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value in one bucket needs the merge table: all rows of both buckets arrive."""
    monkeypatch.setattr("penstock.load.plan.BUCKET_BYTES", 1)
    shape = relation(("id", "x", "int32"), ("e", "enum('a','b')", "string"))
    target = my_start(
        "create table t (id int primary key, e enum('a','b'));"
        " insert into t values (5, 'a'), (15, 'a'), (100, 'a'), (101, 'a')"
    )
    for number in range(20):
        change = update if number in (5, 15) else insert
        log.transaction(change(shape, number, "" if number == 13 else "b"))
    log.transaction(delete(shape, 100, None), delete(shape, 101, None))
    log.close_segment()
    staged = target.stage(threads=2)
    (spec,) = staged.phases[0].merges
    (file,) = files_of(spec)
    assert 0 < file.row_count < 20
    target.target.apply(staged)
    found = target.rows("select id, e + 0 from t order by id")
    assert found == [(number, 0 if number == 13 else 2) for number in range(20)]


def test_unsent_columns(my_start: MyStart, log: LogMaker) -> None:
    """A batch with unsent columns goes through a merge table."""
    target = my_start(ITEMS + "; insert into t values (1, 'a', 1)")
    log.transaction(update(ITEM, 1, None, 2, absent=(1,)), insert(ITEM, 2, "b", 2))
    log.close_segment()
    assert staged_files(target) == ()
    assert target.rows("select * from t order by id") == [(1, "a", 2), (2, "b", 2)]


def shorten(file: RowsFile) -> None:
    """Cut off the end of a file."""
    file.path.write_bytes(file.path.read_bytes()[:-4])


def remove(file: RowsFile) -> None:
    """Remove a file."""
    file.path.unlink()


def less(file: RowsFile) -> None:
    """Remove a row from a file and keep its length."""
    assert file.path.read_bytes() == b"1\ta\n2\tb\n"
    file.path.write_bytes(b"1\taaaaa\n")


@pytest.mark.parametrize("spoil", [shorten, remove, less])
def test_a_spoiled_file_is_not_applied(
    my_start: MyStart, log: LogMaker, spoil: Callable[[RowsFile], None]
) -> None:
    """No row of the batch is applied; it is staged again on the same connection."""
    text = relation(("id", "x", "int32"), ("name", "x", "string"))
    target = my_start("create table t (id int primary key, name varchar(99))")
    log.transaction(insert(text, 1, "a"), insert(text, 2, "b"))
    log.close_segment()
    staged = target.stage()
    (file,) = files_of(staged.phases[0].merges[0])
    spoil(file)
    with pytest.raises(StagingChanged):
        target.target.apply(staged)
    assert target.rows("select * from t") == []
    assert target.read_applied() == target.applied
    target.batch()
    assert target.rows("select * from t order by id") == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("alter", [own_column, unique, trigger])
def test_a_table_that_was_altered_meanwhile(
    my_start: MyStart, log: LogMaker, alter: Callable[[Applying], None]
) -> None:
    """The table is checked before applying; staged again, the rows use a merge table."""
    target = my_start(
        "create table t (id int primary key, name varchar(9), n int)", allow_triggers=True
    )
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    staged = target.stage()
    alter(target)
    with pytest.raises(StagingChanged, match="altered"):
        target.target.apply(staged)
    target.begin_anew()
    assert staged_files(target) == ()
    assert target.rows("select id, name, n from t") == [(1, "a", 1)]


def test_a_disk_without_room(
    my_start: MyStart, log: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows go through a merge table: the target has another disk."""
    really = Path.open

    def full(path: Path, mode: str = "r", **more: Any) -> Any:
        if mode == "wb":
            raise OSError(28, "No space left on device")
        return really(path, mode, **more)

    target = my_start(ITEMS)
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        staged = target.stage()
    assert files_of(staged.phases[0].merges[0]) == ()
    target.target.apply(staged)
    assert target.rows("select * from t") == [(1, "a", 1)]


def test_what_a_killed_loader_left_is_removed(
    my_target: Target, log: LogMaker, tmp_path: Path
) -> None:
    """Files of a batch that was never applied are removed."""
    my_target.execute(COUNTED)
    for number in range(4):
        add(log, number)
        log.close_segment()
    log.writer.finish()
    killed = run_killed(my_target, tmp_path, "load.apply.after:1:kill")
    assert killed.returncode < 0, killed.stderr
    rows = tmp_path / "run" / "rows"
    assert [path for path in rows.rglob("*") if path.is_file()]
    ended = run_killed(my_target, tmp_path)
    assert ended.returncode == 0, ended.stderr
    my_target.check(4)
    assert list(rows.iterdir()) == []
