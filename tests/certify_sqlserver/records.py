"""Records in the format of the recorded facts (`tests/data/sqlserver_cdc_samples.jsonl`)."""

from __future__ import annotations

from collections.abc import Sequence

from certify.records import Row, tag_row
from penstock.codec.sqlserver.lsn import SqlServerLsn

KINDS = {1: "change", 2: "change", 3: "before_image", 4: "change"}


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
