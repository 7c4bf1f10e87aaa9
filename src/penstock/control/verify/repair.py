"""Repair of `penstock verify`: the target's differing rows are written again from the source.

Both sides are at one position and the loader is paused there, so the next changes find the rows
that they change. Everything is one target transaction, which is committed only when each table's
checksums are those of the source. Rows are chosen by the hash of their key on both sides, and are
read and written as in the bulk load: all rows of one hash are deleted and written together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import structlog

from penstock.codec.errors import CellUnfit
from penstock.codec.server_pair import ServerPair
from penstock.control.verify.compare import Compared
from penstock.control.verify.hashed_rows import Sums, add_sums, differing_buckets
from penstock.host.faults import declare, point
from penstock.load.chunk import with_names
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.ports.bulk import BulkReader, Chunk, ChunkTask
from penstock.ports.config import Config
from penstock.ports.target import Applied
from penstock.ports.verify import Hasher, RepairTable, RepairTarget, VerifyReader, open_repair
from penstock.sql.read_plan import read_plan_of

logger = structlog.get_logger()
declare("verify.repair.deleted", "verify.repair.written", "verify.repair.committed")


class RepairUnequal(PenstockError):
    """The table still differs after its rows were written, so none of them was kept."""

    code = "VF20"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """Work done on a table: rows deleted, and written from the source."""

    table: TableName
    target: TableName
    deleted: int
    written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Parts of a repair. applied: the target's position when it was compared."""

    config: Config
    source: VerifyReader
    target: VerifyReader
    hasher: Hasher
    servers: ServerPair | None
    applied: Applied
    tell: Callable[[str], None]

    def run(self, compared: Sequence[Compared]) -> tuple[Repaired, ...]:
        """Write the rows that differ in these tables, in one transaction.

        Raises TargetShapeDiffers, RepairRefused, TargetMoved, RepairUnequal, and the errors of
        reading and writing rows; then nothing is changed.
        """
        wrong = [one for one in compared if not one.result.equal]
        if not wrong:
            return ()
        config = self.config
        with closing(
            open_repair(config.target.url, self.servers, dict(config.target.map))
        ) as target:
            for one in wrong:
                target.check(RepairTable(definition=one.pair.source, target=one.pair.target))
            with self.source.row_reader() as reader, target.transaction():
                target.hold(self.applied)
                done = tuple(self._repair_table(one, target, reader) for one in wrong)
                point("verify.repair.written")
        point("verify.repair.committed")
        for each in done:
            logger.info("table repaired", table=str(each.table), written=each.written)
        return done

    def _repair_table(self, one: Compared, target: RepairTarget, reader: BulkReader) -> Repaired:
        """Delete the differing rows of one table, write them again, and check that it is equal."""
        name = one.pair.target
        self.tell(f"repairing {name}")
        chosen = (one.buckets, one.differing, one.keys, self.hasher)
        deleted = target.delete(name, self.target.dialect.chosen_rows(one.images[1], *chosen))
        point("verify.repair.deleted")
        where = self.source.dialect.chosen_rows(one.images[0], *chosen)
        task = self._task(one, where)
        try:
            written = target.copy(task, reader)
        except CellUnfit as error:
            raise with_names(error, task) from error
        self._check_equal(one, target)
        return Repaired(table=one.pair.source.name, target=name, deleted=deleted, written=written)

    def _task(self, one: Compared, where: str) -> ChunkTask:
        """Return the rows to write, as if they were a chunk of the bulk load."""
        definition = one.pair.source
        url, servers = self.config.source.url, self.servers
        read_plan = read_plan_of(definition, servers, url) if servers is not None else None
        columns = read_plan.columns if read_plan is not None else _stored_columns(definition)
        expressions = read_plan.expressions if read_plan is not None else ()
        return ChunkTask(
            source_url=url,
            target_url=self.config.target.url,
            table=definition.name,
            target=one.pair.target,
            chunk=Chunk(
                number=0,
                relation=definition.name,
                copy_out=self.source.dialect.select_rows(definition, columns, expressions, where),
            ),
            columns=columns,
            binary=False,
            snapshot_id="",
            snapshot_text="",
            plan="",
            replica_role=False,
            read_plan=read_plan,
        )

    def _check_equal(self, one: Compared, target: RepairTarget) -> None:
        sums: Sums = {}
        for part in one.parts:
            query = self.target.dialect.bucket_query(one.images[1], part, one.buckets, self.hasher)
            found = target.fetch(query, f"reading {one.pair.target} once more")
            add_sums(sums, {int(b): (int(n), int(x), int(y)) for b, n, x, y in found})
        if left := differing_buckets(one.source_sums, sums):
            raise RepairUnequal(
                f"{one.pair.target} would still differ from the source in {len(left)} places",
                hint="Compare the two tables' definitions: the target cannot hold these rows as "
                "the source has them. Nothing was changed.",
                table=str(one.pair.target),
            )


def _stored_columns(definition: TableDefinition) -> tuple[str, ...]:
    """Return the columns whose values are not computed."""
    return tuple(column.name for column in definition.columns if not column.generated)
