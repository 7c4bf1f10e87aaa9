"""Check whether a part of the binlog holds our changes, while no extractor reads it.

It looks as a replica, over names only: a row's table, a statement's words. Events that cannot be
read count as ours, so the answer "nothing" is sure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from penstock.codec.mysql import mysqlwire
from penstock.codec.mysql.binlog_events import HEAD_BYTES, EventKind
from penstock.codec.mysql.binlog_position import BINLOG_OFFSET_BITS, BinlogPosition
from penstock.codec.mysql.binlog_query import query_text_start
from penstock.engines.mysql.source.client import DumpOptions, open_binlog, probe_server_id
from penstock.model import TableName

_TABLE_MAP_FIXED = 8  # table id and flags
_CLOSED = frozenset({EventKind.TRANSACTION_PAYLOAD, EventKind.QUERY_COMPRESSED})
_OFFSET_MASK = 2**32 - 1  # an event's end has 32 bits
_OURS_NEVER = (b"BEGIN", b"COMMIT", b"ROLLBACK", b"SAVEPOINT", b"XA ")


def has_changes(
    url: str,
    *,
    start: BinlogPosition,
    until: BinlogPosition,
    takes: Callable[[TableName], bool],
    names: Collection[str],
) -> bool:
    """Return whether rows of captured tables, or statements that may concern them, lie in between.

    start: between two transactions. takes: whether a table is captured. names: of the captured
    tables, without their databases. Raises the errors of a dump: LogPurged if start is gone.
    """
    if start >= until:
        return False
    listed = b"|".join(re.escape(name.encode()) for name in names)
    wanted = re.compile(rb"(?<!\w)(?:%s)(?!\w)" % listed, re.IGNORECASE)
    file, offset, is_first = start, start.offset, True
    options = DumpOptions(server_id=probe_server_id(), is_bounded=True)
    with open_binlog(url, position=start, options=options) as stream:
        for event in stream.events():
            if event is None:
                continue
            head = mysqlwire.event_head(event)
            if head.kind == EventKind.ROTATE and head.is_artificial:
                # One such event opens the stream, and one precedes each further file.
                number = file.number + (not is_first)
                file = BinlogPosition(number << BINLOG_OFFSET_BITS, start.base)
                offset, is_first = int.from_bytes(event[HEAD_BYTES:][:8], "little"), False
                continue
            if head.is_artificial or not head.end_position:
                continue
            if file.number << BINLOG_OFFSET_BITS | offset >= until.ordinal:
                return False
            offset += (head.end_position - offset) & _OFFSET_MASK
            if _concerns(event, head.kind, takes, wanted):
                return True
    return False


def _concerns(
    event: bytes, kind: int, takes: Callable[[TableName], bool], names: re.Pattern[bytes]
) -> bool:
    body = event[HEAD_BYTES:]
    if kind == EventKind.TABLE_MAP:
        at = _TABLE_MAP_FIXED
        schema_end = at + 1 + body[at]
        schema = body[at + 1 : schema_end]
        name_at = schema_end + 1
        name = body[name_at + 1 : name_at + 1 + body[name_at]]
        return takes(TableName(schema.decode(), name.decode()))
    if kind == EventKind.QUERY:
        text = event[query_text_start(event) :]
        return not text.upper().startswith(_OURS_NEVER) and bool(names.search(text))
    return kind in _CLOSED
