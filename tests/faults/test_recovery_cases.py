"""Recovery as Wirekite's guide specifies it: four cases of each half, each forced by a kill there.

The extractor: it asks for the latest CE row; if the row has no finish_time, it continues from the
row's mark; a `.ckt_` file is renamed or discarded; writing continues with the next number. The
loader: it looks for files; it asks for the last CL row; files with a finish_time are skipped; it
continues with the next one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.faults.kills import POSTGRES, BankPipeline
from harness.pipelines.bank_engines import NothingThere, ServerGone, session
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.postgres.lsn import Lsn

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PAIRS = [
    pytest.param("mysql", "mariadb", id="mysql-mariadb"),
    pytest.param("mariadb", "mysql", id="mariadb-mysql"),
    pytest.param("mysql", POSTGRES, id="mysql-postgres"),
    pytest.param(POSTGRES, "mysql", id="postgres-mysql"),
    pytest.param(POSTGRES, POSTGRES, id="postgres-postgres"),
]
ROWS = """
    select source, target, mark, start_time, finish_time
      from wirekite.wirekite_progress
     where operation = '{}'
"""
STARTED = re.compile(r'event="(?:stream started|catching up)".* position=(\S+)')


class Row(NamedTuple):
    """A row of wirekite_progress; its file is the N of N.ckt."""

    source: str
    target: str
    mark: str
    start_time: Any
    finish_time: Any

    @property
    def file(self) -> int:
        """Number of the segment."""
        name = self.target if self.target.endswith(".ckt") else self.source
        return int(name.removesuffix(".ckt"))


def progress(pipeline: BankPipeline, operation: str) -> list[Row]:
    """Return the rows of an operation, ordered by file; empty while there are no tables."""
    try:
        with session(pipeline.target_url, pipeline.namespace) as sql:
            found = [Row(*row) for row in sql.execute(ROWS.format(operation))]
    except (NothingThere, ServerGone):
        return []
    return sorted(found, key=lambda row: row.file)


def segments(pipeline: BankPipeline, ending: str = "ckt") -> list[int]:
    """Return the numbers of the log's files."""
    return sorted(int(path.stem) for path in (pipeline.directory / "log").glob(f"*.{ending}"))


def started_at(pipeline: BankPipeline) -> list[int]:
    """Return the position at which the extractor began, for each of its starts."""
    said = (pipeline.directory / "run" / "extract.log").read_text()
    return [parse_ordinal(text) for text in STARTED.findall(said)]


def parse_ordinal(text: str) -> int:
    """Return the ordinal of a position of either kind of source."""
    kind = BinlogPosition if ":" in text else Lsn
    return kind.parse(text).ordinal


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_the_extractor_recovers(tmp_path: Path, source: str, target: str) -> None:
    """All four cases occur in one life of a pipeline; in the end both sides are equal."""
    with BankPipeline(tmp_path, 1, source=source, target=target) as pipeline:
        extract = pipeline.extract
        pipeline.start()

        def find_unfinished() -> list[Row]:
            return [row for row in progress(pipeline, "CE") if row.finish_time is None]

        # Cases 1 and 2: the latest row has no finish_time, and a mark to go on from.
        pipeline.until(find_unfinished, "a CE row without finish_time")
        extract.kill()
        last = progress(pipeline, "CE")[-1]
        mark = parse_ordinal(last.mark)
        starts = len(started_at(pipeline))
        extract.start()
        pipeline.until(lambda: len(started_at(pipeline)) > starts, "the stream goes on")
        assert started_at(pipeline)[-1] >= mark
        pipeline.until(
            lambda: any(
                row.file == last.file and row.finish_time for row in progress(pipeline, "CE")
            ),
            "the file that was incomplete is finished",
        )
        # Case 3: a complete file that lacks only its name gets it; an empty one is discarded.
        extract.kill()
        assert pipeline.kill_at(extract, "log.rename.before:1")
        (whole,) = segments(pipeline, "ckt_")
        assert pipeline.kill_at(extract, "log.create.after:1")
        assert whole in segments(pipeline)
        (empty,) = segments(pipeline, "ckt_")
        assert empty == whole + 1
        assert pipeline.kill_at(extract, "log.recovery.discard.before:1")
        # Case 4: the next number follows, and every file that has its name has its row.
        extract.start()
        pipeline.until(lambda: max(segments(pipeline)) > empty, "files go on")
        pipeline.finish()
        numbers = segments(pipeline)
        assert numbers == list(range(len(numbers)))
        rows = progress(pipeline, "CE")
        assert [row.file for row in rows if row.finish_time] == numbers


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_the_loader_recovers(tmp_path: Path, source: str, target: str) -> None:
    """A loader killed before its commit applies the batch again; one killed after it does not."""
    small = {"changeLoader": {"maxFilesPerBatch": 2}}
    with BankPipeline(tmp_path, 1, source=source, target=target, sections=small) as pipeline:
        load = pipeline.load
        pipeline.start()

        def find_loaded() -> dict[int, Row]:
            return {row.file: row for row in progress(pipeline, "CL") if row.finish_time}

        pipeline.until(find_loaded, "a file in the target")
        load.kill()
        # Cases 1 and 2: files and CL rows tell what was not committed.
        before = find_loaded()
        assert pipeline.kill_at(load, "load.commit.before:1")
        assert find_loaded() == before
        # Case 3: committed files are skipped.
        assert pipeline.kill_at(load, "load.commit.after:1")
        done = find_loaded()
        assert len(done) > len(before)
        load.start()
        # Case 4: the next file follows.
        pipeline.until(lambda: len(find_loaded()) > len(done), "the next file")
        assert {file: row for file, row in find_loaded().items() if file in done} == done
        pipeline.finish()
        files = find_loaded()
        assert list(files) == segments(pipeline)
