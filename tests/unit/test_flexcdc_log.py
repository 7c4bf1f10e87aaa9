"""FlexCDC and the log that it follows: which log, which segments, and when it stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest

from harness.pipelines.flexcdc_memory import MemoryFlex
from harness.pipelines.log import SOURCE
from penstock.consume.flexcdc.captured import ChangelogNameTaken
from penstock.consume.flexcdc.following import LogOther
from penstock.consume.flexcdc.state import Place
from penstock.consume.plugins import Instance, PluginBase
from penstock.log import SegmentMissing, Writer, links
from penstock.model import Column, Relation, TableName
from penstock.model.sections import ChangelogNames

CHANGELOG = "public_item"


@pytest.fixture
def flex(tmp_path: Path) -> Iterator[MemoryFlex]:
    """FlexCDC with links of its own, and changelogs called schema_table."""
    made = MemoryFlex(tmp_path, changelog_names=ChangelogNames.PLAIN)
    links.enable(made.links)
    yield made
    made.feed.close()


def numbers(flex: MemoryFlex) -> list[int]:
    """Return the ids of all row images, ordered by their numbers."""
    return [row[0] for row in flex.rows(CHANGELOG, "id")]


def names(flex: MemoryFlex) -> list[str]:
    """Return the names of its links."""
    return sorted(path.name for path in flex.links.glob("*.ckt"))


def test_closed_segments_and_the_open_one_come_once_and_in_order(flex: MemoryFlex) -> None:
    """Links of segments that are in the destination are removed."""
    for count in (2, 1):
        flex.feed.write(count)
    flex.feed.write(2, rotate=False)
    place = flex.run()
    assert numbers(flex) == [0, 1, 2, 3, 4]
    assert (place.segment, place.trx, names(flex)) == (1, 3, [])
    flex.feed.write(1)
    flex.feed.write(1, rotate=False)
    flex.run()
    assert numbers(flex) == list(range(7))


def test_a_segment_without_a_link_is_read_by_its_name_in_the_log(flex: MemoryFlex) -> None:
    """The name in the log stays: the log's own loader removes it."""
    links.disable(flex.links)
    for _ in range(2):
        flex.feed.write(1)
    flex.run()
    assert numbers(flex) == [0, 1]
    flex.run()
    assert sorted(path.name for path in flex.feed.place.log.glob("*.ckt")) == ["0.ckt", "1.ckt"]


@pytest.mark.parametrize("segment", [-1, 0, 1, 6])
def test_a_place_in_another_log_stops_it_and_removes_nothing(
    flex: MemoryFlex, segment: int
) -> None:
    """FlexCDC does not wait for a segment that the present log may never have."""
    for _ in range(3):
        flex.feed.write(1)
    other = Place(log_id="another", segment=segment, trx=9, position="9")
    flex.state.move(other)
    with pytest.raises(LogOther, match="belongs to change log another") as caught:
        flex.run()
    assert "flexcdc --ini FILE setup --force" in caught.value.hint
    assert flex.state.place() == other
    assert names(flex) == ["0.ckt", "1.ckt", "2.ckt"]


def test_a_log_that_is_created_anew_stops_it_at_work(flex: MemoryFlex) -> None:
    """FlexCDC sees that the log is another one even if no segment arrives."""
    flex.feed.write(1)
    flex.feed.write(1)
    places: list[Place] = []

    def stop() -> bool:
        if len(places) == 3:
            flex.feed.close()
            rmtree(flex.feed.place.log)
            Writer.open(flex.feed.place.log, log_id=None, source=SOURCE).close()
        assert len(places) < 9, "it waits for ever"
        return False

    with pytest.raises(LogOther):
        flex.flexcdc().run(stop, on_place=places.append)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_missing_segment_stops_it(flex: MemoryFlex, gone: int) -> None:
    """The first one, one in between, and the last one before the open segment may be missing."""
    for _ in range(3):
        flex.feed.write(1)
    flex.feed.write(1, rotate=False)
    for folder in (flex.links, flex.feed.place.log):
        (folder / f"{gone}.ckt").unlink()
    with pytest.raises(SegmentMissing):
        flex.run()


def test_links_that_a_crash_left_are_removed_unread(flex: MemoryFlex) -> None:
    """The place is after them, and of this log."""
    for _ in range(3):
        flex.feed.write(1)
    place = flex.run()
    links.make_link(flex.links, flex.feed.place.log / "1.ckt")
    flex.feed.write(1)
    assert flex.run().trx == place.trx + 1
    assert (numbers(flex), names(flex)) == ([0, 1, 2, 3], [])


# -- names of changelogs ---------------------------------------------------------------------


def add(flex: MemoryFlex, table: str) -> TableName:
    """Capture a table that has one column."""
    name = TableName(*table.split("."))
    with flex.flexcdc().connect() as (_, changelogs):
        changelogs.refresh()
        changelogs.ensure(relation_named(name), drops=False)
        return changelogs.changelog(name)


def relation_named(name: TableName) -> Relation:
    """Return a table of one column."""
    column = Column(name="id", source_type="integer", neutral="int32")
    return Relation(schema=name.schema, name=name.name, columns=(column,))


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ("a_b.c", "a.b_c", r"the changelog of a_b\.c"),
        ("a_b.c", "a.B_C", r"the changelog of a_b\.c"),
        ("a.t", "penstock.place", "a table that is not a changelog"),
        ("a.t", "binlog_consumer.status", "a table that is not a changelog"),
        ("a.t", "mview.uow", "a table that is not a changelog"),
    ],
)
def test_no_other_table_is_replaced_by_a_changelog(
    flex: MemoryFlex, first: str, second: str, what: str
) -> None:
    """Plain names of two tables, or of a table and of our own state, can collide."""
    taken = add(flex, first)
    before = {name: flex.rows(name) for name in flex.tables()}
    with pytest.raises(ChangelogNameTaken, match=what) as caught:
        add(flex, second)
    assert 'changelog_names = "md5"' in caught.value.hint
    assert {name: flex.rows(name) for name in flex.tables()} == before
    assert taken.name in before


def test_a_changelog_of_an_earlier_setup_is_replaced(flex: MemoryFlex) -> None:
    """The published add-table does the same; a changelog of the same table is replaced, too."""
    add(flex, "a.t")
    flex.state.remove_mvlog(TableName("a", "t"))
    assert add(flex, "a.t").name == "a_t"


# -- plugins ---------------------------------------------------------------------------------


class Noting(PluginBase):
    """Plugin that notes the unit of work and the id of each transaction."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []

    def commit_trx(self, uow_id: int, gsn: int, instance: Instance) -> None:
        """Note the unit of work and the transaction's id."""
        self.seen.append((uow_id, instance.transaction.id))


def test_ids_of_transactions_never_repeat(flex: MemoryFlex) -> None:
    """Units of work begin at 1 after `setup --force`; a receiver must not drop them as known."""
    for _ in range(2):
        flex.feed.write(1)
    flex.feed.write(1, rotate=False)
    first, second = Noting(), Noting()
    place = flex.run(("noting", first))
    log_id = flex.feed.writer.log_id
    assert first.seen == [(trx + 1, f"{log_id}-{trx}") for trx in (1, 2, 3)]
    flex.state.create(force=True)
    flex.state.move(place)
    flex.feed.write(1)
    flex.run(("noting", second))
    assert second.seen == [(2, f"{log_id}-4")]
