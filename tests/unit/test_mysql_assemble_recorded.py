"""Binlog files of real servers in the assembler: XA, savepoints, images, statements, types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.twins.binlog import (
    DATA,
    DECODERS,
    Recorded,
    Replica,
    as_packets,
    assert_same_value,
    recorded_files,
    recorded_tables,
)
from penstock.codec.mysql.binlog import Stop
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.gtids import GtidSet, MariaGtids
from penstock.codec.mysql.types import neutral_type
from penstock.engines.mysql.connect import ServerVersion
from penstock.engines.mysql.source.assemble import Assembler, Limits, StreamMark
from penstock.engines.mysql.source.definitions import source_id_of
from penstock.engines.mysql.source.prepared import PreparedFiles
from penstock.engines.mysql.source.schema_history import SchemaHistory
from penstock.host.files import REAL_FILES
from penstock.model import (
    ColumnDefinition,
    FlushPoint,
    Identity,
    MarkerKind,
    Run,
    TableDefinition,
    TableName,
)

NAMES = sorted({path.name.removesuffix(".jsonl.xz") for path in DATA.glob("*.jsonl.xz")})
LEFT_OUT = ("gone", "went")  # tables whose renames, of them or of a column, stop the extraction


class Catalogue:
    """The server's catalogue at the end, which was valid all the time."""

    def __init__(self, tables: dict[str, Recorded]) -> None:
        self.tables = tables

    def read(self, name: TableName) -> TableDefinition | None:
        """Return a table's definition."""
        said = self.tables.get(name.name)
        return definition(name, said) if said is not None else None

    def read_at(self, name: TableName, _: BinlogPosition) -> TableDefinition | None:
        """Return the same definition."""
        return self.read(name)


def definition(name: TableName, said: Recorded) -> TableDefinition:
    """Return a definition from what the server printed about the table."""
    columns = tuple(
        ColumnDefinition(
            name=one["name"],
            type_text=one["type"],
            type_oid=0,
            typmod=-1,
            not_null=one["nullable"] == "NO",
            base_type=one["type"],
            neutral=neutral_type(one["type"]),
            charset=one["charset"],
        )
        for one in said.columns
    )
    names = [one["name"] for one in said.columns if one["key"] == "PRI"]
    key = tuple({"twokey": ("b", "a")}.get(name.name, names))
    return TableDefinition(
        name=name,
        source_id=source_id_of(name),
        columns=columns,
        primary_key=key,
        identity=Identity.DEFAULT if key else Identity.FULL,
        identity_columns=key or tuple(one.name for one in columns),
    )


def take(replica: Replica, run: Run) -> None:
    """Apply a run's rows in order."""
    rows = [(one.relation, row) for one in run.rows for row in one.batch.to_pylist()]
    for relation, row in sorted(rows, key=lambda one: one[1]["gsn"]):
        replica.apply(relation, row)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_logs_make_the_tables_that_the_server_has(name: str, tmp_path: Path) -> None:
    """Tables are captured from their CREATE on; XA's rows count from its COMMIT."""
    tables = recorded_tables(name)
    decoder = DECODERS.get("kernel", DECODERS["twin"])()
    replica = Replica(decoder, tables)
    runs: list[Run] = []
    marks: list[StreamMark] = []

    def put(run: Run, _: int, mark: StreamMark | None) -> None:
        runs.append(run)
        take(replica, run)
        if mark is not None:
            marks.append(mark)

    files = recorded_files(name)
    is_mariadb = b"MariaDB" in files[0][1][:200]
    prepared = PreparedFiles(tmp_path, REAL_FILES, ())
    assembler = Assembler(
        decoder=decoder,
        server=ServerVersion.parse("10.11.19-MariaDB" if is_mariadb else "8.0.40"),
        book=SchemaHistory(
            Catalogue(tables),
            None,
            tables=[],
            begin=4,
            takes=lambda one: one.schema == "rec" and one.name not in LEFT_OUT,
        ),
        prepared=prepared,
        start=FlushPoint(position=4),
        shift=0,
        gtids=MariaGtids() if is_mariadb else GtidSet(),
        emit=put,
        on_idle=lambda _, mark: marks.append(mark),
        on_other=lambda payload: pytest.fail(repr(payload)),
        limits=Limits(row_count=50),
    )
    for file_name, data in files:
        feed_all(assembler, as_packets(file_name, data))
    assembler.cut_when_whole()
    assert decoder.stop is Stop.MORE
    assert prepared.held == ()
    truncated = [m for run in runs for m in run.markers if m.kind is MarkerKind.TRUNCATE]
    assert not truncated
    assert [mark.position for mark in marks] == sorted(mark.position for mark in marks)
    for table, said in tables.items():
        if table not in LEFT_OUT:
            assert_holds(replica, table, said)


def feed_all(assembler: Assembler, data: bytes, block_bytes: int = 100_000) -> None:
    """Feed all bytes in blocks, as a socket returns them."""
    at, end = 0, min(block_bytes, len(data))
    while True:
        at = assembler.feed(memoryview(data), at, end)
        if end == len(data):
            break
        end = min(end + block_bytes, len(data))
    assert at == len(data)


def assert_holds(replica: Replica, table: str, said: Recorded) -> None:
    """Check that the table has the recorded rows, each once."""
    left: list[Any] = list(said.rows)
    content = replica.contents.get(table, [])
    assert len(content) == len(left), table
    for relation, row in content:
        place = next((n for n, one in enumerate(left) if is_same(relation, row, said, one)), None)
        assert place is not None, (table, row)
        del left[place]


def is_same(relation: Any, row: Any, said: Recorded, expected: list[str | None]) -> bool:
    """Return whether a row is the recorded one."""
    try:
        for index, text in enumerate(expected):
            assert_same_value(relation, index, row[said.columns[index]["name"]], text)
    except AssertionError:
        return False
    return True
