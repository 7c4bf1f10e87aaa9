"""Preparation of values of another engine's rows before they are folded and sent.

Only PostgreSQL refuses some texts that other servers have. The bulk load does the same to its
lines, so that a value is the same by either path.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from penstock.codec.types import Choices, Engine, Server, map_column, prepared
from penstock.engines.postgres.target.foreign import ANY_POSTGRES
from penstock.model import Relation, TableName


def preparations(relation: Relation, source_engine: str, choices: Choices) -> dict[str, str]:
    """Return the preparations of values by column; unchanged columns are left out.

    source_engine: from the log; empty: PostgreSQL.
    """
    source = Engine(source_engine or Engine.POSTGRESQL)
    if source is Engine.POSTGRESQL:
        return {}
    table = TableName(relation.schema, relation.name)
    found = {}
    for column in relation.columns:
        server = Server(engine=source, version=())
        mapping = map_column(column, server, ANY_POSTGRES, choices=choices, table=table)
        if mapping.write.prepare:
            found[column.name] = mapping.write.prepare
    return found


def prepared_batch(batch: pa.RecordBatch, wanted: Mapping[str, str]) -> pa.RecordBatch:
    """Return rows of the log (`codec.columns.batch_schema`) with their values prepared."""
    if not wanted:
        return batch
    for name in ("after", "before"):
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(
            place, batch.schema.field(place), _prepared_struct(batch.column(place), wanted)
        )
    return batch


def _prepared_struct(values: pa.StructArray, wanted: Mapping[str, str]) -> pa.StructArray:
    kind = values.type
    if not any(field.name in wanted for field in kind):
        return values
    children = [
        prepared(values.field(place), wanted.get(field.name, ""))
        for place, field in enumerate(kind)
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
