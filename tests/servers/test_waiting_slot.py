"""A slot that waits for an open transaction, which every page names."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from harness.pipelines.pipeline import penstock, pipeline
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import pipeline_of, source_tables
from penstock.control.status.status import read_status
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.extraction import ensure_slot
from penstock.host.waits import read_waits
from penstock.ports.checks import Severity
from plugins.doctor import find_by_code


def test_the_open_transaction_is_named_while_it_is_waited_for(
    source_url: str, target_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page has its process, begin, statement and SQL to end it; doctor blames no slot."""
    monkeypatch.setattr("penstock.engines.postgres.source.slot.BLOCKERS_AFTER_S", 0.2)
    config = pipeline(tmp_path, source_url, target_url, mode="change")
    with connect(source_url, application_name="test") as sql:
        sql.execute("create table t (id int primary key)")
    with connect(source_url, application_name="forgotten", autocommit=False) as forgotten:
        forgotten.execute("insert into t values (4711)")
        pid = forgotten.info.backend_pid
        thread = threading.Thread(
            target=ensure_slot, args=(pipeline_of(config), source_tables(config))
        )
        thread.start()
        deadline = time.monotonic() + 60
        while read_waits(config.layout.run) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        [line] = [one for one in read_status(config).outage_lines() if str(pid) in one]
        assert "insert into t values (4711)" in line
        assert "idle in transaction" in line
        assert f"end it: select pg_terminate_backend({pid});" in line
        shown = penstock("status", config.path, "--json").result["waits_for"]
        assert shown["holders"][0]["command"] == f"select pg_terminate_backend({pid});"
        config = load_config(config.path)
        assert [one for one in find_by_code(config, "PG09") if one.severity is Severity.ERROR] == []
        assert find_by_code(config, "PG10") == []
        (finding,) = find_by_code(config, "PG18")
        assert "4711" in finding.what
        assert finding.command == f"select pg_terminate_backend({pid});"
        forgotten.rollback()
        thread.join(60)
        assert not thread.is_alive()
    assert read_waits(config.layout.run) is None
