"""A shop's two tables for targets of the bulk load: definitions, plans, tasks, a reader of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.codec.columns import after_type
from penstock.codec.lines import LineDialect
from penstock.model import (
    ColumnDefinition,
    ForeignKey,
    PenstockError,
    Relation,
    TableDefinition,
    TableName,
    UniqueKey,
)
from penstock.ports.bulk import (
    BulkReader,
    BulkTarget,
    Chunk,
    ChunkTask,
    Lines,
    ShapedRows,
    TablePlan,
)


def column(name: str, kind: str, neutral: str, **more: Any) -> ColumnDefinition:
    """Return a column of PostgreSQL."""
    return ColumnDefinition(
        name=name,
        type_text=kind,
        type_oid=0,
        typmod=-1,
        not_null=more.pop("not_null", False),
        base_type=kind,
        neutral=neutral,
        **more,
    )


SHOP = TableDefinition(
    name=TableName("public", "shop"),
    source_id=1,
    columns=(
        column("id", "integer", "int32", not_null=True, id=1),
        column("code", "character varying(20)", "string", id=2),
        column("price", "numeric(10,2)", "decimal(10,2)", id=3),
    ),
    primary_key=("id",),
    identity_columns=("id",),
    unique_keys=(
        UniqueKey(
            name="by_code",
            columns=("code",),
            definition="CREATE UNIQUE INDEX by_code ON public.shop USING btree (code)",
            is_constraint=True,
        ),
    ),
)
SALE = TableDefinition(
    name=TableName("public", "sale"),
    source_id=2,
    columns=(
        column("id", "integer", "int32", not_null=True, id=1),
        column("shop", "integer", "int32", id=2),
    ),
    primary_key=("id",),
    identity_columns=("id",),
    foreign_keys=(
        ForeignKey(
            name="sale_shop",
            columns=("shop",),
            target=TableName("public", "shop"),
            target_columns=("id",),
            definition="FOREIGN KEY (shop) REFERENCES public.shop(id)",
        ),
    ),
)


class ListReader(BulkReader):
    """Reader of given rows, in batches of a few; `shape` says which columns become text where."""

    def __init__(self, *batches: tuple[Relation, Sequence[tuple[Any, ...]]]) -> None:
        self._batches = batches

    def was_rewritten(self, task: ChunkTask) -> bool:
        """Return that it was not."""
        del task
        return False

    def lines(self, task: ChunkTask, dialect: LineDialect) -> Lines:
        """Refuse: there are only batches."""
        raise NotImplementedError

    def batches(self, task: ChunkTask, relation: Relation) -> Iterator[ShapedRows]:
        """Yield the rows."""
        del task, relation
        for shape, rows in self._batches:
            arrays = [
                pa.array([row[place] for row in rows], field.type)
                for place, field in enumerate(after_type(shape))
            ]
            yield ShapedRows(
                shape, pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(after_type(shape))))
            )

    def tells_rewritten(self, error: PenstockError) -> bool:
        """Return that it does not."""
        del error
        return False

    def close(self) -> None:
        """Do nothing."""


def url_of(bulk: BulkTarget) -> str:
    """Return the URL of the fixture's database."""
    found: str = bulk.url  # type: ignore[attr-defined]
    return found


def make_plan(
    schema: str, definition: TableDefinition, chunks: int = 2, name: str = "plan-1"
) -> TablePlan:
    """Return a plan of so many chunks. schema: of the target's table."""
    return TablePlan(
        source=definition.name,
        target=TableName(schema, definition.name.name),
        columns=tuple(one.name for one in definition.columns),
        binary=False,
        position="0/1",
        snapshot_id="",
        snapshot_text="",
        chunks=tuple(
            Chunk(number=number, relation=definition.name, copy_out="") for number in range(chunks)
        ),
        name=name,
        definition=definition,
    )


def replace_plan(plan: TablePlan, name: str) -> TablePlan:
    """Return the plan under another name, which replaces it."""
    return msgspec.structs.replace(plan, name=name, given_up=(plan.name,))


def task_of(bulk: BulkTarget, plan: TablePlan, number: int) -> ChunkTask:
    """Return the task of a chunk."""
    return ChunkTask(
        source_url="",
        target_url=url_of(bulk),
        table=plan.source,
        target=plan.target,
        chunk=plan.chunks[number],
        columns=plan.columns,
        binary=False,
        snapshot_id="",
        snapshot_text="",
        plan=plan.name,
        replica_role=False,
        details=bulk.details_of(plan),
    )
