"""Records in the form of the recorded facts of `tests/data`: JSON, one on each line."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def tag(value: Any) -> Any:
    """Return a value as JSON has it; values without a form there get a tag."""
    if isinstance(value, bytes | bytearray):
        return {"$hex": bytes(value).hex()}
    if isinstance(value, Decimal):
        return {"$num": str(value)}
    if isinstance(value, datetime.datetime):
        return {"$ts": value.isoformat()}
    if isinstance(value, datetime.date):
        return {"$date": value.isoformat()}
    if isinstance(value, datetime.time):
        return {"$time": value.isoformat()}
    if isinstance(value, uuid.UUID):
        return {"$uuid": str(value)}
    return value


def tag_row(row: Mapping[str, Any]) -> Row:
    """Return a row with tagged values."""
    return {name: tag(value) for name, value in row.items()}


def write_records(path: Path, records: Sequence[Row]) -> None:
    """Write records, one on each line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records)
    path.write_text(text, encoding="utf-8")
