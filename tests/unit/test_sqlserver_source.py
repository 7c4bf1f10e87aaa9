"""Change tables of SQL Server in the log: order, pairs, masks, instances and loss.

Names S1 to S18 are corrections of the reference (section 1c); DBZ numbers are Debezium's tickets.
The rows are those of `harness.servers.change_writer`; values of recorded rows are in
`test_sqlserver_recorded.py`.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from harness.servers.change_case import Case, row_of
from harness.servers.change_table_log import LACKING, ChangeLog, Seen
from harness.servers.change_tables import ChangeServer, FakeColumn, lsn
from harness.servers.change_writer import ChangeWriter
from penstock.engines.sqlserver.connect import server_error
from penstock.engines.sqlserver.errors import (
    CaptureStopped,
    ChangesLost,
    InstanceMissing,
    InstanceRecreated,
    PositionAhead,
    RangeInvalid,
    UpdateTorn,
)
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.caught_up import LOCKED_S, CaughtUp, wait_captured
from penstock.host.errors import StatementInterrupted, safe_to_retry
from penstock.model import MarkerKind

# --- order and pairs ------------------------------------------------------------------------------


def test_s1_a_key_update_is_one_change() -> None:
    """Delete and insert of one seqval are an update with two numbers, whatever their commands."""
    case = Case()
    transaction = case.writer.begin()
    transaction.insert(case.table, row_of(1))
    transaction.update(case.table, row_of(1), row_of(2))
    transaction.insert(case.table, row_of(3))
    wanted = transaction.commit()
    assert len({row["__$command_id"] for row in case.instance.rows}) == 4
    case.log.follow()
    assert case.log.transactions() == [wanted]
    (rows,) = case.log.runs[-1].rows
    assert rows.batch.column("gsn").to_pylist() == [1, 3, 4]


def test_s1_other_deletes_and_inserts_stay_two() -> None:
    """Different seqvals make two changes: a multi-row update of keys cannot be paired."""
    case = Case()
    transaction = case.writer.begin()
    for number in (1, 2):
        transaction.delete(case.table, row_of(number))
    for number in (2, 3):
        transaction.insert(case.table, row_of(number))
    wanted = transaction.commit()
    case.log.follow()
    assert case.log.transactions() == [wanted]
    assert [one.op for one in wanted] == ["d", "d", "c", "c"]


def test_s1_rows_of_two_instances_are_never_paired() -> None:
    """A delete in one table and an insert in another may have one seqval."""
    case = Case()
    other = case.add_table("u")
    transaction = case.writer.begin()
    transaction.delete(case.table, row_of(1))
    transaction.insert(other, row_of(1))
    for _, row in transaction.written:
        row["__$seqval"] = lsn(7)
    wanted = transaction.commit()
    case.log.follow()
    assert case.log.transactions() == [wanted]


def test_s2_the_operation_is_the_last_key_of_the_order() -> None:
    """The delete is before the insert of one seqval and command, in whichever order they lie."""
    case = Case()
    transaction = case.writer.begin()
    transaction.insert(case.table, row_of(1, name="new"))
    transaction.delete(case.table, row_of(1))
    for _, row in transaction.written:
        row["__$seqval"], row["__$command_id"] = lsn(7), 1
    transaction.commit()
    case.log.follow()
    ((seen,),) = case.log.transactions()
    assert (seen.op, seen.after) == ("u", row_of(1, name="new"))


def test_s2_rows_of_one_command_are_ordered_by_seqval() -> None:
    """One statement that changes many rows has one command id."""
    case = Case()
    transaction = case.writer.begin()
    transaction.update(case.table, row_of(1), row_of(1, name="a"))
    for number in range(2, 9):
        transaction.update_more(case.table, row_of(number), row_of(number, name="a"))
    wanted = transaction.commit()
    assert {row["__$command_id"] for row in case.instance.rows} == {1}
    case.instance.rows.reverse()
    case.log.follow()
    assert case.log.transactions() == [wanted]


def test_s2_commands_come_before_seqvals() -> None:
    """A later command may have lower seqvals, also in another table."""
    case = Case()
    other = case.add_table("u")
    transaction = case.writer.begin()
    transaction.insert(case.table, row_of(1))
    transaction.insert(other, row_of(2))
    transaction.update(case.table, row_of(1), row_of(1, name="x"))
    wanted = transaction.commit()
    for (_, row), number in zip(transaction.written, (109, 105, 101, 101), strict=True):
        row["__$seqval"] = lsn(number)
    case.log.follow()
    assert case.log.transactions() == [wanted]


def test_transactions_are_ordered_by_their_commits() -> None:
    """The one that began first may commit last, with lower seqvals."""
    case = Case()
    early, late = case.writer.begin(), case.writer.begin()
    early.insert(case.table, row_of(1))
    late.sequence += 50
    late.insert(case.table, row_of(2))
    wanted = [late.commit(), early.commit()]
    case.log.follow()
    assert case.log.transactions() == wanted
    assert case.log.positions() == sorted(case.log.positions())


@pytest.mark.parametrize("gone", [3, 4])
def test_half_an_update_stops_the_log(gone: int) -> None:
    """An old row without its new row, or the other way round, is never guessed."""
    for pick in (0, -1):
        case = Case()
        transaction = case.writer.begin()
        for number in (1, 2, 3):
            transaction.update(case.table, row_of(number), row_of(number, name="x"))
        transaction.commit()
        places = [at for at, row in enumerate(case.instance.rows) if row["__$operation"] == gone]
        del case.instance.rows[places[pick]]
        with pytest.raises(UpdateTorn, match=r"dbo\.t"):
            case.log.follow()
        assert case.log.runs == []


def test_halves_of_two_updates_are_no_update() -> None:
    """The new row of another seqval does not complete an old row."""
    case = Case()
    transaction = case.writer.begin()
    for number in (1, 2):
        transaction.update(case.table, row_of(number), row_of(number, name="x"))
    transaction.commit()
    rows = case.instance.rows
    case.instance.rows = [rows[0], rows[3]]
    with pytest.raises(UpdateTorn):
        case.log.follow()


def test_old_builds_have_no_command() -> None:
    """Without __$command_id the order is that of commit, seqval and operation."""
    case = Case()
    transaction = case.writer.begin()
    transaction.insert(case.table, row_of(1))
    transaction.update(case.table, row_of(1), row_of(1, name="x"))
    wanted = transaction.commit()
    case.instance.has_command = False
    for row in case.instance.rows:
        del row["__$command_id"]
    case.log.follow()
    assert case.log.transactions() == [wanted]


# --- values ---------------------------------------------------------------------------------------


def test_the_mask_begins_in_its_last_byte() -> None:
    """Debezium PR 8064: of 19 columns the first eight are in the third byte."""
    server = ChangeServer()
    kinds = [("id", "int")] + [(f"c{at}", "nvarchar(max)") for at in range(2, 20)]
    table = server.add_table("wide", kinds)
    writer = ChangeWriter(server)
    server.capture(table, start=writer.next_lsn())
    log = ChangeLog(server, begin=writer.idle())
    old = {name: 1 if name == "id" else "x" for name, _ in kinds}
    wanted = []
    for at in range(2, 20):
        transaction = writer.begin()
        transaction.update(table, old, {**old, f"c{at}": None})
        wanted.append(transaction.commit())
    log.follow()
    assert log.transactions() == wanted
    for at, (seen,) in enumerate(log.transactions(), 2):
        assert seen.after is not None
        assert [name for name, value in seen.after.items() if value is None] == [f"c{at}"]


def test_absent_large_values_and_null_are_told_apart() -> None:
    """A clear bit and NULL is a value that was not sent; a set bit and NULL is NULL."""
    case = Case()
    transaction = case.writer.begin()
    transaction.update(case.table, row_of(1, body="b"), row_of(1, name=None, body="b"))
    transaction.update(case.table, row_of(1, body="b"), row_of(1, body=None))
    transaction.update(case.table, row_of(1, body=None), row_of(1, body="c"))
    transaction.commit()
    case.log.follow()
    (seen,) = case.log.transactions()
    assert [one.after for one in seen] == [
        {"id": 1, "name": None, "body": LACKING},
        {"id": 1, "name": "n1", "body": None},
        {"id": 1, "name": "n1", "body": "c"},
    ]


def test_s12_computed_columns_are_not_in_the_log() -> None:
    """Change tables have NULL for them, which the first update would write to the target."""
    case = Case()
    case.table.columns.append(FakeColumn("twice", "int", 9, is_computed=True))
    case.instance.columns.append(FakeColumn("twice", "int", 9, is_computed=True))
    case.insert(1)
    case.log.follow()
    assert [one.name for one in case.log.relations[0].columns] == ["id", "name", "body"]


def test_a_table_without_a_key_is_found_by_its_whole_row() -> None:
    """A delete and an insert of one seqval stay two; updates have the old row."""
    server = ChangeServer()
    table = server.add_table("k", [("a", "int"), ("b", "nvarchar(9)")], key=())
    writer = ChangeWriter(server)
    server.capture(table, start=writer.next_lsn())
    log = ChangeLog(server, begin=writer.idle())
    transaction = writer.begin()
    transaction.insert(table, {"a": 1, "b": "x"})
    transaction.update(table, {"a": 1, "b": "x"}, {"a": 1, "b": "y"})
    transaction.delete(table, {"a": 1, "b": "y"})
    transaction.commit()
    log.follow()
    assert log.transactions() == [
        [
            Seen("c", "k", None, {"a": 1, "b": "x"}),
            Seen("u", "k", {"a": 1, "b": "x"}, {"a": 1, "b": "y"}),
            Seen("d", "k", {"a": 1, "b": "y"}, None),
        ]
    ]
    assert log.relations[0].key == ()


def test_s16_commit_times_are_utc() -> None:
    """lsn_time_mapping has the server's local time; the zone is asked for with each poll."""
    case = Case()
    case.insert(1)
    case.server.zone_minutes = -330
    case.log.follow()
    local = case.server.commits[-1][1]
    run = case.log.runs[-1]
    assert run.transactions is not None
    (found,) = run.transactions.column("commit_time").to_pylist()
    assert (found.replace(tzinfo=None) - local).total_seconds() == 330 * 60


# --- position, idleness ---------------------------------------------------------------------------


def test_s3_the_position_moves_on_an_idle_source() -> None:
    """Clean-up then never passes the position, which would look like loss."""
    case = Case()
    for _ in range(3):
        newest = case.writer.idle()
        case.log.follow()
        assert case.log.end.position == newest
    case.server.clean_up(newest)
    case.writer.idle()
    case.insert(1)
    case.log.follow()
    assert len(case.log.transactions()) == 1


def test_s3_a_forgotten_mapping_is_idle_while_the_agent_runs() -> None:
    """A database without changes loses all rows of lsn_time_mapping; max_lsn is then NULL."""
    case = Case()
    case.insert(1)
    case.log.follow()
    end = case.log.end
    case.server.commits.clear()
    case.server.newest = None
    case.log.follow()
    assert case.log.end == end
    case.server.agent = None  # Azure, or a user who may not ask
    case.log.follow()
    case.server.failing[statements.SERVICES] = server_error("", 300, "", "VIEW SERVER STATE")
    case.log.follow()
    case.server.failing.clear()
    case.server.agent = 1
    with pytest.raises(CaptureStopped, match="Agent does not run") as raised:
        case.log.follow()
    assert safe_to_retry(raised.value), "capture continues when the Agent is started"


def test_an_idle_poll_is_one_statement() -> None:
    """Polling a quiet source costs it almost nothing, once its log is read to the end."""
    case = Case(caught_up=CaughtUp(margin_s=0.0))
    case.insert(1)
    case.log.follow()
    case.log.follow()
    case.server.sent.clear()
    case.log.follow()
    assert [sql for sql, _ in case.server.sent] == [statements.NEWEST]
    case = Case()  # as long as the capture job has not read it, it is asked for its last scan
    for _ in range(2):
        case.log.follow()
    case.server.sent.clear()
    case.log.follow()
    assert [sql for sql, _ in case.server.sent] == [statements.NEWEST, statements.LAST_SCAN]


def test_the_log_of_a_silent_source_ends_after_its_last_commit() -> None:
    """A table that was copied after this commit waits for a position that the log has passed."""
    case = Case(caught_up=CaughtUp(margin_s=0.0))
    case.insert(1)
    case.log.follow()
    last = case.writer.last
    assert case.log.end.position == last
    case.log.follow()
    assert case.log.end.position == last + 1
    runs = len(case.log.runs)
    case.log.follow()
    assert len(case.log.runs) == runs, "once"
    case.insert(2)
    case.log.follow()
    assert case.log.end.position == case.writer.last
    assert case.log.positions() == [last, case.writer.last]


def test_a_silent_source_is_followed_again() -> None:
    """The log ends one after the newest captured commit, and the server has lost nothing."""
    case = Case(caught_up=CaughtUp(margin_s=0.0))
    case.insert(1)
    for _ in range(2):
        case.log.follow()
    assert case.log.end.position == case.writer.last + 1
    again = ChangeLog(case.server, begin=case.log.end.position)
    again.book.begin = case.begin
    again.book.saw_log(again.end.position)
    again.follow()
    wanted = case.insert(2)
    again.follow()
    assert again.transactions() == [wanted]
    case.server.newest = case.begin
    with pytest.raises(PositionAhead):
        again.follow()


def test_the_log_does_not_end_after_a_commit_where_a_scan_may_have_ended() -> None:
    """The next scan may bring a commit with the very next LSN, which is not lost."""
    case = Case(caught_up=CaughtUp(margin_s=3600.0))
    first = case.insert(1)
    for _ in range(3):
        case.log.follow()
    assert case.log.end.position == case.writer.last
    transaction = case.writer.begin()
    transaction.insert(case.table, row_of(2))
    with patch.object(case.writer, "next_lsn", lambda: case.writer.last + 1):
        second = transaction.commit()
    case.log.follow()
    assert case.log.transactions() == [first, second]


def test_s4_the_transaction_log_is_never_asked() -> None:
    """Loss is judged by change tables alone: on a geo-replica the log is recycled in seconds."""
    case = Case()
    for at in range(5):
        case.insert(at)
        case.log.follow()
    assert not any("dblog" in sql or "hadr" in sql for sql, _ in case.server.sent)


def test_s5_no_transaction_spans_two_polls() -> None:
    """DBZ-1642: on a readable secondary max_lsn would never move in an open transaction."""
    case = Case()
    case.insert(1)
    case.log.follow()
    words = {sql.split()[0] for sql, _ in case.server.sent}
    assert words == {"SELECT"}


def test_s18_each_instance_has_a_session_of_its_own() -> None:
    """The server prepares the results of all instances at once; sessions end with the stream."""
    case = Case()
    others = [case.add_table(name) for name in "uvw"]
    transaction = case.writer.begin()
    for table in (case.table, *others):
        transaction.insert(table, row_of(1))
    wanted = transaction.commit()
    case.log.follow()
    assert case.log.transactions() == [wanted]
    assert case.server.open_count == 1 + 4
    case.log.reconnect()
    assert case.server.open_count == 0


def test_a_large_transaction_comes_in_pieces() -> None:
    """Rows are given before the last one is read; only the end is a flush point."""
    case = Case(row_count=7)
    transaction = case.writer.begin()
    for number in range(500):
        transaction.update(case.table, row_of(number), row_of(number, name="x"))
    wanted = transaction.commit()
    small = case.insert(1000)
    case.log.follow()
    assert case.log.transactions() == [wanted, small]
    sizes = [sum(one.batch.num_rows for one in run.rows) for run in case.log.runs]
    assert max(sizes) <= 7
    assert [run.end is not None for run in case.log.runs].count(True) == 1


def test_instances_of_unlike_size_are_merged_piece_by_piece() -> None:
    """A piece has no change that one of another instance, which is not read yet, comes before."""
    case = Case(row_count=2)
    other = case.add_table("u")
    transaction = case.writer.begin()
    for number in range(40):
        transaction.insert(case.table, row_of(number))
        if number % 10 == 0:
            transaction.insert(other, row_of(number))
    wanted = transaction.commit()
    case.log.follow()
    assert case.log.transactions() == [wanted]


@pytest.mark.parametrize("given", [1, 7, 20])
def test_a_restart_inside_a_transaction_reads_it_again(given: int) -> None:
    """DBZ-1152, 2329: nothing is missing or twice, also if it updates a key."""
    case = Case(row_count=10)
    first = case.insert(999)
    case.log.follow()
    transaction = case.writer.begin()
    for number in range(120):
        transaction.update(case.table, row_of(number), row_of(number + 5000))
    wanted = transaction.commit()
    case.log.follow(runs=given)
    assert case.log.pending
    case.log.reconnect()
    case.log.follow()
    assert case.log.transactions() == [first, wanted]


def test_a_batch_ends_between_two_commits() -> None:
    """The number of transactions of one batch is limited, wherever their tables are."""
    case = Case(count=3)
    other = case.add_table("u")
    wanted = [case.insert(at, table=(case.table, other)[at % 2]) for at in range(10)]
    case.log.follow()
    assert case.log.transactions() == wanted
    assert [run.end is not None for run in case.log.runs].count(True) == 4


# --- instances ------------------------------------------------------------------------------------


def test_s7_three_instances_over_a_batch_limit() -> None:
    """DBZ-3992: each part is read from the newest instance that had started, and from one only."""
    for count in (1, 2, 3, 5000):
        case = Case(count=count)
        wanted = [case.insert(1), case.insert(2)]
        for at in range(2):
            case.table.columns.append(FakeColumn(f"c{at}", "int", 10 + at))
            case.server.capture(case.table, start=case.writer.next_lsn(), instance=f"dbo_t_{at}")
            wanted += [case.insert(10 * at + 3), case.insert(10 * at + 4)]
        case.log.follow()
        found = case.log.transactions()
        assert len(found) == 6
        widths = [len(seen.after or {}) for (seen,) in found]
        assert widths == [3, 3, 4, 4, 5, 5]
        assert [one.version for one in case.log.relations] == [1, 2, 3]


def test_instances_with_moved_starts_are_told_by_their_age() -> None:
    """The clean-up job gives both instances one start_lsn; the newer one has the changes."""
    case = Case()
    case.table.columns.append(FakeColumn("more", "int", 10))
    case.server.capture(case.table, start=case.writer.next_lsn(), instance="dbo_t_2")
    last = case.insert(1)
    case.server.clean_up(case.writer.last)
    log = ChangeLog(case.server, begin=case.writer.last)
    transaction = case.writer.begin()
    transaction.insert(case.table, row_of(2, more=5))
    transaction.commit()
    log.follow()
    ((seen,),) = log.transactions()
    assert last
    assert seen.after is not None
    assert seen.after["more"] == 5


def test_the_older_instance_may_go_once_the_log_is_past_it() -> None:
    """An operator disables it after the switch."""
    case = Case()
    wanted = [case.insert(1)]
    case.server.capture(case.table, start=case.writer.next_lsn(), instance="dbo_t_2")
    wanted.append(case.insert(2))
    case.log.follow()
    case.server.instances.remove(case.instance)
    wanted.append(case.insert(3))
    case.log.follow()
    assert case.log.transactions() == wanted


def test_the_older_instance_that_went_too_early_is_loss() -> None:
    """Changes before the start of the newer instance were in the older one only."""
    case = Case()
    case.insert(1)
    case.log.follow()
    case.insert(2)
    case.server.capture(case.table, start=case.writer.next_lsn(), instance="dbo_t_2")
    case.server.instances.remove(case.instance)
    case.insert(3)
    with pytest.raises(InstanceRecreated, match="dbo_t"):
        case.log.follow()


def test_a_switch_that_is_not_durable_is_made_again() -> None:
    """The older instance stays known until the log is durable behind it."""
    case = Case(row_count=4)
    case.log.follow()
    wanted = [case.insert(1)]
    case.server.capture(case.table, start=case.writer.next_lsn(), instance="dbo_t_2")
    wanted.append(case.insert(*range(2, 30)))
    case.log.follow(runs=3)
    assert case.log.pending
    case.log.reconnect()
    case.log.follow()
    assert case.log.transactions() == wanted


def test_an_older_instance_that_went_before_the_log_was_durable_is_loss() -> None:
    """The log lost what it had read of that instance, and the server has it no more."""
    case = Case()
    case.log.follow()
    case.insert(1)
    case.server.capture(case.table, start=case.writer.next_lsn(), instance="dbo_t_2")
    case.insert(2)
    case.log.follow(flush=False)
    case.server.instances.remove(case.instance)
    case.insert(3)
    case.log.follow(flush=False)
    case.log.reconnect()
    with pytest.raises(InstanceRecreated):
        case.log.follow()


def test_s8_statements_of_former_instances_are_left_out() -> None:
    """Rows of ddl_history may outlive their instance."""
    assert "JOIN cdc.change_tables" in statements.DDL_HISTORY
    case = Case()
    case.instance.ddl.append((case.writer.next_lsn(), "ALTER TABLE dbo.t ADD x int"))
    case.insert(1)
    batch = case.log.reader.next_batch(case.begin)
    assert batch is not None
    assert [text for _, text in batch.ddl] == ["ALTER TABLE dbo.t ADD x int"]


def test_s9_an_instance_that_was_created_again_is_loss() -> None:
    """Other tools disable and enable capture around a change; the history is gone, silently."""
    case = Case()
    case.insert(1)
    case.log.follow()
    case.insert(2)
    case.server.instances.clear()
    case.server.capture(case.table, start=case.writer.next_lsn(), created="2026-03-05T00:00:00")
    case.server.instances[-1].object_id = case.instance.object_id  # ids may be used again
    case.insert(3)
    with pytest.raises(InstanceRecreated, match="was dropped") as raised:
        case.log.follow()
    assert not safe_to_retry(raised.value)
    assert "penstock reset" in str(raised.value.hint)


def test_a_table_that_is_no_longer_captured_is_loss() -> None:
    """The error has the statement that captures it again."""
    case = Case()
    case.log.follow()
    case.insert(1)
    case.server.instances.clear()
    with pytest.raises(InstanceMissing) as raised:
        case.log.follow()
    assert "sp_cdc_enable_table @source_schema = N'dbo', @source_name = N't'" in str(
        raised.value.hint
    )


def test_a_dropped_table_is_noted_once() -> None:
    """The marker is in the log, and again if the log lost it; others are read on."""
    case = Case(row_count=4)
    other = case.add_table("u")
    case.insert(1)
    case.insert(2, table=other)
    case.log.follow()
    case.server.drop(case.table)
    wanted = case.insert(*range(3, 40), table=other)
    case.log.follow(runs=2)
    case.log.reconnect()
    case.log.follow()
    assert [(one.kind, one.tables) for one in case.log.markers] == [
        (MarkerKind.DDL, (("dbo", "t"),))
    ]
    assert case.log.transactions()[-1] == wanted
    case.insert(50, table=other)
    case.log.follow()
    assert len(case.log.markers) == 1


def test_s10_a_widened_type_is_a_new_version() -> None:
    """The server alters the change table too; values before and after are exact."""
    case = Case()
    case.insert(1)
    case.log.follow()
    for columns in (case.table.columns, case.instance.columns):
        columns[0] = FakeColumn("id", "bigint", 1)
    case.instance.ddl.append((case.writer.next_lsn(), "ALTER TABLE dbo.t ALTER COLUMN id bigint"))
    case.insert(2**40)
    case.log.follow()
    assert [one.columns[0].neutral for one in case.log.relations] == ["int32", "int64"]
    assert [seen.after and seen.after["id"] for (seen,) in case.log.transactions()] == [1, 2**40]


def test_a_dropped_column_leaves_the_log() -> None:
    """The change table keeps it, with NULL; the log would empty the target's column."""
    case = Case()
    case.insert(1)
    case.log.follow()
    case.table.columns[1].is_dropped = True
    case.instance.ddl.append((case.writer.next_lsn(), "ALTER TABLE dbo.t DROP COLUMN name"))
    case.insert(2)
    case.log.follow()
    assert [[it.name for it in one.columns] for one in case.log.relations] == [
        ["id", "name", "body"],
        ["id", "body"],
    ]


def test_a_shape_without_rows_is_in_the_log() -> None:
    """A target gets the new column although its table is not written."""
    case = Case()
    other = case.add_table("u")
    case.insert(1)
    case.insert(1, table=other)
    case.log.follow()
    other.columns.append(FakeColumn("more", "int", 10))
    case.server.capture(other, start=case.writer.next_lsn(), instance="dbo_u_2")
    case.insert(2)
    case.insert(3)
    case.log.follow()
    assert case.log.relations[-1].columns[-1].name == "more"


# --- loss -----------------------------------------------------------------------------------------


def test_clean_up_before_a_read_is_loss() -> None:
    """DBZ-1923: changes that the log lacks were removed; nothing is read."""
    case = Case()
    case.log.follow()
    case.insert(1)
    gone = case.writer.last
    case.insert(2)
    case.server.clean_up(gone)
    with pytest.raises(ChangesLost, match="clean-up job") as raised:
        case.log.follow()
    assert not safe_to_retry(raised.value)
    assert case.log.runs == []


def test_clean_up_after_a_read_is_no_loss() -> None:
    """The log does not need what it has."""
    case = Case()
    wanted = [case.insert(1)]
    case.log.follow()
    case.server.clean_up(case.writer.last)
    wanted.append(case.insert(2))
    case.log.follow()
    assert case.log.transactions() == wanted


def test_clean_up_during_a_read_is_loss() -> None:
    """The rows that were read may be incomplete, so the batch never becomes durable."""
    for row_count in (16_384, 2):
        case = Case(row_count=row_count)
        case.log.follow()
        case.insert(*range(1, 9))
        gone = case.writer.last
        case.insert(*range(10, 20))

        def clean(sql: str, case: Case = case, gone: int = gone) -> None:
            if "__$start_lsn" in sql:
                case.server.clean_up(gone)

        case.server.before = clean
        with pytest.raises(ChangesLost):
            case.log.follow()
        assert case.log.runs == []


def test_an_instance_that_is_created_again_during_a_read_is_loss() -> None:
    """The check after the read finds it, before the batch becomes durable."""
    case = Case()
    case.log.follow()
    case.insert(1)

    def create_again(sql: str) -> None:
        if "__$start_lsn" in sql:
            case.instance.created = "2026-03-05T00:00:00"

    case.server.before = create_again
    with pytest.raises(InstanceRecreated):
        case.log.follow()
    assert case.log.runs == []


def test_a_table_that_is_altered_during_a_read_is_read_again() -> None:
    """Rows may have been read in two shapes."""
    case = Case()
    case.log.follow()
    wanted = case.insert(1)
    number = case.writer.next_lsn()

    def alter(sql: str) -> None:
        if "__$start_lsn" in sql and not case.instance.ddl:
            case.instance.ddl.append((number, "ALTER TABLE dbo.t ADD x int"))

    case.server.before = alter
    with pytest.raises(StatementInterrupted) as raised:
        case.log.follow()
    assert safe_to_retry(raised.value)
    case.log.reconnect()
    case.log.follow()
    assert case.log.transactions() == [wanted]


def test_an_instance_of_a_younger_table_is_no_loss() -> None:
    """The instance begins after the log's position, and has all changes since it was enabled."""
    case = Case()
    case.insert(1)
    case.log.follow()
    other = case.add_table("u")
    wanted = case.insert(2, table=other)
    case.log.follow()
    assert case.log.transactions()[-1] == wanted
    case.insert(3, table=other)
    case.server.clean_up(case.writer.last)
    case.writer.idle()
    with pytest.raises(ChangesLost, match=r"dbo\."):
        case.log.follow()


def test_a_position_ahead_of_the_server_stops_the_log() -> None:
    """The database was restored, or a replica that lags took over."""
    case = Case()
    case.insert(1)
    case.log.follow()
    case.server.newest = case.begin
    with pytest.raises(PositionAhead):
        case.log.follow()


def test_a_position_that_capture_has_not_reached_is_waited_for() -> None:
    """A handover may take the position of the transaction log, which capture lags behind."""
    case = Case()
    ahead = case.writer.last + 100
    log = ChangeLog(case.server, begin=ahead)
    log.follow()
    assert log.runs == []
    case.writer.last = ahead
    wanted = case.insert(1)
    log.follow()
    assert log.transactions() == [wanted]


def test_a_transaction_without_a_time_is_read_again() -> None:
    """The clean-up job removes rows of lsn_time_mapping before those of change tables."""
    case = Case()
    case.insert(1)
    case.insert(2)
    del case.server.commits[-2]
    with pytest.raises(RangeInvalid) as raised:
        case.log.follow()
    assert safe_to_retry(raised.value)


def test_a_change_table_that_is_dropped_during_a_read_is_looked_up() -> None:
    """Error 208 stops nothing: the next look tells what became of the table."""
    case = Case()
    case.log.follow()
    case.insert(1)

    def drop(sql: str) -> None:
        if "__$start_lsn" in sql and case.table.object_id in case.server.tables:
            case.server.drop(case.table)

    case.server.before = drop
    with pytest.raises(StatementInterrupted):
        case.log.follow()
    case.log.reconnect()
    case.log.follow()
    assert [one.kind for one in case.log.markers] == [MarkerKind.DDL]


# --- S6: whether capture has caught up ------------------------------------------------------------


class Hand:
    """Clock that tests move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        """Return the time."""
        return self.now_s

    def now_us(self) -> int:
        """Return the time."""
        return int(self.now_s * 1e6)

    def sleep(self, seconds: float) -> None:
        """Let time pass, but not for ever."""
        self.now_s += seconds
        assert self.now_s < 5000, "the wait has no end"


def scan(session: int, started_s: int, *, count: int = 0, empty: int = 0) -> tuple[Any, ...]:
    """Return a finished scan; the server's clock is 100 seconds after its start."""
    import datetime

    at = datetime.datetime(2026, 3, 4)  # noqa: DTZ001 - the server's local time
    start = at + datetime.timedelta(seconds=started_s)
    now = at + datetime.timedelta(seconds=100)
    return (session, start, start + datetime.timedelta(seconds=1), count, empty, now)


def test_s6_a_silent_source_is_caught_up_after_a_scan() -> None:
    """A scan proves nothing if it began before the question, or was cut at maxtrans."""
    case = Case()
    wanted = case.insert(1)
    stream = case.log.open()
    case.log.follow()
    case.server.scans = [scan(7, 50)]
    stream.ask_for_position()
    end = case.log.end.position
    assert not stream.has_given(end)
    case.server.scans = [scan(8, 101, count=500)]
    assert not stream.has_given(end)
    case.server.scans = [scan(9, 99, count=3)]
    assert not stream.has_given(end)
    case.server.scans = [scan(10, 101, count=3)]
    assert stream.has_given(end)
    assert case.log.transactions() == [wanted]


def test_s6_the_scan_is_looked_at_before_the_newest_commit() -> None:
    """The log must have what that scan captured before the source counts as idle."""
    case = Case()
    stream = case.log.open()
    case.log.follow()
    case.server.scans = [scan(7, 50)]
    stream.ask_for_position()
    end = case.log.end.position
    case.server.scans = [scan(8, 101)]
    wanted: list[list[Seen]] = []

    def capture(sql: str) -> None:
        if sql == statements.LAST_SCAN and not wanted:
            wanted.append([])
            wanted[0] = case.insert(1)

    case.server.before = capture
    assert not stream.has_given(end)
    case.log.follow()
    assert stream.has_given(end)
    assert case.log.transactions() == wanted


def test_s6_repeated_empty_scans_count() -> None:
    """The server notes them in one row, whose start stays."""
    case = Case()
    stream = case.log.open()
    case.log.follow()
    case.server.scans = [scan(7, 50, empty=4)]
    stream.ask_for_position()
    end = case.log.end.position
    case.server.scans = [scan(7, 50, empty=5)]
    assert not stream.has_given(end)
    case.server.scans = [scan(7, 50, empty=6)]
    assert stream.has_given(end)


@pytest.mark.parametrize("is_refused", [True, False])
def test_s5_without_scans_a_time_has_to_pass(is_refused: bool) -> None:
    """A secondary shows no scans, and a user may not be allowed to look."""
    clock = Hand()
    case = Case(caught_up=CaughtUp(clock=clock))
    if is_refused:
        case.server.failing[statements.LAST_SCAN] = server_error("", 262, "", "VIEW DATABASE STATE")
    stream = case.log.open()
    case.log.follow()
    stream.ask_for_position()
    end = case.log.end.position
    assert not stream.has_given(end)
    clock.now_s += 14
    assert not stream.has_given(end)
    clock.now_s += 2
    assert stream.has_given(end)


def test_s6_writers_do_not_wait_for_capture_for_ever() -> None:
    """A capture job that does not scan ends the wait with an error that says where to look."""
    case = Case()
    case.insert(1)
    case.server.scans = [scan(7, 50)]
    with pytest.raises(StatementInterrupted, match="while writers of t waited") as raised:
        wait_captured(case.server.open(), clock=Hand(), limit_s=LOCKED_S, who_waits="writers of t")
    assert "penstock doctor" in raised.value.hint


def test_s6_everything_is_captured_after_the_wait() -> None:
    """The newest commit is returned, which may have been captured during the wait."""
    case = Case()
    case.insert(1)
    case.server.scans = [scan(7, 50)]
    later: list[list[Seen]] = []

    def capture(sql: str) -> None:
        if sql == statements.LAST_SCAN and not later and case.server.scans[0][0] == 7:
            case.server.scans = [scan(8, 101)]
            later.append(case.insert(2))

    session = case.server.open()
    case.server.before = capture
    assert wait_captured(session, clock=Hand()) == case.server.commits[-1][0]
    assert later
