"""The body of a request as mutations, by table: columns, without an object per row.

A whole request is decoded before any of it is staged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.changefeed import (
    AFTER,
    AFTER_END,
    BEFORE,
    BEFORE_END,
    FIELDS,
    KEY,
    KEY_END,
    LOGICAL,
    NANOS,
    TOPIC,
    TOPIC_END,
    Refused,
    bad_time,
    invalid,
    make_scanner,
    refusal,
)
from penstock.feeds.receiver.targets import Kind, Place, TargetTables
from penstock.model import PenstockError
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.feeds import MUTATIONS, Group, StagedTable, group_name, key_empty

NDJSON_BUFFER_BYTES = 65_536

Rows = npt.NDArray[np.int64]


class PrimaryKeyMissing(PenstockError):
    """A feed with a query does not select a column of the target's primary key."""

    code = "ST09"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Content of a request: mutations, or that everything up to a time has been sent, or nothing.

    partition: the feed that sent it. One with a query is named by its table, because a target
    schema may have several; another one by the schema.
    """

    partition: str
    batches: Mapping[StagedTable, pa.RecordBatch] = field(default_factory=dict)
    resolved: Hlc | None = None


class Decoder:
    """Decoder of bodies. Any thread may use it."""

    def __init__(
        self, tables: TargetTables, *, ndjson_buffer_bytes: int = NDJSON_BUFFER_BYTES
    ) -> None:
        self._tables = tables
        self._line_bytes_max = ndjson_buffer_bytes
        self._scanner = make_scanner()

    def decode(self, place: Place, body: bytes) -> Request:
        """Decode a body. Raises the errors of a feed that was created wrongly or was changed."""
        partition = self._partition(place)
        if place.kind is Kind.RESOLVED:
            return Request(partition=partition, resolved=place.time)
        _check_utf8(body)
        is_file = place.kind in (Kind.LINES, Kind.QUERY_LINES)
        resolved: Hlc | None = None
        try:
            if is_file:
                rows = _rows(self._scanner.scan_lines(body, self._line_bytes_max))
            else:
                strict = place.kind is Kind.BATCH
                data, start, end = self._scanner.scan_batch(body, strict)
                rows = _rows(data)
                resolved = None if start < 0 else _resolved_time(body[start:end])
        except Refused as refused:
            raise refusal(refused, body, is_file=place.kind is not Kind.BATCH) from None
        if resolved is not None:
            return Request(partition=partition, resolved=resolved)
        if not len(rows):
            return Request(partition=partition)
        return Request(partition=partition, batches=self._batches(place, body, rows))

    def _partition(self, place: Place) -> str:
        """Return the name of the feed. Raises TableUnknown."""
        if place.table is None or place.kind is Kind.LINES:
            return group_name(place.group)
        return str(self._tables.find_table(place.group, place.table))

    def _batches(
        self, place: Place, body: bytes, rows: Rows
    ) -> Mapping[StagedTable, pa.RecordBatch]:
        group = place.group
        if place.kind.is_of_query:
            assert place.table is not None
            table = self._tables.find_table(group, place.table)
            batch = _query_batch(table, body, rows, self._tables.key_columns(table))
            return {table: batch} if batch.num_rows else {}
        if place.table is not None:
            table = self._tables.of_topic(group, place.table)
            return {table: _batch(table, body, rows)}
        return {
            table: _batch(table, body, rows if len(chosen) == len(rows) else rows[chosen])
            for table, chosen in self._by_table(group, body, rows).items()
        }

    def _by_table(self, group: Group, body: bytes, rows: Rows) -> dict[StagedTable, list[int]]:
        by_topic: dict[bytes, list[int]] = {}
        topics = zip(rows[:, TOPIC].tolist(), rows[:, TOPIC_END].tolist(), strict=True)
        for index, (start, end) in enumerate(topics):
            topic = body[start:end] if start >= 0 else b""
            chosen = by_topic.get(topic)
            if chosen is None:
                by_topic[topic] = [index]
            else:
                chosen.append(index)
        found: dict[StagedTable, list[int]] = {}
        for topic, chosen in by_topic.items():
            table = self._tables.of_topic(group, _text(topic))
            found.setdefault(table, []).extend(chosen)
        # Two spellings of one table: in the order of the request again, because the last repeat
        # counts.
        return {table: sorted(chosen) for table, chosen in found.items()}


def _check_utf8(body: bytes) -> None:
    if body.isascii():
        return
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(f"byte {error.start} is not UTF-8") from error


def _rows(data: bytes) -> Rows:
    return np.frombuffer(data, np.int64).reshape(-1, FIELDS)


def _text(raw: bytes) -> str:
    """Return a JSON string without its quotes."""
    if b"\\" not in raw:
        return raw.decode()
    try:
        return msgspec.json.decode(b'"' + raw + b'"', type=str)
    except msgspec.DecodeError as error:  # half of a surrogate pair
        raise invalid("a topic that is not a text") from error


def _resolved_time(raw: bytes) -> Hlc:
    time = Hlc.parse(raw.decode())
    if time == ZERO:
        raise bad_time(raw.decode())
    return time


def _cells(body: bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> pa.Array:
    """Return the bytes of each span, null if it begins at -1."""
    missing = starts < 0
    sizes = np.where(missing, 0, ends - starts)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    data = b"".join([body[start:end] for start, end in spans if start >= 0])
    validity = None
    if missing.any():
        validity = pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes())
    return pa.Array.from_buffers(
        pa.binary(),
        len(sizes),
        [validity, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)],
    )


def _as_batch(body: bytes, rows: Rows, keys: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array(rows[:, NANOS]),
            pa.array(rows[:, LOGICAL]),
            keys,
            _cells(body, rows[:, AFTER], rows[:, AFTER_END]),
            _cells(body, rows[:, BEFORE], rows[:, BEFORE_END]),
        ],
        schema=MUTATIONS,
    )


def _batch(table: StagedTable, body: bytes, rows: Rows) -> pa.RecordBatch:
    if (rows[:, KEY] < 0).any():
        raise key_empty(table)
    return _as_batch(body, rows, _cells(body, rows[:, KEY], rows[:, KEY_END]).view(pa.string()))


def _query_batch(
    table: StagedTable, body: bytes, rows: Rows, columns: Sequence[str]
) -> pa.RecordBatch:
    """Return lines of a feed with a query; if they have no key, it is made from the image.

    Lines that have neither image nor key are dropped: such a feed sends them for rows that its
    query does not match.
    """
    rows = rows[(rows[:, AFTER] >= 0) | (rows[:, BEFORE] >= 0) | (rows[:, KEY] >= 0)]
    images = np.where(
        (rows[:, AFTER] >= 0)[:, None],
        rows[:, [AFTER, AFTER_END]],
        rows[:, [BEFORE, BEFORE_END]],
    )
    keys = [
        body[start:end].decode()
        if start >= 0
        else key_of(table, body[image_start:image_end], columns)
        for start, end, (image_start, image_end) in zip(
            rows[:, KEY].tolist(), rows[:, KEY_END].tolist(), images.tolist(), strict=True
        )
    ]
    return _as_batch(body, rows, pa.array(keys, pa.string()))


_Image = dict[str, msgspec.Raw]
_IMAGES = msgspec.json.Decoder(_Image)


def key_of(table: StagedTable, image: bytes, columns: Sequence[str]) -> str:
    """Return the raw JSON of the key's array, from the row's raw JSON. Raises PrimaryKeyMissing."""
    if not columns:
        raise PrimaryKeyMissing(
            f"missing primary key: {table} has none in the target",
            hint=f"Give it one: ALTER TABLE {table.target} ADD PRIMARY KEY (...).",
            table=str(table),
        )
    try:
        row = _IMAGES.decode(image)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid("an image that is too deep, or whose names are no text") from error
    folded: dict[str, msgspec.Raw] = {}
    parts = []
    for column in columns:
        value = row.get(column)
        if value is None:
            folded = folded or {name.lower(): raw for name, raw in row.items()}
            value = folded.get(column.lower())
        if value is None:
            raise PrimaryKeyMissing(
                f"missing primary key: {column}",
                hint=f"Let the feed's query select every column of the key of {table}: "
                f"{', '.join(columns)}.",
                table=str(table),
                column=column,
            )
        parts.append(bytes(value).decode().strip())
    return f"[{','.join(parts)}]"
