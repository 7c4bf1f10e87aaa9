"""Recovery as document 000 tells it, four cases of each half, each forced by killing at that place.

The extractor: it asks for the latest CE row; a row without finish_time means that it goes on from
the row's mark; a `.ckt_` file is renamed or discarded; writing goes on with the next number. The
loader: it looks for files; it asks for the last CL row; files with a finish_time are skipped; it
goes on with the next one.
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
    """A row of wirekite_progress; file: N of N.ckt."""

    source: str
    target: str
    mark: str
    start_time: Any
    finish_time: Any

    @property
    def file(self) -> int:
        """The segment's number."""
        name = self.target if self.target.endswith(".ckt") else self.source
        return int(name.removesuffix(".ckt"))


def progress(pipeline: BankPipeline, operation: str) -> list[Row]:
    """The rows of an operation by file; none while there are no tables."""
    try:
        with session(pipeline.target_url, pipeline.namespace) as sql:
            found = [Row(*row) for row in sql.execute(ROWS.format(operation))]
    except (NothingThere, ServerGone):
        return []
    return sorted(found, key=lambda row: row.file)


def segments(pipeline: BankPipeline, ending: str = "ckt") -> list[int]:
    """The numbers of the log's files."""
    return sorted(int(path.stem) for path in (pipeline.directory / "log").glob(f"*.{ending}"))


def started_at(pipeline: BankPipeline) -> list[int]:
    """Where the extractor said that it begins, each time that it did."""
    said = (pipeline.directory / "run" / "extract.log").read_text()
    return [parsed(text) for text in STARTED.findall(said)]


def parsed(text: str) -> int:
    """A position of whichever source it is."""
    kind = BinlogPosition if ":" in text else Lsn
    return kind.parse(text).ordinal


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_the_extractor_recovers(tmp_path: Path, source: str, target: str) -> None:
    """All four cases in one life of a pipeline; in the end both sides are equal."""
    with BankPipeline(tmp_path, 1, source=source, target=target) as pipeline:
        extract = pipeline.extract
        pipeline.start()

        def unfinished() -> list[Row]:
            return [row for row in progress(pipeline, "CE") if row.finish_time is None]

        # Cases 1 and 2: the latest row has no finish_time, and a mark to go on from.
        pipeline.until(unfinished, "a CE row without finish_time")
        extract.kill()
        last = progress(pipeline, "CE")[-1]
        mark = parsed(last.mark)
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
        # Case 3: a file that is whole but for its name gets it; one without content is discarded.
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
    """Killed before its commit it applies again, killed behind it never."""
    small = {"changeLoader": {"maxFilesPerBatch": 2}}
    with BankPipeline(tmp_path, 1, source=source, target=target, sections=small) as pipeline:
        load = pipeline.load
        pipeline.start()

        def loaded() -> dict[int, Row]:
            return {row.file: row for row in progress(pipeline, "CL") if row.finish_time}

        pipeline.until(loaded, "a file in the target")
        load.kill()
        # Cases 1 and 2: what was not committed is found again by files and CL rows.
        before = loaded()
        assert pipeline.kill_at(load, "load.commit.before:1")
        assert loaded() == before
        # Case 3: what was committed is skipped.
        assert pipeline.kill_at(load, "load.commit.after:1")
        done = loaded()
        assert len(done) > len(before)
        load.start()
        # Case 4: the next file follows.
        pipeline.until(lambda: len(loaded()) > len(done), "the next file")
        assert {file: row for file, row in loaded().items() if file in done} == done
        pipeline.finish()
        files = loaded()
        assert list(files) == segments(pipeline)
