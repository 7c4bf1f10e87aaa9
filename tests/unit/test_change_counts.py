"""Counters of changes by kind, read from the change log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.log import ITEM, SOURCE, Change, inserts, number_rows, run_of, truncate
from harness.pipelines.pipeline import pipeline
from penstock.control.tables import change_counts
from penstock.control.tables.change_counts import ChangeCounter, changes_between
from penstock.log import Writer, WriterOptions
from penstock.model import Op, TableName
from penstock.ports.config import Config

URL = "postgresql://u@127.0.0.1:1/d"
NAME = TableName("public", "item")
MIXED = [
    *inserts(2),
    Change(relation=ITEM, op=Op.UPDATE, after=(1, "other")),
    Change(relation=ITEM, op=Op.DELETE, after=None, before=(1,)),
]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A pipeline without servers."""
    return pipeline(tmp_path, URL, URL)


def writer(config: Config) -> Writer:
    """Return a writer of its change log."""
    return Writer.open(config.layout.log, log_id=None, source=SOURCE, options=WriterOptions())


def read_counts(counter: ChangeCounter) -> dict[str, int]:
    """Return the table's counts so far."""
    found = counter.look().tables.get(NAME)
    return found.as_dict() if found else {}


def test_kinds_are_counted_as_the_log_grows(config: Config) -> None:
    """The open segment counts up to its flush point; a closed segment counts once."""
    counter = ChangeCounter(config)
    assert read_counts(counter) == {}
    groups = number_rows([MIXED, inserts(3, first=10), MIXED])
    log = writer(config)
    log.write(run_of(groups[0], markers=[truncate(0, 1, "item")]))
    log.flush()
    first = {"insert": 2, "update": 1, "delete": 1, "truncate": 1}
    assert read_counts(counter) == first
    log.rotate()
    assert read_counts(counter) == first
    log.write(run_of(groups[1]))
    log.flush()
    assert read_counts(counter) == {**first, "insert": 5}
    log.rotate()
    log.write(run_of(groups[2]))
    log.flush()
    log.rotate()
    log.close()
    last = {"insert": 7, "update": 2, "delete": 2, "truncate": 1}
    assert read_counts(counter) == last
    assert read_counts(counter) == last
    assert read_counts(ChangeCounter(config)) == last
    assert counter.counts.gsn_first == 1
    assert counter.counts.complete


def test_segments_that_have_gone_are_known_from_the_first_row_counted(config: Config) -> None:
    """Loaded and removed files cannot be counted; earlier counts are kept."""
    groups = number_rows([MIXED, inserts(3, first=10)])
    log = writer(config)
    for group in groups:
        log.write(run_of(group))
        log.flush()
        log.rotate()
    log.close()
    before = ChangeCounter(config)
    before.look()
    (config.layout.log / "0.ckt").unlink()
    after = ChangeCounter(config)
    assert read_counts(after)["insert"] == 3
    assert after.counts.gsn_first == 5
    assert read_counts(before)["insert"] == 5


def test_a_long_log_is_counted_in_pieces(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look reads a limited number of rows; the next looks read the rest."""
    monkeypatch.setattr(change_counts, "ROWS_OPENED_MAX", 4)
    log = writer(config)
    for group in number_rows([MIXED, MIXED, MIXED]):
        log.write(run_of(group))
        log.flush()
        log.rotate()
    log.close()
    counter = ChangeCounter(config)
    seen = [(read_counts(counter)["insert"], counter.counts.complete) for _ in range(4)]
    assert seen == [(2, False), (4, False), (6, False), (6, True)]


def test_changes_of_one_table_between_two_places(config: Config) -> None:
    """Changes of other tables or outside the range do not count, inside a frame either."""
    other = replace(ITEM, name="other", source_id=99)
    elsewhere = [replace(change, relation=other) for change in inserts(5)]
    with writer(config) as log:
        for group in number_rows([[*inserts(3), *elsewhere], inserts(4, first=10)]):
            log.write(run_of(group))
            log.flush()
            log.rotate()

    def between(after: int, until: int, segment: int = 0) -> int:
        return changes_between(
            config, NAME, first_segment=segment, after_gsn=after, until_gsn=until
        )

    assert between(0, 12) == 7
    assert between(8, 12, 1) == 4
    assert between(2, 10) == 3
    assert between(0, 8) == 3
    assert between(12, 12) == 0
