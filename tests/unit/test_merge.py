"""Merged logs: logs that join, end and are split; shapes that differ; refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness.pipelines.log import ITEM, ITEM_2, Change, batch_of, number_rows, truncate
from harness.pipelines.merged import (
    BASE_US,
    FACTS,
    OPTIONS,
    OWN,
    SECTION,
    LogOf,
    World,
    expected_rows,
    merge,
    merged_rows,
    model,
)
from penstock.base.shapes import note_copied
from penstock.consume.registration import register
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import ConfigValueInvalid, SourceMissing
from penstock.control.status.status import MergeSeen
from penstock.engines.merged.position import MergedPosition
from penstock.extract import extractor
from penstock.log import links, list_segments
from penstock.log.layout import SegmentMissing
from penstock.log.links import LogPlace
from penstock.merge.extraction import InputLeft
from penstock.merge.inputs import InputReplaced
from penstock.merge.order import TransactionLate
from penstock.merge.rows import OfOneInput
from penstock.merge.shapes import Shapes, ShapesDiffer, convert_rows
from penstock.merge.state import MergeStateLost
from penstock.merge.stream import MergeStream
from penstock.model import Column, Marker, Op, Relation, Run
from penstock.model.position import PositionInvalid
from penstock.model.sections import OfOneLog, Start
from penstock.web.metrics import merge_metrics

Rest = Sequence[int]


def log_at(folder: Path, name: str, times: Sequence[int], relation: Relation = ITEM) -> LogOf:
    """Return a log with one insert per transaction; its keys occur only in this log."""
    first = int(name[1:]) * 1000 if name[1:].isdecimal() else 90_000
    rows = [
        [Change(relation=relation, op=Op.INSERT, after=(first + n, name))]
        for n in range(len(times))
    ]
    return LogOf(folder / name, [(at, None) for at in times], rows)


def images(directory: Path) -> list[Any]:
    """Return the images of a merged log's rows, in order."""
    return [image for *_, image in merged_rows(directory)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the loop look again soon."""
    monkeypatch.setattr(extractor, "WAIT_S", 0.02)


def after(looks: int) -> Callable[[], bool]:
    """Return a stop function that ends after so many looks."""
    left = iter([False] * looks)
    return lambda: next(left, True)


def test_a_log_that_joins_gives_what_is_later_than_the_watermark(tmp_path: Path) -> None:
    """Earlier transactions are skipped; from the watermark on the log waits like the others."""
    first, second = log_at(tmp_path, "s1", (10, 20, 30, 40)), log_at(tmp_path, "s2", (5, 25, 35))
    first.write(2)
    merge([first], tmp_path / "all", stop=after(10)).run()  # 20 is the watermark
    assert [image[0] for image in images(tmp_path / "all")] == [1000, 1001]
    first.end()
    second.end()
    merge([first, second], tmp_path / "all").run()
    assert [image[0] for image in images(tmp_path / "all")] == [1000, 1001, 2001, 1002, 2002, 1003]


def test_a_silent_log_holds_the_others_back_and_only_that_one_is_read(tmp_path: Path) -> None:
    """The backlog is in its segments on disk: the links hold them, and memory does not grow."""
    silent, busy = log_at(tmp_path, "s1", (10, 90)), log_at(tmp_path, "s2", range(11, 80))
    silent.write(1)
    for _ in range(10):
        busy.write(5, rotates=True)
    seen: list[MergeStream] = []
    told: list[dict[str, Any]] = []
    run = merge([silent, busy], tmp_path / "all", stop=after(60))
    real = run._engine.tend

    def tend(log_access: Any) -> None:
        seen.append(run._engine._stream)  # type: ignore[attr-defined]
        told.append(seen[-1].facts())
        real(log_access)

    run._engine.tend = tend  # type: ignore[method-assign]
    run.run()
    assert [image[0] for image in images(tmp_path / "all")] == [1000]
    facts = told[-1]
    assert facts["held_by"] == ["s1"]
    assert [one["behind"] for one in facts["inputs"]] == [0, 50]
    assert sum(len(queue) for queue in seen[-1]._order.queues) <= 10
    assert len(list_segments(busy.links)) == 10
    silent.end()
    busy.end()
    merge([silent, busy], tmp_path / "all").run()
    assert len(images(tmp_path / "all")) == 71
    assert len(list_segments(busy.links)) <= 1


def test_a_log_that_is_split_ends_before_those_that_go_on(tmp_path: Path) -> None:
    """Whatever the clocks of the new servers say, a key keeps its history."""
    parent, other = log_at(tmp_path, "s1", (10, 20, 30)), log_at(tmp_path, "s2", (15, 28, 60))
    children = [log_at(tmp_path, name, (12, 40)) for name in ("s3", "s4")]
    parent.write(2, rotates=True)
    other.write(1, rotates=True)
    merge([parent, other], tmp_path / "all", stop=after(20)).run()
    parent.write(1)  # its last one, at 30; its extractor still runs
    split = replace(SECTION, split={"s1": ("s3", "s4")})
    logs = [parent, other, *children]
    for log in (other, *children):
        log.end()
    merge(logs, tmp_path / "all", section=split, stop=after(40)).run()
    assert max(image[0] for image in images(tmp_path / "all")) < 3000
    parent.close()  # now it has ended without a message
    merge(logs, tmp_path / "all", section=split).run()
    keys = [image[0] for image in images(tmp_path / "all")]
    assert keys == [1000, 2000, 1001, 2001, 1002, 3000, 4000, 3001, 4001, 2002]
    merge([other, *children], tmp_path / "all").run()  # it is not missed


def test_a_log_that_is_taken_out_before_its_end_is_an_error(tmp_path: Path) -> None:
    """The log's changes would be lost silently."""
    first, second = log_at(tmp_path, "s1", (10, 20)), log_at(tmp_path, "s2", (15, 25))
    first.end()
    second.end()
    merge([first, second], tmp_path / "all").run()
    with pytest.raises(InputLeft):
        merge([first], tmp_path / "all").run()


def test_a_late_commit_stops_the_merge(tmp_path: Path) -> None:
    """A late commit is never reordered; earlier transactions stay."""
    late = log_at(tmp_path, "s1", (10, 50, 30))
    late.write(2)
    merge([late], tmp_path / "all", stop=after(10)).run()
    late.end()
    with pytest.raises(TransactionLate, match="clockSkewSeconds allows"):
        merge([late], tmp_path / "all").run()
    assert len(images(tmp_path / "all")) == 2
    allowed = replace(SECTION, clock_skew_seconds=0.00002)
    merge([late], tmp_path / "all", section=allowed).run()
    assert [image[0] for image in images(tmp_path / "all")] == [1000, 1001, 1002]


def test_a_log_whose_extraction_has_ended_holds_nobody_back(tmp_path: Path) -> None:
    """A log that resumes continues after what is merged; its earlier transactions are late."""
    first, second = log_at(tmp_path, "s1", (10, 20, 90, 60)), log_at(tmp_path, "s2", (15, 70, 80))
    first.write(2, rotates=True)
    first.open_writer().finish()
    first.close()
    second.end()
    merge([first, second], tmp_path / "all").run()
    assert [image[0] for image in images(tmp_path / "all")] == [1000, 2000, 1001, 2001, 2002]
    first.write(1, rotates=True)
    first.open_writer().finish()
    first.close()
    merge([first, second], tmp_path / "all").run()
    assert images(tmp_path / "all")[-1][0] == 1002
    first.end()
    with pytest.raises(TransactionLate):
        merge([first, second], tmp_path / "all").run()


def test_what_others_have_gone_past_is_late(tmp_path: Path) -> None:
    """A log that had ended resumes with a commit that is only later than its own last one."""
    first, second = log_at(tmp_path, "s1", (10, 20, 60)), log_at(tmp_path, "s2", (15, 70, 80))
    first.write(2, rotates=True)
    first.open_writer().finish()
    first.close()
    second.end()
    merge([first, second], tmp_path / "all").run()
    first.end()
    with pytest.raises(TransactionLate):
        merge([first, second], tmp_path / "all").run()


def test_another_log_and_a_missing_segment_are_found(tmp_path: Path) -> None:
    """Neither is mistaken for the earlier log."""
    first = log_at(tmp_path, "s1", (10, 20, 30))
    first.write(2, rotates=True)
    merge([first], tmp_path / "all", stop=after(10)).run()
    first.close()
    other = log_at(tmp_path / "other", "s1", (10, 20, 30))
    other.write(3)
    other.end()
    with pytest.raises(InputReplaced):
        merge([other], tmp_path / "all").run()
    hole = log_at(tmp_path, "s2", (10, 20, 30))
    for _ in range(3):
        hole.write(1, rotates=True)
    hole.close()
    list_segments(hole.links)[1].path.unlink()
    with pytest.raises(SegmentMissing):
        merge([hole], tmp_path / "hole", stop=after(20)).run()


def test_a_log_that_goes_on_while_a_merge_registers_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extractor sees its first consumer and removes closed segments before it has its links."""
    first = log_at(tmp_path, "s1", (10, 20, 30, 40))
    (first.links / "CONSUMER.json").unlink()
    for _ in range(3):
        first.write(1, rotates=True)
    real = links.save_consumer

    def save(directory: Path, consumer: Any, files: Any) -> None:
        real(directory, consumer, files)
        if first.written == 3:
            first.write(1, rotates=True)

    monkeypatch.setattr(links, "save_consumer", save)
    place = LogPlace(log=first.directory / "log", consumers=first.links.parent)
    assert register(place, first.links.name, start=Start.BEGINNING)
    assert list_segments(place.log) == []
    assert [file.number for file in list_segments(first.links)] == [0, 1, 2, 3]
    first.end()
    merge([first], tmp_path / "all").run()
    assert len(images(tmp_path / "all")) == 4


def test_a_log_without_its_state_is_an_error(tmp_path: Path) -> None:
    """The log's place in its inputs cannot be guessed."""
    first = log_at(tmp_path, "s1", (10, 20))
    first.end()
    merge([first], tmp_path / "all").run()
    (tmp_path / "all" / "state" / "merge.json").unlink()
    with pytest.raises(MergeStateLost):
        merge([first], tmp_path / "all").run()


def test_a_giant_transaction_comes_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are never in memory at once; earlier and later transactions are complete."""
    monkeypatch.setattr("penstock.merge.stream.ROWS_MAX", 50)
    rows = [
        [Change(relation=ITEM, op=Op.INSERT, after=(n, "few"))]
        if not big
        else [Change(relation=ITEM, op=Op.INSERT, after=(n * 1000 + m, "many")) for m in range(400)]
        for n, big in enumerate((False, True, False))
    ]
    giant = LogOf(tmp_path / "s1", [(10, None), (20, None), (30, None)], rows)
    small = log_at(tmp_path, "s2", (15, 25), OWN)
    giant.end()
    small.end()
    merge([giant, small], tmp_path / "all").run()
    world = World(inputs=[giant.transactions, small.transactions])
    assert merged_rows(tmp_path / "all") == expected_rows(model(world), [giant, small])


# -- tables of several logs ------------------------------------------------------------------------


def test_a_truncate_of_one_log_is_refused_where_others_have_rows(tmp_path: Path) -> None:
    """The affected rows are unknown. With ofOneLog = leave it is left out, and counted."""
    first, second = log_at(tmp_path, "s1", (10,)), log_at(tmp_path, "s2", (15, 30))
    first.write(1)
    writer = first.open_writer()
    marker = replace(truncate(1, 2, "item"), position=200, commit_time_us=BASE_US + 20)
    writer.write(_empty(marker))
    writer.flush()
    writer.rotate()
    writer.finish()
    first.close()
    second.end()
    with pytest.raises(OfOneInput, match=r"truncate of public\.item"):
        merge([first, second], tmp_path / "all").run()
    left = replace(SECTION, of_one_log=OfOneLog.LEAVE)
    merge([first, second], tmp_path / "all", section=left).run()
    assert [image[0] for image in images(tmp_path / "all")] == [1000, 2000, 2001]


def _empty(marker: Marker) -> Run:
    """Return a transaction that only has a marker, as number 2 after row 1."""
    from penstock.codec.columns import transactions_batch
    from penstock.model import FlushPoint

    point = FlushPoint(position=250, gsn=1, trx=2, commit_time_us=marker.commit_time_us)
    lines = [(200, 250, marker.commit_time_us, 0)]
    return Run(markers=(marker,), transactions=transactions_batch(lines), end=point)


def rows_batch(relation: Relation, *changes: Change) -> pa.RecordBatch:
    """Return some changes as a batch."""
    return batch_of(relation, number_rows([list(changes)])[0]).batch


def test_a_column_is_there_from_the_first_log_to_the_last() -> None:
    """A column that is added server by server is added once, and dropped with the last one."""
    shapes = Shapes()
    assert shapes.apply("s1", ITEM)
    assert not shapes.apply("s2", replace(ITEM, source_id=99))
    table = next(iter(shapes.merged))
    assert shapes.apply("s1", ITEM_2)
    wide = shapes.merged[table]
    assert [column.name for column in wide.columns] == ["id", "note", "price"]
    assert not shapes.would_change("s2", replace(ITEM_2, source_id=99))
    assert not shapes.apply("s2", replace(ITEM_2, source_id=99))
    narrow = replace(ITEM, version=3)
    assert not shapes.apply("s1", narrow)  # s2 still has the column
    assert shapes.apply("s2", narrow)
    assert [column.name for column in shapes.merged[table].columns] == ["id", "note"]
    assert [one.version for one in (wide, shapes.merged[table])] == [2, 3]
    again = Shapes.of(shapes.state(7))
    assert again.merged == shapes.merged
    assert not again.apply("s2", narrow)


def numbered_columns(relation: Relation) -> Relation:
    """Return the relation with identities from 1."""
    columns = [replace(one, id=number) for number, one in enumerate(relation.columns, 1)]
    return replace(relation, columns=tuple(columns))


def test_a_column_renamed_at_one_server_is_renamed_for_all() -> None:
    """The identity decides; a column that is dropped and added again is another one."""
    shapes = Shapes()
    first = numbered_columns(ITEM)
    shapes.apply("s1", first)
    (before,) = shapes.merged.values()
    title = replace(first.columns[1], name="title")
    assert shapes.apply("s1", replace(first, columns=(first.columns[0], title), version=2))
    (renamed,) = shapes.merged.values()
    assert [one.name for one in renamed.columns] == ["id", "title"]
    assert [one.id for one in renamed.columns] == [one.id for one in before.columns]
    again = replace(title, id=9)
    assert shapes.apply("s1", replace(first, columns=(first.columns[0], again), version=3))
    (remade,) = shapes.merged.values()
    assert remade.columns[1].id not in [one.id for one in before.columns]
    kept = Shapes.of(shapes.state(7))
    assert kept.number_columns("s1", first) == shapes.number_columns("s1", first)


def test_the_first_shape_of_a_log_is_news_after_its_base() -> None:
    """The base's shape has no version: a log counts its own from 1."""
    shapes = Shapes()
    shapes.apply("s1", replace(ITEM, version=0))
    assert shapes.apply("s1", replace(ITEM_2, version=1))
    (merged,) = shapes.merged.values()
    assert [one.name for one in merged.columns] == ["id", "note", "price"]


@pytest.mark.parametrize("is_saved", [False, True])
def test_columns_of_an_input_s_copy_are_found_by_their_names_at_that_time(is_saved: bool) -> None:
    """One that was dropped and added again after the copy is another one, a renamed one is not."""
    shapes = Shapes()
    shapes.apply("s1", note_copied(replace(ITEM, version=0), 70))
    (copied,) = shapes.merged.values()
    if is_saved:
        shapes = Shapes.of(shapes.state(0))
    key, note = numbered_columns(ITEM).columns
    again = replace(note, id=3, names=((71, note.name),))
    title = replace(note, id=2, name="title", names=((0, note.name), (71, "title")))
    shapes.apply("s1", replace(ITEM, columns=(key, title, again), version=1))
    (merged,) = shapes.merged.values()
    names = {column.id: column.name for column in merged.columns}
    assert names[copied.columns[1].id] == "title"
    assert [column.name for column in merged.columns] == ["id", "title", note.name]


def test_a_column_of_a_copy_that_is_spelled_in_another_case_is_the_same() -> None:
    """MODIFY writes a name as it likes; no name is noted for that."""
    shapes = Shapes()
    shapes.apply("s1", note_copied(replace(ITEM, version=0), 70))
    (copied,) = shapes.merged.values()
    key, note = numbered_columns(ITEM).columns
    shapes.apply("s1", replace(ITEM, columns=(key, replace(note, name="NOTE")), version=1))
    (merged,) = shapes.merged.values()
    assert [(c.name, c.id) for c in merged.columns] == [
        ("id", copied.columns[0].id),
        ("NOTE", copied.columns[1].id),
    ]


@pytest.mark.parametrize(("since", "is_older"), [(69, True), (70, True), (71, False), (0, False)])
def test_shapes_of_statements_before_an_input_s_copy_are_no_news(
    since: int, is_older: bool
) -> None:
    """The copy has the shape that the table had later; a shape's place may be unknown."""
    shapes = Shapes()
    assert not shapes.precedes_copy("s1", replace(ITEM, since=since))
    shapes.apply("s1", note_copied(replace(ITEM, version=0), 70))
    assert shapes.precedes_copy("s1", replace(ITEM, since=since, version=1)) is is_older
    assert not shapes.precedes_copy("s2", replace(ITEM, since=since, version=1))


def test_rows_of_an_older_shape_leave_the_new_column_as_it_is() -> None:
    """An update does not have it; an insert has the value that existing rows have."""
    made = Column(
        name="price", source_type="numeric(12,2)", neutral="decimal(12,2)", missing="1.50", id=3
    )
    known = numbered_columns(ITEM)
    into = replace(ITEM_2, columns=(*known.columns, made))
    batch = rows_batch(
        ITEM,
        Change(relation=ITEM, op=Op.INSERT, after=(1, "a")),
        Change(relation=ITEM, op=Op.UPDATE, after=(1, None), absent=b"\x02"),
        Change(relation=ITEM, op=Op.DELETE, after=None, before=(1,)),
    )
    found = convert_rows(batch, known, into).to_pylist()
    assert [row["absent"] for row in found] == [None, b"\x06", None]
    assert [str(row["after"] and row["after"]["price"]) for row in found] == [
        "1.50",
        "None",
        "None",
    ]
    assert [row["before"] for row in found] == [None, None, {"id": 1}]


def test_a_column_that_is_text_in_one_log_is_text_for_all() -> None:
    """A value out of a type's range widens the merged column, as it does in one log."""
    shapes = Shapes()
    shapes.apply("s1", ITEM)
    text = ITEM.with_text_column(0)
    assert shapes.apply("s2", text)
    into = next(iter(shapes.merged.values()))
    assert into.columns[0].neutral == "string"
    batch = rows_batch(ITEM, Change(relation=ITEM, op=Op.DELETE, after=None, before=(7,)))
    own = shapes.number_columns("s1", ITEM)
    assert convert_rows(batch, own, into).to_pylist()[0]["before"] == {"id": "7"}
    wide = replace(ITEM, columns=(replace(ITEM.columns[0], neutral="int64"), ITEM.columns[1]))
    other = Shapes()
    other.apply("s1", ITEM)
    assert other.apply("s2", wide)
    assert next(iter(other.merged.values())).columns[0].neutral == "int64"


@pytest.mark.parametrize(
    "other",
    [
        replace(ITEM, key=()),
        replace(ITEM, columns=(replace(ITEM.columns[0], neutral="uuid"), ITEM.columns[1])),
    ],
)
def test_tables_whose_rows_cannot_be_in_one_are_refused(other: Relation) -> None:
    """Their keys differ, or their types have no common one."""
    shapes = Shapes()
    shapes.apply("s1", ITEM)
    with pytest.raises(ShapesDiffer, match=r"public\.item of s2"):
        shapes.apply("s2", other)
    assert shapes.inputs_of(next(iter(shapes.merged))) == {"s1"}


def test_shapes_change_in_the_middle_of_a_round(tmp_path: Path) -> None:
    """Rows before the change have the old shape, later rows of both logs the new one."""
    price = Change(relation=ITEM_2, op=Op.INSERT, after=(1001, "wide", None))
    rows = [[Change(relation=ITEM, op=Op.INSERT, after=(1000, "old"))], [price]]
    first = LogOf(tmp_path / "s1", [(10, None), (20, None)], rows)
    second = log_at(tmp_path, "s2", (15, 25))
    first.end()
    second.end()
    merge([first, second], tmp_path / "all", options=replace(OPTIONS, flush_interval_s=30)).run()
    assert images(tmp_path / "all") == [
        (1000, "old"),
        (2000, "s2"),
        (1001, "wide", None),
        (2001, "s2", None),
    ]


# -- the file --------------------------------------------------------------------------------------


def write(folder: Path, merged: str) -> Path:
    """Write two pipelines, and one of their logs."""
    for number in (0, 1):
        url = f"postgresql://u@h/d{number}"
        (folder / f"s{number}.toml").write_text(
            f'[pipeline]\nname = "s{number}"\ndirectory = "s{number}"\n'
            f'[source]\nurl = "{url}"\ntables = ["public.*"]\n'
        )
    path = folder / "merged.toml"
    path.write_text('[pipeline]\nname = "all"\ndirectory = "all"\n' + merged)
    return path


def test_a_file_with_merge(tmp_path: Path) -> None:
    """The logs are its source; it loads if there is a target."""
    path = write(tmp_path, '[merge]\nlogs = ["s0.toml", "s1.toml"]\njoinSeconds = 2.5\n')
    config = load_config(path)
    assert [one.pipeline.name for one in config.inputs] == ["s0", "s1"]
    assert config.merge is not None
    assert config.merge.join_seconds == 2.5
    assert config.source.engine.name == "merged"
    assert not config.has_target
    assert "source" not in config.as_shown()
    assert json.dumps(config.as_shown()["merge"])


@pytest.mark.parametrize(
    ("merged", "why"),
    [
        ("[merge]\nlogs = []\n", "must name pipeline files"),
        ('[merge]\nlogs = ["s0.toml", "s0.toml"]\n', "each once"),
        ('[source]\nurl = "postgresql://u@h/d"\ntables = []\n[merge]\nlogs = ["s0.toml"]\n', "no"),
        ('mode = "data"\n[merge]\nlogs = ["s0.toml"]\n[target]\nurl = "x"\n', "in bulk"),
        ('mode = "data+change"\n[merge]\nlogs = ["s0.toml"]\n', "must have bases"),
        ('[merge]\nlogs = ["s0.toml"]\n[merge.split]\n"s9.toml" = []\n', "not in logs"),
        ('[merge]\nlogs = ["s0.toml"]\nclockSkewSeconds = -1\n', "must be 0 or more"),
    ],
)
def test_what_a_file_with_merge_cannot_say(tmp_path: Path, merged: str, why: str) -> None:
    """Each is refused by name before the start."""
    with pytest.raises(ConfigValueInvalid, match=why):
        load_config(write(tmp_path, merged))


def test_commands_that_are_about_a_source_name_the_logs_files(tmp_path: Path) -> None:
    """Tables are added in the pipeline that captures them."""
    from penstock.control.pipeline.config import need_merge, need_source

    config = load_config(write(tmp_path, '[merge]\nlogs = ["s0.toml", "s1.toml"]\n'))
    with pytest.raises(SourceMissing, match=r"s0\.toml, s1\.toml"):
        need_source(config, "verify FILE")
    need_source(config, "verify FILE", takes_merge=True)
    need_merge(config)
    with pytest.raises(SourceMissing):
        need_merge(config.inputs[0])


def test_status_and_metrics_say_who_holds_the_others_back() -> None:
    """Both say it: in words, and for Prometheus."""
    facts = FACTS
    lines = dict(MergeSeen(facts=facts).lines(3_000_000))
    assert [text.partition(":")[0] for text in lines] == [
        "log s0", "log s1", "log s2", "merge", "global transactions", "left out",
        "clocks differ by 7.0 s",
    ]  # fmt: skip
    troubles = [text for text, is_trouble in lines.items() if is_trouble]
    assert troubles[0].startswith("merge: waits for s1")
    assert list(MergeSeen(facts={}).lines(0)) == [("merge: it has not run yet", False)]
    found = {
        (sample.name, sample.labels.get("log")): sample.value
        for family in merge_metrics([("all", facts), ("new", {})])
        for sample in family.samples
    }
    assert found["penstock_merge_watermark_seconds", None] == 2.0
    assert found["penstock_merge_held", "s1"] == 1
    assert found["penstock_merge_held", "s0"] == 0
    assert found["penstock_merge_behind_transactions", "s0"] == 4
    assert found["penstock_merge_unjoined_total", None] == 1


def test_positions_are_numbers() -> None:
    """Positions count transactions, and have no other meaning."""
    assert MergedPosition.parse(str(MergedPosition(17))).ordinal == 17
    for text in ("", "0/1", "-1"):
        with pytest.raises(PositionInvalid):
            MergedPosition.parse(text)
    with pytest.raises(PositionInvalid):
        MergedPosition(2**63)
