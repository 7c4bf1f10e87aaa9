"""Lines of LOAD DATA as INSERT statements, for servers that refuse LOAD DATA LOCAL. Pure.

Lines and literals have the same escapes (`rows.FIELDS`), so whole blocks are turned into values by
replacing what separates them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.sql.read_plan import AS_IS

_NULL = b"_binary'\\N'"  # a quote within a value follows a backslash, this one does not


def insert_statements(
    head: str, templates: Sequence[str], blocks: Iterable[bytes], *, bytes_max: int
) -> Iterator[bytes]:
    """Yield statements of at most this size, unless a single row is larger.

    head: statement up to the word VALUES. templates: SQL computed from each value; see `ReadPlan`.
    blocks: blocks of whole lines.
    """
    began = f"{head} values ".encode()
    room = max(bytes_max - len(began), 1)
    computed = any(template != AS_IS for template in templates)
    for block in blocks:
        rows = _apply_templates(block, templates) if computed else _literals(block)
        yield from _pieces(began, rows, room)


def _pieces(began: bytes, rows: Sequence[bytes], room: int) -> Iterator[bytes]:
    start, size = 0, 0
    for at, row in enumerate(rows):
        if at > start and size + len(row) + 1 > room:
            yield began + b",".join(rows[start:at])
            start, size = at, 0
        size += len(row) + 1
    if start < len(rows):
        yield began + b",".join(rows[start:])


def _escape_quotes(block: bytes) -> bytes:
    return block.replace(b"'", b"\\'")


def _literals(block: bytes) -> list[bytes]:
    text = _escape_quotes(block).replace(b"\t", b"',_binary'").replace(b"\n", b"')\n(_binary'")
    rows = (b"(_binary'" + text).replace(_NULL, b"NULL").split(b"\n")
    return rows[:-1]  # after the last line there is no row


def _apply_templates(block: bytes, templates: Sequence[str]) -> list[bytes]:
    parts = [template.encode() for template in templates]
    return [
        b"(" + b",".join(map(_value, parts, line.split(b"\t"))) + b")"
        for line in _escape_quotes(block).split(b"\n")[:-1]
    ]


def _value(template: bytes, text: bytes) -> bytes:
    raw = b"NULL" if text == b"\\N" else b"_binary'" + text + b"'"
    if template == AS_IS.encode():
        return raw
    converted = b"convert(" + raw + b" using utf8mb4)"
    return template.replace(AS_IS.encode(), converted)
