"""Rows that MariaDB applies as events of the binlog, like a replica's applier."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import Applying, LogMaker
from harness.pipelines.loading import Running
from harness.pipelines.merge import ITEM, delete, insert, update
from harness.servers.both_ways import batches_both_ways, both_results, both_tables
from penstock.engines.mysql.target import rows_files
from penstock.engines.mysql.target.refusals import RowsUnexpected
from penstock.engines.mysql.target.rows_files import RowsFile
from penstock.load.sql_target import StagedBatch
from penstock.model import MarkerKind, PenstockError, TableName
from penstock.ports.target import StagingChanged, UniqueBlocked, ValueRefused
from plugins.mysql_loader import ITEMS, MyStart, Target, run_killed

pytestmark = pytest.mark.server("mariadb")

AT = dt.datetime


def files_of(staged: StagedBatch, *, events: bool = True) -> list[RowsFile]:
    """Return the files of a batch; check that all or none of them hold events."""
    found = [
        file
        for phase in staged.phases
        for spec in phase.merges
        for file in rows_files.files_of(spec)
    ]
    assert all((file.events is not None) is events for file in found)
    return found


def test_all_kinds_of_changes_in_one_file(my_start: MyStart, log: LogMaker) -> None:
    """New, changed and deleted rows and moved keys are in one file; the merge table stays empty."""
    target = my_start(ITEMS + "; insert into t values (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    log.transaction(
        insert(ITEM, 4, "tab\t\\N\n\0", 4),
        update(ITEM, 1, "A", None),
        update(ITEM, 5, "moved", 3, old=(3, None, None)),
        delete(ITEM, 2, None, None),
        insert(ITEM, 6, "gone", 6),
        delete(ITEM, 6, None, None),
    )
    log.close_segment()
    staged = target.stage()
    (spec,) = staged.phases[0].merges
    (file,) = files_of(staged)
    assert (file.row_count, spec.staged_row_count) == (5, 0)
    target.target.apply(staged)
    target.applied = staged.after
    expected = [(1, "A", None), (4, "tab\t\\N\n\0", 4), (5, "moved", 3)]
    assert target.rows("select * from t order by id") == expected
    log.transaction(delete(ITEM, 1, None, None), delete(ITEM, 4, None, None))
    log.close_segment()
    assert files_of(target.batch())
    assert target.rows("select * from t") == [(5, "moved", 3)]


def test_buckets_statements_and_truncations(
    my_start: MyStart, log: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bucket has a file of many statements; a truncated table is emptied first."""
    monkeypatch.setattr("penstock.load.plan.BUCKET_BYTES", 1)
    monkeypatch.setattr("penstock.engines.mysql.target.row_events.STATEMENT_BYTES", 500)
    target = my_start(ITEMS + "; insert into t values (1, 'a', 1)")
    log.transaction((MarkerKind.TRUNCATE, [TableName("public", "t")]))
    for number in range(2, 400):
        log.transaction(insert(ITEM, number, "x" * (number % 100), number))
    log.close_segment()
    files = files_of(target.batch(threads=2))
    assert sum(file.row_count for file in files) == 398
    assert all(file.row_count > 100 for file in files)
    assert all(file.path.read_bytes().count(b"BINLOG '") > 10 for file in files)
    found = target.rows("select count(*), min(id), sum(length(name)), sum(n) from t")
    length = sum(number % 100 for number in range(2, 400))
    assert found == [(398, 2, length, sum(range(2, 400)))]


def test_one_bucket_as_events_and_another_not(
    my_start: MyStart, log: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and deletes of a bucket with a value that events lack stay in the table."""
    monkeypatch.setattr("penstock.load.plan.BUCKET_BYTES", 1)
    shape = relation(("id", "x", "int32"), ("at", "x", "timestamp"))
    target = my_start(
        "create table t (id int primary key, at datetime);"
        " insert into t values (5, null), (15, null), (100, null), (101, null)"
    )
    for number in range(20):
        change = update if number in (5, 15) else insert
        exact = number != 13
        log.transaction(change(shape, number, AT(2024, 1, 1, 0, 0, 1, 0 if exact else 1)))
    log.transaction(delete(shape, 100, None), delete(shape, 101, None))
    log.close_segment()
    staged = target.stage(threads=2)
    (file,) = files_of(staged)
    assert 0 < file.row_count < 22
    target.target.apply(staged)
    found = target.rows("select id, at from t order by id")
    assert found == [(number, AT(2024, 1, 1, 0, 0, 1)) for number in range(20)]


# By neutral type and column: values that events hold. Every length, sign, fraction and limit.
VALUES: list[tuple[str, str, list[Any]]] = [
    ("bool", "tinyint(1)", [True, False]),
    ("int16", "tinyint", [-128, 127]),
    ("int16", "smallint", [-32768, 32767]),
    ("int32", "mediumint", [-(2**23), 2**23 - 1]),
    ("int32", "mediumint unsigned", [0, 2**24 - 1]),
    ("int32", "int", [-(2**31), 2**31 - 1]),
    ("int32", "tinyint unsigned", [0, 255]),
    ("int64", "bigint", [-(2**63), 2**63 - 1]),
    ("uint32", "int unsigned", [0, 2**32 - 1]),
    ("uint64", "bigint unsigned", [0, 2**64 - 1]),
    ("float32", "float", [16777216.0, 1.401298464324817e-45]),
    ("float64", "double", [-0.1, 1.7976931348623157e308]),
    ("decimal(18,0)", "decimal(18,0)", [Decimal("9" * 18), Decimal("-" + "9" * 18)]),
    (
        "decimal(18,18)",
        "decimal(18,18)",
        [Decimal("." + "9" * 18), Decimal("-0.000000000000000001")],
    ),
    ("decimal(18,9)", "decimal(18,9)", [Decimal("123456789.987654321"), Decimal("-1.000000001")]),
    ("decimal(12,2)", "decimal(12,2)", [Decimal("-9999999999.99"), Decimal("0.01")]),
    ("decimal(5,4)", "decimal(10,5)", [Decimal("-1.0203"), Decimal("0")]),
    ("decimal(1,0)", "decimal(1,0)", [Decimal("-9"), Decimal("9")]),
    ("decimal(13,3)", "decimal(13,3)", [Decimal("-1000000000.001"), Decimal("256.255")]),
    ("date", "date", [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    ("date", "date", [dt.date(2000, 2, 29), dt.date(1969, 12, 31)]),
    ("timestamp", "datetime(6)", [AT(1, 1, 1), AT(9999, 12, 31, 23, 59, 59, 999999)]),
    ("timestamp", "datetime", [AT(1969, 12, 31, 23, 59, 59), AT(2024, 2, 29)]),
    ("timestamp", "datetime(1)", [AT(2024, 2, 29, 12, 30, 1, 900000), AT(1900, 1, 1)]),
    ("timestamp", "datetime(3)", [AT(2024, 2, 29, 12, 30, 1, 987000), AT(1900, 1, 1)]),
    ("timestamp", "datetime(4)", [AT(2024, 2, 29, 12, 30, 1, 987600), AT(1900, 1, 1)]),
    ("timestamptz", "timestamp(6)", [AT(2037, 3, 28, 1, 30, 0, 12, tzinfo=dt.UTC)] * 2),
    ("timestamptz", "timestamp", [AT(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)] * 2),
    ("timestamptz", "timestamp(2)", [AT(2038, 1, 19, 3, 14, 7, 990000, tzinfo=dt.UTC)] * 2),
    ("timestamptz", "datetime(5)", [AT(2038, 1, 20, 3, 14, 7, 999990, tzinfo=dt.UTC)] * 2),
    ("string", "longtext", ["tab\tline\n\\N\\ 'quote' \r\0 Größe 表 😀", ""]),
    ("string", "text", ["x" * 65535, "表" * 21845]),
    ("string", "mediumtext", ["x" * 65536, ""]),
    ("string", "tinytext", ["ü" * 127, "x" * 255]),
    ("string", "varchar(63)", ["😀" * 63, "a "]),
    ("string", "varchar(64)", ["😀" * 64, " a"]),
    ("string", "char(63)", ["😀" * 63, ""]),
    ("string", "char(64)", ["😀" * 64, "ü"]),
    ("string", "char(255)", ["😀" * 255, "a  b"]),
    ("string", "json", ['{"a": [1, null, "é\\n"]}', "1e999"]),
    ("string", "json", ['{\n  "a": 1\n}', " -0 "]),
    ("time", "time", [dt.time(0, 0), dt.time(23, 59, 59)]),
    ("time", "time(6)", [dt.time(23, 59, 59, 999999), dt.time(1, 2, 3, 4)]),
    ("time", "time(3)", [dt.time(23, 59, 59, 999000), dt.time(0, 0, 0, 1000)]),
    ("int16", "year", [1901, 2155]),
    ("int16", "year", [0, 2024]),
    ("string", "enum('x','it''s','ü','1','')", ["1", ""]),
    ("string", "enum('a','b')", ["", "b"]),
    ("string", f"enum({','.join(repr(f'l{n}') for n in range(300))})", ["l299", "l0"]),
    ("string", "set('a','b','it''s')", ["it's,a", ""]),
    ("string", f"set({','.join(repr(f'm{n}') for n in range(64))})", ["m0,m63", "m8"]),
    ("string", f"set({','.join(repr(f'm{n}') for n in range(17))})", ["m16,m1", "m8"]),
    ("binary", "longblob", [bytes(range(256)), b""]),
    ("binary", "blob", [b"\0" * 65535, b"\xff"]),
    ("binary", "mediumblob", [b"\xff" * 65536, b""]),
    ("binary", "tinyblob", [b"\0" * 255, b"\0"]),
    ("binary", "varbinary(255)", [b"\xff" * 255, b"\0\0"]),
    ("binary", "varbinary(256)", [b"\xff" * 256, b""]),
    ("binary", "binary(4)", [b"\0\0\0\1", b"\xf0\x9f\0\0"]),
    ("binary", "binary(4)", [b"\1", b""]),
    ("string", "char(9)", ["a  ", " "]),
    ("binary", "binary(255)", [b"\xff" * 255, b"\1" + b"\0" * 254]),
    ("uuid", "char(36)", [bytes(range(16)), b"\xff" * 16]),
    ("uuid", "varchar(36)", [bytes(range(16)), b"\xff" * 16]),
]


@pytest.mark.parametrize("row", range(2))
def test_values_are_those_that_go_through_a_merge_table(
    my_start: MyStart, log: LogMaker, row: int
) -> None:
    """Both paths give the same new and updated rows and NULLs for every type."""
    ddl = ", ".join(f"c{place} {sql}" for place, (_, sql, _) in enumerate(VALUES))
    ddl = ddl.replace("timestamp", "timestamp null").replace("null(", "(")
    for digits in range(7):
        ddl = ddl.replace(f"timestamp ({digits})", f"timestamp({digits}) null")
    zero = "enum('a','b')"  # the source has the value 0 of it, too
    columns = [
        (f"c{place}", sql if sql == zero else "x", neutral)
        for place, (neutral, sql, _) in enumerate(VALUES)
    ]
    target = both_tables(my_start, ddl)
    rows = [[values[number] for _, _, values in VALUES] for number in (row, 1 - row)]
    for staged in batches_both_ways(target, log, columns, rows):
        assert files_of(staged)
        for place, (_, sql, _) in enumerate(VALUES):
            direct, merged = both_results(target, f"id, c{place}, hex(c{place})")
            assert direct == merged, sql
            assert direct[0][1] is not None
            assert direct[1][1] is None


# Neutral type, column, a value that no event holds; then its form by the merge table, or the
# error that results.
INEXACT: list[tuple[str, str, Any, Any]] = [
    ("int32", "tinyint", 128, ValueRefused),
    ("int32", "int unsigned", -1, ValueRefused),
    ("uint64", "bigint", 2**63, ValueRefused),
    ("int32", "int not null", None, ValueRefused),
    ("float64", "double", float("nan"), PenstockError),
    ("decimal(9,3)", "decimal(4,2)", Decimal("123.000"), ValueRefused),
    ("timestamp", "datetime", AT(2024, 2, 29, 23, 59, 59, 500000), AT(2024, 2, 29, 23, 59, 59)),
    ("timestamptz", "timestamp", AT(2107, 1, 1, tzinfo=dt.UTC), ValueRefused),
    ("string", "varchar(3)", "abcd", ValueRefused),
    ("string", "char(3)", "表表表表", ValueRefused),
    ("string", "tinytext", "表" * 86, ValueRefused),
    ("string", "json", "{no json", ValueRefused),
    ("string", "json", "[" * 33 + "]" * 33, ValueRefused),
    ("string", "json", "", ValueRefused),
    ("string", "json", " ", ValueRefused),
    ("string", "json", '"\n"', ValueRefused),
    ("string", "enum('a','b')", "c", ValueRefused),
    ("string", "enum('a','b')", "", ValueRefused),
    ("string", "set('a','b')", "a,c", ValueRefused),
    ("time", "time", dt.time(1, 2, 3, 500000), dt.timedelta(hours=1, minutes=2, seconds=3)),
    ("int16", "year", 1900, ValueRefused),
    ("binary", "varbinary(3)", b"abcd", ValueRefused),
    ("binary", "longblob", b"\xfe" * (3 * 2**20), b"\xfe" * (3 * 2**20)),
]


@pytest.mark.parametrize(
    ("neutral", "sql", "value", "expected"), INEXACT, ids=lambda found: ascii(found)[:12]
)
def test_values_that_no_event_tells(
    my_start: MyStart, log: LogMaker, neutral: str, sql: str, value: Any, expected: Any
) -> None:
    """Rows with such values go through the merge table, with the same result as there."""
    shape = relation(("id", "x", "int32"), ("v", "x", neutral))
    target = my_start(f"create table t (id int primary key, v {sql}) charset utf8mb4")
    log.transaction(insert(shape, 1, value), insert(shape, 2, value))
    log.close_segment()

    def without_files() -> None:
        staged = target.stage()
        assert files_of(staged) == []
        target.target.apply(staged)

    if isinstance(expected, type):
        with pytest.raises(expected):
            without_files()
        assert target.rows("select * from t") == []
        return
    without_files()
    assert target.rows("select v from t") == [(expected,)] * 2


UNFIT = [
    "id int primary key, v int, name varchar(9), check (v < 10)",
    "id int primary key, v int, name varchar(9) charset latin1",
    "id int primary key, v decimal(30,2), name varchar(9)",
    "id int primary key, v int, name varchar(9) compressed",
    "id int primary key, v int, name varchar(9), own int default 7",
    "id int primary key, v int, name varchar(9), d int as (v * 2) stored",
    "id int primary key, v int, name varchar(9), own int invisible default 7",
    "id int primary key, v int, name enum('a','b','\\\\')",
    "id int primary key, v bit(8), name varchar(9)",
    "id int, v int, name varchar(9) collate utf8mb4_general_ci, primary key (id, name)",
]


@pytest.mark.parametrize("columns", UNFIT)
def test_tables_that_take_no_events(my_start: MyStart, log: LogMaker, columns: str) -> None:
    """Rows of these tables are sent as lines or through a merge table, and applied correctly."""
    key = (0, 2) if "(id, name)" in columns else (0,)
    shape = relation(("id", "x", "int32"), ("v", "x", "int16"), ("name", "x", "string"), key=key)
    target = my_start(f"create table t ({columns}) charset utf8mb4")
    log.transaction(insert(shape, 1, 1, "a"), insert(shape, 2, 2, "b"))
    log.close_segment()
    files_of(target.batch(), events=False)
    log.transaction(update(shape, 1, 5, "a"), delete(shape, 2, None, "b"))
    log.close_segment()
    files_of(target.batch(), events=False)
    assert target.rows("select id, v + 0, name from t order by id") == [(1, 5, "a")]


def test_a_table_that_keeps_its_history(my_start: MyStart, log: LogMaker) -> None:
    """Neither events nor lines have the columns that system versioning hides."""
    target = my_start(ITEMS + " with system versioning")
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    assert files_of(target.batch()) == []
    log.transaction(update(ITEM, 1, "b", 1))
    log.close_segment()
    assert files_of(target.batch()) == []
    assert target.rows("select name from t for system_time all order by row_end") == [
        ("a",),
        ("b",),
    ]


UNEXPECTED = [
    insert(ITEM, 1, "b", 2),
    update(ITEM, 2, "b", 2),
    delete(ITEM, 2, None, None),
]


@pytest.mark.parametrize("change", UNEXPECTED)
def test_rows_that_are_there_or_not_against_the_log(
    my_start: MyStart, log: LogMaker, change: Any
) -> None:
    """No event of the batch stays; as lines, the whole batch is accepted."""
    target = my_start(ITEMS + "; insert into t values (1, 'a', 1)")
    log.transaction(insert(ITEM, 7, "g", 7), change)
    log.close_segment()
    staged = target.stage()
    assert files_of(staged)
    with pytest.raises(RowsUnexpected, match="applying to") as raised:
        target.target.apply(staged)
    assert (raised.value.fields["schema"], raised.value.fields["name"]) == ("public", "t")
    assert target.rows("select * from t") == [(1, "a", 1)]
    assert target.read_applied() == target.applied
    with target.target.connection.cursor() as cursor:
        cursor.execute("select @@character_set_client")
        assert cursor.fetchone() == ("utf8mb4",)
    target.begin_anew()
    files_of(target.batch(), events=False)
    row = {"I": [(1, "b", 2)], "U": [(1, "a", 1), (2, "b", 2)], "D": [(1, "a", 1)]}[change[1].op]
    assert target.rows("select * from t order by id") == [*row, (7, "g", 7)]


def test_the_loader_goes_on_by_itself(my_target: Target, log: LogMaker, tmp_path: Path) -> None:
    """The target already has part of the changes, as after a copy without a lock."""
    my_target.execute(ITEMS)
    my_target.execute("insert into t values (1, 'later', 1), (3, 'later', 3)")
    log.transaction(insert(ITEM, 1, "a", 1), insert(ITEM, 2, "b", 2), update(ITEM, 1, "c", 3))
    log.close_segment()
    log.transaction(delete(ITEM, 3, None, None), update(ITEM, 2, "d", 4))
    log.transaction(delete(ITEM, 3, None, None), insert(ITEM, 4, "e", 5))
    log.close_segment()
    log.writer.finish()
    running = Running(
        my_target.url, tmp_path, namespaces=my_target.namespaces, max_files_per_batch=1
    )
    state = running.end()
    assert state.batch_count == 2
    expected = [(1, "c", 3), (2, "d", 4), (4, "e", 5)]
    assert my_target.execute("select * from t order by id") == expected


@pytest.mark.parametrize("fault", ["load.apply.after", "load.commit.before", "load.commit.after"])
def test_killed_while_it_applies(
    my_target: Target, log: LogMaker, tmp_path: Path, fault: str
) -> None:
    """Events and the applied position are stored together, or neither is."""
    my_target.execute(ITEMS)
    for number in range(4):
        log.transaction(insert(ITEM, number, "a", 0))
        if number:
            log.transaction(update(ITEM, number - 1, "b", 1))
        log.close_segment()
    log.writer.finish()
    killed = run_killed(my_target, tmp_path, f"{fault}:2:kill")
    assert killed.returncode < 0, killed.stderr
    ended = run_killed(my_target, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "trying again" not in ended.stdout + ended.stderr
    expected = [(0, "b", 1), (1, "b", 1), (2, "b", 1), (3, "a", 0)]
    assert my_target.execute("select * from t order by id") == expected


def test_foreign_keys_do_not_act(my_start: MyStart, log: LogMaker) -> None:
    """Rows come in any order, and no cascade runs: its changes are in the log."""
    parent = relation(("id", "x", "int32"), name="parent")
    child = relation(("id", "x", "int32"), ("parent", "x", "int32"), name="child")
    target = my_start(
        "create table parent (id int primary key);"
        "create table child (id int primary key, parent int references parent (id)"
        " on delete cascade);"
        "insert into parent values (1); insert into child values (10, 1)"
    )
    log.transaction(insert(child, 11, 2), delete(parent, 1))
    log.close_segment()
    assert len(files_of(target.batch())) == 2
    assert target.rows("select * from parent") == []
    assert target.rows("select * from child order by id") == [(10, 1), (11, 2)]


def test_numbers_that_the_server_would_count(my_start: MyStart, log: LogMaker) -> None:
    """The 0 of an AUTO_INCREMENT key stays 0, and later inserts continue counting."""
    target = my_start("create table t (id int primary key auto_increment, name text, n int)")
    log.transaction(insert(ITEM, 0, "a", 1), insert(ITEM, 7, "b", 2))
    log.close_segment()
    assert files_of(target.batch())
    target.execute("insert into t (name) values ('c')")
    assert target.rows("select id, name from t order by id") == [(0, "a"), (7, "b"), (8, "c")]


def test_a_table_in_pieces(my_start: MyStart, log: LogMaker) -> None:
    """The table has partitions, with indexes that are not unique."""
    target = my_start(
        ITEMS.removesuffix(")") + ", key (n), key (name)) partition by hash (id) partitions 3"
    )
    log.transaction(*(insert(ITEM, number, "a", number) for number in range(9)))
    log.transaction(*(update(ITEM, number, "b", 0) for number in range(5)), delete(ITEM, 8, 0, 0))
    log.close_segment()
    assert files_of(target.batch())
    log.transaction(update(ITEM, 4, "c", 1), update(ITEM, 20, "d", 5, old=(5, None, None)))
    log.close_segment()
    assert files_of(target.batch())
    assert target.rows("select id, name, n from t order by id") == [
        *((number, "b", 0) for number in range(4)),
        (4, "c", 1),
        (6, "a", 6),
        (7, "a", 7),
        (20, "d", 5),
    ]
    assert target.rows("select id from t force index (n) where n = 5") == [(20,)]


def test_a_change_of_shape(
    my_start: MyStart, log: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that alters the table has lines; later ones have events again."""
    monkeypatch.setattr("penstock.engines.mysql.target.direct.UNSETTLED_S", 0.0)
    target = my_start(ITEMS)
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    assert files_of(target.batch())
    wide = relation(
        ("id", "integer", "int32"), ("name", "text", "string"), ("n", "bigint", "int64"), version=2
    )
    log.transaction(update(wide, 1, "b", 2**40))
    log.close_segment()
    assert files_of(target.batch(), events=False)
    log.transaction(update(wide, 1, "c", 2**41))
    log.close_segment()
    assert files_of(target.batch())
    assert target.rows("select * from t") == [(1, "c", 2**41)]


def wider(target: Applying) -> None:
    """Widen a type, for which rows would have been written differently."""
    target.execute("alter table t modify name varchar(300)")


def check(target: Applying) -> None:
    """Add a check, which events bypass."""
    target.execute("alter table t add check (n > 5)")


def reorder_columns(target: Applying) -> None:
    """Reorder columns of one type."""
    target.execute("alter table t modify n int after id")


@pytest.mark.parametrize("alter", [wider, check, reorder_columns])
def test_a_table_that_was_altered_meanwhile(
    my_start: MyStart, log: LogMaker, alter: Callable[[Applying], None]
) -> None:
    """The table is checked again before applying; staged again, the batch succeeds."""
    target = my_start("create table t (id int primary key, name varchar(9), n int)")
    log.transaction(insert(ITEM, 1, "a", 7))
    log.close_segment()
    staged = target.stage()
    assert files_of(staged)
    alter(target)
    with pytest.raises(StagingChanged, match="altered"):
        target.target.apply(staged)
    assert target.rows("select * from t") == []
    target.begin_anew()
    files_of(target.batch(), events=alter is not check)
    assert target.rows("select id, name, n from t") == [(1, "a", 7)]


LENIENT = [
    {"slave_exec_mode": "'IDEMPOTENT'"},
    {"max_allowed_packet": "1048576"},
]


@pytest.mark.parametrize("settings", LENIENT, ids=lambda found: next(iter(found)))
def test_servers_that_would_pass_over_rows(
    my_start: MyStart, log: LogMaker, settings: dict[str, str]
) -> None:
    """Lines are sent if events are not strict, or packets are small."""
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    starting = my_start("create table other (id int)")
    with starting.place.server.globals(**settings):
        target = my_start(ITEMS)
        assert files_of(target.batch(), events=False)
    assert target.rows("select * from t") == [(1, "a", 1)]


def test_a_server_that_becomes_lenient(my_start: MyStart, log: LogMaker) -> None:
    """A server that becomes lenient before applying reports no error, but no row is applied."""
    target = my_start(ITEMS)
    log.transaction(update(ITEM, 1, "a", 1))
    log.close_segment()
    staged = target.stage()
    assert files_of(staged)
    with (
        target.place.server.globals(slave_exec_mode="'IDEMPOTENT'"),
        pytest.raises(StagingChanged),
    ):
        target.target.apply(staged)
    assert target.read_applied() == target.applied


def test_an_account_without_the_right(my_start: MyStart, my_target: Target, log: LogMaker) -> None:
    """BINLOG REPLAY is not among the rights of a loader: without it rows are sent as lines."""
    my_target.execute(ITEMS)
    rights = ("all on wirekite.*", f"all on `{my_target.database}`.*", "create on *.*")
    for more in ((), ("binlog replay on *.*",), ("binlog replay, binlog admin on *.*",)):
        with my_target.server.role(*rights, *more) as url:
            target = my_start("select 1", url=url)
            log.transaction(insert(ITEM, len(more[0]) if more else 0, "a", 1))
            log.close_segment()
            may = any("admin" in right for right in more)
            assert files_of(target.batch(), events=may)
            target.close()
    assert my_target.execute("select count(*) from t") == [(3,)]


@pytest.mark.parametrize("end", [-1, 2])
def test_a_spoiled_file_is_not_applied(my_start: MyStart, log: LogMaker, end: int) -> None:
    """The file is shorter, or does not consist of whole statements."""
    target = my_start(ITEMS)
    log.transaction(insert(ITEM, 1, "a", 1), insert(ITEM, 2, "b", 2))
    log.close_segment()
    staged = target.stage()
    (file,) = files_of(staged)
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-1] if end < 0 else b"\xff\xff" + whole[2:])
    with pytest.raises(StagingChanged):
        target.target.apply(staged)
    assert target.rows("select * from t") == []
    target.batch()
    assert target.rows("select * from t order by id") == [(1, "a", 1), (2, "b", 2)]


def test_another_unique_key(my_start: MyStart, log: LogMaker) -> None:
    """A key created between writing and applying does not make the loader skip rows."""
    target = my_start(ITEMS + "; insert into t values (9, 'a', 9)")
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    staged = target.stage()
    target.execute("alter table t add unique (name)")
    with pytest.raises(StagingChanged, match="altered"):
        target.target.apply(staged)
    target.begin_anew()
    with pytest.raises(UniqueBlocked):
        target.batch()
    assert target.rows("select * from t") == [(9, "a", 9)]
