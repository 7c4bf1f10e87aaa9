"""SQL Server as target of changes, with the real driver on the simulator.

The order of statements is tested in `unit/test_sqlserver_target_order.py`. What a simulator cannot
show (plans, locks, speed) is a matter of certification.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import LocalSession, LogMaker
from harness.pipelines.merge import delete, insert, update
from harness.servers.proxy import Proxy
from penstock.codec.types import NO_CHOICES, Choices
from penstock.engines.sqlserver.connect import Connection, connect
from penstock.engines.sqlserver.target import merge_writer
from penstock.engines.sqlserver.target.apply import SQLServerTarget
from penstock.engines.sqlserver.target.progress import (
    LAG,
    LATEST,
    connect_progress,
    leftovers,
    open_session,
    remove,
    transaction,
)
from penstock.host.clock import REAL_CLOCK
from penstock.host.errors import ConnectionLost, StatementFailed
from penstock.host.faults import FaultInjected, arming
from penstock.load.sql_target import loading_of
from penstock.log.layout import next_segments
from penstock.model import Identity, MarkerKind, Relation, TableName
from penstock.model.policies import EVOLVE_ALL, ChangeKind, Policies, Policy
from penstock.model.position import POSITION_MAX
from penstock.ports.loading import Batch, BatchOptions
from penstock.ports.target import (
    Applied,
    MergeBatch,
    StagingChanged,
    StagingLost,
    TargetRowMissing,
    TargetShapeDiffers,
    UniqueBlocked,
    ValueRefused,
)
from plugins.sqlserver import as_test

LOG_ID = "test-log"
ITEM = relation(
    ("id", "integer", "int32"), ("name", "text", "string"), ("n", "integer", "int32"), schema="dbo"
)
ITEM_SQL = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, name nvarchar(50), n int)"
NAMED = relation(("k", "text", "string"), ("v", "integer", "int32"), schema="dbo", name="named")
BAG = relation(
    ("a", "integer", "int32"),
    ("b", "text", "string"),
    key=(),
    identity=Identity.FULL,
    schema="dbo",
    name="bag",
)
EXACT = "COLLATE Latin1_General_100_BIN2"


@dataclass
class Pipeline:
    """A log, and the loader of it into a database of the simulator."""

    url: str
    log: LogMaker
    directory: Path
    stack: ExitStack
    policies: Policies = EVOLVE_ALL
    choices: Choices = NO_CHOICES
    applied: Applied = field(default_factory=Applied)

    def __post_init__(self) -> None:
        """Connect."""
        self.loading = loading_of(self.url)
        self.connect()

    def connect(self) -> Applied:
        """Open another connection for applying, like a process that starts."""
        found = self.loading.open_target(
            self.url,
            {},
            allow_triggers=False,
            choices=self.choices,
            policies=self.policies,
            clock=REAL_CLOCK,
        )
        assert isinstance(found, SQLServerTarget)
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
            threads_max=2,
            extension="ckt",
            starts={},
            rows_directory=self.directory / "rows",
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

    def rows(self, table: str) -> Sequence[tuple[Any, ...]]:
        """Return what another session sees, in order."""
        return sorted(self.run(f"SELECT * FROM dbo.{table}"), key=repr)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in another session; return the rows of the last one."""
        found: list[tuple[Any, ...]] = []
        with connect(as_test(self.url)) as connection:
            for statement in statements:
                found = connection.execute(statement)
        return found


@pytest.fixture
def pipeline(sqlserver_url: str, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline into an empty database with a table t."""
    with ExitStack() as stack:
        log = LogMaker(tmp_path / "log")
        stack.callback(log.writer.close)
        made = Pipeline(url=sqlserver_url, log=log, directory=tmp_path, stack=stack)
        made.run(ITEM_SQL)
        yield made


# --- rows -----------------------------------------------------------------------------------------


def test_values_of_every_type_arrive_unchanged(pipeline: Pipeline) -> None:
    """Each neutral type at the edges of SQL Server's type for it."""
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
        schema="dbo",
        name="all_types",
    )
    pipeline.run(
        f"""CREATE TABLE dbo.all_types (id bigint NOT NULL PRIMARY KEY, b bit, s smallint,
        u decimal(20,0), d decimal(38,10), r real, f float, day date, t time(6), at datetime2(6),
        tz datetimeoffset(6), raw varbinary(max), txt nvarchar(max) {EXACT})"""
    )
    first = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    last = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)
    edge = Decimal("9" * 28 + "." + "9" * 10)
    rows = [
        (-(2**63), True, -(2**15), 0, edge.copy_negate(), 1.5, -1e308, dt.date(1, 1, 1), dt.time(0),
         first.replace(tzinfo=None), first, b"", ""),
        (2**63 - 1, False, 2**15 - 1, 2**64 - 1, edge, -0.25, 1e-300, dt.date(9999, 12, 31),
         dt.time(23, 59, 59, 999999), last.replace(tzinfo=None), last, b"\0\xff" * 5000,
         " \U0001f600é\n'" * 3000),
        (0, *[None] * 12),
    ]  # fmt: skip
    pipeline.apply(*(insert(shape, *row) for row in rows))
    assert sorted(pipeline.run("SELECT * FROM dbo.all_types")) == sorted(rows)


def test_a_value_without_a_place_names_its_column(pipeline: Pipeline) -> None:
    """NaN is refused before a row is sent, and nothing is applied."""
    shape = relation(
        ("id", "integer", "int32"), ("f", "double precision", "float64"), schema="dbo", name="f"
    )
    pipeline.run("CREATE TABLE dbo.f (id int NOT NULL PRIMARY KEY, f float)")
    pipeline.write(insert(shape, 1, float("nan")))
    with pytest.raises(Exception, match="column f") as caught:
        pipeline.stage()
    assert getattr(caught.value, "retry", "") == "operator"
    assert pipeline.rows("f") == []


@pytest.mark.parametrize(
    ("count", "type_text", "value"),
    [(330, "nvarchar(30)", "x" * 30), (200, "nchar(20)", "x")],
    ids=["merge table", "table"],
)
def test_a_row_that_does_not_fit_a_page_names_its_table(
    pipeline: Pipeline, count: int, type_text: str, value: str
) -> None:
    """Pointers to long values stay in a row of 8,060 bytes; nothing of the batch is applied."""
    names = [f"c{number}" for number in range(count)]
    wide = relation(
        ("id", "integer", "int32"), *((name, "text", "string") for name in [*names, "d"]),
        schema="dbo", name="wide",
    )  # fmt: skip
    listed = ", ".join(f"{name} {type_text}" for name in names)
    pipeline.run(f"CREATE TABLE dbo.wide (id int NOT NULL PRIMARY KEY, {listed}, d nvarchar(99))")
    pipeline.apply(insert(wide, 1, *([None] * len(names)), "short"))
    with pytest.raises(ValueRefused, match=r"dbo\.wide.*a row is longer than the 8,060") as caught:
        pipeline.apply(insert(wide, 2, *([value] * len(names)), "y" * 99))
    assert caught.value.fields["table"] == "dbo.wide"
    assert "at most 24 bytes each" in caught.value.hint
    assert len(pipeline.rows("wide")) == 1


def test_keys_differ_in_case_and_are_found_exactly(pipeline: Pipeline) -> None:
    """'a' and 'A' are two rows, and a change of one leaves the other."""
    pipeline.run(f"CREATE TABLE dbo.named (k nvarchar(40) {EXACT} NOT NULL PRIMARY KEY, v int)")
    pipeline.apply(insert(NAMED, "a", 1), insert(NAMED, "A", 2), insert(NAMED, "é", 3))
    pipeline.apply(update(NAMED, "A", 20), delete(NAMED, "é", None))
    assert pipeline.rows("named") == [("A", 20), ("a", 1)]
    pipeline.apply(delete(NAMED, "a", None))
    assert pipeline.rows("named") == [("A", 20)]


def test_keys_that_differ_in_blanks_are_never_mixed_up(pipeline: Pipeline) -> None:
    """SQL Server's index takes 'a' and 'a ' for one key: it refuses, and nothing is overwritten."""
    pipeline.run(f"CREATE TABLE dbo.named (k nvarchar(40) {EXACT} NOT NULL PRIMARY KEY, v int)")
    pipeline.apply(insert(NAMED, "a", 1))
    pipeline.write(insert(NAMED, "a ", 2))
    with pytest.raises(UniqueBlocked):
        pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("named") == [("a", 1)]
    pipeline.write(delete(NAMED, "a ", None))


def test_a_key_in_a_loose_collation_is_refused(pipeline: Pipeline) -> None:
    """The target would take two keys of the source for one."""
    loose = "COLLATE SQL_Latin1_General_CP1_CI_AS"
    pipeline.run(f"CREATE TABLE dbo.named (k nvarchar(40) {loose} NOT NULL PRIMARY KEY, v int)")
    pipeline.write(insert(NAMED, "a", 1), insert(NAMED, "A", 2))
    with pytest.raises(TargetShapeDiffers, match="collation"):
        pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("named") == []


def test_keyless_rows_are_counted_with_their_nulls(pipeline: Pipeline) -> None:
    """Equal rows are as many as at the source; NULL equals NULL, 'a' not 'A' and not 'a '."""
    pipeline.run("CREATE TABLE dbo.bag (a int, b nvarchar(20))")
    pipeline.apply(
        *(insert(BAG, 1, None) for _ in range(5)),
        *(insert(BAG, None, text) for text in ("a", "A", "a ", "a")),
    )
    pipeline.apply(delete(BAG, 1, None), delete(BAG, 1, None), delete(BAG, None, "a"))
    found = [*[(1, None)] * 3, (None, "A"), (None, "a "), (None, "a")]
    assert pipeline.rows("bag") == found
    pipeline.write(delete(BAG, 2, None))
    with pytest.raises(TargetRowMissing):
        pipeline.target.apply(pipeline.stage())


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


def test_an_unsent_column_of_a_missing_row_stops(pipeline: Pipeline) -> None:
    """The value is nowhere."""
    pipeline.write(update(ITEM, 5, None, 1, absent=(1,)))
    with pytest.raises(TargetRowMissing):
        pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("t") == []


def test_rows_that_are_there_or_are_not_become_the_logs(pipeline: Pipeline) -> None:
    """Inserted rows that exist are updated, updated rows that are missing are inserted."""
    pipeline.run("INSERT INTO dbo.t VALUES (1, N'old', 0)")
    pipeline.apply(insert(ITEM, 1, "new", 1), insert(ITEM, 2, "two", 2), update(ITEM, 3, "x", 3))
    assert pipeline.rows("t") == [(1, "new", 1), (2, "two", 2), (3, "x", 3)]


def test_unique_values_move_to_other_rows(pipeline: Pipeline) -> None:
    """The value of a deleted row is taken by an updated one, and its value by an inserted one.

    Not here: two rows that swap values. SQL Server checks keys at the end of a statement, the
    simulator's PostgreSQL row by row.
    """
    pipeline.run("CREATE UNIQUE INDEX by_n ON dbo.t (n)")
    pipeline.apply(insert(ITEM, 1, "a", 1), insert(ITEM, 2, "b", 2), insert(ITEM, 3, "c", 3))
    pipeline.apply(update(ITEM, 1, "a", 3), delete(ITEM, 3, None, None), insert(ITEM, 4, "d", 1))
    assert pipeline.rows("t") == [(1, "a", 3), (2, "b", 2), (4, "d", 1)]


def test_identity_columns_get_the_sources_values(pipeline: Pipeline) -> None:
    """Identity columns may be in the key, and outside of it."""
    pipeline.run(
        "CREATE TABLE dbo.numbered (id int IDENTITY(1,1) NOT NULL PRIMARY KEY, name nvarchar(9))",
        "CREATE TABLE dbo.beside (id int NOT NULL PRIMARY KEY, n int IDENTITY(1,1))",
    )
    numbered = relation(
        ("id", "integer", "int32"), ("name", "text", "string"), schema="dbo", name="numbered"
    )
    beside = relation(
        ("id", "integer", "int32"), ("n", "integer", "int32"), schema="dbo", name="beside"
    )
    pipeline.apply(insert(numbered, 70, "a"), insert(beside, 1, 50))
    pipeline.apply(update(numbered, 70, "b"), update(beside, 1, 60), insert(numbered, 5, "c"))
    assert pipeline.rows("numbered") == [(5, "c"), (70, "b")]
    assert pipeline.rows("beside") == [(1, 60)]


def test_foreign_keys_hold_whatever_the_order(pipeline: Pipeline) -> None:
    """Parents and children come and go together; a child moves to a new parent."""
    pipeline.run(
        "CREATE TABLE dbo.parent (id int NOT NULL PRIMARY KEY, code nvarchar(9) UNIQUE)",
        "CREATE TABLE dbo.child (id int NOT NULL PRIMARY KEY, parent int,"
        " CONSTRAINT fk_child FOREIGN KEY (parent) REFERENCES dbo.parent (id) ON DELETE CASCADE)",
    )
    parent = relation(
        ("id", "integer", "int32"), ("code", "text", "string"), schema="dbo", name="parent"
    )
    child = relation(
        ("id", "integer", "int32"), ("parent", "integer", "int32"), schema="dbo", name="child"
    )
    pipeline.apply(insert(child, 10, 1), insert(parent, 1, "a"), insert(child, 11, 1))
    pipeline.apply(insert(parent, 2, "b"), update(child, 10, 2), delete(parent, 1, None),
                   delete(child, 11, None))  # fmt: skip
    assert pipeline.rows("parent") == [(2, "b")]
    assert pipeline.rows("child") == [(10, 2)]  # the cascade did not take it
    pipeline.apply(delete(parent, 2, None), insert(parent, 3, "b"), update(child, 10, 3))
    assert pipeline.rows("parent") == [(3, "b")]
    assert pipeline.rows("child") == [(10, 3)]
    (trusted,) = pipeline.run("SELECT is_disabled, is_not_trusted FROM sys.foreign_keys")
    assert [int(one) for one in trusted] == [0, 0]


def test_a_foreign_key_of_texts_is_checked(pipeline: Pipeline) -> None:
    """A batch of the child alone leaves the key enabled, and its rows are checked."""
    pipeline.run(
        f"CREATE TABLE dbo.named (k nvarchar(40) {EXACT} NOT NULL PRIMARY KEY, v int)",
        "INSERT INTO dbo.named VALUES (N'a', 1), (N'b', 2)",
        f"CREATE TABLE dbo.child (k nvarchar(40) {EXACT} NOT NULL REFERENCES dbo.named,"
        " n int NOT NULL, PRIMARY KEY (k, n))",
    )
    child = relation(
        ("k", "text", "string"), ("n", "integer", "int32"), key=(0, 1), schema="dbo", name="child"
    )
    pipeline.apply(insert(child, "a", 1), insert(child, "b", 2))
    pipeline.apply(delete(child, "a", 1), insert(child, "b", 3))
    assert pipeline.rows("child") == [("b", 2), ("b", 3)]
    pipeline.run("DELETE FROM dbo.named WHERE k = N'a'")
    with pytest.raises(StatementFailed):
        pipeline.run("DELETE FROM dbo.named WHERE k = N'b'")


def test_triggers_do_not_act_a_second_time(pipeline: Pipeline) -> None:
    """Triggers are enabled again afterwards."""
    pipeline.run(
        "CREATE TABLE dbo.seen (id int)",
        "CREATE TRIGGER dbo.audit ON dbo.t AFTER INSERT AS INSERT INTO dbo.seen SELECT id FROM"
        " inserted",
    )
    pipeline.apply(insert(ITEM, 1, "a", 1))
    assert pipeline.rows("seen") == []
    pipeline.run("INSERT INTO dbo.t VALUES (2, N'b', 2)")
    assert pipeline.rows("seen") == [(2,)]


def test_a_truncate_empties_tables_with_and_without_children(pipeline: Pipeline) -> None:
    """TRUNCATE TABLE is refused for a table that a foreign key refers to."""
    pipeline.run(
        "CREATE TABLE dbo.child (id int NOT NULL PRIMARY KEY, parent int REFERENCES dbo.t (id))"
    )
    child = relation(
        ("id", "integer", "int32"), ("parent", "integer", "int32"), schema="dbo", name="child"
    )
    pipeline.apply(insert(ITEM, 1, "a", 1), insert(child, 5, 1))
    both = [TableName("dbo", "t"), TableName("dbo", "child")]
    pipeline.apply((MarkerKind.TRUNCATE, both), insert(ITEM, 2, "b", 2))
    assert pipeline.rows("t") == [(2, "b", 2)]
    assert pipeline.rows("child") == []


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
    pipeline.run("CREATE TABLE dbo.bag (a int, b nvarchar(20))")
    pipeline.write(insert(BAG, 1, "x"), insert(BAG, 1, "x"))
    batch = pipeline.stage()

    class Lossy(Connection):
        """Connection that loses the answer of a COMMIT."""

        def commit(self) -> None:
            """Commit, and lose the answer."""
            super().commit()
            self.close()
            raise ConnectionLost("the answer was lost")

    pipeline.target.connection.__class__ = Lossy
    with pytest.raises(ConnectionLost):
        pipeline.target.apply(batch)
    assert pipeline.connect().is_at(batch.after)
    assert pipeline.rows("bag") == [(1, "x"), (1, "x")]
    pipeline.apply(insert(BAG, 2, "y"))
    assert pipeline.rows("bag") == [(1, "x"), (1, "x"), (2, "y")]


def test_a_network_that_breaks_at_the_commit(pipeline: Pipeline) -> None:
    """The server never sees the COMMIT, and rolls back; nothing is lost or doubled."""
    pipeline.run("CREATE TABLE dbo.bag (a int, b nvarchar(20))")
    pipeline.write(insert(BAG, 1, "x"), insert(BAG, 1, "x"))
    batch = pipeline.stage()
    port = urlsplit(pipeline.url).port
    assert port is not None
    with Proxy(port) as network:
        found = pipeline.loading.open_target(
            network.url(pipeline.url),
            {},
            allow_triggers=False,
            choices=NO_CHOICES,
            policies=EVOLVE_ALL,
            clock=REAL_CLOCK,
        )
        found.bind(LOG_ID)
        network.tear("COMMIT".encode("utf-16-le"), to_server=True)
        with pytest.raises(ConnectionLost):
            found.apply(batch)
        assert network.torn.is_set()
        found.close()
    assert pipeline.connect().is_at(batch.before)
    assert pipeline.rows("bag") == []
    pipeline.target.apply(batch)
    assert pipeline.rows("bag") == [(1, "x")] * 2


KILLED = """
import os, sys
import pyarrow as pa
from penstock.engines.sqlserver.target.merge_writer import load_rows
from penstock.model import TableName

def batches():
    for first in range(0, 100_000, 10_000):
        if first == 50_000:
            os._exit(9)
        count = 10_000
        yield pa.record_batch({
            "n": pa.array([2] * count, pa.int64()),
            "absent": pa.nulls(count, pa.binary()),
            "key": pa.nulls(count, pa.int32()),
            "id": pa.array(range(first, first + count), pa.int32()),
            "name": pa.nulls(count, pa.string()),
            "value": pa.nulls(count, pa.int32()),
            "stamp": pa.array([5] * count, pa.int64()),
        })

load_rows(sys.argv[1], "[wirekite].[t_wkm]", batches(), doing="x", table=TableName("dbo", "t"))
"""


def test_a_worker_that_is_killed_while_it_sends_leaves_nothing_behind(pipeline: Pipeline) -> None:
    """Rows of it that reached the merge table are never applied."""
    pipeline.write(insert(ITEM, 1, "a", 1))
    batch = pipeline.stage()
    ended = subprocess.run([sys.executable, "-c", KILLED, pipeline.url], timeout=120)
    assert ended.returncode == 9
    ((held,),) = pipeline.run("SELECT COUNT_BIG(*) FROM wirekite.t_wkm")
    if held > 1:
        with pytest.raises(StagingChanged):
            pipeline.target.apply(batch)
    pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("t") == [(1, "a", 1)]


def test_a_session_cut_between_staging_and_applying_loses_nothing(pipeline: Pipeline) -> None:
    """The staged rows wait in the merge table; the batch is applied by another session."""
    pipeline.write(insert(ITEM, 1, "a", 1))
    batch = pipeline.stage()
    pipeline.target.connection.close()
    with pytest.raises(Exception):  # noqa: B017 - the driver's own, whatever it is
        pipeline.target.apply(batch)
    assert pipeline.rows("t") == []
    pipeline.connect()
    pipeline.target.apply(batch)
    assert pipeline.rows("t") == [(1, "a", 1)]


def test_rows_of_a_late_worker_are_seen(pipeline: Pipeline) -> None:
    """Another filling's rows, or the same rows twice, stop the batch before a row is applied."""
    pipeline.write(insert(ITEM, 1, "a", 1), insert(ITEM, 2, "b", 2))
    batch = pipeline.stage()
    pipeline.run("INSERT INTO wirekite.t_wkm SELECT * FROM wirekite.t_wkm WHERE id = 1")
    with pytest.raises(StagingChanged, match="holds 3 rows, 2 were staged"):
        pipeline.target.apply(batch)
    pipeline.run(
        "DELETE FROM wirekite.t_wkm WHERE id = 1",
        "INSERT INTO wirekite.t_wkm (id, [wk$n], [wk$stamp]) VALUES (9, 2, 1)",
    )
    with pytest.raises(StagingChanged, match="1 rows of another batch"):
        pipeline.target.apply(batch)
    assert pipeline.rows("t") == []
    pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("t") == [(1, "a", 1), (2, "b", 2)]


def test_two_loaders_do_not_apply_one_batch_twice(pipeline: Pipeline) -> None:
    """The second one waits for the first one's row, and is then refused."""
    pipeline.run("CREATE TABLE dbo.bag (a int, b nvarchar(20))")
    pipeline.write(insert(BAG, 1, "x"))
    batch = pipeline.stage()
    first = pipeline.target
    pipeline.connect()
    pipeline.target.apply(batch)
    with pytest.raises(Exception, match="no longer"):
        first.apply(batch)
    assert pipeline.rows("bag") == [(1, "x")]


def test_a_worker_without_a_server_may_try_again() -> None:
    """A refused connection is temporary."""
    with pytest.raises(StagingLost):
        merge_writer.load_rows(
            "sqlserver://sa:x@127.0.0.1:9/x?encrypt=no&connectTimeout=1",
            "[wirekite].[t_wkm]",
            iter([pa.record_batch({"id": [1]})]),
            doing="staging",
            table=TableName("dbo", "t"),
        )


# --- shapes ---------------------------------------------------------------------------------------


def shape_at(*columns: tuple[str, str, str], version: int, key: Sequence[int] = (0,)) -> Relation:
    """Return a later shape of t, with identities by name."""
    made = relation(*columns, schema="dbo", version=version, key=key)
    numbers = {"id": 1, "name": 2, "n": 3, "title": 2, "more": 4, "amount": 3}
    return replace(
        made,
        source_id=77,
        columns=tuple(replace(one, id=numbers[one.name]) for one in made.columns),
    )


FIRST = shape_at(
    ("id", "integer", "int32"), ("name", "text", "string"), ("n", "integer", "int32"), version=1
)


def columns_of(pipeline: Pipeline) -> dict[str, str]:
    """Return the types of t's columns."""
    rows = pipeline.run(
        "SELECT c.name, y.name FROM sys.columns AS c JOIN sys.types AS y"
        " ON y.user_type_id = c.user_type_id WHERE c.object_id = OBJECT_ID(N'dbo.t')"
    )
    return {str(name): str(kind) for name, kind in rows}


def test_shapes_change_with_the_rows(pipeline: Pipeline) -> None:
    """A column is added with the value of older rows, renamed, widened, and dropped."""
    pipeline.apply(insert(FIRST, 1, "a", 1))
    wider = shape_at(
        ("id", "integer", "int32"), ("title", "text", "string"), ("n", "bigint", "int64"),
        ("more", "integer", "int32"), version=2,
    )  # fmt: skip
    filled = replace(wider.columns[3], missing="7")
    wider = replace(wider, columns=(*wider.columns[:3], filled))
    pipeline.apply(insert(wider, 2, "b", 2**40, 8))
    assert columns_of(pipeline)["n"] == "bigint"
    rows = pipeline.run("SELECT id, title, n, more FROM dbo.t ORDER BY id")
    assert rows == [(1, "a", 1, 7), (2, "b", 2**40, 8)]
    narrow = shape_at(("id", "integer", "int32"), ("title", "text", "string"), version=3)
    pipeline.apply(update(narrow, 1, "c"))
    assert sorted(columns_of(pipeline)) == ["id", "title"]
    assert pipeline.rows("t") == [(1, "c"), (2, "b")]


def test_a_type_change_leaves_indexes_as_they_are(pipeline: Pipeline) -> None:
    """A unique key of rows without NULL still allows several; order and included columns stay."""
    pipeline.run(
        "CREATE UNIQUE INDEX u ON dbo.t (n) WHERE n IS NOT NULL",
        "CREATE INDEX d ON dbo.t (n DESC, id) INCLUDE (name)",
    )
    described = (
        "SELECT i.name, i.type, i.is_unique, i.has_filter, c.name, x.is_descending_key,"
        " x.is_included_column FROM sys.indexes AS i JOIN sys.index_columns AS x"
        " ON x.object_id = i.object_id AND x.index_id = i.index_id JOIN sys.columns AS c"
        " ON c.object_id = x.object_id AND c.column_id = x.column_id"
        " WHERE i.object_id = OBJECT_ID(N'dbo.t') ORDER BY i.name, x.index_column_id"
    )
    before = pipeline.run(described)
    pipeline.apply(insert(FIRST, 1, "a", None))
    wider = shape_at(
        ("id", "integer", "int32"), ("name", "text", "string"), ("n", "bigint", "int64"), version=2
    )
    pipeline.apply(insert(wider, 2, "b", None), insert(wider, 3, "c", 2**40))
    assert columns_of(pipeline)["n"] == "bigint"
    assert pipeline.rows("t") == [(1, "a", None), (2, "b", None), (3, "c", 2**40)]
    assert pipeline.run(described) == before
    assert len(before) == 5


def test_a_column_that_becomes_null_may_be_so_in_several_rows(pipeline: Pipeline) -> None:
    """The unique index of a table that penstock created is created again without such rows."""
    pipeline.run(
        "CREATE TABLE dbo.strict (id int NOT NULL PRIMARY KEY, v int NOT NULL)",
        "CREATE UNIQUE INDEX u ON dbo.strict (v)",
    )
    strict = relation(
        ("id", "integer", "int32"), ("v", "integer", "int32"), schema="dbo", name="strict"
    )
    pipeline.apply(insert(strict, 3, 7))
    pipeline.run("UPDATE wirekite.wirekite_table SET made = 1")
    pipeline.connect()
    pipeline.apply(insert(strict, 1, None), insert(strict, 2, None))
    assert pipeline.rows("strict") == [(1, None), (2, None), (3, 7)]
    with pytest.raises(UniqueBlocked):
        pipeline.apply(insert(strict, 4, 7))


def test_a_failed_batch_leaves_the_old_shape(pipeline: Pipeline) -> None:
    """DDL is part of the transaction."""
    pipeline.apply(insert(FIRST, 1, "a", 1))
    narrow = shape_at(("id", "integer", "int32"), ("name", "text", "string"), version=2)
    pipeline.write(insert(narrow, 2, "b"))
    with arming("load.commit.before:1:error"), pytest.raises(FaultInjected):
        pipeline.target.apply(pipeline.stage())
    assert sorted(columns_of(pipeline)) == ["id", "n", "name"]
    pipeline.connect()
    pipeline.target.apply(pipeline.stage())
    assert sorted(columns_of(pipeline)) == ["id", "name"]


def test_a_dropped_column_stays_leniently(pipeline: Pipeline) -> None:
    """The policy lets the target keep it, and later rows have NULL there."""
    pipeline.policies = Policies(kinds={ChangeKind.DROP_COLUMN: Policy.LENIENT})
    pipeline.connect()
    pipeline.apply(insert(FIRST, 1, "a", 1))
    narrow = shape_at(("id", "integer", "int32"), ("name", "text", "string"), version=2)
    pipeline.apply(insert(narrow, 2, "b"))
    assert pipeline.rows("t") == [(1, "a", 1), (2, "b", None)]


def test_null_in_a_column_of_ours_drops_its_not_null(pipeline: Pipeline) -> None:
    """The target's NOT NULL is a copy of the source's; others' tables are left as they are."""
    pipeline.run("CREATE TABLE dbo.strict (id int NOT NULL PRIMARY KEY, v int NOT NULL)")
    strict = relation(
        ("id", "integer", "int32"), ("v", "integer", "int32"), schema="dbo", name="strict"
    )
    pipeline.apply(insert(strict, 1, 1))
    pipeline.write(insert(strict, 2, None))
    with pytest.raises(ValueRefused, match="NULL is not allowed"):
        pipeline.target.apply(pipeline.stage())
    pipeline.run("UPDATE wirekite.wirekite_table SET made = 1")
    pipeline.connect()
    pipeline.target.apply(pipeline.stage())
    assert pipeline.rows("strict") == [(1, 1), (2, None)]


# --- state ----------------------------------------------------------------------------------------


def test_the_published_queries_answer(pipeline: Pipeline) -> None:
    """The queries of Wirekite's guide in T-SQL: the newest rows, and the lag."""
    for number in range(7):
        pipeline.apply(insert(ITEM, number, "a", 1))
    newest = pipeline.run(LATEST.format(operation="CL", limit=5))
    assert [row[0] for row in newest] == [f"{number}.ckt" for number in (6, 5, 4, 3, 2)]
    assert all(row[3] >= row[2] for row in newest)
    ((lag,),) = pipeline.run(LAG)
    assert 0 <= int(lag) < 60
    with closing(connect_progress(pipeline.url, "test")) as progress:
        assert [row.source for row in progress.newest("CL")] == [row[0] for row in newest]
        assert progress.action() == "RUN"
        progress.set_action("PAUSE")
        assert progress.action() == "PAUSE"


def test_a_reset_removes_what_is_ours(pipeline: Pipeline) -> None:
    """Rows of the tables, then our schema; nothing is left that remembers the log."""
    pipeline.apply(insert(ITEM, 1, "a", 1))
    pipeline.target.close()
    found = leftovers(pipeline.url, tables=[TableName("dbo", "t")])
    assert found.log_id == LOG_ID
    for removal in found.removals:
        remove(pipeline.url, removal)
    assert pipeline.rows("t") == []
    assert pipeline.run("SELECT name FROM sys.schemas WHERE name = N'wirekite'") == []
    again = leftovers(pipeline.url, tables=[])
    assert (again.log_id, again.removals) == ("", ())


def test_an_error_ends_the_transaction(pipeline: Pipeline) -> None:
    """A failed statement leaves nothing of the statements before it."""
    with closing(open_session(as_test(pipeline.url))) as connection:
        with pytest.raises(Exception), transaction(connection):  # noqa: B017, PT012
            connection.run("INSERT INTO dbo.t VALUES (1, N'a', 1)")
            connection.run("INSERT INTO dbo.t VALUES (1, N'b', 1)")
        assert connection.execute("SELECT @@TRANCOUNT") == [(0,)]
    assert pipeline.rows("t") == []


def test_merge_tables_of_many_batches_are_used_again(pipeline: Pipeline) -> None:
    """Created once, emptied for each batch, and recreated for another shape."""
    for number in range(3):
        pipeline.apply(insert(ITEM, number, "a", number))
    batch = pipeline.apply(insert(replace(ITEM, columns=ITEM.columns[:2], version=2), 9, "z"))
    assert isinstance(batch, MergeBatch)
    assert len(pipeline.rows("t")) == 4
    with connect(as_test(pipeline.url)) as connection:
        names = connection.execute("SELECT merge_name FROM wirekite.wirekite_merge")
    assert names == [("t_wkm",)]
