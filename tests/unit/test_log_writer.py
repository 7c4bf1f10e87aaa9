"""Writer: order of runs, flush, rotation, limits, failures, recovery; real and simulated files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.faults.disk import Disk
from harness.pipelines.log import (
    EVENT,
    ITEM,
    ITEM_2,
    SOURCE,
    Change,
    Row,
    announced_batch,
    batch_of,
    end_point,
    inserts,
    number_rows,
    plain_rows,
    plain_segment,
    run_of,
    truncate,
)
from penstock.host import faults
from penstock.host.files import DiskFull, FileFailed
from penstock.log import (
    LogBehindSource,
    LogForeign,
    LogLocked,
    Writer,
    WriterBroken,
    WriterOptions,
    check,
    load_done,
    open_segment,
)
from penstock.log.writer import RunInvalid, TransactionOpen
from penstock.model import FlushPoint, Marker, MarkerKind, Op, Relation, Run

LOG = Path("/log")
GROUPS = number_rows([inserts(3), inserts(2, first=3), inserts(4, first=5)])


class Hands:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_us(self) -> int:
        return int(self.seconds * 1e6)

    def monotonic_s(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def open_writer(disk: Disk, **options: object) -> Writer:
    """Open a writer on a simulated disk."""
    made = WriterOptions(**options)  # type: ignore[arg-type]
    return Writer.open(LOG, log_id=None, source=SOURCE, options=made, files=disk)


# --- rotation and flush --------------------------------------------------------------------------


def test_steps_of_a_rotation_come_in_the_order_that_recovery_relies_on() -> None:
    """Rows, footer, state and name become durable in this order; then a new file opens."""
    disk = Disk()
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        disk.trace.clear()
        log.rotate()
    assert disk.trace == [
        "write 0.ckt_",
        "fdatasync 0.ckt_",
        "create DURABLE",
        "write DURABLE",
        "write DURABLE",
        "write 0.ckt_",
        "fdatasync 0.ckt_",
        "create LOG.json.1.tmp",
        "write LOG.json.1.tmp",
        "fsync LOG.json.1.tmp",
        "rename LOG.json",
        "fsync_directory log",
        "rename 0.ckt",
        "fsync_directory log",
    ]
    assert sorted(disk.listdir(LOG)) == ["0.ckt", "DURABLE", "LOG.json"]


def test_a_flush_is_one_write_and_one_fdatasync() -> None:
    """A flush covers all runs since the last one, and none does nothing. Then readers are told."""
    disk = Disk()
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        log.flush()
        log.write(run_of(GROUPS[1]))
        log.write(run_of(GROUPS[2]))
        assert log.has_unflushed
        disk.trace.clear()
        assert log.flush() == end_point(3, 9)
        assert log.flush() == end_point(3, 9)
    assert disk.trace == ["write 0.ckt_", "fdatasync 0.ckt_", "write DURABLE"]


def test_the_next_segment_is_opened_by_data_only() -> None:
    """An idle log has no open file and creates no empty segments."""
    disk = Disk()
    with open_writer(disk) as log:
        assert log.rotate() is None
        log.write(run_of(GROUPS[0]))
        assert log.segment_number == 0
        assert log.rotate() is not None
        assert log.segment_number == 1
        assert log.rotate() is None
        for number in range(5):
            log.write(Run(end=FlushPoint(position=500 + number, gsn=3, trx=1)))
            assert log.flush().position == 500 + number
            assert log.rotate() is None
        assert not log.due()
    assert sorted(disk.listdir(LOG)) == ["0.ckt", "DURABLE", "LOG.json"]
    with open_writer(disk) as log:
        assert log.resume == FlushPoint(position=504, gsn=3, trx=1)
        log.write(run_of([]))
        log.write(replace(run_of(GROUPS[1]), end=FlushPoint(position=600, gsn=5, trx=2)))
        closed = log.rotate()
    assert closed is not None
    assert closed.start.position == 504
    assert not [f for f in check(LOG, files=disk) if f.severity == "error"]


def test_a_position_that_moves_while_a_segment_is_open_is_a_flush_point_in_it() -> None:
    """Recovery returns the newest one, wherever it was kept."""
    disk = Disk()
    log = open_writer(disk)
    log.write(run_of(GROUPS[0]))
    log.flush()
    log.write(Run(end=FlushPoint(position=400, gsn=3, trx=1)))
    assert log.flush().position == 400
    disk.power_cut()
    with open_writer(disk) as log:
        assert log.resume == FlushPoint(position=400, gsn=3, trx=1)
        assert [c.number for c in log.recovered] == [0]


def test_rotation_is_due_by_operations_size_or_time_and_only_at_a_commit() -> None:
    """Wirekite's guide says: after about 150,000 operations or the flush interval, at a COMMIT."""
    hands = Hands()
    disk = Disk()
    with open_writer(disk, operation_count_max=4, flush_interval_s=5.0, clock=hands) as log:
        assert not log.due()
        hands.sleep(60)
        assert not log.due(), "an empty log is never due"
        log.write(run_of(GROUPS[0]))
        assert not log.due()
        log.write(run_of(GROUPS[1][:1], ended=False))
        assert log.operation_count == 4
        assert not log.due(), "inside a transaction"
        log.write(run_of(GROUPS[1][1:]))
        assert log.due()
        log.rotate()
        assert not log.due()
        log.write(run_of(GROUPS[2][:2], ended=False))
        hands.sleep(5)
        assert not log.due()
        log.write(run_of(GROUPS[2][2:]))
        assert log.due()
    with open_writer(Disk(), segment_size_bytes_max=6000) as log:
        log.write(run_of(GROUPS[0]))
        assert log.due() == (log.segment_size_bytes >= 6000)


def test_flush_rotate_and_done_are_refused_inside_a_transaction() -> None:
    """A flush point there would make half a transaction look complete."""
    with open_writer(Disk()) as log:
        log.write(run_of(GROUPS[0][:1], ended=False))
        assert not log.at_commit
        for act in (log.flush, log.rotate, log.finish):
            with pytest.raises(TransactionOpen):
                act()
        log.write(run_of(GROUPS[0][1:]))
        log.flush()


def test_a_giant_transaction_is_written_out_in_bounded_pieces() -> None:
    """Memory holds at most the stated buffer and one frame, not the transaction."""
    disk = Disk()
    rows = number_rows([inserts(5000)])[0]
    with open_writer(disk, buffer_size_bytes_max=10_000, compression=None) as log:
        for start in range(0, 5000, 100):
            log.write(run_of(rows[start : start + 100], ended=start == 4900))
            unwritten = log.segment_size_bytes - len(disk.content(LOG / "0.ckt_"))
            assert unwritten <= 10_000
        assert disk.trace.count("fdatasync 0.ckt_") == 1, "the header's only"
        log.rotate()
    with open_segment(LOG / "0.ckt", files=disk) as segment:
        assert plain_segment(segment) == plain_rows(rows)
        assert segment.totals.flush_points == 1


def test_a_large_transaction_that_never_ends_leaves_nothing() -> None:
    """After a crash inside it the open file is deleted, and the number is used again."""
    disk = Disk()
    log = open_writer(disk, buffer_size_bytes_max=100)
    for row in GROUPS[0][:2]:
        log.write(run_of([row], ended=False))
    assert len(disk.content(LOG / "0.ckt_")) > 5000
    disk.process_died()
    with Writer.open(LOG, log_id=None, source=SOURCE, resend_from=0, files=disk) as log:
        assert log.resume == FlushPoint(position=0)
        assert log.recovered == ()
        assert log.segment_number == 0
    assert disk.listdir(LOG) == ["LOG.json"]


def test_rewind_forgets_what_no_flush_point_covers() -> None:
    """The source's connection broke: the transaction is sent again from its start."""
    disk = Disk()
    with open_writer(disk, buffer_size_bytes_max=10) as log:
        log.write(run_of(GROUPS[0]))
        log.flush()
        log.write(run_of(GROUPS[1][:1], ended=False))
        assert log.rewind() == end_point(1, 3)
        assert [closed.number for closed in log.recovered] == [0]
        log.write(run_of(GROUPS[1]))
        log.rotate()
    with open_segment(LOG / "1.ckt", files=disk) as segment:
        assert plain_segment(segment) == plain_rows(GROUPS[1])


def test_each_segment_repeats_the_relations_it_uses() -> None:
    """A segment is readable alone."""
    disk = Disk()
    with open_writer(disk) as log:
        for group in GROUPS:
            log.write(run_of(group))
            log.rotate()
    for number in range(3):
        with open_segment(LOG / f"{number}.ckt", files=disk) as segment:
            assert [r for _, r in segment.relations()] == [ITEM]


def test_a_shape_without_rows_is_content() -> None:
    """A column added to a table without new rows must reach the target."""
    disk = Disk()
    with open_writer(disk) as log:
        log.write(Run(relations=(EVENT,), end=FlushPoint(position=50)))
        closed = log.rotate()
    assert closed is not None
    assert [(table.name, table.rows) for table in closed.tables] == [("événement", 0)]


def test_done_is_durable_and_gone_once_extraction_goes_on(tmp_path: Path) -> None:
    """A loader must not treat a log as finished while it is being written again."""
    with Writer.open(tmp_path, log_id=None, source=SOURCE) as log:
        log.write(run_of(GROUPS[0]))
        with pytest.raises(TransactionOpen, match="segment is open"):
            log.finish()
        log.rotate()
        log.finish()
        done = load_done(tmp_path)
        assert done is not None
        assert (done.number_last, done.end) == (0, end_point(1, 3))
    assert (tmp_path / "CHANGE.DONE").exists()
    with Writer.open(tmp_path, log_id=None, source=SOURCE):
        assert load_done(tmp_path) is None


# --- runs that do not follow ---------------------------------------------------------------------


def test_runs_that_do_not_continue_the_log_are_refused_before_anything_is_written() -> None:
    """A gap in the numbers would be loaded as if no row were missing."""
    first, second = GROUPS[0], GROUPS[1]
    wrong = [
        run_of(second),  # rows are missing
        run_of(first[1:]),
        announce_run(rows=run_of(first).rows, end=end_point(1, 4)),  # announces more than it has
        announce_run(rows=run_of(first).rows, end=end_point(0, 3)),
        announce_run(rows=(batch_of(ITEM, [first[0], first[2], first[1]]),), end=end_point(1, 3)),
        announce_run(rows=(batch_of(ITEM, first[:2]), batch_of(EVENT, [])), end=end_point(1, 2)),
        announce_run(rows=run_of(first[:2]).rows * 2, end=end_point(1, 4)),  # has rows twice
        announce_run(markers=(truncate(1, 1, "item"),), end=end_point(1, 0)),
    ]
    disk = Disk()
    with open_writer(disk) as log:
        disk.trace.clear()
        for run in wrong:
            with pytest.raises(RunInvalid):
                log.write(run)
        assert disk.trace == []
        log.write(run_of(first))
        with pytest.raises(RunInvalid, match="transaction 1"):
            log.write(
                announce_run(
                    rows=run_of(number_rows([inserts(4)])[0][3:]).rows, end=end_point(2, 4)
                )
            )
        with pytest.raises(RunInvalid, match="position"):
            log.write(Run(end=FlushPoint(position=10, gsn=3, trx=1)))
        log.flush()


def test_only_an_update_with_its_old_key_may_leave_one_number_out() -> None:
    """A gap of two, or a gap before another row, means that rows are missing."""
    change = Change(relation=ITEM, op=Op.UPDATE, after=(2, "x"), before=(1,))
    bare = replace(change, before=None)
    two = replace(change, relation=ITEM_2, after=(2, "x", None))

    def rows(*numbers: tuple[int, Change]) -> Run:
        found = [Row(gsn=gsn, trx=1, position=100, change=one) for gsn, one in numbers]
        return run_of(found)

    plain = inserts(1)[0]
    wrong = [
        rows((2, plain)),
        rows((2, bare)),
        rows((3, change)),
        rows((1, plain), (3, plain)),
        rows((1, plain), (3, bare), (5, change)),
        rows((2, change), (2, two)),
        rows((2, change), (4, plain)),
    ]
    with open_writer(Disk()) as log:
        for run in wrong:
            with pytest.raises(RunInvalid):
                log.write(run)
        log.write(rows((2, change), (3, plain), (5, two), (7, change), (8, two)))
        log.rotate()


def announce_run(**more: Any) -> Run:
    """Return a run that announces transaction 1."""
    return Run(transactions=announced_batch([1]), **more)


def test_every_transaction_is_announced_once_in_order_before_anything_is_written() -> None:
    """The commit's position is unknown if a row's transaction is not announced."""
    first, second = GROUPS[0], GROUPS[1]
    both = run_of([*first, *second])
    wrong = [
        replace(run_of(first), transactions=None),
        replace(run_of(first), transactions=announced_batch([1, 2])),  # one that has no end yet
        replace(both, transactions=announced_batch([1])),
        replace(both, transactions=announced_batch([2, 1])),  # their positions fall
        replace(both, transactions=None, end=None),  # two at once are open
    ]
    disk = Disk()
    with open_writer(disk) as log:
        disk.trace.clear()
        for run in wrong:
            with pytest.raises(RunInvalid):
                log.write(run)
        assert disk.trace == []
        log.write(run_of(first[:1], ended=False))
        log.write(run_of(first[1:]))
        with pytest.raises(RunInvalid, match="lower position"):
            log.write(replace(run_of(second), transactions=announced_batch([0])))
        log.write(run_of(second))
        log.rotate()
    with open_segment(LOG / "0.ckt", files=disk) as segment:
        assert plain_segment(segment) == plain_rows([*first, *second])


def test_rows_of_interleaved_tables_may_come_in_any_order() -> None:
    """One run has a batch per table; together they have no gap."""
    rows = number_rows([[*inserts(2), change_of(EVENT), *inserts(2), change_of(EVENT)]])[0]
    disk = Disk()
    with open_writer(disk) as log:
        run = run_of(rows)
        log.write(replace(run, rows=run.rows[::-1]))
        log.rotate()
    with open_segment(LOG / "0.ckt", files=disk) as segment:
        assert plain_segment(segment) == plain_rows(rows)


def change_of(relation: Relation) -> Change:
    """Return an insert of NULLs."""
    return Change(relation=relation, op=Op.INSERT, after=(None,) * len(relation.columns))


def test_heartbeats_between_transactions_are_markers_like_others() -> None:
    """Heartbeats have the numbers of what precedes them."""
    disk = Disk()
    beat = Marker(kind=MarkerKind.HEARTBEAT, gsn=3, trx=1, position=160, commit_time_us=1)
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        log.write(Run(markers=(beat,), end=FlushPoint(position=160, gsn=3, trx=1)))
        log.rotate()
    with open_segment(LOG / "0.ckt", files=disk) as segment:
        assert list(segment.markers()) == [beat]
        assert list(segment.in_order())[-1] == beat


# --- whose log it is -----------------------------------------------------------------------------


def test_two_writers_on_one_directory_are_separated_by_the_lock(tmp_path: Path) -> None:
    """The error names the process that holds it."""
    script = (
        "import sys; from pathlib import Path; from penstock.log import Writer, LogLocked\n"
        f"try: Writer.open(Path(sys.argv[1]), log_id=None, source={SOURCE!r})\n"
        "except LogLocked as error: print(error.code, error.fields['holder_pid'])"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with Writer.open(tmp_path, log_id=None, source=SOURCE):
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        assert found.stdout.split() == [LogLocked.code, str(os.getpid())]
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout == ""


@pytest.mark.parametrize("key", [*SOURCE, "extra"])
def test_a_directory_of_another_source_is_refused_and_left_alone(tmp_path: Path, key: str) -> None:
    """Every key of the identity counts, and no file is changed."""
    with Writer.open(tmp_path, log_id=None, source=SOURCE) as log:
        log.write(run_of(GROUPS[0]))
        log.flush()
    before = sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir() if p.name != "LOCK")
    with pytest.raises(LogForeign) as caught:
        Writer.open(tmp_path, log_id=None, source={**SOURCE, key: "other"})
    assert caught.value.fields["key"] == key
    after = sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir() if p.name != "LOCK")
    assert before == after


def test_a_given_log_id_must_be_the_one_that_is_there() -> None:
    """The argument None accepts any log id."""
    disk = Disk()
    wanted = "9b0e2b2e-6a5e-4c9a-9a53-2f3c33a1d1aa"
    with Writer.open(LOG, log_id=wanted, source=SOURCE, files=disk) as log:
        assert log.log_id == wanted
    with open_writer(disk) as log:
        assert log.log_id == wanted
    with pytest.raises(LogForeign, match="log id"):
        Writer.open(LOG, log_id="another", source=SOURCE, files=disk)
    with open_writer(disk):
        pass  # the failed start released the lock


def test_a_log_behind_what_the_source_was_told_to_forget_is_an_error() -> None:
    """The server would silently start after the log's end."""
    disk = Disk()
    with open_writer(disk) as log:
        log.write(run_of(GROUPS[0]))
        log.flush()
        log.check_acknowledged(150)
        with pytest.raises(LogBehindSource, match="ends at position 150"):
            log.check_acknowledged(151)


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, FileFailed)])
def test_after_any_failure_the_writer_refuses_to_go_on(number: int, kind: type) -> None:
    """A repeated fdatasync succeeds although it has written nothing."""
    disk = Disk()
    log = open_writer(disk)
    log.write(run_of(GROUPS[0]))
    disk.fail_at = (disk.operation_count + 1, number)
    with pytest.raises(kind):
        log.flush()
    for act in (log.flush, log.rotate, log.rewind, lambda: log.write(run_of(GROUPS[1]))):
        with pytest.raises(WriterBroken, match="failed before"):
            act()
    assert log.durable == FlushPoint(position=0)
    log.close()
    with open_writer(disk) as log:
        assert log.resume == end_point(1, 3)
    disk.power_cut()
    with open_writer(disk) as log:
        assert log.resume == end_point(1, 3)


def test_an_error_out_of_the_operating_system_stops_the_writer_too(tmp_path: Path) -> None:
    """Any error stops the writer: here it is an OSError from a fault point, on real files."""
    with Writer.open(tmp_path, log_id=None, source=SOURCE) as log:
        log.write(run_of(GROUPS[0]))
        with (
            faults.arming("log.write.before:1:error=ENOSPC"),
            pytest.raises(OSError, match="No space left"),
        ):
            log.flush()
        with pytest.raises(WriterBroken):
            log.flush()
