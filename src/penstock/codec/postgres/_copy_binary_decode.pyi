from collections.abc import Sequence

import pyarrow as pa

from penstock.codec.lines import Block
from penstock.codec.postgres.copy_binary_outcome import Form, Stop
from penstock.model import Relation

class CopyDecoder:
    relation: Relation
    stop: Stop
    unfit: int
    row_count: int
    buffered: int
    byte_count: int
    ended: bool
    def __init__(
        self, relation: Relation, forms: Sequence[Form], *, row_limit: int, byte_limit: int
    ) -> None: ...
    def feed(self, block: Block, start: int, end: int) -> int: ...
    def take(self) -> pa.RecordBatch | None: ...
    def keep_as_text(self, column: int) -> None: ...
