"""Doctor's checks of what an extraction from MySQL or MariaDB would refuse, on real servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.pipeline import pipeline
from penstock.control.doctor.doctor import examine
from penstock.control.pipeline.servers import pipeline_of
from penstock.control.run.extract_process import check_source
from penstock.engines.mysql.extraction import mysql_identity
from penstock.engines.mysql.handover import prepare
from penstock.engines.mysql.log_start import asked_position
from penstock.engines.mysql.source.beginning import find_beginning
from penstock.engines.mysql.source.unsupported import StartUnfit
from penstock.log import Writer
from penstock.model import FlushPoint, PenstockError, Run
from penstock.ports.checks import Severity
from penstock.ports.config import Config
from penstock.ports.handover import LogWithoutBulkLoad
from penstock.ports.identity import DirectoryOfOtherPipeline, DirectoryOfOtherSource, keep_identity
from plugins.doctor import find_by_code, one
from plugins.mysql import MySQLServer, database_of

E = Severity.ERROR


@pytest.fixture
def config(tmp_path: Path, mysql: MySQLServer, mysql_url: str, target_url: str) -> Config:
    """A pipeline of one table, from MySQL or MariaDB into PostgreSQL."""
    name = database_of(mysql_url)
    mysql.execute("create table a (id int primary key)", name)
    return pipeline(tmp_path, mysql_url, target_url, tables=[f"{name}.*"])


def changing(config: Config, file: str, offset: int) -> Config:
    """Return the pipeline in mode change, with a log that begins there."""
    return pipeline(
        config.path.parent,
        config.source.url,
        config.target.url,
        tables=config.source.tables,
        mode="change",
        sections={"changeExtractor": {"binlogFile": file, "binlogPosition": offset}},
    )


def test_my040_directory_of_another(config: Config, mysql: MySQLServer) -> None:
    """A directory of another pipeline, or of a server of another kind, is refused as by extract."""
    assert find_by_code(config, "MY040") == []
    check_source(config)
    assert find_by_code(config, "MY040") == []
    ours = mysql_identity(config, "mariadb" if mysql.is_mariadb else "mysql")
    cases: dict[type[PenstockError], dict[str, str]] = {
        DirectoryOfOtherPipeline: {"pipeline": "other"},
        DirectoryOfOtherSource: {"engine": "postgresql"},
    }
    for kind, changed in cases.items():
        keep_identity(config, replace(ours, **changed))  # type: ignore[arg-type]
        with pytest.raises(kind) as caught:
            check_source(config)
        assert one(config, "MY040", E).what == caught.value.message
    assert "MY040" in {finding.code for finding in examine(config).errors}


def test_my041_place_to_begin_at(config: Config, mysql: MySQLServer) -> None:
    """A position inside a transaction or in a missing file is an error, unless a log exists
    already.
    """
    file, offset = mysql.status()
    mysql.execute("insert into a values (1)", database_of(config.source.url))
    assert (
        find_by_code(config, "MY041") == find_by_code(changing(config, file, offset), "MY041") == []
    )
    wrong = changing(config, file, offset + 7)
    finding = one(wrong, "MY041", E, "not a place to begin at")
    with pytest.raises(StartUnfit) as caught:
        find_beginning(wrong.source.url, wrong.source.tables, at=asked_position(wrong))
    assert (finding.what, finding.command) == (caught.value.message, caught.value.hint)
    one(changing(config, "binlog.000000", 4), "MY041", E, "binlog.000000")
    begin_log(wrong)
    assert find_by_code(wrong, "MY041") == []


def test_pk19_log_without_a_bulk_load(config: Config) -> None:
    """A pipeline begun in mode change cannot continue in mode data+change."""
    assert find_by_code(config, "PK19") == []
    begin_log(config)
    finding = one(config, "PK19", E, "was begun without a bulk load")
    with (
        pytest.raises(LogWithoutBulkLoad) as caught,
        prepare(pipeline_of(config), has_begun=True, stop=lambda: True),
    ):
        pytest.fail("it is refused")
    assert (finding.what, finding.command) == (caught.value.message, caught.value.hint)


def test_a_source_that_cannot_be_asked_makes_none_of_these_checks_done(config: Config) -> None:
    """The checks of a source that cannot be asked count as skipped."""
    away = replace(config, source=replace(config.source, url="mysql://u@127.0.0.1:1/d"))
    codes = ["MY040", "MY041", "MY042"]
    assert (
        examine(config, only=codes).checks_done,
        examine(config, only=codes).checks_skipped,
    ) == (3, 0)
    assert (examine(away, only=codes).checks_done, examine(away, only=codes).checks_skipped) == (
        0,
        3,
    )


def begin_log(config: Config) -> None:
    """Write a change log that ends at a position."""
    config.layout.log.mkdir(parents=True)
    with Writer.open(config.layout.log, log_id=None, source={}) as writer:
        writer.write(Run(end=FlushPoint(position=1)))
        writer.flush()
