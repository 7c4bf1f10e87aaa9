from collections.abc import Sequence

from penstock.codec.mysql.mysqltext import Block
from penstock.codec.postgres.copytext import LineCell

class LoadLines:
    row_count: int
    def __init__(self, cells: Sequence[LineCell]) -> None: ...
    def feed(self, block: Block, start: int, end: int) -> int: ...
    def take(self) -> bytes: ...
