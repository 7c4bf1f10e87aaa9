"""Images and checksums of rows that penstock computes itself: for lakes and for SQL Server.

They equal those that servers compute: the text of a value by its kind (`codec.types.mapping.Kind`),
as PostgreSQL prints it, rows of Arrow as images, and images as SHA-256 numbers. Pure. Not here: the
queries (`ports.verify.Dialect` of the engines).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import cast_exactly
from penstock.codec.types.mapping import Kind

_NULL = "N"

Hashes = npt.NDArray[np.int64]
"""Rows as numbers, shape (rows, 4), as in `ports.verify`."""


# -- texts of values -------------------------------------------------------------------------------


def text_of(column: pa.Array, kind: Kind) -> pa.Array:
    """Return the texts of a column's values by which they are compared; NULL for NULL."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return _PRINTERS.get(kind, _print_plain)(column)


def _print_plain(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_boolean(kind):
        return _print_boolean(column)
    if pa.types.is_timestamp(kind):
        return _print_timestamp(column)
    if pa.types.is_floating(kind):
        return _print_float(column)
    if pa.types.is_decimal(kind):
        return _print_decimal(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _print_bytes(column)
    return pc.cast(column, pa.string())


def _print_boolean(column: pa.Array) -> pa.Array:
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.int8())
    return pc.cast(column, pa.string())


def _print_decimal(column: pa.Array) -> pa.Array:
    if not pa.types.is_decimal(column.type):
        return pc.cast(column, pa.string())
    text = pc.cast(column, pa.string())
    if not pc.any(pc.match_substring(text, "E")).as_py():
        return text
    printed = [None if one is None else f"{one:f}" for one in column.to_pylist()]
    return pa.array(printed, pa.string())


def _print_number(column: pa.Array) -> pa.Array:
    text = _print_decimal(column)
    short = pc.replace_substring_regex(text, r"\.?0+$", "")
    return pc.if_else(pc.match_substring(text, "."), short, text)


def _print_float(column: pa.Array) -> pa.Array:
    """Print 53 bits and an exponent of two: independent of how a server prints digits."""
    if not pa.types.is_floating(column.type):
        return pc.cast(column, pa.string())
    values = np.asarray(cast_exactly(pc.fill_null(column, 0.0), pa.float64()).to_numpy(False))
    is_finite = np.isfinite(values)
    finite_values = np.where(is_finite, values, 0.0)
    exponents = np.frexp(finite_values)[1] - 1
    mantissas = np.ldexp(finite_values, 52 - exponents).astype(np.int64)
    texts = [
        "0" if value == 0 else f"{mantissa}e{exponent}" if finite else _name_special(value)
        for value, mantissa, exponent, finite in zip(
            values.tolist(), mantissas.tolist(), exponents.tolist(), is_finite.tolist(), strict=True
        )
    ]
    return pa.array(texts, pa.string(), mask=np.asarray(pc.is_null(column).to_numpy(False)))


def _name_special(value: float) -> str:
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _print_padded(column: pa.Array) -> pa.Array:
    return pc.utf8_rtrim(column, characters=" ")


def _print_bytes(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column
    return pa.array([None if one is None else one.hex() for one in column.to_pylist()], pa.string())


def _print_raw_text(column: pa.Array) -> pa.Array:
    return _print_bytes(pc.cast(column, pa.binary()))


def _print_geometry(column: pa.Array) -> pa.Array:
    """Print MySQL's form: the SRID in front of WKB that lacks it."""
    texts = [None if one is None else _mysql_geometry(one) for one in column.to_pylist()]
    return pa.array(texts, pa.string())


def _mysql_geometry(text: str) -> str:
    raw = bytes.fromhex(text)
    if raw[4] & 0x20:
        raw = raw[5:9] + raw[:4] + b"\0" + raw[9:]
    else:
        raw = bytes(4) + raw
    return raw.hex()


def _print_date(column: pa.Array) -> pa.Array:
    if not pa.types.is_date(column.type):
        return pc.cast(column, pa.string())
    return pc.cast(pc.cast(column, pa.date32()), pa.string())


def _print_timestamp(column: pa.Array) -> pa.Array:
    if not pa.types.is_timestamp(column.type):
        return pc.cast(column, pa.string())
    text = pc.cast(pc.cast(column, pa.timestamp("us")), pa.string())
    return pc.replace_substring_regex(text, r"\.?0+$", "")


_PRINTERS: Mapping[Kind, Callable[[pa.Array], pa.Array]] = {
    Kind.BOOLEAN: _print_boolean,
    Kind.DECIMAL: _print_decimal,
    Kind.NUMBER: _print_number,
    Kind.FLOAT: _print_float,
    Kind.PADDED: _print_padded,
    Kind.BYTES: _print_bytes,
    Kind.RAW_TEXT: _print_raw_text,
    Kind.GEOMETRY: _print_geometry,
    Kind.DATE: _print_date,
    Kind.TIMESTAMP: _print_timestamp,
    Kind.TIMESTAMPTZ: _print_timestamp,
}

# -- images of rows --------------------------------------------------------------------------------

Cells = Sequence[Sequence[Any]]
"""Cells of an image as its JSON has them."""


def join_cells(rows: pa.RecordBatch, cells: Cells) -> pa.Array:
    """Return the image of each row."""
    marked = [_mark(rows.column(name), Kind[kind], *flags) for name, kind, *flags in cells]
    if len(marked) == 1:
        return marked[0]
    return pc.binary_join_element_wise(*marked, "|")


def _mark(column: pa.Array, kind: Kind, is_any: bool, has_digest: bool, is_bytes: bool) -> pa.Array:
    """Return a column's part of the images."""
    if has_digest and is_bytes:
        raw = pc.cast(column, pa.binary()).to_pylist()
        text = _digest(raw)
    elif has_digest:
        text = _digest(pc.cast(text_of(column, kind), pa.binary()).to_pylist())
    else:
        text = text_of(column, kind)
        if is_any:
            length = pc.cast(pc.utf8_length(text), pa.string())
            text = pc.binary_join_element_wise(length, text, ":")
    return pc.fill_null(text, _NULL)


def _digest(values: list[bytes | None]) -> pa.Array:
    return pa.array([None if v is None else sha256(v).hexdigest() for v in values], pa.string())


def name_rows(rows: pa.RecordBatch, cells: Cells) -> list[str]:
    """Return the text of each row's key for people."""
    texts = [pc.fill_null(text_of(rows.column(name), Kind[kind]), "") for name, kind, *_ in cells]
    joined = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, ",")
    return [f"({one})" for one in joined.to_pylist()]


def hash_images(images: pa.Array) -> npt.NDArray[np.int64]:
    """Return two signed numbers of 64 bits of each image, shape (rows, 2)."""
    digests = b"".join(
        sha256(one).digest()[:16] for one in pc.cast(images, pa.binary()).to_pylist()
    )
    return np.frombuffer(digests, dtype=">i8").astype(np.int64).reshape(-1, 2)


def hash_rows(rows: pa.RecordBatch, key: Cells, row: Cells) -> Hashes:
    """Return the four hashes of each row."""
    keys = hash_images(join_cells(rows, key))
    whole = keys if key == row else hash_images(join_cells(rows, row))
    return np.concatenate([keys, whole], axis=1)


def hash_batches(batches: Iterable[pa.RecordBatch], key: Cells, row: Cells) -> Hashes:
    """Return the four hashes of each row of some batches."""
    found = [hash_rows(rows, key, row) for rows in batches if rows.num_rows]
    return np.concatenate(found) if found else np.empty((0, 4), dtype=np.int64)


def take_buckets(hashes: Hashes, buckets: int, numbers: Sequence[int]) -> Hashes:
    """Return the hashes of some buckets, ordered by the first number of the key."""
    chosen = hashes[np.isin(hashes[:, 0] & (buckets - 1), np.array(numbers, dtype=np.int64))]
    return chosen[np.argsort(chosen[:, 0], kind="stable")]


def name_chosen(
    batches: Iterable[pa.RecordBatch], key: Cells, numbers: Sequence[int], characters_max: int
) -> Iterator[tuple[int, int, str]]:
    """Yield both numbers of the key and the key's text, of rows whose first number is chosen."""
    wanted = np.array(numbers, dtype=np.int64)
    for rows in batches:
        keys = hash_images(join_cells(rows, key))
        chosen = np.flatnonzero(np.isin(keys[:, 0], wanted))
        names = name_rows(rows.take(pa.array(chosen)), key)
        for (one, two), name in zip(keys[chosen].tolist(), names, strict=True):
            yield one, two, name[:characters_max]


def add_up(hashes: Hashes, buckets: int) -> list[tuple[int, int, int, int]]:
    """Return bucket, rows and sum of the rows' first hashes, as a server's query does."""
    if not len(hashes):
        return []
    place = hashes[:, 0] & (buckets - 1)
    order = np.argsort(place, kind="stable")
    place, values = place[order], hashes[order, 2]
    starts = np.concatenate([[0], np.flatnonzero(np.diff(place)) + 1])
    counts = np.diff(np.concatenate([starts, [len(place)]]))
    # Two parts of each number, because a sum of numbers of 64 bits has more than 64.
    high = np.add.reduceat(values >> 32, starts)
    low = np.add.reduceat(values & 0xFFFFFFFF, starts)
    return [
        (bucket, count, (above << 32) + below, 0)
        for bucket, count, above, below in zip(
            place[starts].tolist(), counts.tolist(), high.tolist(), low.tolist(), strict=True
        )
    ]


def is_chosen(rows: pa.RecordBatch, chosen: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """Return for each row whether the choice of `chosen_rows` has it. rows: with the key's cells.

    chosen: parsed.
    """
    hashes = hash_images(join_cells(rows, chosen["key"]))[:, 0]
    if chosen["buckets"]:
        hashes = hashes & (chosen["buckets"] - 1)
    return np.isin(hashes, np.array(chosen["numbers"], dtype=np.int64))
