from collections.abc import Collection

import pyarrow as pa

from penstock.codec.postgres.pgoutput_outcome import Stop
from penstock.model import Relation, Rows

class Decoder:
    gsn: int
    trx: int
    row_count: int
    byte_count: int
    ignored_count: int
    in_transaction: bool
    commit_position: int
    end_position: int
    commit_time_us: int
    xid: int
    stop: Stop
    message: tuple[int, int]
    widen: tuple[int, int]

    def __init__(
        self,
        *,
        gsn: int = 0,
        trx: int = 0,
        byte_limit: int = ...,
    ) -> None: ...
    def bind(self, source_id: int, relation: Relation) -> None: ...
    def ignore(self, source_id: int) -> None: ...
    def bindings(self) -> dict[int, Relation]: ...
    def unbind_all(self) -> None: ...
    def feed(
        self,
        block: bytes | bytearray | memoryview,
        start: int,
        end: int,
        row_limit: int,
        commit_limit: int | None = None,
    ) -> int: ...
    def replay(
        self,
        block: bytes | bytearray | memoryview,
        start: int,
        end: int,
        row_limit: int,
        dropped: Collection[int],
    ) -> int: ...
    def skip_rows(self, block: bytes | bytearray | memoryview, start: int, end: int) -> int: ...
    def feed_copy(
        self,
        block: bytes | bytearray | memoryview,
        start: int,
        end: int,
        source_id: int,
        row_limit: int = ...,
    ) -> int: ...
    def begin(self, commit_position: int, commit_time_us: int, xid: int) -> None: ...
    def commit(self, end_position: int) -> None: ...
    def note_marker(self) -> tuple[int, int]: ...
    def pass_rows(self, count: int) -> None: ...
    def take(self) -> list[Rows]: ...
    def take_transactions(self) -> pa.RecordBatch | None: ...
