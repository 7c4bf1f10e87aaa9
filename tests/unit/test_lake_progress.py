"""Progress of a lake in its own folder, as processes without a JVM read and write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.engines.lake.chunk_records import ChunkRecord, ChunkRecords, TableMark
from penstock.engines.lake.progress import (
    ACTION_NAME,
    EXTRACTED_MAX,
    LakeProgress,
    connect_progress,
)
from penstock.engines.lake.state import LakeState, LogState
from penstock.engines.lake.storage import Folder
from penstock.model import TableName
from penstock.ports.target import (
    ActionUnknown,
    Applied,
    FileProgress,
    SyncState,
    TableRecord,
    TableSync,
)

ORDERS = TableName("public", "orders")
LOG = "log/1"
APPLIED = Applied(segment=3, gsn=17, trx=5, position=99, commit_time_us=12)


@pytest.fixture
def progress(tmp_path: Path) -> LakeProgress:
    """Return the progress of a new lake."""
    return connect_progress(f"delta+file://{tmp_path}", "test")


@pytest.fixture
def state(tmp_path: Path) -> LakeState:
    """Return the loader's state files of the same lake."""
    return LakeState(Folder(f"{tmp_path}/_penstock"))


def test_a_lake_without_anything_has_no_progress(progress: LakeProgress) -> None:
    """A lake without anything has no progress."""
    assert progress.present() == (False, False)
    assert progress.read_action() == "RUN"
    assert progress.log_id() == ""
    assert progress.read_applied() == Applied()
    assert progress.read_table_syncs() == {}
    assert progress.read_left_out() == {}
    assert progress.newest("CE") == progress.newest("CL") == []
    assert progress.restarts() == 0
    assert progress.read_done() == {}


def test_the_action_is_obeyed_in_capitals_and_small(progress: LakeProgress, tmp_path: Path) -> None:
    """The action is obeyed in capitals and small."""
    progress.ensure_tables()
    progress.set_action("PAUSE")
    assert progress.read_action() == progress.action() == "PAUSE"
    file = tmp_path / "_penstock" / ACTION_NAME
    file.write_text('{"action": "stop"}')
    assert progress.read_action() == "STOP"
    file.write_text('{"action": "halt"}')
    with pytest.raises(ActionUnknown, match="HALT"):
        progress.read_action()
    with pytest.raises(ActionUnknown):
        progress.set_action("GO")


def test_the_loaders_copies_are_read(progress: LakeProgress, state: LakeState) -> None:
    """The loaders copies are read."""
    sync = TableSync(table=ORDERS, state=SyncState.PAUSED, applied=APPLIED)
    record = TableRecord(
        source=ORDERS,
        target=ORDERS,
        merge_name="orders",
        made=True,
        columns=(("id", "bigint"),),
        left_out=("secret",),
    )
    state.write_log(LogState(log_id=LOG, applied=APPLIED))
    state.write_syncs(LOG, [sync])
    state.write_records(LOG, [record])
    assert progress.present() == (True, False)
    assert progress.log_id() == LOG
    assert progress.read_applied() == APPLIED
    assert progress.read_table_syncs() == progress.table_syncs() == {ORDERS: sync}
    assert progress.read_left_out() == {ORDERS: frozenset({"secret"})}


def test_segments_are_shown_newest_first_and_restarts_are_counted(progress: LakeProgress) -> None:
    """Segments are shown newest first and restarts are counted."""
    for number in range(7):
        progress.begin_segment(slot="slot", file=f"{number}.ckt", mark="0/1")
        if number < 6:
            progress.end_segment(slot="slot", file=f"{number}.ckt", mark=f"0/{number}")
    assert progress.finished_segments("slot") == {f"{number}.ckt" for number in range(6)}
    assert progress.finished_segments("other") == set()
    newest = progress.newest("CE")
    assert [row.mark for row in newest] == ["0/1", "0/5", "0/4", "0/3", "0/2"]
    assert newest[0].finish_time is None
    assert newest[1].finish_time is not None
    assert newest[1].start_time <= newest[1].finish_time
    progress.begin_segment(slot="slot", file="6.ckt", mark="0/9")
    assert progress.restarts() == 1


def test_a_segment_that_only_ends_has_a_row_too(progress: LakeProgress) -> None:
    """A segment that only ends has a row too."""
    progress.end_segment(slot="slot", file="4.ckt", mark="0/4")
    assert progress.finished_segments("slot") == {"4.ckt"}


def test_old_rows_of_segments_are_dropped(progress: LakeProgress, tmp_path: Path) -> None:
    """Old rows of segments are dropped."""
    rows = [
        {"slot": "s", "file": f"{n}", "mark": "", "begun": "2026-01-01T00:00:00+00:00"}
        for n in range(EXTRACTED_MAX)
    ]
    folder = Folder(f"{tmp_path}/_penstock")
    folder.write("extracted.json", str({"rows": rows}).replace("'", '"').encode())
    progress.end_segment(slot="s", file="new", mark="")
    assert progress.finished_segments("s") == {"new"}
    data = folder.read("extracted.json")
    assert data is not None
    assert data.count(b'"slot"') == EXTRACTED_MAX


def test_rows_of_the_loader_and_the_bulk_load_are_read(
    progress: LakeProgress, state: LakeState, tmp_path: Path
) -> None:
    """Rows of the loader and the bulk load are read."""
    state.begin_files(LOG, ["1.ckt"])
    state.end_files(LOG, [FileProgress(file="1.ckt", mark=9, finished=True)])
    state.begin_files(LOG, ["1.ckt"])
    [row] = progress.newest("CL")
    assert (row.source, row.mark) == ("1.ckt", "9")
    assert progress.restarts() == 1
    records = ChunkRecords(Folder(f"{tmp_path}/_penstock"))
    records.write_mark(TableMark(source=ORDERS, target=ORDERS, plan="p", position="0/1"))
    records.write(ORDERS, "p", 2, ChunkRecord(row_count=5, files=()))
    assert progress.present()[1]
    assert progress.counts.read_done() == {"public.orders": {2: 5}}
    assert progress.counts.under_way() == {}
    progress.close()
    assert progress.is_closed
