"""The same rows written twice into a MySQL or MariaDB target: directly and through a
merge table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.pipelines.changes import relation
from harness.pipelines.loader import Applying, LogMaker
from harness.pipelines.merge import insert, update
from penstock.engines.mysql.target.rows_files import files_of
from penstock.load.sql_target import StagedBatch
from plugins.mysql_loader import MyStart

TABLES = ("direct", "merged")
# A table with a trigger needs its merge table.
OWN = "create trigger other before insert on merged for each row set new.id = new.id;"


def both_tables(start: MyStart, columns: str) -> Applying:
    """Return a target with the two tables, of the key `id` and these columns."""
    made = "".join(
        f"create table {name} (id int primary key, {columns}) charset utf8mb4;" for name in TABLES
    )
    return start(made + OWN, allow_triggers=True)


def batches_both_ways(
    target: Applying,
    log: LogMaker,
    columns: Sequence[tuple[str, str, str]],
    rows: Sequence[Sequence[Any]],
) -> Iterator[StagedBatch]:
    """Yield two applied batches for rows of values.

    Row 1 is inserted with the first of two rows of values, then updated to the second; beside them
    is a row of NULLs each. columns: name, type and neutral type.
    """
    shapes = [relation(("id", "integer", "int32"), *columns, name=name) for name in TABLES]
    for number, values in enumerate(rows):
        for shape in shapes:
            change = update if number else insert
            log.transaction(change(shape, 1, *values))
            log.transaction(insert(shape, 2 + number, *(None for _ in values)))
        log.close_segment()
        staged = target.batch()
        files = {spec.table.name: len(files_of(spec)) for p in staged.phases for spec in p.merges}
        assert files == {"direct": 1, "merged": 0}
        yield staged


def both_results(target: Applying, columns: str) -> list[list[tuple[Any, ...]]]:
    """Return these columns of the two tables."""
    return [target.rows(f"select {columns} from {name} order by id") for name in TABLES]
