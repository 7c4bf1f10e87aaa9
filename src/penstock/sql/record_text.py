"""A captured table's shape as `wirekite_table` keeps it: one text, whichever engine. Pure.

Earlier versions kept a list of columns and nothing else.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.ports.target import TableRecord


def shape_text(record: TableRecord) -> str | None:
    """The text of a record's shape; None when no relation was seen yet."""
    if record.columns is None:
        return None
    if record.key is None:
        return json.dumps(record.columns)
    return json.dumps(
        {
            "columns": record.columns,
            "key": record.key,
            "not_null": record.not_null,
            "left_out": record.left_out,
            "kept": record.kept,
            "notes": record.notes,
        }
    )


def shape_fields(text: str | None) -> dict[str, Any]:
    """The fields of a TableRecord that the text holds."""
    if text is None:
        return {"columns": None}
    held = json.loads(text)
    if isinstance(held, list):
        held = {"columns": held}
    fields: dict[str, Any] = {name: tuple(held[name]) for name in held if name != "columns"}
    fields["columns"] = tuple((name, kind) for name, kind in held["columns"])
    return fields
