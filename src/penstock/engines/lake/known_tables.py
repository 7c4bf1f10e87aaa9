"""Records of captured tables, as texts that the tables' own commits carry (`Snapshot.record`).

A record says which shape of the source a table has (`TableRecord`). It changes in the same commit
as the table's columns, so no crash separates the two. Not here: its copies for other processes
(`state.py`), and the changes themselves (`shape.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from penstock.engines.lake.format import LakeForeign, LakeTable
from penstock.engines.lake.history_shape import is_history
from penstock.model import ColumnDefinition, TableDefinition, TableName, UniqueKey
from penstock.ports.target import TableRecord, copied_ids


def encode_record(record: TableRecord) -> str:
    """Return a record as text."""
    return json.dumps(msgspec.to_builtins(record), separators=(",", ":"))


def decode_record(text: str, table: TableName) -> TableRecord | None:
    """Return the record in a text; None for an empty one, and for a history's.

    Raises LakeForeign.
    """
    if not text or is_history(text):
        return None
    try:
        return msgspec.convert(json.loads(text), type=TableRecord)
    except (ValueError, msgspec.ValidationError) as error:
        raise LakeForeign(
            f"table {table} has a record that penstock did not write: {error}",
            hint=f"Copy it again: penstock table resync FILE {table}",
            table=str(table),
        ) from error


def record_of(table: LakeTable) -> TableRecord:
    """Return a table's record. Raises LakeForeign if it has none."""
    record = decode_record(table.snapshot().record, table.name)
    if record is None:
        raise LakeForeign(
            f"table {table.name} in the lake was not created by penstock",
            hint="Move it away, or name another folder or namespace in [target].",
            table=str(table.name),
        )
    return record


def first_record(
    definition: TableDefinition, target: TableName, copied: Iterable[ColumnDefinition]
) -> TableRecord:
    """Return the record of a table that penstock creates, before the first change is applied.

    copied: the columns that the table has in the lake.
    """
    columns = tuple(copied)
    return TableRecord(
        source=definition.name,
        target=target,
        merge_name=str(target),
        made=True,
        columns=tuple((column.name, column.type_text) for column in columns),
        ids=copied_ids(columns),
        source_id=definition.source_id,
        unique=UniqueKey.columns_of(definition.unique_keys),
        key=definition.row_key,
        not_null=tuple(column.name for column in columns if column.not_null),
    )
