"""Feed a binlog decoder as its caller does, and check its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.twins.binlog import MANY
from harness.twins.binlog_events import WRITE, Table, image, rows_body
from penstock.codec.columns import batch_schema
from penstock.codec.mysql.binlog import BinlogBroken, Decoder, Stop
from penstock.codec.mysql.binlog_events import EventKind
from penstock.codec.mysql.binlog_tables import relation_of, table_map
from penstock.model import Relation

TWO = Table(kinds=("int", "varchar(60)"), name="two", table_id=70)
KEYLESS = Table(kinds=("int", "varchar(60)"), name="keyless", table_id=71, key=())


def number(value: int) -> bytes:
    """Return the value of an int column."""
    return value.to_bytes(4, "little", signed=True)


def row(table: Table, *values: Any, present: list[int] | None = None) -> bytes:
    """Return an image: numbers for int columns, text for the others."""
    cells = [
        number(value) if isinstance(value, int) else None if value is None else value.encode()
        for value in values
    ]
    return image(table, cells, present)


def inserts(table: Table, *rows: bytes, **more: Any) -> tuple[int, bytes]:
    """Return kind and body of a WRITE_ROWS event."""
    return WRITE, rows_body(table, WRITE, b"".join(rows), **more)


def bind(decoder: Decoder) -> Relation | None:
    """Bind the table whose TABLE_MAP made the decoder stop."""
    table = table_map(decoder.message[19:], is_mariadb=decoder.is_mariadb)
    relation = relation_of(table, is_mariadb=decoder.is_mariadb)
    decoder.bind(table, relation)
    return relation


def feed(decoder: Decoder, block: bytes, limit: int = MANY, commit_limit: int | None = None) -> int:
    """Feed a block, binding every table; returns the offset of the first other stop."""
    at = 0
    while True:
        at = decoder.feed(block, at, len(block), limit, commit_limit)
        if decoder.stop is not Stop.MESSAGE or decoder.message[4] not in (4, 15, 19):
            return at
        if decoder.message[4] == EventKind.TABLE_MAP:
            bind(decoder)


def rows_of(decoder: Decoder) -> list[dict[str, Any]]:
    """Take everything as dicts, all relations together in order of GSN."""
    taken = decoder.take()
    for rows in taken:
        rows.batch.validate(full=True)
        assert rows.batch.schema.equals(batch_schema(rows.relation))
    return sorted((row for rows in taken for row in rows.batch.to_pylist()), key=lambda r: r["gsn"])


def after(decoder: Decoder) -> list[Any]:
    """Return the after images that can be taken, as tuples."""
    return [one["after"] and tuple(one["after"].values()) for one in rows_of(decoder)]


def catch_refusal(call: Callable[[], Any]) -> str:
    """Return the reason with which a call fails."""
    with pytest.raises(BinlogBroken) as caught:
        call()
    assert caught.value.code == "DC60"
    assert str(caught.value.offset) in caught.value.message
    return str(caught.value.fields["reason"])
