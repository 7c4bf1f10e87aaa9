"""Oracle as target of changes, with the fake driver in this process.

What a model cannot show (plans, real locks, speed) is a matter of certification.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import LocalSession, LogMaker
from harness.pipelines.merge import delete, insert, update
from penstock.codec.types import NO_CHOICES, Choices
from penstock.codec.types.prepare import ValueRefused as ValueUnfit
from penstock.engines.oracle.connect import Connection, connect
from penstock.engines.oracle.target import merge_writer, progress
from penstock.engines.oracle.target.apply import OracleTarget
from penstock.engines.oracle.target.claims import CLAIM, module_of
from penstock.engines.oracle.target.progress import (
    LAG,
    LATEST,
    OUR_TABLES,
    ShortNamesProgress,
    connect_progress,
    leftovers,
    open_session,
    progress_of,
    remove,
    transaction,
)
from penstock.host.clock import REAL_CLOCK
from penstock.host.errors import ConnectionLost, StatementInterrupted
from penstock.host.faults import FaultInjected, arming
from penstock.load.sql_target import loading_of
from penstock.log.layout import next_segments
from penstock.model import Identity, MarkerKind, Relation, TableName
from penstock.model.policies import EVOLVE_ALL, ChangeKind, Policies, Policy
from penstock.model.position import POSITION_MAX
from penstock.ports.loading import Batch, BatchOptions
from penstock.ports.target import (
    Applied,
    AppliedByAnother,
    ForeignKeyBlocked,
    MergeBatch,
    ProgressUnwritable,
    ShapeNotApplicable,
    StagingChanged,
    StagingLost,
    TargetRowMissing,
    TargetShapeDiffers,
    TargetTableMissing,
    UniqueBlocked,
    ValueRefused,
)
from sim_oracle.database import Database
from sim_oracle.driver_servers import install
from sim_oracle.session import Server
from sim_oracle.texts import KnownTexts

LOG_ID = "test-log"
ITEM = relation(
    ("ID", "integer", "int32"), ("NAME", "text", "string"), ("N", "integer", "int32"), schema="SHOP"
)
ITEM_SQL = 'CREATE TABLE "SHOP"."t" ("ID" NUMBER(10) PRIMARY KEY, "NAME" CLOB, "N" NUMBER(10))'
NAMED = relation(("k", "text", "string"), ("v", "integer", "int32"), schema="SHOP", name="named")
NAMED_SQL = 'CREATE TABLE "SHOP"."named" ("k" VARCHAR2(40) PRIMARY KEY, "v" NUMBER(10))'
BAG = relation(
    ("a", "integer", "int32"),
    ("b", "character varying(20)", "string"),
    key=(),
    identity=Identity.FULL,
    schema="SHOP",
    name="bag",
)
BAG_SQL = 'CREATE TABLE "SHOP"."bag" ("a" NUMBER(10), "b" VARCHAR2(20))'
ALL = Choices(
    by_scope={
        ("empty values", ""): "error",
        ("dates out of range", ""): "error",
        ("not a number", ""): "error",
    }
)


@dataclass
class Pipeline:
    """A log, and the loader of it into a database of the model."""

    url: str
    server: Server
    log: LogMaker
    directory: Path
    stack: ExitStack
    policies: Policies = EVOLVE_ALL
    choices: Choices = ALL
    applied: Applied = field(default_factory=Applied)

    def __post_init__(self) -> None:
        """Connect."""
        self.loading = loading_of(self.url)
        self.connect()

    def connect(self, **more: Any) -> Applied:
        """Open another connection for applying, like a process that starts."""
        found = self.loading.open_target(
            self.url,
            {},
            allow_triggers=more.get("allow_triggers", False),
            choices=self.choices,
            policies=self.policies,
            clock=REAL_CLOCK,
        )
        assert isinstance(found, OracleTarget)
        self.stack.callback(found.close)
        self.target = found
        self.applied = found.bind(LOG_ID)
        return self.applied

    def stage(self) -> Batch:
        """Stage all closed segments that are not applied."""
        options = BatchOptions(
            url=self.url,
            log_id=LOG_ID,
            namespaces={},
            threads_max=1,
            extension="ckt",
            starts={},
            rows_directory=self.directory / "rows",
            choices=self.choices,
        )
        stager = self.loading.open_stager(options, clock=REAL_CLOCK)
        self.stack.callback(stager.close)
        files = next_segments(self.log.directory, after=self.applied.segment, count_max=100)
        return stager.stage(
            files, LocalSession(), applied=self.applied, before=POSITION_MAX, place=0
        )

    def write(self, *changes: Any, **more: Any) -> None:
        """Write a segment of one transaction."""
        self.log.transaction(*changes, **more)
        self.log.close_segment()

    def apply(self, *changes: Any, **more: Any) -> Batch:
        """Write changes as a segment and apply it."""
        self.write(*changes, **more)
        batch = self.stage()
        self.target.apply(batch)
        self.applied = batch.after
        return batch

    def rows(self, table: str, columns: str = "*") -> Sequence[tuple[Any, ...]]:
        """Return what another session sees, in order."""
        return sorted(self.run(f'SELECT {columns} FROM "SHOP"."{table}"'), key=repr)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in another session; return the rows of the last one."""
        found: list[tuple[Any, ...]] = []
        with connect(self.url, autocommit=True) as connection:
            for statement in statements:
                parts = connection.rows(statement, decimals=True)
                found = [row for part in parts for row in part]
        return found


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline into a database with a table t."""
    server = Server(Database("ORCL", pdbs=["SHOPPDB"]), texts=KnownTexts(None))
    address = install(monkeypatch, server)
    with ExitStack() as stack:
        log = LogMaker(tmp_path / "log")
        stack.callback(log.writer.close)
        made = Pipeline(
            url=f"oracle://c%23%23penstock:secret@{address}/shoppdb",
            server=server,
            log=log,
            directory=tmp_path,
            stack=stack,
        )
        made.run(ITEM_SQL)
        yield made


# --- rows -----------------------------------------------------------------------------------------


def test_values_of_every_type_arrive_unchanged(pipeline: Pipeline) -> None:
    """Each neutral type at the edges of Oracle's type for it."""
    shape = relation(
        ("id", "bigint", "int64"),
        ("b", "boolean", "bool"),
        ("s", "smallint", "int16"),
        ("u", "xid8", "uint64"),
        ("d", "numeric(38,10)", "decimal(38,10)"),
        ("r", "real", "float32"),
        ("f", "double precision", "float64"),
        ("day", "date", "date"),
        ("t", "time(6)", "time"),
        ("at", "timestamp(6)", "timestamp"),
        ("tz", "timestamptz(6)", "timestamptz"),
        ("raw", "bytea", "binary"),
        ("txt", "text", "string"),
        ("short", "character varying(10)", "string"),
        ("big", "numeric", "string"),
        schema="SHOP",
        name="all_types",
    )
    pipeline.run(
        """CREATE TABLE "SHOP"."all_types" ("id" NUMBER(19) PRIMARY KEY, "b" NUMBER(1),
        "s" NUMBER(5), "u" NUMBER(20), "d" NUMBER(38,10), "r" BINARY_FLOAT, "f" BINARY_DOUBLE,
        "day" DATE, "t" VARCHAR2(15 CHAR), "at" TIMESTAMP(6), "tz" TIMESTAMP(6) WITH TIME ZONE,
        "raw" BLOB, "txt" CLOB, "short" VARCHAR2(10 CHAR), "big" NUMBER)"""
    )
    pipeline.choices = Choices(by_scope={**ALL.by_scope, ("digits", ""): "error"})
    pipeline.connect()
    first = dt.datetime(1, 1, 1)  # noqa: DTZ001
    last = dt.datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001
    edge = Decimal("9" * 28 + "." + "9" * 10)
    rows = [
        (-(2**63), True, -(2**15), 0, edge.copy_negate(), 1.5, -1e308, dt.date(1, 1, 1), dt.time(0),
         first, first.replace(tzinfo=dt.UTC), b"\0", "x", "é" * 10, "-0.5"),
        (2**63 - 1, False, 2**15 - 1, 2**64 - 1, edge, -0.25, 1e-300, dt.date(9999, 12, 31),
         dt.time(23, 59, 59, 999999), last, last.replace(tzinfo=dt.UTC), b"\0\xff" * 5000,
         " \U0001f600é\n'" * 3000, " ", "1" * 38),
        (0, *[None] * 14),
    ]  # fmt: skip
    pipeline.apply(*(insert(shape, *row) for row in rows))
    names = [f'"{column.name}"' for column in shape.columns]
    names[10] = """TO_CHAR("tz", 'YYYY-MM-DD HH24:MI:SS.FF6 TZH:TZM')"""
    found = {row[0]: row for row in pipeline.rows("all_types", ", ".join(names))}
    least, most, nothing = found[-(2**63)], found[2**63 - 1], found[0]
    assert [*nothing[1:]] == [None] * 14
    assert [*least[1:7]] == [1, -(2**15), 0, edge.copy_negate(), 1.5, -1e308]
    assert [*most[1:7]] == [0, 2**15 - 1, 2**64 - 1, edge, -0.25, 1e-300]
    assert [*least[7:]] == [
        first, "00:00:00", first, "0001-01-01 00:00:00.000000 +00:00", b"\0", "x", "é" * 10,
        Decimal("-0.5"),
    ]  # fmt: skip
    assert [*most[7:]] == [
        last.replace(hour=0, minute=0, second=0, microsecond=0), "23:59:59.999999", last,
        "9999-12-31 23:59:59.999999 +00:00", b"\0\xff" * 5000, " \U0001f600é\n'" * 3000, " ",
        Decimal("1" * 38),
    ]  # fmt: skip


def test_numbers_that_are_none_have_a_place(pipeline: Pipeline) -> None:
    """A BINARY_DOUBLE has NaN and infinity."""
    shape = relation(
        ("id", "integer", "int32"), ("f", "double precision", "float64"), schema="SHOP", name="f"
    )
    pipeline.run('CREATE TABLE "SHOP"."f" ("id" NUMBER(10) PRIMARY KEY, "f" BINARY_DOUBLE)')
    pipeline.apply(insert(shape, 1, float("inf")), insert(shape, 2, float("nan")))
    ((_, first), (_, second)) = pipeline.rows("f")
    assert (first, repr(second)) == (float("inf"), "nan")


def test_an_empty_text_stops_before_a_row_is_written(pipeline: Pipeline) -> None:
    """A value becomes NULL by a choice alone."""
    pipeline.write(insert(ITEM, 1, "", 1))
    with pytest.raises(ValueUnfit, match=r"column NAME of SHOP\.t: .*empty values"):
        pipeline.stage()
    assert pipeline.rows("t") == []
    pipeline.choices = Choices(by_scope={("empty values", ""): "null"})
    pipeline.connect()
    pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("t") == [(1, None, 1)]


def test_a_text_may_be_empty_before_it_has_its_value(pipeline: Pipeline) -> None:
    """Only the value that is written counts: Oracle's log shows a large object empty at first."""
    pipeline.apply(insert(ITEM, 1, "", 1), update(ITEM, 1, "x", 1))
    assert pipeline.rows("t") == [(1, "x", 1)]
    pipeline.write(update(ITEM, 1, "y", 1), update(ITEM, 1, "", 1))
    with pytest.raises(ValueUnfit, match=r"column NAME of SHOP\.t: .*empty values"):
        pipeline.stage()
    assert pipeline.rows("t") == [(1, "x", 1)]


def test_null_in_a_column_that_is_not_null_names_it(pipeline: Pipeline) -> None:
    """The message has the column and the number, and no value."""
    pipeline.run('CREATE TABLE "SHOP"."named" ("k" VARCHAR2(40) PRIMARY KEY, "v" NUMBER NOT NULL)')
    with pytest.raises(ValueRefused, match=r"NULL is not allowed \(column v\), error ORA-01400"):
        pipeline.apply(insert(NAMED, "a", None))
    assert pipeline.rows("named") == []


def test_a_key_that_is_too_long_names_its_table(pipeline: Pipeline) -> None:
    """A key has at most 4,000 bytes; the merge table refuses more."""
    pipeline.choices = Choices(by_scope={**ALL.by_scope, ("long keys", ""): "error"})
    pipeline.run('CREATE TABLE "SHOP"."named" ("k" VARCHAR2(4000) PRIMARY KEY, "v" NUMBER(10))')
    pipeline.connect()
    pipeline.apply(insert(NAMED, "x" * 4000, 1))
    pipeline.write(insert(NAMED, "x" * 4001, 1))
    with pytest.raises(ValueRefused, match="a value is too long"):
        pipeline.stage()


def test_keys_are_found_exactly(pipeline: Pipeline) -> None:
    """Keys that differ in case or in blanks at the end are different rows."""
    pipeline.run(NAMED_SQL)
    pipeline.apply(insert(NAMED, "a", 1), insert(NAMED, "A", 2), insert(NAMED, "a ", 3))
    pipeline.apply(update(NAMED, "A", 20), delete(NAMED, "a ", None))
    assert pipeline.rows("named") == [("A", 20), ("a", 1)]


def test_changes_of_rows(pipeline: Pipeline) -> None:
    """Inserts, updates, deletes and changed keys, in two statements for each table."""
    pipeline.apply(*(insert(ITEM, n, f"name {n}", n) for n in range(6)))
    del pipeline.server.statements[:]
    pipeline.apply(
        update(ITEM, 1, "new", 10),
        delete(ITEM, 2, None, None),
        update(ITEM, 30, "moved", 3, old=(3, None, None)),
        insert(ITEM, 7, "seven", 7),
    )
    assert pipeline.rows("t") == [
        (0, "name 0", 0), (1, "new", 10), (30, "moved", 3), (4, "name 4", 4), (5, "name 5", 5),
        (7, "seven", 7),
    ]  # fmt: skip
    about = [text for text in pipeline.server.statements if '"SHOP"."t"' in text]
    assert [text.split()[0] for text in about if not text.startswith("SELECT")] == [
        "DELETE",
        "MERGE",
    ]


def test_keyless_rows_are_counted_with_their_nulls(pipeline: Pipeline) -> None:
    """Equal rows are as many as at the source; NULL equals NULL, 'a' not 'A' and not 'a '."""
    pipeline.run(BAG_SQL)
    pipeline.apply(
        *(insert(BAG, 1, None) for _ in range(5)),
        *(insert(BAG, None, text) for text in ("a", "A", "a ", "a")),
    )
    pipeline.apply(delete(BAG, 1, None), delete(BAG, 1, None), delete(BAG, None, "a"))
    found = [*[(1, None)] * 3, (None, "A"), (None, "a "), (None, "a")]
    assert pipeline.rows("bag") == sorted(found, key=repr)
    pipeline.write(delete(BAG, 2, None))
    with pytest.raises(TargetRowMissing):
        pipeline.target.apply(pipeline.stage())


def test_keyless_rows_with_large_values(pipeline: Pipeline) -> None:
    """LOBs are compared by their contents."""
    shape = replace(BAG, columns=(BAG.columns[0], replace(BAG.columns[1], source_type="text")))
    pipeline.run('CREATE TABLE "SHOP"."bag" ("a" NUMBER(10), "b" CLOB)')
    long = "x" * 9000
    pipeline.apply(insert(shape, 1, long), insert(shape, 1, long + "y"), insert(shape, 1, None))
    pipeline.apply(delete(shape, 1, long), delete(shape, 1, None))
    assert pipeline.rows("bag") == [(1, long + "y")]


def test_unsent_columns_stay(pipeline: Pipeline) -> None:
    """Rows that keep their key, and rows that change it."""
    pipeline.apply(*(insert(ITEM, n, f"name {n}", n) for n in range(20)))
    pipeline.apply(
        *(update(ITEM, n, None, -n, absent=(1,)) for n in range(10)),
        update(ITEM, 100, None, 7, old=(10, None, None), absent=(1,)),
        update(ITEM, 11, None, None),
    )
    found = {row[0]: row[1:] for row in pipeline.rows("t")}
    assert found[3] == ("name 3", -3)
    assert found[100] == ("name 10", 7)
    assert found[11] == (None, None)
    assert 10 not in found


def test_unsent_columns_of_a_row_that_takes_a_deleted_rows_key(pipeline: Pipeline) -> None:
    """The row under the new key is there until the batch, and its values are not taken."""
    pipeline.apply(insert(ITEM, 10, "ten", 1), insert(ITEM, 100, "hundred", 2))
    pipeline.apply(
        delete(ITEM, 100, None, None),
        update(ITEM, 100, None, 7, old=(10, None, None), absent=(1,)),
    )
    assert pipeline.rows("t") == [(100, "ten", 7)]


@pytest.mark.parametrize(
    ("type_text", "neutral", "target", "value"),
    [
        ("timestamp with time zone", "timestamptz", "TIMESTAMP(6) WITH TIME ZONE",
         dt.datetime(2026, 3, 4, 5, 6, 7, 123456, dt.UTC)),
        ("numeric", "string", "NUMBER", "12.5"),
        ("date", "date", "DATE", dt.date(2026, 3, 4)),
    ],
)  # fmt: skip
def test_unsent_columns_with_a_conversion_stay(
    pipeline: Pipeline, type_text: str, neutral: str, target: str, value: Any
) -> None:
    """A value of the target is staged again in the form that its conversion reads."""
    shape = relation(("id", "integer", "int32"), ("v", type_text, neutral), schema="SHOP", name="v")
    pipeline.choices = Choices(by_scope={**ALL.by_scope, ("digits", ""): "error"})
    pipeline.connect()
    pipeline.run(f'CREATE TABLE "SHOP"."v" ("id" NUMBER(10) PRIMARY KEY, "v" {target})')
    pipeline.apply(insert(shape, 1, value), insert(shape, 2, value))
    before = pipeline.rows("v", 'TO_CHAR("v")')
    pipeline.apply(
        update(shape, 1, None, absent=(1,)),
        update(shape, 20, None, old=(2, None), absent=(1,)),
    )
    assert [row[0] for row in pipeline.rows("v", '"id"')] == [1, 20]
    assert pipeline.rows("v", 'TO_CHAR("v")') == before


def test_an_unsent_column_of_a_missing_row_stops(pipeline: Pipeline) -> None:
    """The value is nowhere."""
    pipeline.write(update(ITEM, 5, None, 1, absent=(1,)))
    with pytest.raises(TargetRowMissing):
        pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("t") == []


def test_rows_that_are_there_or_are_not_become_the_logs(pipeline: Pipeline) -> None:
    """Inserted rows that exist are updated, updated rows that are missing are inserted."""
    pipeline.run("""INSERT INTO "SHOP"."t" VALUES (1, 'old', 0)""")
    pipeline.apply(insert(ITEM, 1, "new", 1), insert(ITEM, 2, "two", 2), update(ITEM, 3, "x", 3))
    assert pipeline.rows("t") == [(1, "new", 1), (2, "two", 2), (3, "x", 3)]


def test_a_table_with_nothing_but_its_key(pipeline: Pipeline) -> None:
    """MERGE has no UPDATE then."""
    only = relation(("k", "integer", "int32"), schema="SHOP", name="only")
    pipeline.run('CREATE TABLE "SHOP"."only" ("k" NUMBER(10) PRIMARY KEY)')
    pipeline.apply(insert(only, 1), insert(only, 2))
    pipeline.apply(update(only, 1), delete(only, 2), insert(only, 3))
    assert pipeline.rows("only") == [(1,), (3,)]


def test_unique_values_move_to_other_rows(pipeline: Pipeline) -> None:
    """The value of a deleted row is taken by an updated one, and two rows swap values."""
    pipeline.run('CREATE UNIQUE INDEX "SHOP"."by_n" ON "SHOP"."t" ("N")')
    pipeline.apply(insert(ITEM, 1, "a", 1), insert(ITEM, 2, "b", 2), insert(ITEM, 3, "c", 3))
    pipeline.apply(update(ITEM, 1, "a", 3), delete(ITEM, 3, None, None), insert(ITEM, 4, "d", 1))
    pipeline.apply(update(ITEM, 1, "a", 2), update(ITEM, 2, "b", 3))
    assert pipeline.rows("t") == [(1, "a", 2), (2, "b", 3), (4, "d", 1)]
    with pytest.raises(UniqueBlocked):
        pipeline.apply(insert(ITEM, 9, "x", 3))


PARENT = relation(
    ("id", "integer", "int32"), ("code", "character varying(9)", "string"), schema="SHOP",
    name="parent",
)  # fmt: skip
CHILD = relation(
    ("id", "integer", "int32"), ("parent", "integer", "int32"), schema="SHOP", name="child"
)


@pytest.mark.parametrize("deferrable", ["", " DEFERRABLE"])
def test_foreign_keys_hold_whatever_the_order(pipeline: Pipeline, deferrable: str) -> None:
    """Parents and children come and go together; a child moves to a new parent."""
    pipeline.run(
        'CREATE TABLE "SHOP"."parent" ("id" NUMBER(10) PRIMARY KEY, "code" VARCHAR2(9))',
        'CREATE TABLE "SHOP"."child" ("id" NUMBER(10) PRIMARY KEY, "parent" NUMBER(10))',
        'ALTER TABLE "SHOP"."child" ADD CONSTRAINT "fk" FOREIGN KEY ("parent") REFERENCES'
        f' "SHOP"."parent" ("id"){deferrable}',
    )
    pipeline.apply(insert(CHILD, 10, 1), insert(PARENT, 1, "a"), insert(CHILD, 11, 1))
    pipeline.apply(insert(PARENT, 2, "b"), update(CHILD, 10, 2), delete(PARENT, 1, None),
                   delete(CHILD, 11, None))  # fmt: skip
    assert pipeline.rows("parent") == [(2, "b")]
    assert pipeline.rows("child") == [(10, 2)]
    pipeline.apply(delete(PARENT, 2, None), insert(PARENT, 3, "b"), update(CHILD, 10, 3))
    assert pipeline.rows("child") == [(10, 3)]
    pipeline.write(insert(CHILD, 12, 99))
    with pytest.raises(ForeignKeyBlocked, match="a foreign key is violated"):
        pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("child") == [(10, 3)]


def test_a_truncate_deletes_inside_the_transaction(pipeline: Pipeline) -> None:
    """TRUNCATE TABLE would commit, and is refused for a table that a foreign key refers to."""
    pipeline.run(
        'CREATE TABLE "SHOP"."child" ("id" NUMBER(10) PRIMARY KEY, "parent" NUMBER(10)'
        ' REFERENCES "SHOP"."t" ("ID"))'
    )
    pipeline.apply(insert(ITEM, 1, "a", 1), insert(CHILD, 5, 1))
    both = [TableName("SHOP", "t"), TableName("SHOP", "child")]
    pipeline.write((MarkerKind.TRUNCATE, both), insert(ITEM, 2, "b", 2))
    with arming("load.commit.before:1:error"), pytest.raises(FaultInjected):
        pipeline.target.apply(pipeline.stage())
    assert len(pipeline.rows("t")) == len(pipeline.rows("child")) == 1
    pipeline.connect()
    pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("t") == [(2, "b", 2)]
    assert pipeline.rows("child") == []


def test_a_missing_table_is_named(pipeline: Pipeline) -> None:
    """Case counts, because names are in quotes."""
    other = replace(ITEM, name="T")
    with pytest.raises(TargetTableMissing, match=r"no table SHOP\.T"):
        pipeline.apply(insert(other, 1, "a", 1))


def test_a_long_column_is_refused(pipeline: Pipeline) -> None:
    """No statement can read a LONG."""
    pipeline.run('CREATE TABLE "SHOP"."named" ("k" VARCHAR2(40) PRIMARY KEY, "v" LONG)')
    with pytest.raises(TargetShapeDiffers, match="is a LONG"):
        pipeline.apply(insert(NAMED, "a", 1))


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    ["load.apply.before", "load.apply.after", "load.progress.before", "load.commit.before"],
)
def test_a_failure_before_the_commit_leaves_nothing(pipeline: Pipeline, point: str) -> None:
    """The next process applies the same batch."""
    pipeline.apply(insert(ITEM, 1, "a", 1))
    pipeline.write(update(ITEM, 1, "b", 2), insert(ITEM, 2, "c", 3))
    batch = pipeline.stage()
    with arming(f"{point}:1:error"), pytest.raises(FaultInjected):
        pipeline.target.apply(batch)
    assert pipeline.rows("t") == [(1, "a", 1)]
    before = pipeline.applied
    assert pipeline.connect().is_at(before)
    pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("t") == [(1, "b", 2), (2, "c", 3)]


def test_a_commit_whose_answer_is_lost_is_not_repeated(pipeline: Pipeline) -> None:
    """The applied position says that the batch is in the target."""
    pipeline.run(BAG_SQL)
    pipeline.write(insert(BAG, 1, "x"), insert(BAG, 1, "x"))
    batch = pipeline.stage()

    class Lossy(Connection):
        """Connection that loses the answer of a COMMIT."""

        def commit(self) -> None:
            """Commit, and lose the answer."""
            super().commit()
            self.close()
            raise ConnectionLost("the answer was lost")

        def set_autocommit(self, *, is_on: bool) -> None:
            """Refuse, as the driver does after the end of a session."""
            assert not self.is_closed
            super().set_autocommit(is_on=is_on)

    pipeline.target.connection.__class__ = Lossy
    with pytest.raises(ConnectionLost):
        pipeline.target.apply(batch)
    assert pipeline.connect().is_at(batch.after)
    assert pipeline.rows("bag") == [(1, "x"), (1, "x")]
    pipeline.apply(insert(BAG, 2, "y"))
    assert pipeline.rows("bag") == [(1, "x"), (1, "x"), (2, "y")]


def test_rows_of_a_late_worker_are_seen(pipeline: Pipeline) -> None:
    """Another filling's rows, or the same rows twice, stop the batch before a row is applied."""
    pipeline.write(insert(ITEM, 1, "a", 1), insert(ITEM, 2, "b", 2))
    batch = pipeline.stage()
    merge = '"WIREKITE"."t_wkm"'
    pipeline.run(f'INSERT INTO {merge} SELECT * FROM {merge} WHERE "ID" = 1')
    with pytest.raises(StagingChanged, match="holds 3 rows, 2 were staged"):
        pipeline.target.apply(batch)
    pipeline.run(
        f'DELETE FROM {merge} WHERE "ID" = 1',
        f'INSERT INTO {merge} ("ID", "wk$n", "wk$stamp") VALUES (9, 2, 1)',
    )
    with pytest.raises(StagingChanged, match="1 rows of another batch"):
        pipeline.target.apply(batch)
    assert pipeline.rows("t") == []
    pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("t") == [(1, "a", 1), (2, "b", 2)]


def test_two_loaders_do_not_apply_one_batch_twice(pipeline: Pipeline) -> None:
    """The second one waits for the first one's row, and is then refused."""
    pipeline.run(BAG_SQL)
    pipeline.write(insert(BAG, 1, "x"))
    batch = pipeline.stage()
    first = pipeline.target
    pipeline.connect()
    pipeline.target.apply(batch)
    with pytest.raises(AppliedByAnother):
        first.apply(batch)
    assert pipeline.rows("bag") == [(1, "x")]


def test_a_row_that_is_held_interrupts_the_batch(pipeline: Pipeline) -> None:
    """The applied position is waited for with a limit; the batch may be repeated."""
    pipeline.write(insert(ITEM, 1, "a", 1))
    batch = pipeline.stage()
    pipeline.server.fail_next(30006, "FOR UPDATE WAIT")
    pipeline.target.apply(batch)
    assert pipeline.rows("t") == [(1, "a", 1)]


def test_a_worker_that_is_cut_off_may_try_again(pipeline: Pipeline) -> None:
    """Rows that a lost answer has left are counted."""
    pipeline.write(insert(ITEM, 1, "a", 1))
    pipeline.server.fail_next(0, 'INSERT INTO "WIREKITE"')
    with pytest.raises(StagingLost):
        pipeline.stage()
    pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("t") == [(1, "a", 1)]


def hang(pipeline: Pipeline, module: str) -> Connection:
    """Return the session of a worker that hangs while it fills the merge table."""
    session = connect(pipeline.url)
    pipeline.stack.callback(session.close)
    session.run(CLAIM, module=module)
    session.run('INSERT INTO "WIREKITE"."t_wkm" ("ID") VALUES (9)')
    return session


def test_the_next_batch_ends_a_worker_that_hangs(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merge table is empty, and the worker has lost its session with its rows."""
    monkeypatch.setattr(progress, "DDL_WAIT", "ALTER SESSION SET DDL_LOCK_TIMEOUT = 0")
    pipeline.apply(insert(ITEM, 1, "a", 1))
    pipeline.write(insert(ITEM, 2, "b", 2))
    lost = hang(pipeline, module_of("t_wkm"))
    pipeline.target.apply(pipeline.stage())
    with pytest.raises(ConnectionLost):
        lost.run('INSERT INTO "WIREKITE"."t_wkm" ("ID") VALUES (10)')
    assert len(pipeline.rows("t")) == 2


def test_a_session_of_another_program_is_not_ended(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is repeated until the table is free."""
    monkeypatch.setattr(progress, "DDL_WAIT", "ALTER SESSION SET DDL_LOCK_TIMEOUT = 0")
    pipeline.apply(insert(ITEM, 1, "a", 1))
    pipeline.write(insert(ITEM, 2, "b", 2))
    other = hang(pipeline, "another program")
    with pytest.raises(StatementInterrupted):
        pipeline.stage()
    other.rollback()
    pipeline.target.apply(pipeline.stage())
    assert len(pipeline.rows("t")) == 2


def test_a_user_that_may_not_end_sessions_is_told_what_to_run(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint has the statement for this session, and the right."""
    monkeypatch.setattr(progress, "DDL_WAIT", "ALTER SESSION SET DDL_LOCK_TIMEOUT = 0")
    pipeline.apply(insert(ITEM, 1, "a", 1))
    pipeline.write(insert(ITEM, 2, "b", 2))
    hang(pipeline, module_of("t_wkm"))
    pipeline.server.fail_next(1031, "ALTER SYSTEM KILL SESSION")
    with pytest.raises(StatementInterrupted) as caught:
        pipeline.stage()
    assert "ALTER SYSTEM KILL SESSION '" in caught.value.hint
    assert "GRANT ALTER SYSTEM" in caught.value.hint


def test_errors_of_staging() -> None:
    """An error of reading the log stays as it is."""
    own = ValueError("of the log")
    assert merge_writer.staging_error(own, "staging", TableName("a", "b")) is own


# --- shapes ---------------------------------------------------------------------------------------


def shape_at(*columns: tuple[str, str, str], version: int, key: Sequence[int] = (0,)) -> Relation:
    """Return a later shape of t, with identities by name."""
    made = relation(*columns, schema="SHOP", version=version, key=key)
    numbers = {"ID": 1, "NAME": 2, "N": 3, "TITLE": 2, "MORE": 4, "AMOUNT": 3}
    return replace(
        made,
        source_id=77,
        columns=tuple(replace(one, id=numbers[one.name]) for one in made.columns),
    )


FIRST = shape_at(
    ("ID", "integer", "int32"), ("NAME", "text", "string"), ("N", "integer", "int32"), version=1
)
WIDER = shape_at(
    ("ID", "integer", "int32"), ("TITLE", "text", "string"), ("N", "bigint", "int64"),
    ("MORE", "integer", "int32"), version=2,
)  # fmt: skip
WIDER = replace(WIDER, columns=(*WIDER.columns[:3], replace(WIDER.columns[3], missing="7")))
NARROW = shape_at(("ID", "integer", "int32"), ("TITLE", "text", "string"), version=3)


def columns_of(pipeline: Pipeline) -> dict[str, str]:
    """Return the types of t's columns."""
    with connect(pipeline.url) as connection:
        rows = connection.execute(
            "SELECT column_name, data_type, data_precision FROM all_tab_cols"
            " WHERE owner = 'SHOP' AND table_name = 't' ORDER BY internal_column_id"
        )
    return {str(name): f"{kind}{precision or ''}" for name, kind, precision in rows}


def test_shapes_change_with_the_rows(pipeline: Pipeline) -> None:
    """A column is added with the value of older rows, renamed, widened, and dropped."""
    pipeline.apply(insert(FIRST, 1, "a", 1))
    pipeline.apply(insert(WIDER, 2, "b", 2**40, 8))
    assert columns_of(pipeline)["N"] == "NUMBER19"
    rows = pipeline.rows("t", '"ID", "TITLE", "N", "MORE"')
    assert rows == [(1, "a", 1, 7), (2, "b", 2**40, 8)]
    pipeline.apply(update(NARROW, 1, "c"))
    assert sorted(columns_of(pipeline)) == ["ID", "TITLE"]
    assert pipeline.rows("t") == [(1, "c"), (2, "b")]


@pytest.mark.parametrize("missing", ["", "x"])
def test_an_added_column_may_be_null_if_the_empty_text_is(pipeline: Pipeline, missing: str) -> None:
    """The source says NOT NULL, and has the empty text in older rows or in later ones."""
    pipeline.choices = Choices(by_scope={**ALL.by_scope, ("empty values", ""): "null"})
    pipeline.connect()
    pipeline.apply(insert(FIRST, 1, "a", 1))
    shape = shape_at(
        ("ID", "integer", "int32"), ("NAME", "text", "string"), ("N", "integer", "int32"),
        ("MORE", "text", "string"), version=2,
    )  # fmt: skip
    added = replace(shape.columns[3], missing=missing, nullable=False)
    shape = replace(shape, columns=(*shape.columns[:3], added))
    pipeline.apply(insert(shape, 2, "b", 2, ""))
    assert pipeline.rows("t", '"ID", "MORE"') == [(1, missing or None), (2, None)]


def test_one_transaction_with_two_shapes(pipeline: Pipeline) -> None:
    """Rows of the earlier shape go into the later one's columns, with the value of the new one."""
    pipeline.apply(insert(FIRST, 1, "a", 1))
    pipeline.apply(insert(FIRST, 2, "b", 2), insert(WIDER, 3, "c", 2**40, 8))
    rows = pipeline.rows("t", '"ID", "TITLE", "N", "MORE"')
    assert rows == [(1, "a", 1, 7), (2, "b", 2, 7), (3, "c", 2**40, 8)]


@pytest.mark.parametrize(
    ("text", "neutral", "target", "value", "found"),
    [
        ("text", "string", "CLOB", "x", "1"),
        ("double precision", "float64", "BINARY_DOUBLE", 1.5, 1.0),
        ("character varying(9)", "string", "VARCHAR2", "x", "1"),
    ],
)
def test_a_type_that_the_server_does_not_convert(
    pipeline: Pipeline, text: str, neutral: str, target: str, value: Any, found: Any
) -> None:
    """Another column takes the place of the old one, with its values."""
    pipeline.apply(insert(FIRST, 1, "a", 1))
    later = shape_at(
        ("ID", "integer", "int32"), ("NAME", "text", "string"), ("N", text, neutral), version=2
    )
    pipeline.apply(insert(later, 2, "b", value))
    assert columns_of(pipeline)["N"].startswith(target)
    assert pipeline.rows("t", '"ID", "N"') == [(1, found), (2, value)]
    assert sorted(columns_of(pipeline)) == ["ID", "N", "NAME"]


@pytest.mark.parametrize("crash", range(1, 9))
def test_a_change_of_type_that_is_interrupted_is_finished(pipeline: Pipeline, crash: int) -> None:
    """After a crash at any statement the column has its new type and all values."""
    pipeline.apply(*(insert(FIRST, n, "a", n) for n in range(1, 4)))
    later = shape_at(
        ("ID", "integer", "int32"), ("TITLE", "text", "string"), ("N", "text", "string"),
        ("MORE", "integer", "int32"), version=2,
    )  # fmt: skip
    pipeline.write(insert(later, 9, "b", "x", 1))
    batch = pipeline.stage()
    counted = 0

    def crash_at(text: str) -> None:
        nonlocal counted
        is_change = text.startswith(("ALTER TABLE", 'UPDATE "SHOP"'))
        counted += is_change
        if is_change and counted == crash:
            raise FaultInjected("killed")

    pipeline.server.on_statement = crash_at
    try:
        pipeline.target.apply(batch)
    except FaultInjected:
        pipeline.server.on_statement = lambda _: None
        pipeline.connect()
        pipeline.target.apply(pipeline.stage())
    pipeline.server.on_statement = lambda _: None
    assert sorted(columns_of(pipeline)) == ["ID", "MORE", "N", "TITLE"]
    assert pipeline.rows("t", '"ID", "TITLE", "N", "MORE"') == [
        (1, "a", "1", None), (2, "a", "2", None), (3, "a", "3", None), (9, "b", "x", 1),
    ]  # fmt: skip


def test_a_type_of_an_indexed_column_is_not_replaced(pipeline: Pipeline) -> None:
    """The index would be dropped with the column."""
    pipeline.run('CREATE INDEX "SHOP"."by_n" ON "SHOP"."t" ("N")')
    pipeline.apply(insert(FIRST, 1, "a", 1))
    later = shape_at(
        ("ID", "integer", "int32"), ("NAME", "text", "string"), ("N", "text", "string"), version=2
    )
    with pytest.raises(ShapeNotApplicable, match="by_n"):
        pipeline.apply(insert(later, 2, "b", "x"))


def test_a_failed_batch_after_a_change_of_shape(pipeline: Pipeline) -> None:
    """DDL has committed; the repeated batch finds the shape applied."""
    pipeline.apply(insert(FIRST, 1, "a", 1))
    pipeline.write(insert(WIDER, 2, "b", 2, 8))
    with arming("load.commit.before:1:error"), pytest.raises(FaultInjected):
        pipeline.target.apply(pipeline.stage())
    assert sorted(columns_of(pipeline)) == ["ID", "MORE", "N", "TITLE"]
    pipeline.connect()
    pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("t", '"ID", "MORE"') == [(1, 7), (2, 8)]


def test_names_that_swap(pipeline: Pipeline) -> None:
    """Two columns exchange their names."""
    pipeline.apply(insert(FIRST, 1, "a", 1))
    swapped = shape_at(
        ("ID", "integer", "int32"), ("N", "text", "string"), ("NAME", "integer", "int32"), version=2
    )
    columns = (swapped.columns[0], replace(swapped.columns[1], id=2),
               replace(swapped.columns[2], id=3))  # fmt: skip
    pipeline.apply(insert(replace(swapped, columns=columns), 2, "b", 2))
    assert pipeline.rows("t", '"ID", "N", "NAME"') == [(1, "a", 1), (2, "b", 2)]


def test_a_loader_that_was_overtaken_does_not_alter(pipeline: Pipeline) -> None:
    """Another loader has moved the position, and its next rows have the old shape."""
    pipeline.apply(insert(FIRST, 1, "a", 1))
    pipeline.write(insert(NARROW, 2, "b"))
    batch = pipeline.stage()
    pipeline.run("UPDATE wirekite.wirekite_log SET applied_gsn = applied_gsn + 1")
    with pytest.raises(AppliedByAnother):
        pipeline.target.apply(batch)
    assert sorted(columns_of(pipeline)) == ["ID", "N", "NAME"]


def test_a_dropped_column_stays_leniently(pipeline: Pipeline) -> None:
    """The policy lets the target keep it, and later rows have NULL there."""
    pipeline.policies = Policies(kinds={ChangeKind.DROP_COLUMN: Policy.LENIENT})
    pipeline.connect()
    pipeline.apply(insert(FIRST, 1, "a", 1))
    narrow = shape_at(("ID", "integer", "int32"), ("NAME", "text", "string"), version=2)
    pipeline.apply(insert(narrow, 2, "b"))
    assert pipeline.rows("t") == [(1, "a", 1), (2, "b", None)]


def test_another_key(pipeline: Pipeline) -> None:
    """The primary key follows the source's."""
    pipeline.apply(insert(FIRST, 1, "a", 1))
    keyed = shape_at(
        ("ID", "integer", "int32"), ("NAME", "text", "string"), ("N", "integer", "int32"),
        version=2, key=(2,),
    )  # fmt: skip
    pipeline.apply(insert(keyed, 1, "b", 2))
    pipeline.apply(update(keyed, 5, "c", 2))
    assert pipeline.rows("t") == [(1, "a", 1), (5, "c", 2)]


# --- state ----------------------------------------------------------------------------------------


def test_the_published_queries_answer(pipeline: Pipeline) -> None:
    """The queries of Wirekite's guide in Oracle's SQL: the newest rows, and the lag."""
    for number in range(7):
        pipeline.apply(insert(ITEM, number, "a", 1))
    newest = pipeline.run(LATEST.format(operation="CL", limit=5))
    assert [row[0] for row in newest] == [f"{number}.ckt" for number in (6, 5, 4, 3, 2)]
    assert all(row[3] >= row[2] for row in newest)
    ((lag,),) = pipeline.run(LAG)
    assert 0 <= int(lag) < 60
    with closing(connect_progress(pipeline.url, "test")) as store:
        assert [row.source for row in store.newest("CL")] == [row[0] for row in newest]
        assert store.action() == "RUN"
        store.set_action("PAUSE")
        assert store.action() == "PAUSE"


def test_a_reset_removes_what_is_ours(pipeline: Pipeline) -> None:
    """Rows of the tables, then our tables; nothing is left that remembers the log."""
    pipeline.apply(insert(ITEM, 1, "a", 1))
    pipeline.target.close()
    found = leftovers(pipeline.url, tables=[TableName("SHOP", "t")])
    assert found.log_id == LOG_ID
    for removal in found.removals:
        remove(pipeline.url, removal)
    assert pipeline.rows("t") == []
    assert pipeline.run("SELECT table_name FROM all_tables WHERE owner = 'WIREKITE'") == []
    again = leftovers(pipeline.url, tables=[])
    assert (again.log_id, again.removals) == ("", ())


def test_an_error_rolls_the_transaction_back(pipeline: Pipeline) -> None:
    """A failed statement leaves nothing of the statements before it, and autocommit is on again."""
    with closing(open_session(pipeline.url)) as connection:
        with pytest.raises(Exception), transaction(connection):  # noqa: B017, PT012
            connection.run("""INSERT INTO "SHOP"."t" VALUES (1, 'a', 1)""")
            connection.run("""INSERT INTO "SHOP"."t" VALUES (1, 'b', 1)""")
        assert pipeline.rows("t") == []
        connection.run("""INSERT INTO "SHOP"."t" VALUES (1, 'b', 1)""")
    assert len(pipeline.rows("t")) == 1


def test_merge_tables_of_many_batches_are_used_again(pipeline: Pipeline) -> None:
    """Created once, emptied for each batch, and recreated for another shape."""
    for number in range(3):
        pipeline.apply(insert(ITEM, number, "a", number))
    batch = pipeline.apply(insert(replace(ITEM, columns=ITEM.columns[:2], version=2), 9, "z"))
    assert isinstance(batch, MergeBatch)
    assert len(pipeline.rows("t")) == 4
    assert pipeline.run("SELECT merge_name FROM wirekite.wirekite_merge") == [("t_wkm",)]
    made = [text for text in pipeline.server.statements if 'CREATE TABLE "WIREKITE"' in text]
    assert len(made) == 2


def test_two_processes_create_the_state_tables_at_once(pipeline: Pipeline) -> None:
    """A table that the other one has just created is there."""
    pipeline.run(*[f"DROP TABLE wirekite.{name}" for name in ("wirekite_merge", "wirekite_apart")])
    pipeline.server.fail_next(955, "create table wirekite.wirekite_merge")
    with closing(connect_progress(pipeline.url, "test")) as store:
        store.ensure_tables()
        assert store.present_tables() >= {"wirekite_merge", "wirekite_apart"}


@pytest.mark.parametrize("number", [922, 959, 1031])
def test_a_schema_that_cannot_be_created(pipeline: Pipeline, number: int) -> None:
    """The hint has the statements for a DBA: also for old servers, and for other tablespaces."""
    names = [name for (name,) in pipeline.run(OUR_TABLES)]
    pipeline.run(*[f'DROP TABLE wirekite."{name}"' for name in names], "DROP USER wirekite CASCADE")
    pipeline.server.fail_next(number, "CREATE USER")
    with closing(connect_progress(pipeline.url, "test")) as store:
        with pytest.raises(ProgressUnwritable) as caught:
            store.ensure_tables()
        assert "CREATE USER wirekite NO AUTHENTICATION" in caught.value.hint
        store.ensure_tables()
        assert "wirekite_log" in store.present_tables()


def test_names_of_old_servers(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 12.2 a name has 30 bytes, with a merge table's endings."""
    with closing(open_session(pipeline.url)) as connection:
        monkeypatch.setattr(Connection, "version", (12, 1, 0, 2))
        store = progress_of(connection)
        assert isinstance(store, ShortNamesProgress)
        name = store.dialect.merge_name(TableName("S", "é" * 15), {})
        assert len(name.encode()) <= 26
        assert store.dialect.merge_name(TableName("S", "x" * 20), {}) == "x" * 20 + "_wkm"


def test_the_choices_are_the_pipelines(pipeline: Pipeline) -> None:
    """Without a choice a loss stops like one with `error`."""
    pipeline.choices = NO_CHOICES
    pipeline.connect()
    pipeline.write(insert(ITEM, 1, "", 1))
    with pytest.raises(ValueUnfit):
        pipeline.stage()
