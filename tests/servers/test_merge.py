"""Batches applied to a real target: every path of a table, changes of shape, names."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import Applying, LogMaker
from harness.pipelines.merge import ITEM, PARENT, TABLE, Start, delete, insert, update
from penstock.engines.postgres.target.enums import EnumLabelMissing
from penstock.engines.postgres.target.merge import Merge, MergeSql, MergeStrategy
from penstock.engines.postgres.target.target import read_target_tables
from penstock.model import Identity, MarkerKind, PenstockError, Relation, TableName
from penstock.ports.target import Counts, StagingFailed, TargetRowMissing, ValueRefused

pytestmark = pytest.mark.usefixtures("rows_at_once")


@pytest.mark.parametrize("poor", [False, True])
def test_inserts_updates_deletes_in_one_batch(start: Start, log: LogMaker, poor: bool) -> None:
    """The batch's files are recorded as done."""
    target = start(TABLE + "; insert into public.t values (1, 'a', 1), (2, 'b', 2)", poor=poor)
    assert target.target.replica is not poor
    log.transaction(insert(ITEM, 3, "c", 3), update(ITEM, 1, "A", 1))
    log.close_segment()
    log.transaction(delete(ITEM, 2, None, None), update(ITEM, 3, None, 4))
    log.close_segment()
    result = target.batch()
    assert target.rows("select * from public.t order by id") == [(1, "A", 1), (3, None, 4)]
    assert result.counts.changes == 4
    files = target.rows(
        "select source, mark, finish_time is not null from wirekite.wirekite_progress order by 1"
    )
    assert files == [("0.ckt", "2", True), ("1.ckt", "4", True)]


def test_nothing_is_applied_twice(start: Start, log: LogMaker) -> None:
    """A loader that starts again continues after the applied rows."""
    first = start(TABLE)
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    first.batch()
    log.transaction(insert(ITEM, 2, "b", 1))
    log.close_segment()
    again = Applying(first.url, log.directory)
    try:
        assert again.applied == first.applied
        assert [file.number for file in again.batch().whole] == [1]
        assert again.rows("select id from public.t order by 1") == [(1,), (2,)]
        with pytest.raises(PenstockError) as caught:
            first.batch()
        assert caught.value.code == "TG04"
    finally:
        again.close()


BIG = "x" * 5000
DOC = relation(("id", "integer", "int32"), ("n", "integer", "int32"), ("doc", "text", "string"))


@pytest.mark.parametrize("unique", ["", ", unique (n)"])
def test_absent_columns_keep_the_targets_value(start: Start, log: LogMaker, unique: str) -> None:
    """Keys stay, change, or move to another row, and some values are sent in the batch."""
    target = start(
        f"create table public.t (id int primary key, n int, doc text not null {unique});"
        f"insert into public.t select i, i, repeat(i::text, 5000) from generate_series(1, 5) i"
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
    rows = target.rows("select id, n, left(doc, 4), length(doc) from public.t order by id")
    assert rows == [
        (4, 44, "four", 4),
        (5, 1, "five", 4),
        (6, 5, "5555", 5000),
        (20, 2, "2222", 5000),
        (30, 33, "new", 3),
    ]


def test_absent_row_missing_in_the_target_is_an_error(start: Start, log: LogMaker) -> None:
    """The missing value cannot be invented; nothing is applied."""
    target = start(TABLE)
    log.transaction(insert(ITEM, 5, "e", 5), update(ITEM, 1, None, 2, absent=(1,)))
    log.close_segment()
    with pytest.raises(TargetRowMissing) as caught:
        target.batch()
    assert caught.value.fields["table"] == "public.t"
    assert target.rows("select * from public.t") == []
    assert target.rows("select applied_gsn from wirekite.wirekite_log") == [(0,)]


def test_swapped_keys(start: Start, log: LogMaker) -> None:
    """Two rows swap their primary keys through a third value."""
    target = start(TABLE + "; insert into public.t values (1, 'a', 1), (2, 'b', 2)")
    log.transaction(
        update(ITEM, 9, None, 1, old=(1, None, None), absent=(1,)),
        update(ITEM, 1, None, 2, old=(2, None, None), absent=(1,)),
        update(ITEM, 2, None, 1, old=(9, None, None), absent=(1,)),
    )
    log.close_segment()
    target.batch()
    assert target.rows("select * from public.t order by id") == [(1, "b", 2), (2, "a", 1)]


def test_identity_and_generated_columns(start: Start, log: LogMaker) -> None:
    """ALWAYS identities accept the source's values, key or not; generated ones are
    computed here.
    """
    target = start("""
        create table public.t (
            id int generated always as identity primary key,
            name text,
            n int generated always as identity,
            twice int generated always as (id * 2) stored)
    """)
    log.transaction(insert(ITEM, 5, "a", 7))
    log.close_segment()
    log.transaction(update(ITEM, 5, "b", 8), insert(ITEM, 6, "c", 1))
    log.close_segment()
    target.batch()
    assert target.rows("select * from public.t order by id") == [(5, "b", 8, 10), (6, "c", 1, 12)]


def test_columns_of_the_targets_own_are_kept(start: Start, log: LogMaker) -> None:
    """A target column that the source lacks survives updates, even beside unique constraints."""
    target = start(
        "create table public.t (id int primary key, name text unique, n int, own text default 'd');"
        "insert into public.t values (1, 'a', 1, 'mine'), (2, 'b', 2, 'too')"
    )
    log.transaction(update(ITEM, 1, "x", 1), update(ITEM, 2, "a", 2), insert(ITEM, 3, "b", 3))
    log.close_segment()
    target.batch()
    assert target.rows("select * from public.t order by id") == [
        (1, "x", 1, "mine"),
        (2, "a", 2, "too"),
        (3, "b", 3, "d"),
    ]


KEYLESS = relation(
    ("a", "integer", "int32"),
    ("b", "text", "string"),
    ("c", "numeric(6,2)", "decimal(6,2)"),
    ("d", "double precision", "float64"),
    ("e", "json", "string"),
    key=(),
    identity=Identity.FULL,
)


def test_table_without_key_counts_copies(start: Start, log: LogMaker) -> None:
    """Duplicates are counted; nulls, minus zero and types without equality are exact."""
    target = start(
        "create table public.t (a int, b text, c numeric(6,2), d double precision, e json);"
        """insert into public.t select 1, 'x', 1.10, 0, '{"a": 1}' from generate_series(1, 3);"""
        "insert into public.t values (null, null, null, null, null), (2, 'y', 5, '-0', '1')"
    )
    one = (1, "x", Decimal("1.10"), 0.0, '{"a": 1}')
    nothing = (None,) * 5
    zero = (2, "y", Decimal("5.00"), -0.0, "1")
    log.transaction(
        delete(KEYLESS, *one),
        delete(KEYLESS, *nothing),
        insert(KEYLESS, *nothing),
        insert(KEYLESS, *nothing),
        update(KEYLESS, 2, "y", Decimal("5.00"), 0.0, "1", old=zero),
        insert(KEYLESS, *one),
        delete(KEYLESS, *one),
    )
    log.close_segment()
    target.batch()
    rows = target.rows(
        "select a, b, c::text, d::text, e::text, count(*) from public.t"
        " group by 1, 2, 3, 4, 5 order by 1 nulls last"
    )
    assert rows == [
        (1, "x", "1.10", "0", '{"a": 1}', 2),
        (2, "y", "5.00", "0", "1", 1),
        (None, None, None, None, None, 2),
    ]
    log.transaction(delete(KEYLESS, 9, None, None, None, None))
    log.close_segment()
    with pytest.raises(TargetRowMissing):
        target.batch()


def test_reload_replaces_a_table_whole(start: Start, log: LogMaker) -> None:
    """All earlier rows are removed, even if the new type has no cast from the old one."""
    target = start(TABLE + "; insert into public.t values (1, 'a', 1), (2, 'b', 2)")
    log.transaction(update(ITEM, 1, "b", 1))
    changed = relation(
        ("id", "integer", "int32"),
        ("name", "jsonb", "string"),
        ("n", "integer", "int32"),
        version=2,
    )
    log.transaction(
        (MarkerKind.RELOAD, [TableName("public", "t")]),
        insert(changed, 1, '{"a": 1}', 1),
        insert(changed, 3, "null", 3),
    )
    log.transaction(update(changed, 3, None, 4))
    log.close_segment()
    target.batch()
    rows = target.rows("select id, name::text, n from public.t order by 1")
    assert rows == [(1, '{"a": 1}', 1), (3, None, 4)]


def test_shape_changes_between_rows_of_one_batch(start: Start, log: LogMaker) -> None:
    """A column is added with the old rows' value, widened, dropped: three shapes in one
    transaction.
    """
    target = start(TABLE + "; insert into public.t values (1, 'a', 1), (2, 'b', 2)")
    columns = [("id", "integer", "int32"), ("name", "text", "string"), ("n", "bigint", "int64")]
    wide = relation(*columns, version=2)
    first, second, third = wide.columns
    added = Relation(
        schema="public",
        name="t",
        columns=(
            first,
            second,
            third,
            second.__class__(name="Ä", source_type="text", neutral="string", missing="it's"),
        ),
        key=(0,),
        before=(0,),
        version=3,
    )
    dropped = Relation(
        schema="public",
        name="t",
        columns=(first, *added.columns[2:]),
        key=(0,),
        before=(0,),
        version=4,
    )
    log.transaction(update(ITEM, 1, "x", 5))
    log.transaction(insert(wide, 3, "c", 2**40))
    log.transaction(update(added, 2, None, 2, "new", absent=(1,)), insert(added, 4, "d", 4, None))
    log.transaction(insert(dropped, 5, 5, "five"), update(dropped, 1, 6, "it's"))
    log.close_segment()
    target.batch()
    assert target.rows("select * from public.t order by id") == [
        (1, 6, "it's"),
        (2, 2, "new"),
        (3, 2**40, "it's"),
        (4, 4, None),
        (5, 5, "five"),
    ]
    assert target.rows("select count(*) from pg_tables where tablename ~ '_wkmb?\\d'") == [(0,)]
    log.transaction(update(dropped, 5, 6, "six"))
    log.close_segment()
    target.batch()
    assert target.rows("select * from public.t where id = 5") == [(5, 6, "six")]


def test_shape_change_without_rows(start: Start, log: LogMaker) -> None:
    """A column added to a table without writes still reaches the target."""
    target = start(TABLE + "; insert into public.t values (1, 'a', 1)")
    log.transaction(update(ITEM, 1, "b", 1))
    more = relation(
        *[(c.name, c.source_type, c.neutral) for c in ITEM.columns],
        ("x", "date", "date"),
        version=2,
    )
    log.transaction(insert(PARENT, 1, "a"), relations=[more])
    log.close_segment()
    target.target.connection.execute("create table public.parent (id int primary key, code text)")
    target.batch()
    assert target.rows("select * from public.t") == [(1, "b", 1, None)]


def test_column_kept_as_text_after_a_value_its_type_could_not_hold(
    start: Start, log: LogMaker
) -> None:
    """Infinity widens the column's kept form; the target's type stays."""
    shape = relation(("id", "integer", "int32"), ("at", "date", "date"))
    wide = shape.with_text_column(1)
    target = start("create table public.t (id int primary key, at date)")
    log.transaction(insert(shape, 1, dt.date(2024, 1, 2)))
    log.transaction(insert(wide, 2, "infinity"), update(wide, 1, "0044-03-15 BC"))
    log.close_segment()
    target.batch()
    assert target.rows("select id, at::text from public.t order by 1") == [
        (1, "0044-03-15 BC"),
        (2, "infinity"),
    ]


def test_tables_start_at_their_own_positions(start: Start, log: LogMaker) -> None:
    """Rows and shapes that a bulk load already has are left out table by table."""
    target = start(TABLE + "; insert into public.t values (1, 'bulk', 1)")
    old = relation(
        *[(c.name, c.source_type, c.neutral) for c in ITEM.columns], ("gone", "text", "string")
    )
    log.transaction(insert(old, 1, "a", 1, "g"))
    position = log.transaction(update(ITEM, 1, "new", 1))
    log.close_segment()
    later = start("select 1", starts={TableName("public", "t"): position + 1})
    later.batch()
    assert later.rows("select * from public.t") == [(1, "bulk", 1)]
    log.transaction(update(ITEM, 1, "newer", 1))
    log.close_segment()
    later.batch()
    assert later.rows("select * from public.t") == [(1, "newer", 1)]
    assert not target.rows("select 1 from pg_attribute where attname = 'gone'")


def test_a_cut_applies_what_was_committed_before_a_position(start: Start, log: LogMaker) -> None:
    """A cut inside a segment applies whole transactions and leaves the file open; then the rest."""
    target = start(TABLE)
    for number in range(1, 6):
        position = log.transaction(insert(ITEM, number, "r", number))
        if number == 3:
            cut = position
    log.close_segment()
    result = target.batch(before=cut)
    assert target.rows("select id from public.t order by 1") == [(1,), (2,)]
    assert result.whole == ()
    assert result.after.gsn == 2
    row = target.rows("select mark, finish_time from wirekite.wirekite_progress")
    assert row == [("2", None)]
    assert [file.number for file in target.batch().whole] == [0]
    assert target.rows("select count(*) from public.t") == [(5,)]


def test_names_of_any_kind(start: Start, log: LogMaker) -> None:
    """Names have quotes, capitals, letters beyond ASCII, the longest lengths, and our own column
    names.
    """
    long = "ß" * 31
    shape = relation(
        ('i"d', "integer", "int32"),
        ("wk$n", "integer", "int32"),
        ("Ü", "text", "string"),
        name=long,
        schema='S"x',
    )
    same = relation(("id", "integer", "int32"), ("c", "text", "string"), name=long)
    target = start(
        f'create schema "S""x"; create table "S""x"."{long}" ("i""d" int primary key, "wk$n" int,'
        f' "Ü" text); create table public."{long}" (id int primary key, c text)',
    )
    log.transaction(insert(shape, 1, 2, "ü"), insert(same, 1, "x"))
    log.close_segment()
    log.transaction(update(shape, 1, 2, None, absent=(2,)))
    log.close_segment()
    target.batch()
    assert target.rows(f'select * from "S""x"."{long}"') == [(1, 2, "ü")]
    assert target.rows(f'select * from public."{long}"') == [(1, "x")]


def test_key_types_that_compare_loosely(start: Start, log: LogMaker) -> None:
    """The target treats 1.0 and 1.00 as one key; the log has two texts."""
    shape = relation(("id", "numeric", "string"), ("c", "text", "string"))
    target = start(
        "create table public.t (id numeric primary key, c text);"
        "insert into public.t values (1.0, 'a'), (2.0, 'b')"
    )
    log.transaction(
        update(shape, "1.00", None, old=("1.0", None), absent=(1,)),
        delete(shape, "2.0", None),
        insert(shape, "2.000", "new"),
    )
    log.close_segment()
    target.batch()
    rows = target.rows("select id::text, c from public.t order by 1")
    assert rows == [("1.00", "a"), ("2.000", "new")]


def test_buckets_share_one_merge_table(
    start: Start, log: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large table is folded by several tasks, each staging its share."""
    monkeypatch.setattr("penstock.load.plan.BUCKET_BYTES", 100)
    target = start(TABLE)
    log.transaction(*[insert(ITEM, i, str(i), i) for i in range(200)])
    log.transaction(*[delete(ITEM, i, None, None) for i in range(0, 200, 3)])
    log.close_segment()
    result = target.batch(threads=3)
    assert target.rows("select count(*), sum(n) from public.t") == [
        (133, sum(i for i in range(200) if i % 3))
    ]
    assert result.tables == 1


@pytest.mark.parametrize("shares", [True, False])
def test_buckets_follow_changed_keys(
    tmp_path: Path, start: Start, log: LogMaker, monkeypatch: pytest.MonkeyPatch, *, shares: bool
) -> None:
    """A key that changes, also into one of another bucket, keeps its unsent values."""
    monkeypatch.setattr("penstock.load.plan.BUCKET_BYTES", 100)
    shared = tmp_path / "shared"
    target = start(
        f"{TABLE}; insert into public.t select i, 'kept ' || i, i from generate_series(0, 199) i",
        rows_directory=shared if shares else None,
    )
    for i in range(0, 200, 5):
        log.transaction(update(ITEM, i, None, 1_000, absent=(1,)))
        log.transaction(update(ITEM, 300 + i, None, 2_000, old=(i, None, None), absent=(1,)))
        log.transaction(insert(ITEM, i, "second", 3_000))
        log.transaction(update(ITEM, 600 + i, None, 4_000, old=(300 + i, None, None), absent=(1,)))
    log.close_segment()
    target.batch(threads=4)
    assert target.rows("select id, name, n from public.t order by id") == sorted(
        [(i, f"kept {i}", i) for i in range(200) if i % 5]
        + [(i, "second", 3_000) for i in range(0, 200, 5)]
        + [(600 + i, f"kept {i}", 4_000) for i in range(0, 200, 5)]
    )
    assert shared.exists() is shares
    assert not shares or not list(shared.iterdir())


def test_way_of_a_plain_table_is_upsert(start: Start) -> None:
    """The cheap path is used where it is correct."""
    target = start(TABLE)
    name = TableName("public", "t")
    table = read_target_tables(target.target.connection, [name])[name]
    merge = Merge(relation=ITEM, table=table, staging="t_wkm", counts=Counts())
    assert MergeSql(merge, replica=True).strategy is MergeStrategy.UPSERT


MOODY = relation(
    ("id", "integer", "int32"), ("m", "public.mood", "string"), ("a", "public.mood[]", "string")
)
MOODS = (
    "create type public.mood as enum ('ok');"
    "create table public.t (id int primary key, m public.mood, a public.mood[])"
)


def test_labels_added_to_an_enum_at_the_source(start: Start, log: LogMaker) -> None:
    """Only rows have the new labels, no message; the target's type follows."""
    target = start(MOODS)
    log.transaction(insert(MOODY, 1, "it's new", '{ok,"also new"}'), insert(MOODY, 2, "ok", None))
    log.close_segment()
    target.batch()
    rows = target.rows("select id, m::text, a::text from public.t order by 1")
    assert rows == [(1, "it's new", '{ok,"also new"}'), (2, "ok", None)]


def test_labels_of_enums_below_domains_and_arrays(start: Start, log: LogMaker) -> None:
    """The enum is below a domain on a domain, and below an array of a domain."""
    target = start(
        "create type public.mood as enum ('ok'); create domain public.d as public.mood;"
        "create domain public.dd as public.d; create domain public.ds as public.dd[];"
        "create table public.t (id int primary key, m public.dd, a public.ds)"
    )
    log.transaction(insert(MOODY, 1, "new", '{ok,"also new"}'))
    log.close_segment()
    target.batch()
    assert target.rows("select m::text, a::text from public.t") == [("new", '{ok,"also new"}')]


def test_labels_that_may_not_be_added_are_reported_with_the_statement(
    start: Start, log: LogMaker
) -> None:
    """The role does not own the type; no value of a row is in the message."""
    target = start(MOODS, poor=True)
    log.transaction(insert(MOODY, 1, "new", None))
    log.close_segment()
    with pytest.raises(EnumLabelMissing) as caught:
        target.batch()
    assert caught.value.hint.endswith("add value if not exists 'new';")


def test_no_value_of_a_row_is_in_a_message(start: Start, log: LogMaker) -> None:
    """The server repeats a value that it cannot read; the error does not."""
    target = start(TABLE.replace("name text", "name uuid"))
    log.transaction(insert(ITEM, 1, "secret", 1))
    log.close_segment()
    with pytest.raises(ValueRefused) as caught:
        target.batch()
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("timestamp", -(2**63) + 1, "column at, row 1 of the batch"),
        ("time", 2**62, "time out of range"),
    ],
    ids=["no form", "refused"],
)
def test_a_copy_that_fails_half_way_leaves_no_lock(
    start: Start, log: LogMaker, kind: str, value: int, said: str
) -> None:
    """A value has no form, or the server refuses it while others follow.

    The worker's connection is dropped.
    """
    shape = relation(("id", "integer", "int32"), ("at", kind, kind))
    target = start(f"create table public.t (id int primary key, at {kind})")
    more = [insert(shape, number, 0) for number in range(3, 20_000)]
    log.transaction(insert(shape, 1, 0), insert(shape, 2, value), *more)
    log.close_segment()
    with pytest.raises(StagingFailed, match=said) as caught:
        target.batch()
    assert caught.value.fields["table"] == "public.t"
    target.rows("select 1")
    target.target.connection.execute("truncate wirekite.t_wkm")
    assert target.rows("select count(*) from public.t") == [(0,)]


NUMBERS = 20


@pytest.mark.parametrize("poor", [False, True])
def test_target_that_is_not_as_the_log_says(start: Start, log: LogMaker, poor: bool) -> None:
    """Updated rows are missing, inserted rows exist: both end as the log has them."""
    target = start(
        TABLE + "; create table public.child (id int primary key, parent int references public.t);"
        "insert into public.t select i, 'old', i from generate_series(0, 29) as i where i % 3 > 0;"
        "insert into public.t values (103, 'stranger', 0)",
        poor=poor,
    )
    log.transaction(*[update(ITEM, number, "new", number) for number in range(NUMBERS)])
    log.transaction(*[insert(ITEM, 100 + number, "new", number) for number in range(NUMBERS)])
    log.transaction(*[delete(ITEM, number, None, None) for number in range(20, 30)])
    log.close_segment()
    result = target.batch()
    assert (result.counts.upserts, result.counts.new) == (2 * NUMBERS, NUMBERS)
    expected = [*range(NUMBERS), *range(100, 100 + NUMBERS)]
    assert target.rows("select id from public.t where name = 'new' order by id") == [
        (number,) for number in expected
    ]
    assert target.rows("select count(*) from public.t") == [(len(expected),)]


def test_keys_that_the_target_takes_for_equal(start: Start, log: LogMaker) -> None:
    """A key with another text is new to the log and equal to the target."""
    shape = relation(("id", "numeric", "string"), ("name", "text", "string"), name="t")
    target = start(
        "create table public.t (id numeric primary key, name text);"
        "insert into public.t values (1.0, 'a'), (2, 'b')"
    )
    log.transaction(
        update(shape, "1.00", "A", old=("1.0", None)),
        update(shape, "2", "B"),
    )
    log.close_segment()
    target.batch()
    assert target.rows("select id::text, name from public.t order by id") == [
        ("1.00", "A"),
        ("2", "B"),
    ]


def test_keys_equal_to_the_target_when_deletes_come_last(start: Start, log: LogMaker) -> None:
    """The row stays the same without replica role, although other rows refer to it."""
    shape = relation(("id", "numeric", "string"), ("name", "text", "string"), name="t")
    target = start(
        "create table public.t (id numeric primary key, name text);"
        "create table public.child (id int primary key, parent numeric references public.t);"
        "insert into public.t values (1.0, 'a'), (2, 'b'); insert into public.child values (1, 1)",
        poor=True,
    )
    log.transaction(
        update(shape, "1.00", "A", old=("1.0", None)),
        delete(shape, "2", None),
    )
    log.close_segment()
    target.batch()
    assert target.rows("select id::text, name from public.t") == [("1.00", "A")]


def test_moved_row_with_large_value_into_a_partition(start: Start, log: LogMaker) -> None:
    """Updates move rows between partitions, and a changed key keeps unsent values."""
    shape = relation(
        ("id", "integer", "int32"), ("n", "integer", "int32"), ("doc", "text", "string"), key=(0, 1)
    )
    target = start(
        "create table public.t (id int, n int, doc text, primary key (id, n))"
        " partition by list (n);"
        "create table public.t1 partition of public.t for values in (1);"
        "create table public.t2 partition of public.t for values in (2);"
        "insert into public.t values (1, 1, repeat('x', 5000)), (2, 2, 'b')"
    )
    log.transaction(
        update(shape, 1, 2, None, old=(1, 1, None), absent=(2,)),
        update(shape, 2, 2, "B"),
        insert(shape, 3, 1, "c"),
    )
    log.close_segment()
    target.batch()
    found = target.rows(
        "select tableoid::regclass::text, id, length(doc) from public.t order by 1, 2"
    )
    assert found == [("public.t1", 3, 1), ("public.t2", 1, 5000), ("public.t2", 2, 1)]
