"""One log as an input of a merge: where it begins, what it refuses, what it keeps."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.log import ITEM, ITEM_2, Change
from harness.pipelines.merged import LogOf
from penstock.base.held import BaseNotReady, Holder
from penstock.base.manifest import BaseTable, Manifest, save_manifest
from penstock.log import list_segments
from penstock.log.layout import SegmentMissing, load_state
from penstock.merge import inputs
from penstock.merge.extraction import begin_merge
from penstock.merge.inputs import InputReplaced, MergeInput
from penstock.merge.order import Global
from penstock.model import Op, Run


def log_at(
    folder: Path, count: int, *, name: str = "s1", named: Sequence[int] = (), first: int = 0
) -> LogOf:
    """Return a log with one insert per transaction. named: those that are parts of global ones."""
    rows = [[Change(relation=ITEM, op=Op.INSERT, after=(first + n, name))] for n in range(count)]
    times = [(10 * (n + 1), Global(id=f"g{n}") if n in named else None) for n in range(count)]
    return LogOf(folder / name, times, rows)


def read_from(log: LogOf, *, trx: int = 0, number: int = -1, log_id: str = "") -> MergeInput:
    """Return the log as an input that continues after a transaction."""
    return MergeInput(log.place, trx=trx, number=number, log_id=log_id)


def read_all(source: MergeInput) -> list[int]:
    """Read until there is no more, and return the numbers of the transactions."""
    found: list[int] = []
    while (chunk := source.read()) is not None:
        found += range(chunk.first, chunk.first + len(chunk.times_us))
    return found


def log_id_of(log: LogOf) -> str:
    """Return the id of a log."""
    state = load_state(log.directory / "log")
    assert state is not None
    return state.log_id


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogOf]:
    """A log of six transactions, of which none is written."""
    found = log_at(tmp_path, 6, named=(0, 1, 4))
    yield found
    found.close()


# -- where it begins and resumes -------------------------------------------------------------------


def test_segments_are_read_in_order_with_the_open_one_last(log: LogOf) -> None:
    """Each transaction is read once, also if the open segment grows, is closed and followed."""
    log.write(1, rotates=True)
    log.write(1, rotates=True)
    log.write(1)
    with closing(read_from(log)) as source:
        assert read_all(source) == [1, 2, 3]
        log.write(1)
        assert read_all(source) == [4]
        log.write(1, rotates=True)
        assert read_all(source) == [5]
        log.write(1)
        assert read_all(source) == [6]
        keys = [
            row["id"]
            for group in source.pieces(1, 6)
            for piece in group
            for row in piece.rows.batch.column("after").to_pylist()
        ]
        assert keys == [0, 1, 2, 3, 4, 5]
        assert source.source_ids(2, 5).tolist() == [702, 703, 704, 705]
        assert [source.gsn_end(trx) for trx in (1, 4, 6)] == [1, 4, 6]


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_shape_in_a_segment_without_transactions_is_read(log: LogOf, is_followed: bool) -> None:
    """A segment is kept until its shape is passed on: nothing else may ever tell that shape."""
    log.write(1, rotates=True)
    with closing(read_from(log)) as source:
        assert read_all(source) == [1]
        assert source.shapes(1) == [ITEM]
        assert source.number_of(1) == 1
        log.open_writer().write(Run(relations=(ITEM_2,), end=log.open_writer().durable))
        log.open_writer().rotate()
        if is_followed:
            log.write(1, rotates=True)
        assert read_all(source) == ([2] if is_followed else [])
        source.forget(1)
        assert source.number_of(1) == 1
        assert source.gsn_end(1) == 1
        assert source.shapes(1)[0] == ITEM_2
        source.forget(1)
        assert source.number_of(1) == 2


def test_a_segment_that_is_closed_while_a_merge_begins_is_read(
    log: LogOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment has no link when the merge begins, and none is open when the merge asks."""
    real = load_state
    writes = iter([lambda: log.write(1, rotates=True)])

    def load(*args: Any) -> Any:
        for write in writes:
            write()
        return real(*args)

    log.open_writer()
    monkeypatch.setattr(inputs, "load_state", load)
    with closing(read_from(log)) as source:
        assert read_all(source) == [1]


def test_a_log_whose_links_begin_later_is_read_from_its_oldest_link(log: LogOf) -> None:
    """Links of the earlier part, which is merged, are gone."""
    for _ in range(3):
        log.write(1, rotates=True)
    (log.links / "0.ckt").unlink()
    with closing(read_from(log)) as source:
        assert read_all(source) == [2, 3]


def test_it_goes_on_in_the_middle_of_a_segment(log: LogOf) -> None:
    """The reader gets the markers of what follows, and none of what was returned."""
    log.write(3, rotates=True)
    log.write(2, rotates=True)
    with closing(read_from(log, trx=1, number=0, log_id=log_id_of(log))) as source:
        chunks = [source.read(), source.read()]
        assert [chunk.first for chunk in chunks if chunk is not None] == [2, 4]
        assert [sorted(chunk.globals) for chunk in chunks if chunk is not None] == [[2], [5]]
        assert [marker.trx for marker in source.markers(9)] == [2, 5]
        assert source.markers(9) == []


def test_markers_of_an_open_segment_come_once(log: LogOf) -> None:
    """The segment is read repeatedly, each time a little further."""
    log.write(1)
    with closing(read_from(log)) as source:
        read_all(source)
        log.write(1)
        read_all(source)
        log.write(3, rotates=True)
        read_all(source)
        assert [marker.trx for marker in source.markers(1)] == [1]
        assert [marker.trx for marker in source.markers(9)] == [2, 5]


def test_an_open_segment_that_loses_its_name_is_read_by_its_link(
    log: LogOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment is closed, and removed from the log, between the look and the reading."""
    log.write(2)
    with closing(read_from(log)) as source:
        real = source._listing.look

        def look(*args: Any, **more: Any) -> Any:
            found = real(*args, **more)
            if log.written == 2:
                log.write(1, rotates=True)
                (log.directory / "log" / "0.ckt").unlink(missing_ok=True)
            return found

        monkeypatch.setattr(source._listing, "look", look)
        assert read_all(source) == [1, 2, 3]


# -- what it refuses -------------------------------------------------------------------------------


def made_anew(log: LogOf) -> None:
    """Empty the log's directory and create a new log in it; its links stay."""
    log.close()
    shutil.rmtree(log.directory / "log")
    log.written = 0
    log.open_writer()


def test_a_log_that_was_made_anew_is_refused_before_it_has_a_segment(log: LogOf) -> None:
    """The log's id is compared when the state is opened: nothing is read, nothing removed."""
    log.write(2, rotates=True)
    before = log_id_of(log)
    made_anew(log)
    source = read_from(log, trx=2, number=1, log_id=before)
    with closing(source), pytest.raises(InputReplaced, match="what is merged of s1") as caught:
        source.read()
    assert caught.value.fields["expected"] == before
    assert len(list_segments(log.links)) == 1


def test_links_of_the_old_log_are_not_read_as_the_new_ones(log: LogOf) -> None:
    """Links of the old log are refused, even if no transaction was merged yet."""
    log.write(2, rotates=True)
    made_anew(log)
    with closing(read_from(log)) as source, pytest.raises(InputReplaced, match="the segment"):
        source.read()


def test_a_log_that_is_made_anew_while_it_is_read_is_refused(log: LogOf) -> None:
    """The id of the next segment shows it, at the latest."""
    log.write(2, rotates=True)
    with closing(read_from(log)) as source:
        assert read_all(source) == [1, 2]
        made_anew(log)
        with pytest.raises(InputReplaced):
            source.read()


def test_a_segment_of_another_log_is_refused(tmp_path: Path, log: LogOf) -> None:
    """The segment is refused whatever the state beside the log says."""
    log.write(1, rotates=True)
    other = log_at(tmp_path / "other", 3)
    other.write(1, rotates=True)
    other.write(1, rotates=True)
    with closing(read_from(log)) as source:
        assert read_all(source) == [1]
        (log.links / "1.ckt").write_bytes((other.links / "1.ckt").read_bytes())
        with pytest.raises(InputReplaced, match="the log of s1 is"):
            source.read()
    other.close()


def test_transactions_that_are_missing_are_found(log: LogOf) -> None:
    """The state's number says that the next segment is one after the one that has them."""
    for _ in range(3):
        log.write(1, rotates=True)
    source = read_from(log, trx=1, number=2, log_id=log_id_of(log))
    with (
        closing(source),
        pytest.raises(InputReplaced, match="goes on behind transaction 2; merged are 1"),
    ):
        source.read()


@pytest.mark.parametrize(("number", "gone"), [(0, 0), (0, 2), (1, 1), (-1, 1)])
def test_a_missing_segment_is_named_before_one_behind_it_is_read(
    log: LogOf, number: int, gone: int
) -> None:
    """The whole listing is checked first."""
    for _ in range(4):
        log.write(1, rotates=True)
    (log.links / f"{gone}.ckt").unlink()
    source = read_from(log, trx=max(number, 0), number=number)
    with (
        closing(source),
        pytest.raises(SegmentMissing, match=rf"{gone}\.ckt is not there") as caught,
    ):
        source.read()
    assert caught.value.fields == {"after": gone - 1, "next": gone + 1}


# -- what it keeps ---------------------------------------------------------------------------------


def test_what_is_read_keeps_its_links_until_it_is_released(log: LogOf) -> None:
    """Only then they are in the merged log; a reader for the lag releases nothing."""
    for _ in range(4):
        log.write(1, rotates=True)
    with closing(read_from(log, trx=2, number=2, log_id=log_id_of(log))) as source:
        assert read_all(source) == [3, 4]
        assert [file.number for file in list_segments(log.links)] == [0, 1, 2, 3]
        assert [source.number_of(trx) for trx in (2, 3, 4)] == [2, 3, 4]
        source.release(source.number_of(3))
        assert [file.number for file in list_segments(log.links)] == [3]


def test_an_open_segment_that_was_read_is_needed_still(log: LogOf) -> None:
    """The next transaction may be in it."""
    log.write(1, rotates=True)
    log.write(2)
    with closing(read_from(log)) as source:
        read_all(source)
        assert [source.number_of(trx) for trx in (0, 1, 2, 3)] == [0, 1, 1, 1]


def test_segments_whose_rows_are_pending_are_not_forgotten(log: LogOf) -> None:
    """Such segments are opened again for their rows."""
    for _ in range(3):
        log.write(2, rotates=True)
    with closing(read_from(log)) as source:
        read_all(source)
        source.forget(1)
        found = [piece.trx.tolist() for group in source.pieces(2, 6) for piece in group]
        assert found == [[2], [3, 4], [5, 6]]
        source.forget(4)
        assert [piece.trx.tolist() for group in source.pieces(5, 6) for piece in group] == [[5, 6]]


def test_an_extraction_has_ended_when_all_of_it_was_read(log: LogOf) -> None:
    """The extraction has not ended before that."""
    log.write(1, rotates=True)
    with closing(read_from(log)) as source:
        read_all(source)
        log.end()
        assert not source.is_done()
        read_all(source)
        assert source.is_done()


# -- a beginning with bases ------------------------------------------------------------------------


def build_base(log: LogOf) -> Any:
    """Return the place of a log with a base of its beginning."""
    table = BaseTable(schema="public", name="item", relations=(ITEM,))
    made = Manifest(log_id=log_id_of(log), number=1, segment=0, gsn=0, tables=(table,))
    (log.directory / "base").mkdir()
    save_manifest(log.directory / "base", made)
    return with_holder(log)


def with_holder(log: LogOf) -> Any:
    """Return the place of a log whose base is requested."""
    base = log.directory / "base"
    holder = Holder(base, owner="m", log=log.directory / "log", links=(log.links,))
    return replace(log.place, holder=holder)


def test_a_beginning_is_no_later_than_its_earliest_state(tmp_path: Path) -> None:
    """Each log continues after its own state; rows that are in no state are missing in none."""
    logs = [log_at(tmp_path, 3, name=name) for name in ("s1", "s2")]
    for count, one in enumerate(logs, 1):
        one.write(count, rotates=True)
    state, held = begin_merge([build_base(one) for one in logs], join_us=5)
    ends = [kept.end for _, kept in held]
    assert state.watermark_us == ends[0].commit_time_us < ends[1].commit_time_us
    assert state.settles_us == ends[1].commit_time_us + 5
    assert [one.reached.trx for one in state.inputs] == [1, 2]
    assert [one.log_id for one in state.inputs] == [log_id_of(one) for one in logs]
    for _, kept in held:
        kept.release()
    for one in logs:
        one.close()


def test_states_are_let_go_where_one_log_has_none(tmp_path: Path) -> None:
    """No state is held for a merge that cannot begin."""
    logs = [log_at(tmp_path, 3, name=name) for name in ("s1", "s2")]
    for one in logs:
        one.write(1, rotates=True)
    places = [build_base(logs[0]), with_holder(logs[1])]
    with pytest.raises(BaseNotReady, match="s2"):
        begin_merge(places, join_us=5)
    assert list((logs[0].directory / "base" / "held" / "m").iterdir()) == []
    for one in logs:
        one.close()
