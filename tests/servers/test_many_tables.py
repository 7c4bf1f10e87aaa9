"""A thousand tables in one batch fit the lock table of a server with default settings."""

from __future__ import annotations

from typing import Any

import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import ITEM, Start, insert
from penstock.engines.postgres.target import merge_tables
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.engines.postgres.target.merge_tables import MergeTables
from penstock.host import faults
from penstock.load.sql_target import StagedBatch

TABLES = 1_000
TABLE = "create table t{0} (id int primary key, v text, w text); create index on t{0} (v);"
TABLE += "create index on t{0} (w);"
# Guaranteed by the server with its defaults: locks for a connection, connections.
LOCKS_MAX = 64 * 100
LOCKS = """
    select count(distinct (locktype, l.database, relation, transactionid::text, objid))
      from pg_locks as l
      join pg_stat_activity as a using (pid)
     where a.application_name like 'penstock %' and a.datname = current_database()
"""


OWN_LOCKS = "select count(*) from pg_locks where pid = pg_backend_pid()"


def test_merge_tables_are_prepared_some_at_a_time(
    start: Start, log: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction has the locks of more than a few tables, however many there are."""
    monkeypatch.setattr(merge_tables, "TABLES_AT_ONCE", 5)
    target = start("".join(TABLE.format(number) for number in range(40)))
    seen: list[int] = []
    read_stamps = merge_tables._stamps

    def count_locks(connection: Any, names: Any) -> dict[str, int]:
        seen.extend(row[0] for row in connection.execute(OWN_LOCKS))
        return read_stamps(connection, names)

    stager = MergeTables(target.target.connection)
    monkeypatch.setattr(merge_tables, "_stamps", count_locks)
    layouts = {f"t{number}_wkm": MergeLayout(ITEM) for number in range(40)}
    for _ in range(2):
        stamps = stager.make_empty(layouts)
        assert set(stamps) == set(layouts)
        stager.empty_ahead()
    assert max(seen) < 60, "of 40 tables they are 200"


@pytest.mark.long
def test_a_thousand_tables_within_the_lock_table(
    start: Start, log: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is applied while the next is staged and used merge tables are emptied: all fits."""
    target = start("".join(TABLE.format(number) for number in range(TABLES)))
    shapes = [
        relation(
            ("id", "integer", "int32"),
            ("v", "text", "string"),
            ("w", "text", "string"),
            name=f"t{number}",
        )
        for number in range(TABLES)
    ]
    seen: list[int] = []
    read_stamps = merge_tables._stamps

    def count_locks(connection: Any, names: Any) -> dict[str, int]:
        stamps = read_stamps(connection, names)  # the last statement of staging
        seen.extend(row[0] for row in connection.execute(LOCKS))
        return stamps

    def stage(key: int, *, place: int) -> StagedBatch:
        log.transaction(*(insert(shape, key, "a", "b") for shape in shapes))
        log.close_segment()
        staged = target.stage(place=place)
        target.applied = staged.after
        return staged

    monkeypatch.setattr(merge_tables, "_stamps", count_locks)
    reached, beside = faults.point, []

    def point(name: str) -> None:
        if name == "load.progress.before" and not beside:
            beside.append(stage(3, place=1))
        reached(name)

    target.target.apply(first := stage(1, place=0))
    monkeypatch.setattr(faults, "point", point)
    target.target.apply(stage(2, place=0))
    target.target.apply(beside[0])
    target.empty_ahead()
    assert target.rows("select count(*) from public.t999") == [(3,)]
    assert first.tables == TABLES
    assert len(beside) == 1
    assert 4 * TABLES < max(seen) <= LOCKS_MAX, "of the batch that is applied, at least"
