"""The network to the server breaks in the middle of frames, transactions and side files."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.extract import QUICK, extractor_of, log_changes, set_up
from harness.servers.proxy import broken_network
from penstock.engines.postgres.connect import connect
from penstock.log import check
from plugins.postgres import Server

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("work_mem", ["64kB", "64MB"])
def test_cut_anywhere(
    postgres: Server,
    source_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work_mem: str,
) -> None:
    """Large transactions, streamed or not, are cut repeatedly: each row comes once, in order."""
    monkeypatch.setattr("penstock.extract.extractor.BACKOFF_S", (0.1,))
    set_up(source_url, "create table t (id int primary key, v text)")
    expected: list[int] = []
    with connect(source_url, application_name="test", autocommit=False) as sql:
        name = sql.info.dbname
        sql.execute(
            f"alter database \"{name}\" set logical_decoding_work_mem = '{work_mem}'".encode()
        )
        sql.commit()
        for part in range(6):
            # The third is passed on in several runs: a cut comes when half of it is written.
            first, last = part * 100_000, part * 100_000 + (50_000 if part == 2 else 4_000)
            sql.execute(
                "insert into t select i, repeat('x', 100) from generate_series(%s::int, %s::int) i",
                (first, last),
            )
            sql.execute("savepoint s")
            sql.execute("insert into t select i, '' from generate_series(9000000, 9001000) i")
            sql.execute("rollback to s")
            sql.execute("insert into t values (%s, 'last')", (last + 1,))
            sql.commit()
            expected += range(first, last + 2)
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    allowances = [chance.randrange(1, 1_000_000) for _ in range(6)]
    allowances += [chance.randrange(5_000_000, 6_500_000) for _ in range(2)]
    with broken_network(postgres.port, allowances) as proxy:
        options = replace(QUICK, events_per_flush=500, operation_count_max=7000)
        extractor = extractor_of(proxy.url(source_url), tmp_path, options=options)
        extractor.run()
        assert proxy.cut_count >= 2
    changes = log_changes(tmp_path)
    assert [c.after["id"] for c in changes] == expected
    assert [c.gsn for c in changes] == list(range(1, len(expected) + 1))
    assert sorted({c.trx for c in changes}) == [1, 2, 3, 4, 5, 6]
    assert [f for f in check(tmp_path / "log") if f.severity == "error"] == []
