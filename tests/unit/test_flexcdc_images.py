"""Row images of FlexCDC: numbers, units, whole rows, and where a run resumes after a stop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.flexcdc_memory import MemoryFlex
from harness.pipelines.log import (
    Change,
    Row,
    announced_batch,
    end_point,
    number_rows,
    run_of,
    truncate,
)
from harness.twins.examples import examples
from penstock.consume.flexcdc.images import ImageIncomplete
from penstock.consume.flexcdc.state import StateMoved
from penstock.log import links
from penstock.model import Column, Marker, Op, Relation, Run
from penstock.model.sections import ChangelogNames

COLUMNS = (
    Column(name="id", source_type="integer", neutral="int32"),
    Column(name="note", source_type="text", neutral="string"),
)
ITEM = Relation(schema="public", name="item", columns=COLUMNS, key=(0,), before=(0, 1), source_id=1)
KEY_ONLY = Relation(
    schema="public", name="item", columns=COLUMNS, key=(0,), before=(0,), source_id=1
)
IMAGES = 'dml_type, uow_id, "fv$gsn", id, note'


def insert(number: int, note: str | None = "a", relation: Relation = ITEM) -> Change:
    """Return the insert of a row."""
    return Change(relation=relation, op=Op.INSERT, after=(number, note))


def update(number: int, old: str | None, new: str | None, absent: bytes | None = None) -> Change:
    """Return an update with another note; both images are complete except for absent columns."""
    return Change(
        relation=ITEM, op=Op.UPDATE, after=(number, new), before=(number, old), absent=absent
    )


def delete(number: int, old: str | None = "a") -> Change:
    """Return the delete of a row."""
    return Change(relation=ITEM, op=Op.DELETE, after=None, before=(number, old))


@pytest.fixture
def flex(tmp_path: Path) -> Iterator[MemoryFlex]:
    """FlexCDC with links of its own, and changelogs called schema_table."""
    made = MemoryFlex(tmp_path, changelog_names=ChangelogNames.PLAIN)
    links.enable(made.links)
    yield made
    made.feed.close()


def write(
    flex: MemoryFlex,
    *transactions: list[Change],
    markers: tuple[Marker, ...] = (),
    rotate: bool = True,
    together: bool = False,
) -> None:
    """Append transactions to the log, one run each, or all of them in one frame per table."""
    for group in [transactions] if together else [(changes,) for changes in transactions]:
        end = flex.feed.writer.end
        rows = [
            Row(
                gsn=end.gsn + row.gsn,
                trx=end.trx + row.trx,
                position=(end.trx + row.trx) * 100,
                change=row.change,
            )
            for rows in number_rows(group)
            for row in rows
        ]
        flex.feed.writer.write(run_of(rows, markers=markers))
    flex.feed.writer.rotate() if rotate else flex.feed.writer.flush()


def images(flex: MemoryFlex) -> list[tuple[Any, ...]]:
    """Return all row images, ordered by their numbers."""
    return flex.rows("public_item", IMAGES)


def test_an_update_is_its_old_row_then_its_new_one(flex: MemoryFlex) -> None:
    """Each change of a transaction has its unit; numbers continue over transactions."""
    write(flex, [insert(1), insert(2, None)], [update(1, "a", "b")], [delete(2, None)])
    flex.run()
    assert images(flex) == [
        (1, 2, 2, 1, "a"),
        (1, 2, 3, 2, None),
        (-1, 3, 4, 1, "a"),
        (1, 3, 5, 1, "b"),
        (-1, 4, 6, 2, None),
    ]
    units = flex.rows("mview_uow", "uow_id, gsn_hwm")
    assert units == [(1, 1), (2, 3), (3, 5), (4, 6)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"mark_updates": True}, [(1, 2, 2), (-2, 3, 3), (2, 3, 4)]),
        ({"skip_before_update": True}, [(1, 2, 2), (1, 3, 3)]),
        ({"mark_updates": True, "skip_before_update": True}, [(1, 2, 2), (2, 3, 3)]),
        ({"bulk_insert": False}, [(1, 2, 2), (-1, 3, 3), (1, 3, 4)]),
    ],
)
def test_updates_as_the_settings_want_them(
    tmp_path: Path, settings: dict[str, bool], expected: list[tuple[int, int, int]]
) -> None:
    """The settings are mark_updates, skip_before_update and bulk_insert."""
    flex = MemoryFlex(tmp_path, changelog_names=ChangelogNames.PLAIN, **settings)
    write(flex, [insert(1)], [update(1, "a", "b")])
    flex.run()
    assert [row[:3] for row in images(flex)] == expected
    flex.feed.close()


def test_what_an_update_did_not_send_is_taken_from_the_old_row(flex: MemoryFlex) -> None:
    """The column was not changed; a NULL that was sent stays NULL."""
    write(flex, [insert(1, "kept")], [update(1, "kept", None, absent=b"\x02")])
    write(flex, [update(1, "kept", None)])
    flex.run()
    assert [row[-1] for row in images(flex)] == ["kept", "kept", "kept", "kept", None]


@pytest.mark.parametrize("skips", [False, True])
def test_an_unsent_value_without_an_old_row_is_an_error_and_never_null(
    tmp_path: Path, skips: bool
) -> None:
    """No image of its transaction is kept; earlier transactions are."""
    flex = MemoryFlex(tmp_path, changelog_names=ChangelogNames.PLAIN, skip_before_update=skips)
    lacking = Change(relation=ITEM, op=Op.UPDATE, after=(1, None), absent=b"\x02")
    write(flex, [insert(1)], [insert(2), lacking])
    with pytest.raises(ImageIncomplete, match=r"public\.item lacks column") as caught:
        flex.run()
    assert "fullBeforeImages = true" in caught.value.hint
    assert all(row[3] != 1 or row[4] == "a" for row in images(flex))
    flex.feed.close()


@pytest.mark.parametrize(
    "change",
    [
        Change(relation=KEY_ONLY, op=Op.DELETE, after=None, before=(1,)),
        Change(relation=KEY_ONLY, op=Op.UPDATE, after=(1, "b"), before=(1,)),
        Change(relation=ITEM, op=Op.UPDATE, after=(1, "b")),
        Change(relation=KEY_ONLY, op=Op.UPDATE, after=(1, None), before=(1,), absent=b"\x02"),
    ],
)
def test_an_old_row_that_is_not_whole_is_an_error(flex: MemoryFlex, change: Change) -> None:
    """The changelog would otherwise have NULL for a value that was not sent."""
    write(flex, [insert(1)], [change])
    with pytest.raises(ImageIncomplete):
        flex.run()


def test_a_table_that_is_emptied_has_its_row_in_its_place(flex: MemoryFlex) -> None:
    """The image is between the earlier and the later rows; a warning is added if it is wanted."""
    flex.settings = replace(flex.settings, raise_warnings=True)
    write(flex, [insert(1), insert(2)], markers=(truncate(1, 1, "item"),))
    write(flex, [insert(3)])
    flex.feed.writer.write(
        Run(
            markers=(truncate(3, 3, "item"),),
            transactions=announced_batch([3]),
            end=end_point(3, 3),
        )
    )
    flex.feed.writer.rotate()
    flex.run()
    assert [row[0] for row in images(flex)] == [1, 0, 1, 1, 0]
    assert [row[1] for row in images(flex)] == [2, 2, 2, 3, 4]
    assert len(flex.warnings) == 2


def test_a_table_that_is_emptied_once_is_noted_once(flex: MemoryFlex) -> None:
    """The rest of its segment is read later, or after a restart."""
    write(flex, [insert(1)], markers=(truncate(1, 1, "item"),), rotate=False)
    flex.run()
    write(flex, [insert(2)], rotate=False)
    flex.run()
    write(flex, [insert(3)])
    flex.run()
    assert [(row[0], row[3]) for row in images(flex)] == [(1, 1), (0, None), (1, 2), (1, 3)]


@pytest.mark.parametrize("appends", [1, 2, 3])
def test_a_transaction_is_committed_as_a_whole(flex: MemoryFlex, appends: int) -> None:
    """A commit that is due after its first row waits for its last."""
    write(flex, [insert(9)], rotate=False)
    write(flex, [insert(1), insert(2), insert(3)], markers=(truncate(2, 2, "item"),))
    _run_partly(flex, 2, appends)
    assert images(flex) == []
    flex.run()
    found = [(row[0], row[3]) for row in images(flex)]
    assert found == [(1, 9), (1, 1), (0, None), (1, 2), (1, 3)]


def test_another_process_that_writes_the_same_state_is_seen(flex: MemoryFlex) -> None:
    """No row is written after a place that another process has moved."""
    write(flex, [insert(1)])
    flex.run()
    write(flex, [insert(2)], rotate=False)
    instance = flex.flexcdc()
    load = instance._load_progress
    seen: list[Any] = []

    def settle_first(state: Any) -> Any:
        found = load(state)
        flex.session.driver.execute('update "flexviews.penstock_place" set trx = 9')
        return found

    instance._load_progress = settle_first  # type: ignore[method-assign]
    with pytest.raises(StateMoved):
        instance.run(lambda: len(seen) > 1, on_place=seen.append)
    assert len(images(flex)) == 1


def test_a_segment_without_anything_captured_moves_the_place(tmp_path: Path) -> None:
    """The segment's transactions are units without images."""
    flex = MemoryFlex(tmp_path, auto_changelog=False)
    write(flex, [insert(1)], [insert(2)])
    place = flex.run()
    assert (place.segment, place.trx) == (0, 2)
    assert flex.rows("mview_uow", "uow_id, gsn_hwm") == [(1, 1), (2, 1), (3, 1)]
    flex.feed.close()


# -- where it resumes ------------------------------------------------------------------------

KEYS = st.integers(1, 3)
CHANGES = st.one_of(
    st.builds(insert, KEYS),
    st.builds(update, KEYS, st.just("a"), st.just("b")),
    st.builds(delete, KEYS),
)
LOGS = st.lists(st.lists(st.lists(CHANGES, min_size=1, max_size=4), min_size=1, max_size=4),
                min_size=1, max_size=3)  # fmt: skip


@given(
    log=LOGS,
    images_max=st.integers(1, 5),
    stops=st.lists(st.integers(1, 6), max_size=6),
    bulk=st.booleans(),
    together=st.booleans(),
)
@examples(0.25)
def test_every_image_comes_once_wherever_a_run_ends(
    tmp_path_factory: pytest.TempPathFactory,
    log: list[list[list[Change]]],
    images_max: int,
    stops: list[int],
    bulk: bool,
    together: bool,
) -> None:
    """Some runs are stopped after a few looks or fail while they write, then one run completes."""
    whole = _fill_log(tmp_path_factory.mktemp("whole"), log, bulk, together)
    whole.run()
    parts = _fill_log(tmp_path_factory.mktemp("parts"), log, bulk, together)
    for count in stops:
        _run_partly(parts, images_max, count)
    parts.run()
    assert images(parts) == images(whole)
    assert parts.rows("mview_uow", "uow_id, gsn_hwm") == whole.rows("mview_uow", "uow_id, gsn_hwm")
    place, other = parts.state.place(), whole.state.place()
    assert (place.segment, place.trx) == (other.segment, other.trx)


def _fill_log(
    folder: Path, log: list[list[list[Change]]], bulk: bool, together: bool
) -> MemoryFlex:
    """Write these segments to a log; the last one stays open."""
    flex = MemoryFlex(folder, changelog_names=ChangelogNames.PLAIN, bulk_insert=bulk)
    links.enable(flex.links)
    for segment in log[:-1]:
        write(flex, *segment, together=together)
    write(flex, *log[-1], rotate=False, together=together)
    flex.feed.close()
    return flex


class Cut(Exception):
    """An error: the destination is gone."""


def _run_partly(flex: MemoryFlex, images_max: int, count: int) -> None:
    """Run until so many appends were made; then the destination fails."""
    left = iter(range(count))
    append, session = flex.session.append, flex.session

    def cut(table: Any, found: Any) -> None:
        if next(left, None) is None:
            raise Cut
        append(table, found)

    instance = flex.flexcdc()
    make_sink = instance._sink

    def small(*given: Any) -> Any:
        sink = make_sink(*given)
        sink.images_max = images_max
        return sink

    instance._sink = small  # type: ignore[method-assign]
    session.append = cut  # type: ignore[method-assign]
    seen: list[Any] = []
    try:
        instance.run(lambda: len(seen) > 1 and seen[-1] == seen[-2], on_place=seen.append)
    except Cut:
        pass
    finally:
        session.append = append  # type: ignore[method-assign]
