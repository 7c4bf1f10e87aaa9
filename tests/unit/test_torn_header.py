"""A segment whose header is incomplete (a full disk, a crash) has no content."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from harness.pipelines.log import SOURCE, inserts, number_rows, run_of
from harness.pipelines.pipeline import pipeline
from penstock.codec.ckt import HEADER_REGION_SIZE
from penstock.control.pipeline.log_facts import outstanding_commit_us, read_log_end
from penstock.control.status.log_view import describe, find_log, format_lines
from penstock.control.tables.change_counts import ChangeCounter
from penstock.log import SegmentCorrupt, Writer
from penstock.model import TableName
from penstock.ports.config import Config
from penstock.ports.target import Applied

URL = "postgresql://u@127.0.0.1:1/d"
NAME = TableName("public", "item")


@pytest.fixture(params=[0, 1, 100, HEADER_REGION_SIZE - 1])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    """A pipeline whose second segment ends inside its header."""
    config = pipeline(tmp_path, URL, URL)
    with Writer.open(config.layout.log, log_id=None, source=SOURCE) as log:
        log.write(run_of(number_rows([inserts(3)])[0]))
        log.rotate()
    torn = config.layout.log / "1.ckt_"
    torn.write_bytes((config.layout.log / "0.ckt").read_bytes()[: request.param])
    return config


def test_readers_take_what_is_before_it(config: Config) -> None:
    """Readers are status, lag, counts, `penstock log` and read_log, wherever the header ends."""
    assert read_log_end(config).end.gsn == 3
    assert outstanding_commit_us(config, Applied()) is not None
    assert outstanding_commit_us(config, Applied(trx=1)) is None
    found = ChangeCounter(config).look().tables[NAME].as_dict()
    assert found["insert"] == 3
    place = find_log(config.layout.log)
    assert [row["segment"] for row in describe(place)] == ["0.ckt"]
    assert len(list(format_lines(place))) >= 3
    assert len(list(penstock.read_log(config.layout.log))) == 3


def test_damage_in_a_longer_file_is_said(config: Config) -> None:
    """Bytes follow a whole header: then the fault is not a torn header."""
    whole = (config.layout.log / "0.ckt").read_bytes()
    (config.layout.log / "1.ckt_").write_bytes(b"x" + whole[1:])
    with pytest.raises(SegmentCorrupt):
        read_log_end(config)
