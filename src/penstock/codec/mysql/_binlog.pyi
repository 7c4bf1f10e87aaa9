from collections.abc import Sequence

import pyarrow as pa

from penstock.codec.mysql.binlog_outcome import Stop
from penstock.codec.mysql.binlog_tables import TableMap
from penstock.model import Relation, Rows

class Decoder:
    gsn: int
    trx: int
    row_count: int
    byte_count: int
    heartbeat_count: int
    in_transaction: bool
    commit_position: int
    end_position: int
    commit_time_us: int
    xid: int
    gtid: str
    file_name: str
    file_number: int
    offset: int
    server_version: str
    is_mariadb: bool
    stop: Stop
    message: bytes
    widen: tuple[int, int]

    def __init__(
        self,
        *,
        gsn: int = 0,
        trx: int = 0,
        byte_limit: int = ...,
        statements: bool = False,
        partial_inserts: bool = False,
    ) -> None: ...
    def reset(self) -> None: ...
    def bind(
        self,
        table: TableMap,
        relation: Relation | None,
        charsets: Sequence[str | None] = (),
    ) -> None: ...
    def bindings(self) -> dict[int, Relation | None]: ...
    def table(self, table_id: int) -> TableMap: ...
    def unbind_all(self) -> None: ...
    def feed(
        self,
        block: bytes | bytearray | memoryview,
        start: int,
        end: int,
        row_limit: int,
        commit_limit: int | None = None,
    ) -> int: ...
    def feed_file(
        self,
        block: bytes | bytearray | memoryview,
        start: int,
        end: int,
        row_limit: int,
        commit_limit: int | None = None,
    ) -> int: ...
    def start_file(self, name: str) -> None: ...
    def park(
        self, block: bytes | bytearray | memoryview, start: int, end: int, byte_limit: int
    ) -> int: ...
    def take_parked(self) -> bytes: ...
    def replay(
        self, block: bytes | bytearray | memoryview, start: int, end: int, row_limit: int
    ) -> int: ...
    def abandon(self) -> bool: ...
    def note_marker(self) -> tuple[int, int]: ...
    def skip(self, row_count: int, trx_count: int) -> None: ...
    def take(self) -> list[Rows]: ...
    def take_gtids(self) -> list[str]: ...
    def take_transactions(self) -> pa.RecordBatch | None: ...
