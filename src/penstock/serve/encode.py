"""Encoding of a chunk of the log as messages: the same bytes for all clients of a form and tables.

Differences between clients are not in the bytes but listed beside them: where a shape must be
announced unless a client knows it, and where a transaction begins, for a client that has earlier
ones. Blocking and without state: for worker threads.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from penstock.codec.postgres import pgoutput_write as write
from penstock.codec.postgres.pgbinary import Unencodable
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.plugin_text import Transaction
from penstock.codec.types.mapping import NO_CHOICES, Choices
from penstock.codec.types.served import Unservable
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.log.segment import Segment
from penstock.model import Marker, MarkerKind, Relation, TableName
from penstock.model.change import ANY_SLOT, HEARTBEAT_PREFIX, is_global_prefix
from penstock.serve import numbers
from penstock.serve.catalog.publications import Publication, Published, find_published
from penstock.serve.chunks import Chunk, Part, RowsReader, read_part
from penstock.serve.forms import Emptied, Form, Logical, PgOutput
from penstock.serve.hybrid import SegmentTimes
from penstock.serve.tables import TableView, served_relation

_OBJECT_BYTES = 64  # of a small Python object, at most


class Announced(NamedTuple):
    """Shape that must be known from a place in the bytes on, with its message."""

    offset: int
    table: int
    message: bytes


class Unsaid(NamedTuple):
    """State of a transaction that continues in the next part.

    Attributes:
        changes: number of changes so far.
        pieces: parts of a message that is a whole transaction.
        behind: frames that follow the COMMIT.
    """

    changes: int = 0
    pieces: tuple[bytes, ...] = ()
    behind: tuple[bytes, ...] = ()


NOTHING = Unsaid()


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class Block:
    """The bytes of one part of a chunk.

    Attributes:
        data: whole messages.
        cuts: offsets of messages, not far from each other, with 0 and the length.
        offsets: where each transaction begins that has something in it; a message outside of
            transactions is one.
        ends: their ENDs, in the client's numbers.
        shapes: by rising offset.
        position: all up to this LSN of the log's numbers (`numbers.py`) is sent when the block is;
            0 for a part that others follow.
        lsn: the END that is there, in the client's numbers.
        time_us: when the last transaction up to there was committed; 0 where the segment does not
            have it.
        open_trx: the transaction that goes on in the next part; 0 if none does.
        unsaid: what the next part needs of it.
        gsn: number of the last row.
    """

    data: bytes
    cuts: tuple[int, ...]
    offsets: np.ndarray[Any, np.dtype[np.int64]]
    ends: np.ndarray[Any, np.dtype[np.uint64]]
    shapes: tuple[Announced, ...]
    position: int
    lsn: int = 0
    time_us: int = 0
    open_trx: int = 0
    unsaid: Unsaid = NOTHING
    gsn: int = 0

    @property
    def size_bytes(self) -> int:
        """Upper bound of its size in memory."""
        lists = self.offsets.nbytes + self.ends.nbytes + _OBJECT_BYTES * len(self.cuts)
        shapes = sum(len(one.message) + 3 * _OBJECT_BYTES for one in self.shapes)
        kept = (*self.unsaid.pieces, *self.unsaid.behind)
        unsaid = sum(len(one) + _OBJECT_BYTES for one in kept)
        return len(self.data) + lists + shapes + unsaid + 16 * _OBJECT_BYTES

    def start_behind(self, position: int) -> int:
        """Return the offset where the first transaction begins whose END is after an LSN; the
        length if there is none.
        """
        at = int(np.searchsorted(self.ends, np.uint64(position), "right"))
        return int(self.offsets[at]) if at < len(self.offsets) else len(self.data)


_EMPTYING = (MarkerKind.TRUNCATE, MarkerKind.RELOAD)
_XIDS = 1 << 32
_PIECE_BYTES = 1 << 20  # written at once
_WHOLE_BYTES_MAX = 256 << 20  # of one message with a whole transaction
_PGOUTPUT = PgOutput()


class Views:
    """Views of a log's tables for clients of some publications. Used by several threads."""

    def __init__(
        self,
        publications: Sequence[Publication],
        engine: str,
        *,
        form: Form = _PGOUTPUT,
        choices: Choices = NO_CHOICES,
        last_known: Callable[[TableName], Relation | None] = lambda _: None,
        table_oid: Callable[[TableName], int],
    ) -> None:
        """Set the publications.

        Args:
            publications: the publications.
            engine: of the log's source.
            form: the form of all messages.
            choices: for values without an exact type.
            last_known: returns the shape of a table of which a segment has no rows.
            table_oid: returns a table's number for clients, always the same.
        """
        self.publications = tuple(publications)
        self.form = form
        self._engine, self._choices = engine, choices
        self._last_known, self._table_oid = last_known, table_oid
        self._found: dict[Relation, TableView | None] = {}

    def of(self, relation: Relation) -> TableView | None:
        """Return the view of a relation version; None if it is not published. Raises Refused."""
        if relation not in self._found:
            what = self._find_published(relation.schema, relation.name)
            view = None
            if what is not None:
                shape = served_relation(relation, self._engine, self._choices)
                oid = self._table_oid(TableName(relation.schema, relation.name))
                view = TableView(relation, shape.under(oid), what, self.form)
            self._found[relation] = view
        return self._found[relation]

    def find_view(self, name: TableName, segment: Segment, gsn: int) -> TableView | None:
        """Return the view of a table as it is after a row of a segment; None if not published.

        Raises Refused for a published table whose shape is not known.
        """
        if self._find_published(*name) is None:
            return None
        shapes = [
            (since, relation)
            for since, relation in segment.relations()
            if (relation.schema, relation.name) == tuple(name)
        ]
        before = [relation for since, relation in shapes if since <= gsn]
        relation = before[-1] if before else self._last_known(name)
        if relation is None and shapes:
            relation = shapes[0][1]
        if relation is None:
            raise Refused("55000", f"the shape of table {name} is not known yet")
        return self.of(relation)

    def _find_published(self, schema: str, name: str) -> Published | None:
        if not self.form.takes(schema, name):
            return None
        return find_published(self.publications, schema, name)


def encode(
    segment: Segment,
    chunk: Chunk,
    gsn_after: int,
    views: Views,
    *,
    reader: RowsReader,
    open_trx: int = 0,
    unsaid: Unsaid = NOTHING,
    times: SegmentTimes | None = None,
    clock: Clock = REAL_CLOCK,
) -> Block:
    """Encode one part of a chunk.

    Args:
        segment: segment of the chunk.
        chunk: whole transactions.
        gsn_after: the last row of the previous part; for the first part the start of the chunk.
        views: views of the published tables.
        reader: reads rows.
        open_trx: from the block of the previous part.
        unsaid: from the block of the previous part.
        times: the numbers of a form whose LSNs are commit times; None for others.
        clock: for the send time of messages.

    Raises:
        Refused: no message can express it.
        SegmentCorrupt: the segment is damaged.
    """
    out = _Out(views.form, open_trx, unsaid)
    part = read_part(segment, chunk.rows, gsn_after, reader)
    return _Encoding(segment, chunk, gsn_after, part, views, out, times, clock.now_us()).block()


class _Encoding:
    def __init__(
        self,
        segment: Segment,
        chunk: Chunk,
        gsn_before: int,
        part: Part,
        views: Views,
        out: _Out,
        times: SegmentTimes | None,
        now_us: int,
    ) -> None:
        self._segment, self._chunk, self._views, self._now_us = segment, chunk, views, now_us
        self._commit_times = times
        self._form, self._out = views.form, out
        self._gsn_before, self._part = gsn_before, part
        self._later, self._gsns, self._trxs = part.later, part.gsns, part.trxs
        self._markers = self._wanted_markers()
        self._continuing = self._continuing_trx(out.open_trx)
        self._ends: dict[int, int] = {}
        self._load_commits()
        self._encoded: list[_Encoded] = []
        for one in part.rows:
            view = self._views.of(one.relation)
            if view is not None:
                self._encoded += self._encode(view, one.batch)

    def _encode(self, view: TableView, batch: Any) -> list[_Encoded]:
        """Return the published rows of a batch, if there are any. Raises Refused."""
        try:
            batch = view.rows(batch)
            if not batch.num_rows:
                return []
            gsns, trxs = batch.column("gsn").to_numpy(), batch.column("trx").to_numpy()

            def transactions() -> list[Transaction]:
                return [self._transaction(trx) for trx in trxs.tolist()]

            times = self._commit_times
            lsns = times.rows(trxs) if times is not None else numbers.rows_of(gsns, trxs)
            frames = view.encoder(batch, lsns, transactions, self._now_us)
        except Unencodable as error:
            raise Refused("55000", f"{view.relation.full_name}: {error}") from error
        except Unservable as error:
            raise Refused("22000", str(error)) from error
        return [_Encoded(view, gsns, trxs, memoryview(frames.data), frames.ends.tolist())]

    def _wanted_markers(self) -> list[Marker]:
        """Return the markers to send, in order; each follows the row of its gsn."""
        low, high = self._gsn_before, self._part.gsn if self._later else None
        found = [
            self._segment.read_marker(entry)
            for entry in self._chunk.markers
            if entry.gsn_first >= low and (high is None or entry.gsn_first < high)
        ]
        return sorted(filter(self._is_wanted, found), key=lambda marker: marker.gsn)

    def _is_wanted(self, marker: Marker) -> bool:
        if marker.kind is MarkerKind.MESSAGE:
            prefix = marker.data.get("prefix")
            return prefix is not None and self._form.takes_message(str(prefix))
        if marker.kind is MarkerKind.HEARTBEAT:
            return self._form.tells_heartbeats
        return marker.kind in _EMPTYING and bool(self._list_emptied(marker))

    def _list_emptied(self, marker: Marker) -> list[TableView]:
        """Return the tables of a marker for clients, in the shape that they have after it."""
        found = []
        for name in marker.tables:
            view = self._views.find_view(TableName(*name), self._segment, marker.gsn)
            if view is not None and "truncate" in view.actions:
                found.append(view)
        return found

    def _continuing_trx(self, open_trx: int) -> int:
        """Return the transaction of this part that continues in the next one; 0: none."""
        if not self._later:
            return 0
        last = max(int(self._trxs[-1]), open_trx, *(marker.trx for marker in self._markers))
        return last if self._part.trx_next <= last else 0

    def _end(self, trx: int) -> int:
        """Return the END of a transaction that has something in this part."""
        if self._commit_times is not None:
            return self._commit_times.end(trx)
        if trx not in self._ends:
            self._ends[trx] = numbers.end_of(self._gsn_end(trx), trx)
        return self._ends[trx]

    def _gsn_end(self, trx: int) -> int:
        at = int(np.searchsorted(self._trxs, trx, "right"))
        found = int(self._gsns[at - 1]) if at else self._gsn_before
        if trx != self._continuing:
            return found
        for entry in self._later:
            if entry.trx_first > trx:
                continue
            if entry.trx_last <= trx:
                found = max(found, entry.gsn_last)
                continue
            batch = self._segment.read_rows(entry).batch
            within = batch.column("trx").to_numpy() <= trx
            found = max(found, int(batch.column("gsn").to_numpy()[within].max()))
        return found

    def block(self) -> Block:
        """Encode one block of rows; see encode()."""
        out = self._out
        if out.open_trx:
            out.note_begin(self._end(out.open_trx))
        markers = deque(self._markers)
        for gsn, run in self._runs():
            while markers and markers[0].gsn < gsn:
                self._marker(markers.popleft())
            self._run(run)
        while markers:
            self._marker(markers.popleft())
        if out.open_trx != self._continuing:
            self._commit()
        if self._later:
            return replace(out.block(0, 0, 0), gsn=self._part.gsn)
        end, times = self._chunk.end, self._commit_times
        lsn = times.end(end.trx) if times is not None else end.position
        dated = self._segment.transactions
        time_us = 0
        if dated.first <= end.trx <= dated.last:
            time_us = int(dated.list_commits(end.trx, end.trx)[0][0])
        return out.block(end.position, lsn, time_us)

    def _load_commits(self) -> None:
        """Look up the commit times of this part's transactions."""
        seen = [int(self._trxs[0]), int(self._trxs[-1])] if len(self._trxs) else []
        seen += [marker.trx for marker in self._markers]
        seen += [self._out.open_trx] if self._out.open_trx else []
        known = self._segment.transactions
        low = max(min(seen, default=1), known.first)
        high = min(max(seen, default=0), known.last)
        self._first = low
        self._times, self._ids = known.list_commits(low, high)

    def _runs(self) -> Iterator[tuple[int, _Run]]:
        """Yield consecutive rows of one table and transaction, with the first gsn."""
        found = self._encoded
        if not found:
            return
        gsns = np.concatenate([one.gsns for one in found])
        trxs = np.concatenate([one.trxs for one in found])
        which = np.repeat(np.arange(len(found)), [len(one.gsns) for one in found])
        index = np.concatenate([np.arange(len(one.gsns)) for one in found])
        if len(found) > 1:
            order = np.argsort(gsns, kind="stable")
            gsns, trxs, which, index = gsns[order], trxs[order], which[order], index[order]
        cut = (np.diff(trxs) != 0) | (np.diff(which) != 0)
        for marker in self._markers:
            at = int(np.searchsorted(gsns, marker.gsn, "right"))
            if 0 < at < len(gsns):
                cut[at - 1] = True
        starts = np.concatenate(([0], np.flatnonzero(cut) + 1))
        stops = np.append(starts[1:], len(gsns))
        lists = (starts, gsns[starts], trxs[starts], which[starts], index[starts], stops)
        for start, gsn, trx, table, first, stop in zip(
            *(one.tolist() for one in lists), strict=True
        ):
            yield gsn, _Run(trx, found[table], first, first + stop - start)

    def _run(self, run: _Run) -> None:
        self._to(run.trx)
        ends, data = run.of.ends, run.of.data
        begin, end = ends[run.first - 1] if run.first else 0, ends[run.last - 1]
        if self._form.joins:
            for row in range(run.first, run.last):
                body = bytes(data[begin : ends[row]])
                self._change(body, self._row(int(run.of.gsns[row]), run.trx))
                begin = ends[row]
            return
        if self._form.by_publication:
            self._out.announce(run.of.view)
        while end - begin > _PIECE_BYTES:
            at = bisect_right(ends, begin + _PIECE_BYTES)
            stop = ends[max(at - 1, bisect_right(ends, begin))]
            self._out.add(data[begin:stop])
            begin = stop
        self._out.add(data[begin:end])

    def _change(self, body: bytes, position: int) -> None:
        """Add a change as a part of its transaction."""
        is_first = not self._out.count
        self._out.count += 1
        self._say(self._form.change(body, is_first=is_first), position)

    def _say(self, message: bytes | None, position: int) -> None:
        if message is None:
            return
        if not self._form.is_whole:
            self._out.add(write.xlog_data(message, position, self._now_us))
            return
        self._out.keep(message)

    def _to(self, trx: int) -> None:
        """Enter a transaction."""
        out = self._out
        if out.open_trx == trx:
            return
        self._commit()
        out.note_begin(self._end(trx))
        out.open_trx = trx
        # Not above the LSNs of its rows: the first row may have the next one.
        position = numbers.begin_of(self._gsn_before_of(trx), trx)
        if self._commit_times is not None:
            position = self._commit_times.commit(trx)
        self._say(self._form.begin(self._transaction(trx)), position)

    def _transaction(self, trx: int) -> Transaction:
        at = trx - self._first
        source_id = self._ids[at]
        xid = source_id % _XIDS if isinstance(source_id, int) and source_id else trx % _XIDS
        return Transaction(xid, int(self._times[at]), self._end(trx))

    def _gsn_before_of(self, trx: int) -> int:
        at = int(np.searchsorted(self._trxs, trx, "left"))
        return int(self._gsns[at - 1]) if at else self._gsn_before

    def _commit(self) -> None:
        out = self._out
        if not out.open_trx:
            return
        end = self._end(out.open_trx)
        # At its END: clients acknowledge that, and then need not get it again.
        self._say(self._form.commit(self._transaction(out.open_trx)), end)
        if self._form.is_whole:
            out.add(write.xlog_data(out.take_kept(), end, self._now_us))
        out.end_transaction()

    def _row(self, gsn: int, trx: int) -> int:
        """Return the LSN of a row, or of a marker that follows it."""
        if self._commit_times is not None:
            return self._commit_times.commit(trx)
        return numbers.row_of(gsn, trx)

    def _marker(self, marker: Marker) -> None:
        position = self._row(marker.gsn, marker.trx)
        if marker.kind is MarkerKind.HEARTBEAT:
            marker = _as_message(marker)
        if marker.kind is MarkerKind.MESSAGE:
            self._message(marker, position)
            return
        emptied = self._list_emptied(marker)
        self._to(marker.trx)
        if self._form.by_publication:
            for view in emptied:
                self._out.announce(view)
        what = Emptied(
            relations=[view.relation for view in emptied],
            position=position,
            transaction=self._transaction(marker.trx),
            cascade=bool(marker.data.get("cascade")),
            restart_identity=bool(marker.data.get("restart_identity")),
        )
        for message in self._form.encode_emptied(what):
            self._out.add(write.xlog_data(message, position, self._now_us))

    def _message(self, marker: Marker, position: int) -> None:
        prefix = str(marker.data["prefix"])
        # The name of a global transaction is in it, even if the source has an XA id instead.
        transactional = bool(marker.data.get("transactional", is_global_prefix(prefix)))
        if not transactional:
            position = self._end(marker.trx)
        what = Logical(
            prefix=prefix,
            content=_content(marker.data),
            position=position,
            transaction=self._transaction(marker.trx) if transactional else None,
        )
        message = self._form.logical(what)
        if not transactional:
            self._outside(write.xlog_data(message, position, self._now_us), marker.trx, position)
            return
        self._to(marker.trx)
        if self._form.joins:
            self._change(message, position)
        else:
            self._say(message, position)

    def _outside(self, frame: bytes, trx: int, end: int) -> None:
        """Add a message at a transaction's END, whether or not the transaction has more."""
        if self._out.open_trx == trx:
            self._out.behind.append(frame)
            return
        self._commit()
        self._out.note_begin(end)
        self._out.add(frame)


class _Encoded(NamedTuple):
    """Rows of a batch as frames; `ends` is the end of each in data."""

    view: TableView
    gsns: Any
    trxs: Any
    data: memoryview
    ends: list[int]


class _Run(NamedTuple):
    """Rows first to last - 1 of an encoded batch, in a transaction."""

    trx: int
    of: _Encoded
    first: int
    last: int


class _Out:
    """Growing bytes, and the lists beside them."""

    def __init__(self, form: Form, open_trx: int, unsaid: Unsaid) -> None:
        self._form = form
        self.open_trx, self.count = open_trx, unsaid.changes
        self._kept = list(unsaid.pieces)
        self._kept_bytes = sum(map(len, self._kept))
        self._pieces: list[bytes | memoryview] = []
        self._size = 0
        self._known: dict[int, bytes] = {}
        self._views: dict[int, TableView] = {}
        self._shapes: list[Announced] = []
        self._offsets: list[int] = []
        self._ends: list[int] = []
        self.behind = list(unsaid.behind)
        self._cuts = [0]

    def add(self, piece: bytes | memoryview) -> None:
        """Append whole messages."""
        if self._size - self._cuts[-1] >= _PIECE_BYTES:
            self._cuts.append(self._size)
        self._pieces.append(piece)
        self._size += len(piece)

    def keep(self, piece: bytes) -> None:
        """Keep a piece of a message that is a whole transaction. Raises Refused."""
        self._kept.append(piece)
        self._kept_bytes += len(piece)
        if self._kept_bytes > _WHOLE_BYTES_MAX:
            raise Refused(
                "54000",
                f"a transaction is more than {_WHOLE_BYTES_MAX >> 20} MiB in one message",
                hint="Start with write-in-chunks, or with format-version 2.",
            )

    def take_kept(self) -> bytes:
        """Return the pieces of a message that were kept, as one, and forget them."""
        found = b"".join(self._kept)
        self._kept, self._kept_bytes = [], 0
        return found

    def end_transaction(self) -> None:
        """Add the frames after the COMMIT, which was added."""
        self.open_trx, self.count = 0, 0
        for frame in self.behind:
            self.add(frame)
        self.behind.clear()

    def note_begin(self, end: int) -> None:
        """Note that a transaction with this END begins here."""
        self._offsets.append(self._size)
        self._ends.append(end)

    def announce(self, view: TableView) -> None:
        """Note that the next rows have this shape."""
        table = view.relation.source_id
        if self._views.get(table) is view:
            return
        self._views[table] = view
        message = self._form.relation(view.relation)
        if self._known.get(table) != message:
            self._known[table] = message
            self._shapes.append(Announced(self._size, table, message))

    def block(self, position: int, lsn: int, time_us: int) -> Block:
        """Return everything as a Block."""
        return Block(
            data=b"".join(self._pieces),
            cuts=(*self._cuts, self._size),
            offsets=np.array(self._offsets, np.int64),
            ends=np.array(self._ends, np.uint64),
            shapes=tuple(self._shapes),
            position=position,
            lsn=lsn,
            time_us=time_us,
            open_trx=self.open_trx,
            unsaid=Unsaid(self.count, tuple(self._kept), tuple(self.behind)),
        )


def _as_message(marker: Marker) -> Marker:
    """Return a heartbeat as a PostgreSQL's message, for followers."""
    content = f"{ANY_SLOT} {marker.data.get('sent_us', 0)}"
    data = {"prefix": HEARTBEAT_PREFIX, "content": content, "transactional": True}
    return replace(marker, kind=MarkerKind.MESSAGE, data=data)


def _content(data: dict[str, Any]) -> bytes:
    """Return the bytes of a logical message, as the log keeps them."""
    if "content_base64" in data:
        return base64.b64decode(data["content_base64"])
    return str(data.get("content", "")).encode()
