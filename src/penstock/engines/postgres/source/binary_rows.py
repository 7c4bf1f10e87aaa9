"""Rows of a chunk from a binary COPY, as Arrow batches with the log's types and texts.

The server describes the columns of the chunk's query. Types whose binary form is decoded are sent
in it; all others are converted to text by the server, with the function that text COPY uses. A cast
to text would not do: it prints boolean, inet and char(n) otherwise, and users can define casts. Not
here: the bytes (`codec/postgres/copy_binary_decode.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import psycopg
import pyarrow as pa

from penstock.codec.lines import Block
from penstock.codec.postgres.copy_binary_decode import make_copy_decoder
from penstock.codec.postgres.copy_binary_outcome import Form, Reason, Stop, broken, find_form
from penstock.engines.postgres.connect import server_errors
from penstock.engines.postgres.source.copy_frames import CopyFrames
from penstock.model import Relation
from penstock.ports.bulk import ShapedRows

_COPY_OUT = re.compile(r"copy \((?P<query>select .*)\) to stdout", re.DOTALL)


def open_batches(
    connection: psycopg.Connection,
    copy_out: str,
    relation: Relation,
    *,
    labels: Collection[int],
    doing: str,
) -> Iterator[ShapedRows] | None:
    """Return the rows of a chunk's COPY, to be read once; None if a column has no such way.

    copy_out: the statement for text. relation: the table in the log, with the columns that the
    statement selects, in order. labels: oids of enums, whose binary form is their label's text.
    doing: names the work in errors. Raises the typed errors of `engines.postgres.connect`.
    """
    match = _COPY_OUT.fullmatch(copy_out)
    if match is None or not relation.columns:
        return None
    query = match["query"]
    with server_errors(doing):
        oids = _describe(connection, query)
    if len(oids) != len(relation.columns):
        return None
    forms: list[Form] = []
    printed: list[bool] = []
    for oid, column in zip(oids, relation.columns, strict=True):
        form = find_form(oid, column.neutral)
        if form is None and column.neutral != "string":
            return None
        forms.append(Form.TEXT if form is None else form)
        printed.append(form is None and oid not in labels)
    return _batches(connection, _copy_binary(query, printed), relation, forms, doing)


def _describe(connection: psycopg.Connection, query: str) -> list[int]:
    """Return the oids of the types of a query's columns; of a domain that of its base type."""
    result = connection.execute(f"select * from ({query}) as q where false").pgresult
    assert result is not None, "a SELECT has a result"
    return [result.ftype(at) for at in range(result.nfields)]


def _copy_binary(query: str, printed: Sequence[bool]) -> str:
    """Return the COPY in binary format. printed: for each column whether the server prints it."""
    names = [f"c{place}" for place in range(len(printed))]
    # Not `is not null`, which is false for a row value with a NULL in it. concat() prints each type
    # with its output function, but NULL as an empty text.
    listed = (
        f"case when {name} is distinct from null then pg_catalog.concat({name}) end"
        if is_printed
        else name
        for name, is_printed in zip(names, printed, strict=True)
    )
    return (
        f"copy (select {', '.join(listed)} from ({query}) as q ({', '.join(names)}))"
        " to stdout (format binary)"
    )


def _batches(
    connection: psycopg.Connection,
    statement: str,
    relation: Relation,
    forms: Sequence[Form],
    doing: str,
) -> Iterator[ShapedRows]:
    decoder = make_copy_decoder(relation, forms)
    ready: list[ShapedRows] = []

    def take() -> None:
        batch: pa.RecordBatch | None = decoder.take()
        if batch is not None:
            ready.append(ShapedRows(decoder.relation, batch))

    def feed(block: Block, start: int, end: int) -> int:
        while True:
            start = decoder.feed(block, start, end)
            if decoder.stop is Stop.MORE:
                return start
            take()
            if decoder.stop is Stop.UNFIT:
                decoder.keep_as_text(decoder.unfit)

    frames = CopyFrames(connection, statement, feed, doing=doing)
    for _ in frames:
        yield from ready
        ready.clear()
    take()
    if not decoder.ended:
        raise broken(Reason.TRUNCATED, decoder.row_count + 1, decoder.relation)
    frames.check(decoder.row_count)
    yield from ready
