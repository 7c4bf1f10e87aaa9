"""Records in the format of the recorded facts (`tests/data/sqlserver_cdc_samples.jsonl`)."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock.codec.sqlserver.lsn import SqlServerLsn

KINDS = {1: "change", 2: "change", 3: "before_image", 4: "change"}
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


def has_bit(mask: bytes, ordinal: int) -> bool:
    """Return whether an update mask has the bit of a column; ordinals begin with 1."""
    return bool(mask[-1 - (ordinal - 1) // 8] >> (ordinal - 1) % 8 & 1)


def changed_columns(row: Row, columns: Sequence[str]) -> list[str]:
    """Return the columns whose bits a row's update mask has. columns: by ordinal."""
    mask = row["__$update_mask"]
    return [name for at, name in enumerate(columns) if has_bit(mask, at + 1)]


def row_record(case: str, seq: int, instance: str, row: Row, columns: Sequence[str]) -> Row:
    """Return the record of a change row."""
    lsn = SqlServerLsn.parse("0x" + row["__$start_lsn"].hex())
    operation = int(row["__$operation"])
    expect: Row = {
        "kind": KINDS.get(operation, "unknown"),
        "position": ":".join(
            (
                row["__$start_lsn"].hex(),
                str(row.get("__$command_id")),
                row["__$seqval"].hex(),
                str(operation),
            )
        ),
        "lsn_text": str(lsn),
    }
    if operation in (3, 4):
        expect["changed_columns"] = changed_columns(row, columns)
    head = {"record": "row", "case": case, "seq": seq, "capture_instance": instance}
    return {**head, **tag_row(row), "expect": expect}


def write_records(path: Path, records: Sequence[Row]) -> None:
    """Write records, one on each line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records)
    path.write_text(text, encoding="utf-8")
