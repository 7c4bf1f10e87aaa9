"""The target of a bulk load: parts `bulk_target` and `bulk_writer`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from penstock.codec.lines import LineDialect
from penstock.codec.server_pair import ServerPair
from penstock.host import faults
from penstock.model import TableDefinition, TableName
from penstock.ports.bulk import (
    BulkReader,
    BulkTarget,
    BulkWriter,
    ChunkStatus,
    ChunkTask,
    Found,
    Mark,
    TablePlan,
    chunks_missing,
)
from penstock.ports.deferred_keys import DeferredKey
from penstock.ports.target import target_name
from toy_engine.progress import ToyProgress
from toy_engine.store import Shape
from toy_engine.values import rows_in

MARK = "bulk table"  # notes by source table


class ToyBulk(ToyProgress, BulkTarget):
    """Connection that creates tables and finishes their copies."""

    def __init__(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        application_name: str,
        servers: ServerPair | None,
    ) -> None:
        super().__init__(url, application_name)
        self._namespaces = namespaces
        self._servers = servers

    def look(self, targets: Collection[TableName]) -> Found:
        there = [table for table in self.store.shapes() if table in targets]
        return Found(
            empty={table: not self.store.rows(table) for table in there},
            marks=self.marks(),
            truncates={table: f"delete the rows of {table}" for table in there},
        )

    def create(self, definitions: Sequence[TableDefinition]) -> list[str]:
        there = self.store.shapes()
        for definition in definitions:
            table = target_name(definition.name, self._namespaces)
            if table in there:
                continue
            types = {one.name: one.type_text for one in definition.columns}
            if self._servers is not None:
                mapped = self._servers.mappings(definition)
                types = {name: mapped[name].target_type for name in types}
            columns = tuple((c.name, types[c.name], c.neutral) for c in definition.columns)
            shape = Shape(table=table, version=1, columns=columns, key=definition.primary_key)
            self.store.put_shape(shape)
        return []

    def marks(self) -> dict[TableName, Mark]:
        found = self.store.all(MARK, Mark)
        return {TableName(*name.split(".", 1)): mark for name, mark in found.items()}

    def takes_binary(self, _definition: TableDefinition) -> bool:
        return False

    def begin_afresh(self, plans: Iterable[TablePlan]) -> None:
        with self.store.transaction():
            for plan in plans:
                mark = Mark(
                    plan=plan.name,
                    position=plan.position,
                    finished=False,
                    row_count=None,
                    done={},
                )
                self.store.empty(plan.target)
                self.store.put(MARK, str(plan.source), mark)

    def finish_table(self, plan: TablePlan) -> int:
        with self.store.transaction():
            mark = self.marks().get(plan.source)
            ours = mark is not None and mark.plan == plan.name
            done = mark.done if mark is not None and ours else {}
            missing = [one.number for one in plan.chunks if one.number not in done]
            if mark is None or missing:
                raise chunks_missing(plan, missing, is_marked=ours)
            count = sum(done.values())
            finished = Mark(
                plan=plan.name, position=plan.position, finished=True, row_count=count, done=done
            )
            self.store.put(MARK, str(plan.source), finished)
        return count

    def drop_if_made(self, target: TableName) -> None:
        self.store.empty(target)
        self.store.run("delete from shapes where schema = ? and name = ?", *target)

    def add_keys(
        self, definitions: Sequence[TableDefinition], *, threads: int, stop: Callable[[], bool]
    ) -> None:
        """Do nothing: rows are stored by their key anyway."""

    def deferred_keys(self, _definition: TableDefinition) -> tuple[DeferredKey, ...]:
        return ()

    def add_foreign_keys(self, _definitions: Sequence[TableDefinition]) -> list[str]:
        return []

    def is_replica(self) -> bool:
        """Return True: there are no triggers or foreign keys that act on rows."""
        return True


class ToyWriter(ToyProgress, BulkWriter):
    """Connection that writes one chunk after another."""

    def __init__(self, url: str, *, replica_role: bool) -> None:
        del replica_role
        super().__init__(url, "")

    def write(self, task: ChunkTask, reader: BulkReader) -> tuple[ChunkStatus, int]:
        store, source = self.store, str(task.table)
        with store.transaction():
            mark = store.get(MARK, source, Mark)
            if mark is None or mark.plan != task.plan:
                return ChunkStatus.PLAN_GONE, 0
            if task.chunk.number in mark.done:
                return ChunkStatus.DONE_BEFORE, mark.done[task.chunk.number]
            shape, count = store.shapes()[task.target], 0
            for row in rows_in(reader.lines(task, LineDialect.COPY), task.columns):
                store.put_row(task.target, shape.key_of(row), row)
                count += 1
            faults.point("bulk.chunk.copied")
            mark.done[task.chunk.number] = count
            store.put(MARK, source, mark)
        faults.point("bulk.chunk.committed")
        return ChunkStatus.DONE, count
