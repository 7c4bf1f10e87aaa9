"""Order of work while a batch is applied to SQL Server, on a connection that records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from harness.pipelines.changes import relation
from harness.sqlserver_target import Answers, FakeConnection, foreign_key, table
from penstock.engines.sqlserver.connect import server_error
from penstock.engines.sqlserver.target.apply import SQLServerTarget
from penstock.engines.sqlserver.target.catalog import TargetTable
from penstock.engines.sqlserver.target.progress import SQLServerProgress
from penstock.host.clock import RealClock
from penstock.model import Relation, TableName
from penstock.model.policies import ChangeKind, Policies, Policy
from penstock.ports.target import (
    Applied,
    AppliedByAnother,
    Counts,
    FileProgress,
    ForeignKeyBlocked,
    MergeBatch,
    MergeSpec,
    PhaseSpec,
    StagedRows,
    StagingChanged,
    TableRecord,
    TargetRowMissing,
    TriggersWouldFire,
    TruncateBlocked,
    UniqueBlocked,
)
from penstock.sql.shape_changes import not_null_of, shape_of

ITEM = relation(("id", "integer", "int32"), ("name", "text", "string"), schema="dbo")
ITEM_TABLE = table("id int not null", "name nvarchar(max)")
PARENT = relation(("id", "integer", "int32"), ("name", "text", "string"), schema="dbo", name="p")
CHILD = relation(("id", "integer", "int32"), ("p", "integer", "int32"), schema="dbo", name="c")
KEY = foreign_key("c", "p")
FAMILY = (
    table("id int not null", "name nvarchar(max)", name="p", children=(KEY,), is_referred_to=True),
    table("id int not null", "p int", name="c", parents=(KEY,)),
)
AT = Applied(segment=3, gsn=10, trx=5, position=2**127)
AFTER = Applied(segment=4, gsn=20, trx=6, position=2**127 + 1, commit_time_us=1)


class QuickClock(RealClock):
    """Clock that does not wait."""

    def sleep(self, seconds: float) -> None:
        """Do not wait."""


class KnownRecords:
    """Records of tables whose shapes are applied, unless a test says otherwise."""

    def __init__(self, shapes: Iterable[Relation] = ()) -> None:
        self.known = {TableName(one.schema, one.name): record_of(one) for one in shapes}

    def get(self, source: TableName, target: TableName) -> TableRecord:
        """Return the record."""
        del target
        return self.known[source]

    def put(self, record: TableRecord) -> None:
        """Keep a record."""
        self.known[record.source] = record

    def forget(self) -> None:
        """Do nothing."""


def record_of(shape: Relation) -> TableRecord:
    """Return the record of a table that has this shape."""
    name = TableName(shape.schema, shape.name)
    return TableRecord(
        source=name,
        target=name,
        merge_name=f"{shape.name}_wkm",
        made=True,
        columns=shape_of(shape),
        version=shape.version,
        key=tuple(shape.columns[place].name for place in shape.key),
        not_null=not_null_of(shape),
    )


class Target(SQLServerTarget):
    """Target whose catalogue is given."""

    def need(self, names: Iterable[TableName]) -> None:
        """Take the tables from those that were given."""
        self.tables |= {name: GIVEN[name] for name in names}


GIVEN: dict[TableName, TargetTable] = {}


def make(*tables: TargetTable, shapes: Sequence[Relation] = (), **more: Any) -> Target:
    """Return a target that has these tables."""
    GIVEN.clear()
    GIVEN.update({one.name: one for one in tables})
    connection = FakeConnection()
    return Target(
        connection=connection,
        namespaces={},
        progress=SQLServerProgress(connection),
        records=KnownRecords(shapes or (ITEM, PARENT, CHILD)),  # type: ignore[arg-type]
        clock=QuickClock(),
        log_id="log",
        **more,
    )


def spec(shape: Relation, **counts: int) -> MergeSpec:
    """Return a filled merge table."""
    found = Counts(**counts)
    return MergeSpec(
        relation=shape,
        table=TableName(shape.schema, shape.name),
        staging=f"{shape.name}_wkm",
        stamp=7,
        counts=found,
        staged=(StagedRows(in_table=found.upserts + found.deletes),),
    )


def batch(*phases: PhaseSpec) -> MergeBatch:
    """Return a staged batch of these phases."""
    return MergeBatch(
        before=AT,
        after=AFTER,
        phases=phases,
        files=(FileProgress(file="4.ckt", mark=20, finished=True),),
    )


def ran(target: Target) -> list[str]:
    """Return what the target's connection ran."""
    assert isinstance(target.connection, FakeConnection)
    return target.connection.ran


def fake(target: Target) -> FakeConnection:
    """Return the target's connection."""
    assert isinstance(target.connection, FakeConnection)
    return target.connection


def fill_tables(target: Target, *specs: MergeSpec) -> None:
    """Let merge tables hold what was staged."""
    ordered = sorted(specs, key=lambda one: one.staging)
    rows = [(n, one.staged_row_count, one.staged_row_count) for n, one in enumerate(ordered)]
    fake(target).answer("COUNT_BIG", rows)


def place(target: Target, pattern: str) -> int:
    """Return the place of the only statement that matches."""
    found = [at for at, sql in enumerate(ran(target)) if pattern in sql]
    assert len(found) == 1, (pattern, ran(target))
    return found[0]


def test_progress_is_first_and_all_is_one_transaction() -> None:
    """The row of the position is locked first, and the rows of the files are written last."""
    target, one = make(ITEM_TABLE), spec(ITEM, changes=5, upserts=4, deletes=1, new=1)
    fill_tables(target, one)
    fake(target).answer("UPDATE t SET", 3)
    target.apply(batch(PhaseSpec(merges=(one,), gsn=20)))
    order = [
        place(target, "BEGIN TRANSACTION"),
        place(target, "UPDATE wirekite.wirekite_log WITH (UPDLOCK, HOLDLOCK)"),
        place(target, "WITH (TABLOCK, HOLDLOCK)"),
        place(target, "DELETE t"),
        place(target, "UPDATE t SET"),
        place(target, "INSERT INTO [dbo].[t]"),
        place(target, "MERGE INTO wirekite.wirekite_progress"),
        place(target, "COMMIT"),
    ]
    assert order == sorted(order)
    assert len(ran(target)) == len(order)


def test_a_target_that_another_loader_moved_is_left_alone() -> None:
    """A loader stops at a position that is not where it left it."""
    target, one = make(ITEM_TABLE), spec(ITEM, upserts=1, new=1)
    fake(target).answer("wirekite_log", 0)
    with pytest.raises(AppliedByAnother):
        target.apply(batch(PhaseSpec(merges=(one,))))
    assert ran(target)[-1].endswith("ROLLBACK TRANSACTION")
    assert not fake(target).matching("INSERT|COMMIT")


@pytest.mark.parametrize(
    ("held", "stamped", "says"),
    [(2, 2, "holds 2 rows, 3 were staged"), (4, 3, "holds 4 rows"), (3, 2, "1 rows of another")],
)
def test_a_merge_table_must_hold_the_staged_rows(held: int, stamped: int, says: str) -> None:
    """Lost, doubled and foreign rows are each seen before a row is applied."""
    target, one = make(ITEM_TABLE), spec(ITEM, upserts=3, new=3)
    fake(target).answer("COUNT_BIG", [(0, held, stamped)])
    with pytest.raises(StagingChanged, match=says):
        target.apply(batch(PhaseSpec(merges=(one,))))
    assert "= 7 THEN" in fake(target).matching("COUNT_BIG")[0]
    assert ran(target)[-1].endswith("ROLLBACK TRANSACTION")
    assert not fake(target).matching(r"INSERT INTO \[dbo\]|COMMIT")


def test_only_new_rows_need_one_statement() -> None:
    """The log says that no key was there."""
    target, one = make(ITEM_TABLE), spec(ITEM, upserts=3, new=3)
    fill_tables(target, one)
    fake(target).answer("INSERT INTO", 3)
    target.apply(batch(PhaseSpec(merges=(one,))))
    assert len(fake(target).matching(r"\[dbo\]")) == 1


def test_rows_that_should_be_new_are_updated_if_they_are_there() -> None:
    """A copy may be newer than the beginning of the changes."""
    target, one = make(ITEM_TABLE), spec(ITEM, upserts=3, new=3)
    fill_tables(target, one)
    fake(target).answer("INSERT INTO", 1)
    fake(target).answer("UPDATE t SET", 3)
    target.apply(batch(PhaseSpec(merges=(one,))))
    assert "m.[wk$n] = 2" in fake(target).matching("UPDATE t SET")[0]


def test_fewer_rows_than_the_log_has_stop_the_batch() -> None:
    """Neither inserted nor updated: the batch is not committed."""
    target, one = make(ITEM_TABLE), spec(ITEM, upserts=3, new=3)
    fill_tables(target, one)
    fake(target).answer("INSERT INTO", 1)
    fake(target).answer("UPDATE t SET", 2)
    with pytest.raises(TargetRowMissing):
        target.apply(batch(PhaseSpec(merges=(one,))))
    assert not fake(target).matching("COMMIT")


def test_parents_come_before_children_and_go_after_them() -> None:
    """Upserts of parents first; their deletes last, after the children's."""
    target = make(*FAMILY)
    both = (spec(CHILD, upserts=1, deletes=1, new=1), spec(PARENT, upserts=1, deletes=1, new=1))
    fill_tables(target, *both)
    target.apply(batch(PhaseSpec(merges=both)))
    order = [
        place(target, "DELETE t FROM [dbo].[c]"),
        place(target, "INSERT INTO [dbo].[p]"),
        place(target, "INSERT INTO [dbo].[c]"),
        place(target, "DELETE t FROM [dbo].[p]"),
    ]
    assert order == sorted(order)


def violation(kind: str) -> Any:
    """Return the server's error for a violated foreign or unique key."""
    number, said = {"foreign": (547, "REFERENCE constraint"), "unique": (2627, "UNIQUE KEY")}[kind]
    return server_error("x", number, "", f"conflicted with the {said} 'fk_c'")


@pytest.mark.parametrize("kind", ["foreign", "unique"])
def test_a_key_that_no_order_satisfies_waits_for_the_end(kind: str) -> None:
    """The batch is repeated, with foreign keys that are all checked before the commit."""
    target = make(*FAMILY)
    both = (spec(CHILD, upserts=1, new=1), spec(PARENT, upserts=1, deletes=1, new=1))
    fill_tables(target, *both)
    fake(target).answer("INSERT INTO .dbo...p", Answers([violation(kind), 1]))
    target.apply(batch(PhaseSpec(merges=both)))
    second = ran(target)[ran(target).index("BEGIN TRANSACTION", 1) :]
    wanted = [
        "UPDATE wirekite.wirekite_log",
        "ALTER TABLE [dbo].[c] NOCHECK CONSTRAINT [fk_c]",
        "DELETE t FROM [dbo].[p]",
        "INSERT INTO [dbo].[p]",
        "ALTER TABLE [dbo].[c] WITH CHECK CHECK CONSTRAINT [fk_c]",
        "COMMIT TRANSACTION",
    ]
    places = [next(at for at, sql in enumerate(second) if one in sql) for one in wanted]
    assert places == sorted(places)


def test_the_next_batch_is_in_the_strict_order_again() -> None:
    """Checking all foreign keys reads whole tables, so it is done only where it is needed."""
    target = make(*FAMILY)
    one = spec(CHILD, upserts=1, new=1)
    fill_tables(target, one)
    fake(target).answer("INSERT INTO .dbo...c", Answers([violation("foreign"), 1, 1]))
    target.apply(batch(PhaseSpec(merges=(one,))))
    assert fake(target).matching("NOCHECK")
    ran(target).clear()
    after = dataclasses.replace(AFTER, segment=5, gsn=30)
    later = dataclasses.replace(batch(PhaseSpec(merges=(one,))), before=AFTER, after=after)
    target.apply(later)
    assert not fake(target).matching("NOCHECK")


def test_a_key_that_is_violated_at_the_end_is_refused() -> None:
    """The rows themselves violate it: the batch is not committed."""
    target = make(*FAMILY)
    one = spec(CHILD, upserts=1, new=1)
    fill_tables(target, one)
    fake(target).answer("INSERT INTO .dbo...c", Answers([violation("foreign"), 1]))
    fake(target).answer("WITH CHECK CHECK", violation("foreign"))
    with pytest.raises(ForeignKeyBlocked):
        target.apply(batch(PhaseSpec(merges=(one,))))
    assert not fake(target).matching("COMMIT")


def test_a_unique_key_of_a_lone_table_is_no_reason_to_repeat() -> None:
    """No other order would help."""
    target, one = make(ITEM_TABLE), spec(ITEM, upserts=1, new=1)
    fill_tables(target, one)
    fake(target).answer("INSERT INTO .dbo", violation("unique"))
    with pytest.raises(UniqueBlocked):
        target.apply(batch(PhaseSpec(merges=(one,))))
    assert len(fake(target).matching("BEGIN")) == 1


def test_a_table_is_truncated_or_emptied_row_by_row() -> None:
    """A table that cannot be truncated is emptied by DELETE, also after the server's refusal."""
    target = make(ITEM_TABLE, *FAMILY)
    names = (TableName("dbo", "t"), TableName("dbo", "p"), TableName("dbo", "c"))
    target.apply(batch(PhaseSpec(truncated=names)))
    place(target, "TRUNCATE TABLE [dbo].[t]")
    assert place(target, "TRUNCATE TABLE [dbo].[c]") < place(target, "DELETE FROM [dbo].[p]")
    again = make(ITEM_TABLE)
    refused = server_error("x", 4711, "", "Cannot truncate table because it is published")
    fake(again).answer("TRUNCATE", Answers([refused, 1]))
    again.apply(batch(PhaseSpec(truncated=names[:1])))
    assert fake(again).matching("DELETE FROM") == ["DELETE FROM [dbo].[t]"]


def test_emptying_must_not_change_other_tables() -> None:
    """A cascade would delete rows that the log does not delete."""
    cascade = foreign_key("c", "p", "CASCADE")
    target = make(dataclasses.replace(FAMILY[0], children=(cascade,)))
    with pytest.raises(TruncateBlocked, match="fk_c"):
        target.apply(batch(PhaseSpec(truncated=(TableName("dbo", "p"),))))
    assert not fake(target).matching("DELETE|COMMIT")


def test_triggers_are_off_inside_the_transaction() -> None:
    """The source's triggers have done their work; without the right, the statement is named."""
    firing = dataclasses.replace(ITEM_TABLE, triggers=("audit",))
    target, one = make(firing), spec(ITEM, upserts=1, new=1)
    fill_tables(target, one)
    target.apply(batch(PhaseSpec(merges=(one,))))
    order = [
        place(target, "BEGIN"),
        place(target, "DISABLE TRIGGER [audit]"),
        place(target, "INSERT INTO [dbo]"),
        place(target, "ENABLE TRIGGER [audit]"),
        place(target, "COMMIT"),
    ]
    assert order == sorted(order)
    refused = make(firing)
    fill_tables(refused, one)
    fake(refused).answer("DISABLE", server_error("x", 1088, "", "you do not have permissions"))
    with pytest.raises(TriggersWouldFire, match="audit"):
        refused.apply(batch(PhaseSpec(merges=(one,))))
    allowed = make(firing, allow_triggers=True)
    fill_tables(allowed, one)
    allowed.apply(batch(PhaseSpec(merges=(one,))))
    assert not fake(allowed).matching("TRIGGER")


def test_identity_values_are_written_as_they_are() -> None:
    """The switch is on for one table at a time, and off again even after an error."""
    numbered = table("id int identity not null", "name nvarchar(max)")
    target, one = make(numbered), spec(ITEM, upserts=1, new=1)
    fill_tables(target, one)
    target.apply(batch(PhaseSpec(merges=(one,))))
    order = [
        place(target, "SET IDENTITY_INSERT [dbo].[t] ON"),
        place(target, "INSERT INTO [dbo]"),
        place(target, "SET IDENTITY_INSERT [dbo].[t] OFF"),
    ]
    assert order == sorted(order)
    failing = make(numbered)
    fill_tables(failing, one)
    fake(failing).answer("INSERT INTO .dbo", violation("unique"))
    with pytest.raises(UniqueBlocked):
        failing.apply(batch(PhaseSpec(merges=(one,))))
    assert fake(failing).matching("IDENTITY_INSERT .* OFF")


def test_a_tried_change_that_the_target_refuses_is_given_up_in_the_next_attempt() -> None:
    """The error ended the transaction, so the whole batch is repeated with the lenient way."""
    new = relation(("id", "integer", "int32"), ("name", "bigint", "int64"), schema="dbo", version=2)
    tries = Policies(kinds={ChangeKind.CHANGE_TYPE: Policy.TRY_EVOLVE})
    target = make(ITEM_TABLE, shapes=(ITEM,), policies=tries)
    refused = server_error("x", 245, "", "Conversion failed when converting")
    fake(target).answer("ALTER COLUMN .name. bigint", refused)
    fake(target).answer("TOP .1. 1", [(1,)])
    target.apply(batch(PhaseSpec(relations=(new,))))
    assert len(fake(target).matching("BEGIN TRANSACTION")) == 2
    assert len(fake(target).matching("ALTER COLUMN .name. bigint")) == 1
    assert ran(target)[-1] == "COMMIT TRANSACTION"
    (note,) = [one for one in target.take_notes() if not one.is_applied]
    assert "could not be carried out" in note.text


def test_a_position_of_39_digits_is_text() -> None:
    """DECIMAL has 38 digits, so the position is compared as text."""
    sent: list[tuple[object, ...]] = []
    target = make(ITEM_TABLE)

    class Spy(FakeConnection):
        def run(self, sql: str, *parameters: Any) -> int:
            sent.append(parameters)
            return super().run(sql, *parameters)

    SQLServerProgress(Spy()).advance(log_id="log", before=Applied(position=5), after=AT)
    assert sent.pop()[-1] == "5"  # a number would be compared with all texts as numbers
    SQLServerProgress(Spy()).advance(log_id="log", before=AT, after=AFTER)
    assert sent == [(4, 20, 6, str(2**127 + 1), sent[0][4], "log", 3, 10, str(2**127))]
    assert target.log_id == "log"
