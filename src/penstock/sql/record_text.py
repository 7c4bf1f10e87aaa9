"""Text of a captured table's shape in `wirekite_table`, the same for every engine. Pure."""

from __future__ import annotations

import json
from typing import Any

from penstock.ports.target import TableRecord

_FIELDS = (
    *("columns", "ids", "source_id", "collations", "unique", "log_id", "version"),
    *("key", "not_null", "computed", "left_out", "kept", "notes"),
)


def shape_text(record: TableRecord) -> str | None:
    """Return the text of a record's shape; None if it has no relation yet."""
    if record.columns is None:
        return None
    return json.dumps({name: getattr(record, name) for name in _FIELDS})


def shape_fields(text: str | None) -> dict[str, Any]:
    """Return the fields of a TableRecord that the text holds."""
    if text is None:
        return {"columns": None}
    held = json.loads(text)
    if isinstance(held, list):  # as earlier versions kept it: the columns alone
        held = {"columns": held}
    return {name: _in_tuples(held[name]) for name in _FIELDS if name in held}


def _in_tuples(value: Any) -> Any:
    return tuple(map(_in_tuples, value)) if isinstance(value, list) else value
