"""Values of every built-in type as a real server sends them: stream and COPY decode the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from harness.twins.pgoutput import DECODERS, assert_same_batch, xlog
from penstock.codec.postgres.pgoutput import Decoder, Stop
from penstock.codec.postgres.pgoutput_messages import RelationMessage, parse_message
from penstock.codec.postgres.pgtypes import neutral_type
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, connect
from penstock.model import Column, Identity, Relation

# Per type: its neutral type, values that fit it, values that turn the column into text.
TYPES: dict[str, tuple[str, list[str], list[str]]] = {
    "boolean": ("bool", ["true", "false"], []),
    "smallint": ("int16", ["-32768", "32767"], []),
    "integer": ("int32", ["-2147483648", "2147483647"], []),
    "bigint": ("int64", ["-9223372036854775808", "9223372036854775807"], []),
    "oid": ("uint32", ["0", "4294967295"], []),
    "xid": ("uint32", ["4294967295"], []),
    "xid8": ("uint64", ["18446744073709551615"], []),
    "real": (
        "float32",
        ["0.1", "-0", "3.4028235e38", "1e-45", "NaN", "Infinity", "-Infinity", "1e15", "16777216"],
        [],
    ),
    "double precision": (
        "float64",
        ["0.1", "-0", "1.7976931348623157e308", "5e-324", "NaN", "-Infinity", "1e15", "1e-5"],
        [],
    ),
    "numeric(12,2)": ("decimal(12,2)", ["1.1", "-9999999999.99", "0", "-0.01"], ["NaN"]),
    "numeric(38,10)": ("decimal(38,10)", ["-1234567890123456789012345678.0123456789"], ["NaN"]),
    "numeric(20)": ("decimal(20,0)", ["-99999999999999999999", "5"], ["NaN"]),
    "numeric(39,2)": ("string", ["1.5", "NaN"], []),
    "numeric": ("string", ["1.10", "1e200", "NaN", "Infinity"], []),
    "date": (
        "date",
        ["2024-02-29", "0044-03-15 BC", "4713-01-01 BC", "12345-01-01", "5874897-12-31"],
        ["infinity", "-infinity"],
    ),
    "time": ("time", ["00:00", "23:59:59.999999", "12:30:15.5"], ["24:00:00", "23:59:60"]),
    "timetz": ("string", ["24:00:00+14", "12:00:00.5-03:30:15"], []),
    "timestamp": (
        "timestamp",
        ["2024-02-29 12:00:00.123456", "4713-01-01 00:00:00 BC", "12345-06-07 08:09:10.1"],
        ["infinity", "-infinity", "294276-12-31 23:59:59.999999"],
    ),
    "timestamptz": (
        "timestamptz",
        ["2024-02-29 12:00:00.5+05:30", "0044-03-15 10:00:00+00 BC", "1879-12-31 12:00:00+01"],
        ["infinity", "-infinity", "294276-12-31 23:59:59.999999+00"],
    ),
    "interval": ("string", ["10 months 3 days -04:05:06.7", "-1 day +02:00"], []),
    "uuid": ("uuid", ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"], []),
    "bytea": ("binary", ["", "\\x00ff7f0a5c", "a\\\\b"], []),
    "text": ("string", ["", "größe 語 𝄞", "tab\tnew\nline\\N\\.\r\b", "\\"], []),
    "varchar(10)": ("string", ["ten letter"], []),
    "char(5)": ("string", ["ab"], []),
    "name": ("string", ["a name"], []),
    "json": ("string", ['{"b": 1,  "a": [1,2]}'], []),
    "jsonb": ("string", ['{"b": 1, "a": "ß\\n"}'], []),
    "integer[]": ("string", ["{1,2,NULL}", "[0:1]={1,2}"], []),
    "text[]": ("string", ['{"a b",NULL,"NULL",""}'], []),
    "int4range": ("string", ["[1,5]", "empty"], []),
    "inet": ("string", ["10.0.0.1", "::1/64"], []),
    "bit varying(8)": ("string", ["0101"], []),
    "pg_lsn": ("string", ["0/16B3740"], []),
    "point": ("string", ["(1,-2.5)"], []),
    "money": ("string", ["-1234.5"], []),
}


@pytest.fixture(params=DECODERS)
def kind(request: pytest.FixtureRequest) -> type[Decoder]:
    """Each implementation in turn."""
    return DECODERS[request.param]


@pytest.fixture
def source(source_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection with exact text settings, as the stream and the copies have."""
    # synchronous_commit: a slot is read by SQL up to the flushed position.
    settings = {**EXACT_TEXT_SETTINGS, "search_path": "public", "synchronous_commit": "on"}
    with connect(source_url, application_name="test", options=settings) as connection:
        yield connection


def relation_of(message: RelationMessage) -> Relation:
    """Return the relation that a Relation message describes."""
    identity = Identity(message.identity)
    return Relation(
        schema=message.schema,
        name=message.name,
        columns=tuple(
            Column(
                name=column.name,
                source_type=str(column.type_oid),
                neutral=neutral_type(column.type_oid, column.typmod),
                type_oid=column.type_oid,
                typmod=column.typmod,
            )
            for column in message.columns
        ),
        before=tuple(i for i, column in enumerate(message.columns) if column.flags & 1),
        identity=identity,
        source_id=message.source_id,
    )


def start(source: psycopg.Connection[Any]) -> None:
    """Create the publication and the slot, which must precede the changes."""
    source.execute("create publication p for all tables")
    source.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot(source),))


def slot(source: psycopg.Connection[Any]) -> str:
    """Return the name of this database's own slot."""
    return f"values_{source.info.dbname}"


def block_of(source: psycopg.Connection[Any]) -> bytes:
    """Return all changes since `start`, as the walsender frames them."""
    rows = source.execute(
        """
        select data
          from pg_logical_slot_peek_binary_changes(%s, null, null,
                   'proto_version', '1', 'publication_names', 'p')
        """,
        (slot(source),),
    ).fetchall()
    return b"".join(xlog(bytes(data)) for (data,) in rows)


def decode(decoder: Decoder, block: bytes) -> list[Any]:
    """Decode a whole block as the stream does: binding relations, widening columns."""
    at = 0
    while at < len(block):
        at = decoder.feed(block, at, len(block), 1_000_000)
        if decoder.stop is Stop.MESSAGE:
            message = parse_message(block[slice(*decoder.message)])
            if isinstance(message, RelationMessage):
                decoder.bind(message.source_id, relation_of(message))
        elif decoder.stop is Stop.WIDEN:
            source_id, index = decoder.widen
            decoder.bind(source_id, decoder.bindings()[source_id].with_text_column(index))
    return decoder.take()


def test_every_type_decodes_to_its_neutral_form_and_back(
    source: psycopg.Connection[Any], kind: type[Decoder]
) -> None:
    """The server prints each decoded value as the value that was inserted."""
    start(source)
    expected: dict[str, list[str]] = {}
    for number, (name, (_, fine, unfit)) in enumerate(TYPES.items()):
        source.execute(f"create table t{number} (v {name})")
        for text in [*fine, *unfit]:
            source.execute(f"insert into t{number} values (%s::text::{name})", (text,))
        shown = source.execute(f"select v::text from t{number} order by ctid").fetchall()
        expected[f"t{number}"] = [text for (text,) in shown]
    batches: dict[str, list[Any]] = {}
    for rows in decode(kind(), block_of(source)):
        batches.setdefault(rows.relation.name, []).append(rows)
    for number, (name, (neutral, fine, unfit)) in enumerate(TYPES.items()):
        first, *rest = batches[f"t{number}"]
        assert first.relation.columns[0].neutral == neutral, name
        assert first.batch.num_rows == len(fine), name
        for rows in rest:
            assert rows.relation.columns[0].neutral == "string", name
        assert sum(rows.batch.num_rows for rows in rest) == len(unfit), name
        printed = [text for rows in (first, *rest) for text in _print_values(source, name, rows)]
        assert printed == expected[f"t{number}"], name


def _print_values(source: psycopg.Connection[Any], name: str, rows: Any) -> list[str]:
    """Return the server's text of decoded values, each passed back in a neutral way."""
    array = rows.batch.column("after").field(0)
    neutral = rows.relation.columns[0].neutral
    expressions = {
        "date": "date '1970-01-01' + {}::int",
        "time": "time '00:00' + make_interval(secs => {} / 1e6::numeric::float8)",
        "timestamp": "timestamp '1970-01-01' + {0}::bigint / 1000000 * interval '1 s'"
        " + {0}::bigint %% 1000000 * interval '1 us'",
        "timestamptz": "timestamptz '1970-01-01 00:00+00' + {0}::bigint / 1000000 * interval '1 s'"
        " + {0}::bigint %% 1000000 * interval '1 us'",
        "uuid": "encode({}::bytea, 'hex')::uuid",
    }
    physical = {"date": pa.int32()}.get(neutral, pa.int64())
    if neutral in ("date", "time", "timestamp", "timestamptz"):
        array = array.view(physical)
    expression = expressions.get(neutral, "{}")
    cast = {"float32": "real", "binary": "bytea"}.get(neutral, name)
    texts = []
    for value in array.to_pylist():
        given = value if isinstance(value, bytes) else str(value)
        call = f"select (({expression.format('%(value)s')})::{cast})::text"
        (text,) = source.execute(call, {"value": given}).fetchone() or ("",)
        texts.append(text)
    return texts


def test_copy_and_stream_give_equal_batches(
    source: psycopg.Connection[Any], kind: type[Decoder]
) -> None:
    """A row read by a copy equals the row read from the stream, for every type at once."""
    start(source)
    names = list(TYPES)
    columns = ", ".join(f"c{i} {name}" for i, name in enumerate(names))
    source.execute(f"create table every (id int primary key, {columns})")
    depth = max(len(fine) for _, fine, _ in TYPES.values())
    for row in range(depth + 1):
        values = [
            TYPES[name][1][row % len(TYPES[name][1])] if row < depth else None for name in names
        ]
        places = ", ".join(f"%s::text::{name}" for name in names)
        source.execute(f"insert into every values ({row}, {places})", values)
    (streamed,) = decode(kind(), block_of(source))
    decoder = kind()
    decoder.bind(streamed.relation.source_id, streamed.relation)
    with source.cursor().copy("copy (select * from every order by id) to stdout") as copy:
        lines = b"".join(bytes(piece) for piece in copy)
    decoder.begin(0, 0, 0)
    assert decoder.feed_copy(lines, 0, len(lines), streamed.relation.source_id) == len(lines)
    assert decoder.stop is Stop.MORE
    (copied,) = decoder.take()
    after = [rows.batch.select(["gsn", "after"]) for rows in (streamed, copied)]
    assert streamed.batch.num_rows == depth + 1
    assert_same_batch(*after)


def test_keys_toast_and_full_identity_as_the_server_sends_them(
    source: psycopg.Connection[Any], kind: type[Decoder]
) -> None:
    """Real messages have key changes, unchanged toasted values and complete old rows."""
    start(source)
    source.execute("create table d (id int primary key, big text, n int)")
    source.execute("alter table d alter big set storage external")
    source.execute("create table f (id int, big text, n int)")
    source.execute("alter table f alter big set storage external, replica identity full")
    big = "x" * 5000
    for table in "df":
        source.execute(f"insert into {table} values (1, %s, 1)", (big,))
        source.execute(f"update {table} set n = 2")
        source.execute(f"update {table} set id = 5")
        source.execute(f"delete from {table}")
    default, full = decode(kind(), block_of(source))
    assert default.relation.before == (0,)
    assert [(r["absent"], r["after"], r["before"]) for r in default.batch.to_pylist()] == [
        (None, {"id": 1, "big": big, "n": 1}, None),
        (b"\x02", {"id": 1, "big": None, "n": 2}, None),
        (b"\x02", {"id": 5, "big": None, "n": 2}, {"id": 1}),
        (None, None, {"id": 5}),
    ]
    assert [(r["absent"], r["after"], r["before"]) for r in full.batch.to_pylist()] == [
        (None, {"id": 1, "big": big, "n": 1}, None),
        (None, {"id": 1, "big": big, "n": 2}, {"id": 1, "big": big, "n": 1}),
        (None, {"id": 5, "big": big, "n": 2}, {"id": 1, "big": big, "n": 2}),
        (None, None, {"id": 5, "big": big, "n": 2}),
    ]


def test_a_toasted_key_is_never_absent(
    source: psycopg.Connection[Any], kind: type[Decoder]
) -> None:
    """The server sends an unchanged toasted key in the key image: the after image has it too."""
    start(source)
    source.execute("create table k (id text primary key, pad text, n int)")
    source.execute("alter table k alter id set storage external")
    key = "".join(chr(97 + i * 7919 % 26) for i in range(2300))
    source.execute("insert into k values (%s, repeat('y', 1000), 1)", (key,))
    source.execute("update k set n = 2")
    (rows,) = decode(kind(), block_of(source))
    assert [row["after"]["id"] == key for row in rows.batch.to_pylist()] == [True, True]
    assert rows.batch.column("absent").null_count == 2
