"""A value is the same by every path: streamed, copied, as text, and as the server prints it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest

from harness.servers.peek import capturing, frames
from harness.servers.postgres_types import EXTENSION_VALUES, SETUP, VALUES, has_xml, values_for
from harness.twins.pgoutput import DECODERS
from penstock.codec.postgres.pgoutput import Decoder, Stop
from penstock.codec.postgres.pgoutput_messages import relation_message
from penstock.engines.postgres.connect import literal
from penstock.engines.postgres.source.catalog import RelationResolver, captured_tables, open_catalog
from penstock.engines.postgres.source.snapshot import copy_sql, plan_chunks
from penstock.model import Relation

# Results that the server computes for a value, to compare with its Arrow form.
COMPUTED = {
    "date": "v - date '1970-01-01'",
    "time": "(extract(epoch from v) * 1000000)::bigint",
    "timestamp": "(extract(epoch from v) * 1000000)::bigint",
    "timestamptz": "(extract(epoch from v) * 1000000)::bigint",
}


def _decode(
    make: type[Decoder], resolver: RelationResolver, relation: Relation, block: bytes, *, copy: bool
) -> tuple[Relation, pa.Array]:
    """Return all values under the version that holds them, after columns were widened if needed."""
    while True:
        decoder = make()
        decoder.bind(relation.source_id, relation)
        if copy:
            decoder.begin(1, 1, 1)
            at = decoder.feed_copy(block, 0, len(block), relation.source_id)
        else:
            at = decoder.feed(block, 0, len(block), 2**31 - 1)
        if decoder.stop is not Stop.WIDEN:
            assert (decoder.stop, at) == (Stop.MORE, len(block))
            (rows,) = decoder.take()
            return relation, rows.batch["after"].field("v")
        relation = resolver.widen(relation, decoder.widen[1])


def _bits(values: pa.Array) -> list[Any]:
    """Return values as they are in memory: NaN equals NaN and -0 differs from 0."""
    width = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(values.type)
    if values.type in (pa.date32(), pa.time64("us")) or pa.types.is_timestamp(values.type):
        width = pa.int32() if values.type == pa.date32() else pa.int64()
    if width is not None:
        values = pa.Array.from_buffers(width, len(values), values.buffers(), values.null_count)
    result: list[Any] = values.to_pylist()
    return result


def _compute_bits(neutral: str, printed: list[str | None], computed: list[Any]) -> list[Any]:
    """Return what `_bits` must be for the text that the server prints."""
    if neutral in COMPUTED:
        return computed

    def one(text: str) -> Any:
        if neutral == "bool":
            return text == "t"
        if neutral == "float32":
            return struct.unpack("<i", struct.pack("<f", float(text)))[0]
        if neutral == "float64":
            return struct.unpack("<q", struct.pack("<d", float(text)))[0]
        if neutral.startswith("decimal("):
            return Decimal(text)
        if neutral == "uuid":
            return UUID(text).bytes
        if neutral == "binary":
            return bytes.fromhex(text.removeprefix("\\x"))
        return text if neutral == "string" else int(text)

    return [None if text is None else one(text) for text in printed]


@dataclass
class Case:
    """A table with one column of a type, and the messages of its rows."""

    name: str
    type_name: str
    values: list[str]
    messages: list[bytes] = field(default_factory=list)

    def fill(self, connection: psycopg.Connection) -> None:
        connection.execute(f"create table public.{self.name} (v {self.type_name})")
        for value in [*self.values, None]:
            shown = "null" if value is None else literal(value)  # read by the type's own input
            connection.execute(
                f"insert into public.{self.name} values ({shown}::{self.type_name})".encode()
            )

    def read_printed(self, connection: psycopg.Connection, expression: str) -> list[Any]:
        rows = connection.execute(f"select {expression} from public.{self.name} order by ctid")
        return [row[0] for row in rows.fetchall()]


def _collect(messages: list[bytes], cases: dict[int, Case]) -> None:
    begin = b""
    for message in messages:
        source_id = int.from_bytes(message[1:5])
        if message[:1] == b"B":
            begin = message
        elif message[:1] in (b"R", b"I"):
            kept = cases[source_id].messages
            kept += [begin, message] if message[:1] == b"I" and len(kept) == 1 else [message]


@pytest.mark.parametrize("kind", sorted(DECODERS))
def test_streamed_and_copied_values_are_equal(source_url: str, postgres: Any, kind: str) -> None:
    """The value of every type is the same by both paths, and is the one that the server prints."""
    with open_catalog(source_url) as catalog:
        catalog.execute(SETUP)
        available = {row[0] for row in catalog.execute("select name from pg_available_extensions")}
        extensions = available & EXTENSION_VALUES.keys()
        for extension in extensions:
            catalog.execute(f"create extension {extension} schema kinds")
        cases = [
            Case(f"t{number}", type_name, values)
            for number, (type_name, values) in enumerate(
                values_for(postgres.version, extensions, with_xml=has_xml(catalog)).items()
            )
        ]
        with capturing(source_url) as capture:
            with catalog.transaction():
                for case in cases:
                    case.fill(catalog)
            tables = {t.name.name: t for t in captured_tables(catalog, ["public.*"])}
            by_id = {tables[case.name].source_id: case for case in cases}
            _collect(capture.messages(), by_id)
        resolver = RelationResolver(catalog, tables.values())
        wrong = [what for case in cases for what in _check(catalog, resolver, case, DECODERS[kind])]
    assert wrong == []


def _check(
    catalog: psycopg.Connection, resolver: RelationResolver, case: Case, make: type[Decoder]
) -> list[Any]:
    relation = resolver.resolve(relation_message(case.messages[0][1:]))
    assert relation is not None
    definition = resolver.definition(relation.source_id)
    assert definition is not None
    (chunk,) = plan_chunks(catalog, definition)
    with catalog.cursor().copy(copy_sql(chunk, ["v"])) as copy:
        lines = b"".join(bytes(piece) for piece in copy)
    block = frames(case.messages[1:])
    # format() calls the type's output function like sending does; some casts to text differ.
    printed = case.read_printed(
        catalog, "case when v is distinct from null then format('%s', v) end"
    )
    assert len(printed) == len(case.values) + 1
    native, streamed = _decode(make, resolver, relation, block, copy=False)
    same, copied = _decode(make, resolver, native, lines, copy=True)
    wrong: list[Any] = []
    if same != native or _bits(streamed) != _bits(copied):
        wrong.append((case.type_name, "stream and copy", streamed, copied))
    neutral = native.columns[0].neutral
    computed = case.read_printed(catalog, COMPUTED[neutral]) if neutral in COMPUTED else []
    if _bits(streamed) != _compute_bits(neutral, printed, computed):
        wrong.append((case.type_name, "server's value", streamed, printed))
    # As text, whatever the neutral type: exactly what the server prints.
    text = relation.with_text_column(0)
    for source, is_copy in ((block, False), (lines, True)):
        _, plain = _decode(make, resolver, text, source, copy=is_copy)
        if plain.to_pylist() != printed:
            wrong.append((case.type_name, f"text, copied {is_copy}", plain, printed))
    return wrong


def test_no_builtin_type_is_forgotten(source_url: str) -> None:
    """Every base type, range and multirange that a table can have is among the cases."""
    with open_catalog(source_url) as catalog:
        rows = catalog.execute(
            """
            select format_type(oid, null)
              from pg_type
             where typtype in ('b', 'r', 'm')
               and typcategory <> 'A'
               and typnamespace = 'pg_catalog'::regnamespace
               and typcategory <> 'Z'
               and typname not in ('aclitem', 'gtsvector')
            """
        ).fetchall()
        named = catalog.execute(
            "select format_type(t::regtype, null) from unnest(%s::text[]) as t",
            ([name for name in VALUES if "kinds." not in name],),
        ).fetchall()
    assert {row[0] for row in rows} - {row[0] for row in named} == set()
