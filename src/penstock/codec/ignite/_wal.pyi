from typing import Any

from penstock.codec.ignite import wal

class Entry(wal.Entry): ...
class Walk(wal.Walk): ...

def find_record(
    data: Any, at: int, number: int, kinds: frozenset[int], name: str
) -> tuple[wal.Record | None, int]: ...
