"""Batches applied to MySQL and MariaDB: every path of a table, names, values, refusals."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import CHILD, ITEM, PARENT, delete, insert, update
from penstock.codec.types import Engine, Server, map_column
from penstock.control.pipeline.servers import server_of
from penstock.engines.mysql.target import apply as applying
from penstock.engines.mysql.target import send as sending
from penstock.engines.mysql.target.layout import MergeLayout
from penstock.host.errors import StatementInterrupted
from penstock.model import Identity, MarkerKind, PenstockError, TableName
from penstock.ports.target import (
    AppliedByAnother,
    StagingChanged,
    TargetNotTransactional,
    TargetRowMissing,
    TriggersWouldFire,
    UniqueBlocked,
    ValueRefused,
)
from plugins.mysql_loader import ITEMS, MyApplying, MyStart, Target


def test_inserts_updates_deletes_in_one_batch(my_start: MyStart, log: LogMaker) -> None:
    """The batch's files are recorded as done."""
    target = my_start(ITEMS + "; insert into t values (1, 'a', 1), (2, 'b', 2)")
    log.transaction(insert(ITEM, 3, "c", 3), update(ITEM, 1, "A", 1))
    log.close_segment()
    log.transaction(delete(ITEM, 2, None, None), update(ITEM, 3, None, 4))
    log.close_segment()
    result = target.batch()
    assert target.rows("select * from t order by id") == [(1, "A", 1), (3, None, 4)]
    assert result.counts.changes == 4
    files = target.rows(
        "select source, mark, finish_time is not null from wirekite.wirekite_progress order by 1"
    )
    assert files == [("0.ckt", "2", 1), ("1.ckt", "4", 1)]


def test_nothing_is_applied_twice(my_start: MyStart, log: LogMaker) -> None:
    """A loader that starts again continues after the applied rows; the other one is refused."""
    first = my_start(ITEMS)
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    first.batch()
    log.transaction(insert(ITEM, 2, "b", 1))
    log.close_segment()
    again = MyApplying(first.place, log.directory)
    try:
        assert again.applied == first.applied
        assert [file.number for file in again.batch().whole] == [1]
        assert again.rows("select id from t order by 1") == [(1,), (2,)]
        with pytest.raises(AppliedByAnother):
            first.batch()
    finally:
        again.close()


def test_a_second_loader_waits_and_is_refused(
    my_start: MyStart, log: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The applied position is the first row that a batch locks."""
    monkeypatch.setattr(applying, "LOCK_TIMEOUT_S", 1)
    monkeypatch.setattr("penstock.ports.sql_target.APPLY_ATTEMPTS_MAX", 1)
    target = my_start(ITEMS)
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    with target.place.server.connect() as other, other.cursor() as cursor:
        other.begin()
        cursor.execute("select * from wirekite.wirekite_log for update")
        with pytest.raises(StatementInterrupted):
            target.batch()
        other.rollback()
    assert target.rows("select * from t") == []


BIG = "x" * 5000
DOC = relation(("id", "integer", "int32"), ("n", "integer", "int32"), ("doc", "text", "string"))


@pytest.mark.parametrize("unique", ["", ", unique (n)"])
def test_absent_columns_keep_the_targets_value(
    my_start: MyStart, log: LogMaker, unique: str
) -> None:
    """Keys stay, change, or move to another row, and some values are sent in the batch."""
    target = my_start(
        f"create table t (id int primary key, n int, doc longtext not null {unique});"
        "insert into t values (1, 1, repeat('1', 5000)), (2, 2, repeat('2', 5000)),"
        " (3, 3, repeat('3', 5000)), (4, 4, repeat('4', 5000)), (5, 5, repeat('5', 5000))"
    )
    log.transaction(
        update(DOC, 1, 10, None, absent=(2,)),
        update(DOC, 20, 2, None, old=(2, None, None), absent=(2,)),
        update(DOC, 30, 3, "new", old=(3, None, None)),
        update(DOC, 30, 33, None, absent=(2,)),
        delete(DOC, 4, None, None),
        insert(DOC, 4, 4, "four"),
        update(DOC, 4, 44, None, absent=(2,)),
        update(DOC, 6, 5, None, old=(5, None, None), absent=(2,)),
        update(DOC, 5, 1, "five", old=(1, None, None)),
    )
    log.close_segment()
    target.batch()
    rows = target.rows("select id, n, left(doc, 4), length(doc) from t order by id")
    assert rows == [
        (4, 44, "four", 4),
        (5, 1, "five", 4),
        (6, 5, "5555", 5000),
        (20, 2, "2222", 5000),
        (30, 33, "new", 3),
    ]


@pytest.mark.parametrize("unique", ["", ", unique (n)"])
def test_absent_texts_may_have_any_collation(
    my_target: Target, my_start: MyStart, log: LogMaker, unique: str
) -> None:
    """The merge table's columns have another collation, and no server chooses between two."""
    server = my_target.server
    whole = "utf8mb4_nopad_bin" if server.is_mariadb else "utf8mb4_unicode_520_ci"
    target = my_start(
        f"create table t (id int primary key, n int, doc text collate {whole}"
        f"{unique}); insert into t values (1, 1, 'é'), (2, 2, 'two')"
    )
    log.transaction(
        update(DOC, 1, 10, None, absent=(2,)),
        update(DOC, 20, 2, None, old=(2, None, None), absent=(2,)),
    )
    log.close_segment()
    target.batch()
    assert target.rows("select id, n, doc from t order by id") == [(1, 10, "é"), (20, 2, "two")]


def test_absent_row_missing_in_the_target_is_an_error(my_start: MyStart, log: LogMaker) -> None:
    """The missing value cannot be invented; nothing is applied."""
    target = my_start(ITEMS)
    log.transaction(insert(ITEM, 5, "e", 5), update(ITEM, 1, None, 2, absent=(1,)))
    log.close_segment()
    with pytest.raises(TargetRowMissing):
        target.batch()
    assert target.rows("select * from t") == []
    assert target.rows("select applied_gsn from wirekite.wirekite_log") == [(0,)]


def test_swapped_keys(my_start: MyStart, log: LogMaker) -> None:
    """Two rows swap their primary keys through a third value."""
    target = my_start(ITEMS + "; insert into t values (1, 'a', 1), (2, 'b', 2)")
    log.transaction(
        update(ITEM, 9, None, 1, old=(1, None, None), absent=(1,)),
        update(ITEM, 1, None, 2, old=(2, None, None), absent=(1,)),
        update(ITEM, 2, None, 1, old=(9, None, None), absent=(1,)),
    )
    log.close_segment()
    target.batch()
    assert target.rows("select * from t order by id") == [(1, "b", 2), (2, "a", 1)]


def test_several_unique_keys(my_start: MyStart, log: LogMaker) -> None:
    """Unique values are swapped, passed on and taken over: no other row is touched."""
    target = my_start(
        "create table t (id int primary key, name varchar(20) unique, n int, unique (n));"
        "insert into t values (1, 'a', 10), (2, 'b', 20), (3, 'c', 30), (4, 'd', 40)"
    )
    log.transaction(
        update(ITEM, 1, "tmp", 10),
        update(ITEM, 2, "a", 20),
        update(ITEM, 1, "b", 10),
        update(ITEM, 3, "c", 99),
        insert(ITEM, 5, "e", 30),
        delete(ITEM, 4, None, None),
        insert(ITEM, 6, "d", 40),
    )
    log.close_segment()
    target.batch()
    assert target.rows("select * from t order by id") == [
        (1, "b", 10),
        (2, "a", 20),
        (3, "c", 99),
        (5, "e", 30),
        (6, "d", 40),
    ]


def test_a_foreign_rows_unique_value_is_refused(my_start: MyStart, log: LogMaker) -> None:
    """A row that the source does not have is not overwritten, and no value is in the message."""
    target = my_start(
        "create table t (id int primary key, name varchar(20) unique, n int);"
        "insert into t values (7, 'secret', 10)"
    )
    log.transaction(insert(ITEM, 1, "secret", 1))
    log.close_segment()
    with pytest.raises(UniqueBlocked) as caught:
        target.batch()
    assert "secret" not in caught.value.message
    assert target.rows("select * from t") == [(7, "secret", 10)]


@pytest.mark.parametrize("unique", ["", "unique"])
def test_columns_of_the_targets_own_are_kept(my_start: MyStart, log: LogMaker, unique: str) -> None:
    """A target column that the source lacks survives updates."""
    target = my_start(
        f"create table t (id int primary key, name varchar(20) {unique}, n int, own text);"
        "insert into t values (1, 'a', 1, 'mine'), (2, 'b', 2, 'too')"
    )
    log.transaction(update(ITEM, 1, "x", 5), insert(ITEM, 3, "c", 3))
    log.close_segment()
    target.batch()
    assert target.rows("select * from t order by id") == [
        (1, "x", 5, "mine"),
        (2, "b", 2, "too"),
        (3, "c", 3, None),
    ]


BAG = relation(
    ("v", "integer", "int32"),
    ("w", "text", "string"),
    ("f", "real", "float32"),
    key=(),
    identity=Identity.FULL,
)


def test_tables_without_a_key(my_start: MyStart, log: LogMaker) -> None:
    """Copies are counted; case, blanks, NULL and floats distinguish rows."""
    target = my_start(
        "create table t (v int, w varchar(20), f float);"
        "insert into t values (1, 'a', 0.1), (1, 'a', 0.1), (1, 'A', 0.1), (1, 'a ', 0.1),"
        " (2, null, null), (2, '', null)"
    )
    log.transaction(
        delete(BAG, 1, "a", 0.1),
        update(BAG, 2, "two", 3.25, old=(2, None, None)),
        insert(BAG, 5, "five", None),
        insert(BAG, 5, "five", None),
        insert(BAG, 5, "five", None),
    )
    log.close_segment()
    target.batch()
    rows = target.rows("select v, hex(w), f is null from t order by 1, 2, 3")
    assert rows == [
        (1, b"A".hex().upper(), 0),
        (1, b"a".hex().upper(), 0),
        (1, b"a ".hex().upper(), 0),
        (2, "", 1),
        (2, b"two".hex().upper(), 0),
        (5, b"five".hex().upper(), 1),
        (5, b"five".hex().upper(), 1),
        (5, b"five".hex().upper(), 1),
    ]
    log.transaction(delete(BAG, 77, "none", None))
    log.close_segment()
    with pytest.raises(TargetRowMissing):
        target.batch()


def test_keys_that_only_the_collation_takes_for_equal(my_start: MyStart, log: LogMaker) -> None:
    """A row whose key differs in case is another row, and is not deleted instead."""
    shape = relation(("k", "text", "string"), ("n", "integer", "int32"))
    target = my_start(
        "create table t (k varchar(20) collate utf8mb4_general_ci primary key, n int)"
        " charset utf8mb4; insert into t values ('a', 1), ('B', 2)"
    )
    log.transaction(delete(shape, "A", None), update(shape, "b", 3, old=("B", None)))
    log.close_segment()
    target.batch()
    assert target.rows("select * from t order by n") == [("a", 1), ("b", 3)]


def test_truncate_is_part_of_the_batch(my_start: MyStart, log: LogMaker) -> None:
    """Earlier rows are deleted, later rows are there; a refused batch undoes it."""
    target = my_start(ITEMS + "; insert into t values (1, 'a', 1), (2, 'b', 2)")
    log.transaction(
        insert(ITEM, 3, "c", 3),
        (MarkerKind.TRUNCATE, [TableName("public", "t")]),
        insert(ITEM, 4, "d", 4),
    )
    log.close_segment()
    log.transaction(insert(ITEM, 5, "x" * 300, 5))
    log.close_segment()
    with pytest.raises(ValueRefused):
        target.batch()
    assert target.rows("select count(*) from t") == [(2,)]
    target.execute("alter table t modify column name text")
    target.batch()
    assert target.rows("select id from t order by id") == [(4,), (5,)]


def test_foreign_keys_do_not_stand_in_the_way(my_start: MyStart, log: LogMaker) -> None:
    """Any order works, and cascades of the source are not repeated."""
    target = my_start(
        "create table parent (id int primary key, code varchar(20));"
        "create table child (id int primary key, parent int,"
        " foreign key (parent) references parent (id) on delete cascade);"
        "insert into parent values (1, 'a'), (2, 'b'); insert into child values (10, 1), (20, 2)"
    )
    log.transaction(
        update(CHILD, 10, 3),
        delete(PARENT, 1, None),
        insert(PARENT, 3, "c"),
        delete(PARENT, 2, None),
        insert(PARENT, 2, "again"),
    )
    log.close_segment()
    target.batch()
    assert target.rows("select * from child order by id") == [(10, 3), (20, 2)]
    assert target.rows("select * from parent order by id") == [(2, "again"), (3, "c")]


def test_triggers_are_refused_or_allowed(my_start: MyStart, log: LogMaker) -> None:
    """Triggers cannot be switched off, so they are refused before anything is applied."""
    ddl = ITEMS + "; create table seen (id int); create trigger see after insert on t for each row"
    target = my_start(ddl + " insert into seen values (new.id)")
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    with pytest.raises(TriggersWouldFire) as caught:
        target.batch()
    assert "see" in caught.value.message
    allowed = MyApplying(target.place, log.directory, allow_triggers=True)
    try:
        allowed.batch()
    finally:
        allowed.close()
    assert target.rows("select * from seen") == [(1,)]


def test_tables_without_transactions_are_refused(my_start: MyStart, log: LogMaker) -> None:
    """A batch that cannot be rolled back is not begun."""
    target = my_start(ITEMS + " engine = MyISAM")
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    with pytest.raises(TargetNotTransactional) as caught:
        target.batch()
    assert "engine = InnoDB" in caught.value.hint


def test_generated_and_numbered_columns(my_start: MyStart, log: LogMaker) -> None:
    """Generated columns are computed here; 0 is an ordinary number for AUTO_INCREMENT."""
    target = my_start(
        "create table t (id int auto_increment primary key, name varchar(20), n int,"
        " twice int as (n * 2) stored, thrice int as (n * 3) virtual)"
    )
    log.transaction(insert(ITEM, 0, "a", 7), insert(ITEM, -3, "b", 8))
    log.close_segment()
    log.transaction(update(ITEM, 0, "c", 9))
    log.close_segment()
    target.batch()
    assert target.rows("select * from t order by id") == [(-3, "b", 8, 16, 24), (0, "c", 9, 18, 27)]


def test_names(my_start: MyStart, log: LogMaker) -> None:
    """Names have reserved words, blanks, backticks, letters of any script, and the
    longest lengths.
    """
    long = "n" * 64
    shape = relation(
        ("select", "integer", "int32"),
        ("a`b c", "text", "string"),
        ("größe表", "text", "string"),
        (long, "text", "string"),
        name="o`rder " + "t" * 57,
    )
    other = relation(("select", "integer", "int32"), name="o`rder " + "t" * 56 + "x")
    columns = f"`select` int primary key, `a``b c` text, `größe表` text, `{long}` text"
    target = my_start(
        f"create table `o``rder {'t' * 57}` ({columns});"
        f"create table `o``rder {'t' * 56}x` (`select` int primary key)"
    )
    log.transaction(insert(shape, 1, "x", "ü", "long"), insert(other, 2))
    log.close_segment()
    log.transaction(update(shape, 1, "y", None, "q", old=None), delete(other, 2))
    log.close_segment()
    target.batch()
    assert target.rows(f"select * from `o``rder {'t' * 57}`") == [(1, "y", None, "q")]
    assert target.rows(f"select * from `o``rder {'t' * 56}x`") == []


TYPES: list[tuple[str, str, str, list[Any]]] = [
    ("bool", "bool", "tinyint(1)", [True, False]),
    ("i2", "int16", "smallint", [-32768, 32767]),
    ("i4", "int32", "int", [-(2**31), 2**31 - 1]),
    ("i8", "int64", "bigint", [-(2**63), 2**63 - 1]),
    ("u4", "uint32", "int unsigned", [0, 2**32 - 1]),
    ("u8", "uint64", "bigint unsigned", [0, 2**64 - 1]),
    ("b17", "uint64", "bit(17)", [0, 2**17 - 1]),
    ("y", "int16", "year", [1901, 2155]),
    ("f4", "float32", "float", [16777216.0, 1.401298464324817e-45]),
    ("f8", "float64", "double", [0.1, 1.7976931348623157e308]),
    ("d", "decimal(38,10)", "decimal(38,10)", [Decimal("9" * 28 + ".5"), Decimal("-0.0000000001")]),
    ("day", "date", "date", [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    ("t", "time", "time(6)", [dt.time(0, 0), dt.time(23, 59, 59, 999999)]),
    (
        "ts",
        "timestamp",
        "datetime(6)",
        [dt.datetime.min, dt.datetime.max],  # noqa: DTZ901
    ),
    (
        "tz",
        "timestamptz",
        "timestamp(6)",
        [
            dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC),
            dt.datetime(2037, 3, 28, 1, 30, 0, 123456, tzinfo=dt.UTC),
        ],
    ),
    ("txt", "string", "longtext", ["tab\tline\n\\N\\ 'quote' \r\0 Größe 表 😀", ""]),
    ("bin", "binary", "longblob", [bytes(range(256)), b""]),
    ("vb", "binary", "varbinary(10)", [b"\\\t\n\0", b"\xff"]),
    ("j", "string", "json", ['{"a": [1, null, "é\\n"]}', "1.5"]),
    ("en", "string", "enum('x','it''s','ü')", ["it's", "ü"]),
    ("st", "string", "set('a','b,c','d')".replace("b,c", "b"), ["a,d", ""]),
    ("ti", "string", "time(3)", ["-838:59:59.000", "100:00:00.125"]),
    ("zd", "string", "date", ["0000-00-00", "2024-02-31"]),
    ("big", "string", "decimal(65,30)", ["9" * 35 + "." + "1" * 30, "-0.5"]),
]


@pytest.mark.parametrize("takes_files", [True, False])
def test_values_of_every_type(
    my_start: MyStart, log: LogMaker, takes_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits of every neutral type are read back unchanged after LOAD DATA and INSERT."""
    monkeypatch.setattr(sending, "_sessions", {})
    shape = relation(
        ("id", "integer", "int32"), *((name, "x", neutral) for name, neutral, _, _ in TYPES)
    )
    columns = ", ".join(f"`{name}` {sql}" for name, _, sql, _ in TYPES)
    target = my_start(f"create table t (id int primary key, {columns}) charset utf8mb4")
    for number in (0, 1):
        log.transaction(insert(shape, number, *(values[number] for _, _, _, values in TYPES)))
    log.transaction(insert(shape, 2, *(None for _ in TYPES)))
    log.close_segment()
    with target.place.server.globals(local_infile="1" if takes_files else "0"):
        target.batch()
    exact = {"float": "f4 + 0e0", "bit(17)": "b17 + 0", "json": "cast(j as char)"}
    shown = {"date": "cast({} as char)", "time(3)": "cast({} as char)"}
    for name, neutral, sql, values in TYPES:
        expression = exact.get(sql, f"`{name}`")
        if neutral == "string" and sql in shown:
            expression = shown[sql].format(f"`{name}`")
        found = [row[0] for row in target.rows(f"select {expression} from t order by id")]
        assert found[2] is None
        for left, right in zip(found[:2], values, strict=True):
            assert _same(left, right), name


def _same(found: Any, sent: Any) -> bool:
    if isinstance(found, dt.timedelta):
        found = (dt.datetime.min + found).time()  # noqa: DTZ901
    if isinstance(sent, dt.datetime):
        sent = sent.replace(tzinfo=None)
    if isinstance(found, float):
        return bool(abs(found - sent) <= abs(sent) * 1e-7)
    if isinstance(found, Decimal):
        sent = Decimal(sent)
    return bool(found == sent)


@pytest.mark.parametrize(
    ("neutral", "sql", "value"),
    [
        ("string", "varchar(3)", "secret"),
        ("string", "int", "12secret"),
        ("int32", "tinyint", 1234),
        ("string", "int not null", None),
        ("string", "decimal(5,2)", "1.23456"),
        ("float64", "double", float("nan")),
        ("date", "date", dt.date.max),
        ("string", "json", "{secret"),
        ("string", "enum('a')", "secret"),
        ("string", "varchar(9) character set latin1", "表"),
    ],
)
def test_refused_values(
    my_start: MyStart, log: LogMaker, neutral: str, sql: str, value: Any
) -> None:
    """Values that the target would cut, round or replace are refused; no message has the value."""
    shape = relation(("id", "integer", "int32"), ("v", "x", neutral))
    target = my_start(f"create table t (id int primary key, v {sql})")
    if neutral == "date":
        target.execute("alter table t modify column v tinyint")
    log.transaction(insert(shape, 1, value))
    log.close_segment()
    with pytest.raises(ValueRefused) as caught:
        target.batch()
    assert "secret" not in caught.value.message + caught.value.hint
    assert caught.value.fields["table"].endswith(".t")
    assert target.rows("select * from t") == []


def test_uuid_takes_the_form_of_the_column(my_start: MyStart, log: LogMaker) -> None:
    """A UUID has 36 characters or 16 bytes, in the key as in other columns."""
    shape = relation(("k", "uuid", "uuid"), ("u", "uuid", "uuid"), ("n", "integer", "int32"))
    target = my_start("create table t (k binary(16) primary key, u char(36), n int)")
    a, b = bytes(range(16)), bytes(range(16, 32))
    log.transaction(insert(shape, a, b, 1), insert(shape, b, a, 2))
    log.close_segment()
    target.batch()
    log.transaction(
        update(shape, b, None, 3, old=None, absent=(1,)),
        update(shape, b"\xff" * 16, None, 4, old=(a, None, None), absent=(1,)),
    )
    log.close_segment()
    target.batch()
    assert target.rows("select hex(k), u, n from t order by n") == [
        (b.hex().upper(), "00010203-0405-0607-0809-0a0b0c0d0e0f", 3),
        ("FF" * 16, "10111213-1415-1617-1819-1a1b1c1d1e1f", 4),
    ]


EVERY_UUID = [f"12345678-9abc-{v:x}def-{n:x}123-456789abcdef" for v in range(16) for n in range(16)]


def test_uuids_of_every_version_and_variant_arrive(my_start: MyStart, log: LogMaker) -> None:
    """UUIDs that MariaDB's own type refuses arrive too, as key and value, by the table of types."""
    shape = relation(("k", "uuid", "uuid"), ("u", "uuid", "uuid"))
    target = my_start("create table other (id int)")
    source = Server(engine=Engine.POSTGRESQL, version=(18,))
    held = map_column(shape.columns[0], source, server_of(target.place.url)).target_type
    target.execute(f"create table t (k {held} primary key, u {held})")
    values = [UUID(text).bytes for text in EVERY_UUID]
    log.transaction(*(insert(shape, value, value) for value in values))
    log.close_segment()
    target.batch()
    log.transaction(*(update(shape, value, values[0]) for value in values))
    log.close_segment()
    target.batch()
    rows = target.rows("select cast(k as char), cast(u as char) from t order by 1")
    assert rows == [(text, EVERY_UUID[0]) for text in EVERY_UUID]


# --- merge tables ---------------------------------------------------------------------------------


def test_late_workers_are_refused(my_start: MyStart, log: LogMaker) -> None:
    """A worker of an abandoned batch finds that the merge table belongs to another batch."""
    target = my_start(ITEMS)
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    target.batch()
    layout = MergeLayout(ITEM)
    batch = pa.RecordBatch.from_pylist([{layout.count: 2, "id": 5}], schema=layout.schema)
    late = sending.Destination(
        url=target.url, table=TableName("public", "t"), staging="t_wkm", stamp=0, relation=ITEM
    )
    with pytest.raises(StagingChanged):
        sending.send(late, [batch])
    assert target.rows("select count(*) from wirekite.t_wkm where id = 5") == [(0,)]


@pytest.mark.parametrize(
    "after_job",
    [
        "delete from wirekite.t_wkm",
        "insert into wirekite.t_wkm (id) values (9)",
        "update wirekite.wirekite_merge set stamp = stamp + 1",
    ],
)
def test_changed_merge_tables_are_seen(my_start: MyStart, log: LogMaker, after_job: str) -> None:
    """A merge table that differs from what was staged is not applied, but staged again."""
    target = my_start(ITEMS, rows_directory=None)
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    with pytest.raises(StagingChanged):
        target.batch(after_job=after_job)
    assert target.rows("select * from t") == []
    target.batch()
    assert target.rows("select id from t") == [(1,)]


def test_merge_tables_are_made_anew(my_start: MyStart, log: LogMaker) -> None:
    """Merge tables that were dropped manually, or have an older shape, are recreated."""
    target = my_start(ITEMS)
    for number in (1, 2, 3):
        log.transaction(insert(ITEM, number, "a", 1))
        log.close_segment()
        if number == 2:
            target.execute("drop table wirekite.t_wkm")
            with pytest.raises(PenstockError) as caught:
                target.batch()
            assert caught.value.retry == "backoff"
        target.batch()
    assert target.rows("select count(*) from t") == [(3,)]


def test_many_columns(my_start: MyStart, log: LogMaker, my_target: Target) -> None:
    """A table may have very many columns of text."""
    count = 600
    names = [(f"c{number}", "text", "string") for number in range(count)]
    shape = relation(("id", "integer", "int32"), *names)
    columns = ", ".join(f"c{number} varchar(10)" for number in range(count))
    target = my_start(
        f"set session innodb_strict_mode = 0; create table t (id int primary key, {columns})"
        " charset latin1"
    )
    log.transaction(insert(shape, 1, *(str(number) for number in range(count))))
    log.close_segment()
    target.batch()
    assert my_target.execute("select id, c0, c599 from t") == [(1, "0", "599")]
