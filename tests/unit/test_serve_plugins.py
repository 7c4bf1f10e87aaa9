"""Streams as text: test_decoding and wal2json, as their documentation has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from harness.pipelines.log import (
    COMMIT_TIME_US,
    SOURCE,
    Change,
    announced_batch,
    commit_position,
    number_rows,
    run_of,
    truncate,
)
from harness.servers.serve import all_blocks, open_source_log, parse_messages, views_of, write_log
from penstock.codec.postgres.pgoutput_messages import logical_message
from penstock.codec.postgres.pgoutput_outcome import POSTGRES_EPOCH_US
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.plugin_text import float_text
from penstock.engines.mysql.source.prepared import PreparedFiles
from penstock.engines.postgres.source.heartbeat import sent_us_in
from penstock.log import Writer
from penstock.model import Column, FlushPoint, Identity, Marker, MarkerKind, Op, Relation, Run
from penstock.model.change import is_global_prefix
from penstock.serve import chunks, encode, numbers
from penstock.serve.catalog.publications import everything
from penstock.serve.forms import Form, check_lsn_type, check_plugin, stream_options

DATA = Path(__file__).parent.parent / "data" / "plugins"
TIME_US = 1_522_151_908_988_414  # 2018-03-27 11:58:28.988414


def _columns(**kinds: tuple[str, str]) -> tuple[Column, ...]:
    return tuple(Column(name=n, source_type=t, neutral=k) for n, (t, k) in kinds.items())


KEYED = Relation(
    schema="public",
    name="table_with_pk",
    columns=_columns(
        a=("integer", "int32"),
        b=("character varying(30)", "string"),
        c=("timestamp without time zone", "timestamp"),
    ),
    key=(0, 2),
    before=(0, 2),
    source_id=1,
)
PLAIN = Relation(
    schema="public",
    name="table_without_pk",
    columns=_columns(
        a=("integer", "int32"), b=("numeric(5,2)", "decimal(5,2)"), c=("text", "string")
    ),
    before=(0, 1, 2),
    identity=Identity.FULL,
    source_id=2,
)
ODD = Relation(
    schema="Odd Schema",
    name="select",
    columns=_columns(
        id=("bigint", "int64"),
        ok=("boolean", "bool"),
        Data=("bytea", "binary"),
        ratio=("double precision", "float64"),
        bits=("bit(3)", "string"),
        mood=('public."Mood"', "string"),
        sizes=("character varying(5)[]", "string"),
    ),
    key=(0,),
    before=(0,),
    source_id=3,
)


def insert(relation: Relation, *values: object) -> Change:
    """Return an insert."""
    return Change(relation=relation, op=Op.INSERT, after=values)


def messages(root: Path, form: Form) -> list[str]:
    """Return the texts of all messages after the log's beginning."""
    views = views_of(everything(form.actions), form=form)
    found = [one for block in all_blocks(root, views) for one in parse_messages(block.data)]
    return [(one.kind.encode() + one.body).decode() for one in found]


def form_of(plugin: str, **given: str) -> Form:
    """Return a plugin's form."""
    return stream_options(plugin, {name.replace("_", "-"): v for name, v in given.items()}).form


def json_of(**given: str) -> Form:
    """Return the form of wal2json."""
    return form_of("wal2json", **given)


def make_transaction() -> list[list[Change]]:
    """Return the transaction of wal2json's README."""
    return [
        [
            insert(KEYED, 1, "Backup and Restore", TIME_US),
            insert(KEYED, 2, "Tuning", TIME_US),
            Change(relation=KEYED, op=Op.DELETE, after=None, before=(1, TIME_US)),
            insert(PLAIN, 1, pa.scalar("2.34").cast(pa.decimal128(5, 2)).as_py(), "Tapir"),
        ]
    ]


def test_the_readme_of_wal2json(tmp_path: Path) -> None:
    """The example is equal letter by letter; so are those without white space and in chunks."""
    write_log(tmp_path / "log", number_rows(make_transaction()))
    (pretty,) = messages(tmp_path, json_of(pretty_print="1"))
    assert pretty == (DATA / "wal2json_1_pretty.json").read_text()
    (dense,) = messages(tmp_path, json_of())
    assert dense == json.dumps(json.loads(pretty), separators=(",", ":"))
    pieces = messages(tmp_path, json_of(write_in_chunks=""))
    assert pieces[0] == '{"change":['
    assert pieces[2].startswith(',{"kind":"insert"')
    assert pieces[-1] == "]}"
    assert "".join(pieces) == dense


def test_format_2_of_wal2json(tmp_path: Path) -> None:
    """Format 2 has an object for each row and boundary."""
    write_log(tmp_path / "log", number_rows(make_transaction()))
    found = messages(tmp_path, json_of(format_version="2"))
    kinds = ['"type":"integer"', '"type":"timestamp without time zone"']
    at = '"2018-03-27 11:58:28.988414"'
    assert found == [
        '{"action":"B"}',
        '{"action":"I","schema":"public","table":"table_with_pk","columns":['
        f'{{"name":"a",{kinds[0]},"value":1}},'
        '{"name":"b","type":"character varying(30)","value":"Backup and Restore"},'
        f'{{"name":"c",{kinds[1]},"value":{at}}}]}}',
        '{"action":"I","schema":"public","table":"table_with_pk","columns":['
        f'{{"name":"a",{kinds[0]},"value":2}},'
        '{"name":"b","type":"character varying(30)","value":"Tuning"},'
        f'{{"name":"c",{kinds[1]},"value":{at}}}]}}',
        '{"action":"D","schema":"public","table":"table_with_pk","identity":['
        f'{{"name":"a",{kinds[0]},"value":1}},{{"name":"c",{kinds[1]},"value":{at}}}]}}',
        '{"action":"I","schema":"public","table":"table_without_pk","columns":['
        f'{{"name":"a",{kinds[0]},"value":1}},'
        '{"name":"b","type":"numeric(5,2)","value":2.34},'
        '{"name":"c","type":"text","value":"Tapir"}]}',
        '{"action":"C"}',
    ]
    told = messages(
        tmp_path,
        json_of(
            format_version="2",
            include_xids="1",
            include_timestamp="1",
            include_lsn="1",
            include_types="0",
            include_schemas="0",
            include_pk="1",
            include_origin="",
            include_column_positions="yes",
            include_not_null="on",
            include_type_oids="t",
            actions="insert",
            add_tables="public.table_with_pk",
        ),
    )
    end = numbers.end_of(4, 1)
    of = '"xid":701,"timestamp":"2023-11-14 22:13:20.000001+00","origin":0'
    assert told[0] == (f'{{"action":"B",{of},"lsn":"0/{end - 1:X}","nextlsn":"0/{end:X}"}}')
    assert told[2] == (
        f'{{"action":"I",{of},"lsn":"0/{numbers.row_of(2, 1):X}","table":"table_with_pk",'
        '"columns":[{"name":"a","typeoid":23,"value":2,"optional":true,"position":1},'
        '{"name":"b","typeoid":1043,"value":"Tuning","optional":true,"position":2},'
        f'{{"name":"c","typeoid":1114,"value":{at},"optional":true,"position":3}}],'
        '"pk":[{"name":"a","typeoid":23},{"name":"c","typeoid":1114}]}'
    )
    assert len(told) == 4
    assert messages(tmp_path, json_of(format_version="2", include_transaction="off")) == found[1:-1]


def updates() -> list[list[Change]]:
    """Return updates with and without an old image, with an unsent value, and with odd values."""
    row = (7, True, b"\x00\xff", float("nan"), "101", 'it\'s \\ "so"', "{a,b}")
    return [
        [
            insert(ODD, *row),
            Change(relation=ODD, op=Op.UPDATE, after=(7, False, None, 1.5, *row[4:])),
            Change(relation=ODD, op=Op.UPDATE, after=(8, *row[1:]), before=(7,)),
            Change(relation=ODD, op=Op.UPDATE, after=(8, None, None, *row[3:]), absent=b"\x04"),
        ],
        [Change(relation=PLAIN, op=Op.UPDATE, after=(1, None, "b"), before=(1, None, "a"))],
    ]


def test_old_images_and_odd_values(tmp_path: Path) -> None:
    """Both plugins print names and types in quotes, NaN, bytea, and unsent values."""
    write_log(tmp_path / "log", number_rows(updates()))
    types = (
        'id[bigint]:{0} ok[boolean]:{1} "Data"[bytea]:{2} ratio[double precision]:{3} '
        "bits[bit]:B'101' mood[public.\"Mood\"]:'it''s \\ \"so\"' "
        "sizes[character varying[]]:'{{a,b}}'"
    )
    head = 'table "Odd Schema"."select":'
    assert messages(tmp_path, form_of("test_decoding")) == [
        "BEGIN 701",
        f"{head} INSERT: " + types.format(7, "true", "'\\x00ff'", "NaN"),
        f"{head} UPDATE: " + types.format(7, "false", "null", "1.5"),
        f"{head} UPDATE: old-key: id[bigint]:7 new-tuple: "
        + types.format(8, "true", "'\\x00ff'", "NaN"),
        f"{head} UPDATE: " + types.format(8, "null", "unchanged-toast-datum", "NaN"),
        "COMMIT 701",
        "BEGIN 702",
        "table public.table_without_pk: UPDATE: old-key: a[integer]:1 c[text]:'a' new-tuple: "
        "a[integer]:1 b[numeric]:null c[text]:'b'",
        "COMMIT 702",
    ]
    first, second = messages(tmp_path, json_of())
    changes = json.loads(first)["change"]
    assert [one["columnvalues"][:4] for one in changes[:3]] == [
        [7, True, "00ff", None],
        [7, False, None, 1.5],
        [8, True, "00ff", None],
    ]
    assert changes[0]["columnvalues"][5] == 'it\'s \\ "so"'
    assert changes[3]["columnnames"] == ["id", "ok", "ratio", "bits", "mood", "sizes"]
    assert [one["oldkeys"]["keyvalues"] for one in changes[1:]] == [[7], [7], [8]]
    assert json.loads(second)["change"][0]["oldkeys"] == {
        "keynames": ["a", "c"],
        "keytypes": ["integer", "text"],
        "keyvalues": [1, "a"],
    }
    rows = [json.loads(one) for one in messages(tmp_path, json_of(format_version="2"))]
    assert [one["identity"][0]["value"] for one in rows if "identity" in one] == [7, 7, 8, 1]
    assert len(rows[-2]["identity"]) == 3
    quoted = messages(tmp_path, json_of(numeric_data_types_as_string="1", include_typmod="0"))
    change = json.loads(quoted[0])["change"][0]
    assert change["columnvalues"][:4] == ["7", True, "00ff", "NaN"]
    assert change["columntypes"] == ["int8", "bool", "bytea", "float8", "bit", "Mood", "_varchar"]


def make_markers() -> list[Marker]:
    """Return markers: messages in and out of a transaction, and a truncate."""
    position, time_us = 100, 1

    def message(prefix: str, *, transactional: bool) -> Marker:
        data = {"prefix": prefix, "transactional": transactional, "content": 'said "so"'}
        return Marker(
            kind=MarkerKind.MESSAGE,
            gsn=1,
            trx=1,
            position=position,
            commit_time_us=time_us,
            data=data,
        )

    return [
        message("in", transactional=True),
        message("out", transactional=False),
        truncate(2, 1, "table_with_pk", "table_without_pk"),
    ]


def test_messages_and_truncate(tmp_path: Path) -> None:
    """Both are printed as the plugins do; a message outside a transaction follows it."""
    rows = number_rows([[insert(KEYED, 1, "x", TIME_US), insert(PLAIN, 1, None, "y")]])
    with Writer.open(tmp_path / "log", log_id=None, source=SOURCE) as writer:
        writer.write(run_of(rows[0], markers=make_markers()))
        writer.flush()
    found = messages(tmp_path, form_of("test_decoding", include_xids="0", include_timestamp="1"))
    at = "2023-11-14 22:13:20.000001+00"
    assert [one for one in found if ": INSERT" not in one] == [
        "BEGIN",
        'message: transactional: 1 prefix: in, sz: 9 content:said "so"',
        "table public.table_with_pk, public.table_without_pk: TRUNCATE: (no-flags)",
        f"COMMIT (at {at})",
        'message: transactional: 0 prefix: out, sz: 9 content:said "so"',
    ]
    objects = [json.loads(one) for one in messages(tmp_path, json_of(format_version="2"))]
    assert "".join(one["action"] for one in objects) == "BIMITTCM"
    assert objects[2] == {
        "action": "M",
        "transactional": True,
        "prefix": "in",
        "content": 'said "so"',
    }
    whole, alone = messages(tmp_path, json_of())
    assert [one["kind"] for one in json.loads(whole)["change"]] == ["insert", "message", "insert"]
    assert json.loads(alone)["change"][0]["transactional"] is False
    for given, wanted in (("filter_msg_prefixes", "BIITTCM"), ("add_msg_prefixes", "BIMITTC")):
        some = messages(tmp_path, json_of(format_version="2", **{given: "in"}))
        assert "".join(json.loads(one)["action"] for one in some) == wanted


def test_a_table_that_is_emptied_between_two_inserts_has_the_second(tmp_path: Path) -> None:
    """Both are in one transaction and one batch: TRUNCATE is printed in its place."""
    rows = number_rows([[insert(KEYED, n, "x", TIME_US) for n in range(3)]])
    with Writer.open(tmp_path / "log", log_id=None, source=SOURCE) as writer:
        writer.write(run_of(rows[0], markers=[truncate(2, 1, "table_with_pk")]))
        writer.flush()
    (block,) = all_blocks(tmp_path, views_of())
    assert [one.kind for one in parse_messages(block.data)] == ["B", "I", "I", "T", "I", "C"]
    objects = [json.loads(one) for one in messages(tmp_path, json_of(format_version="2"))]
    assert "".join(one["action"] for one in objects) == "BIITIC"


def test_a_transaction_in_parts_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of parts is one message, with its commas; a too large message is refused."""
    rows = number_rows([[insert(KEYED, n, "x", TIME_US) for n in range(20)]])
    with Writer.open(tmp_path / "log", log_id=None, source=SOURCE) as writer:
        for at in range(0, 20, 3):
            last = at + 3 >= 20
            run = run_of(rows[0][at : at + 3], ended=last)
            writer.write(run)
        writer.flush()
    monkeypatch.setattr(chunks, "PART_ROWS_WANTED", 1)
    form = json_of()
    blocks = all_blocks(tmp_path, views_of(everything(form.actions), form=form))
    assert len(blocks) > 3
    (whole,) = messages(tmp_path, form)
    assert [one["columnvalues"][0] for one in json.loads(whole)["change"]] == list(range(20))
    pieces = messages(tmp_path, json_of(write_in_chunks="1"))
    assert "".join(pieces) == whole
    assert len(pieces) == 22
    monkeypatch.setattr(encode, "_WHOLE_BYTES_MAX", 1000)
    with pytest.raises(Refused, match="one message") as caught:
        messages(tmp_path, form)
    assert caught.value.sqlstate == "54000"
    with open_source_log(tmp_path) as log:
        assert log.head().end.trx == 1


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"filter_tables": "public.*"}, [False, False, True]),
        ({"filter_tables": "*.select, public.table_with_pk"}, [False, True, False]),
        ({"add_tables": "Odd\\ Schema.select"}, [False, False, True]),
        ({"add_tables": "public.table_without_pk , *.select"}, [False, True, True]),
        ({"add_tables": ""}, [False, False, False]),
        ({"add_tables": "public.*", "filter_tables": "*.table_with_pk"}, [False, True, False]),
    ],
)
def test_tables_are_chosen(given: dict[str, str], taken: Sequence[bool]) -> None:
    """filter-tables is applied before add-tables; names may have backslashes."""
    form = json_of(**given)
    assert [form.takes(one.schema, one.name) for one in (KEYED, PLAIN, ODD)] == taken


@pytest.mark.parametrize(
    ("plugin", "given", "sqlstate", "words"),
    [
        ("wal2json", {"foo": "bar"}, "22023", 'option "foo" = "bar" is unknown'),
        ("wal2json", {"foo": ""}, "22023", 'option "foo" = "(null)" is unknown'),
        ("wal2json", {"include_xids": "maybe"}, "22023", 'could not parse value "maybe" for'),
        ("wal2json", {"format_version": "3"}, "0A000", "only support format 2 or lower"),
        ("wal2json", {"format_version": "0"}, "0A000", "only support format 1 or higher"),
        ("wal2json", {"format_version": "x"}, "22023", 'value "x" for parameter "format-version"'),
        ("wal2json", {"include_unchanged_toast": "1"}, "42602", "was deprecated"),
        ("wal2json", {"include_default": "1"}, "0A000", "does not have defaults"),
        ("wal2json", {"add_tables": "item"}, "42602", 'value "item" for parameter "add-tables"'),
        ("wal2json", {"actions": "insert, merge"}, "22023", 'value "merge" for parameter'),
        ("test_decoding", {"include_lsn": "1"}, "22023", 'option "include-lsn" = "1" is unknown'),
        ("test_decoding", {"include_rewrites": "1"}, "0A000", "rows of a rewrite"),
        ("test_decoding", {"skip_empty_xacts": "o"}, "22023", 'could not parse value "o"'),
        ("pgoutput", {"publication_names": "p", "include_xids": "1"}, "22023", "unrecognized"),
    ],
)
def test_options_are_refused_as_the_plugins_do(
    plugin: str, given: dict[str, str], sqlstate: str, words: str
) -> None:
    """The error has the plugin's own words."""
    with pytest.raises(Refused) as caught:
        form_of(plugin, **given)
    assert caught.value.sqlstate == sqlstate
    assert words in caught.value.message


def test_what_yboutput_says_of_an_update(tmp_path: Path) -> None:
    """The form is that of the server's own tests: identity `c`, no old image, `u` for unset
    columns.

    Insert (1, abcd, t) and (2, defg, f); set b of one, b of the other to NULL; delete the first.
    """
    columns = _columns(a=("integer", "int32"), b=("text", "string"), c=("boolean", "bool"))
    t1 = Relation(schema="public", name="t1", columns=columns, key=(0,), before=(0,), source_id=4)
    rows = [
        [insert(t1, 1, "abcd", True)],
        [insert(t1, 2, "defg", False)],
        [Change(relation=t1, op=Op.UPDATE, after=(1, "updated_abcd", None), absent=b"\x04")],
        [Change(relation=t1, op=Op.UPDATE, after=(2, None, None), absent=b"\x04")],
        [Change(relation=t1, op=Op.DELETE, after=None, before=(1,))],
    ]
    write_log(tmp_path / "log", number_rows(rows))
    for plugin, letter in (("yboutput", b"c"), ("pgoutput", b"d")):
        form = stream_options(plugin, {"proto_version": "1", "publication_names": "p"}).form
        (block,) = all_blocks(tmp_path, views_of(form=form))
        (shape,) = block.shapes
        assert shape.message[5:].startswith(b"public\0t1\0" + letter + b"\0\x03\x01a\0")
        said = [one.body[4:] for one in parse_messages(block.data) if one.kind in "IUD"]
        assert said == [
            b"N" + cells(b"1", b"abcd", b"t"),
            b"N" + cells(b"2", b"defg", b"f"),
            b"N" + cells(b"1", b"updated_abcd", None, absent=(2,)),
            b"N" + cells(b"2", None, None, absent=(2,)),
            b"K" + cells(b"1", None, None),
        ]


def test_heartbeats_of_a_log_that_is_followed(tmp_path: Path) -> None:
    """Any slot with `messages` gets them in their own transaction; others do not get them."""
    beat = Marker(
        kind=MarkerKind.HEARTBEAT,
        gsn=1,
        trx=2,
        position=commit_position(2),
        commit_time_us=COMMIT_TIME_US + 2,
        data={"sent_us": 1234},
    )
    rows = number_rows([[insert(KEYED, 1, "x", TIME_US)], [insert(KEYED, 2, "y", TIME_US)]])
    with Writer.open(tmp_path / "log", log_id=None, source=SOURCE) as writer:
        writer.write(run_of(rows[0]))
        writer.flush()
        end = FlushPoint(
            position=commit_position(2) + 50, gsn=1, trx=2, commit_time_us=COMMIT_TIME_US + 2
        )
        run = Run(rows=(), markers=(beat,), transactions=announced_batch([2]), end=end)
        writer.write(run)
        writer.flush()
    (block,) = all_blocks(tmp_path, views_of(messages=True))
    found = parse_messages(block.data)
    assert [one.kind for one in found] == ["B", "I", "C", "B", "M", "C"]
    assert b"penstock.heartbeat\0" + (6).to_bytes(4, "big") + b"* 1234" in found[4].body
    assert found[4].body[:1] == b"\x01", "transactional"
    decoded = logical_message(found[4].body)
    assert sent_us_in(decoded, "any_slot") == 1234
    time_us = int.from_bytes(found[3].body[8:16], "big") + POSTGRES_EPOCH_US
    assert time_us == COMMIT_TIME_US + 2, "when it was committed at the source"
    for form in (views_of(), views_of(form=form_of("test_decoding"))):
        (block,) = all_blocks(tmp_path, form)
        assert b"heartbeat" not in block.data


def test_an_xa_id_comes_inside_its_transaction(tmp_path: Path) -> None:
    """The marker of a MySQL source has no other content; outside it would be lost."""
    named = Marker(
        kind=MarkerKind.MESSAGE,
        gsn=1,
        trx=1,
        position=commit_position(1),
        commit_time_us=COMMIT_TIME_US + 1,
        data=PreparedFiles.global_of((1, b"transfer-4711", b"branch")),
    )
    rows = number_rows([[insert(KEYED, 1, "x", TIME_US)]])
    with Writer.open(tmp_path / "log", log_id=None, source=SOURCE) as writer:
        writer.write(run_of(rows[0], markers=(named,)))
        writer.flush()
    (block,) = all_blocks(tmp_path, views_of(messages=True))
    found = parse_messages(block.data)
    assert [one.kind for one in found] == ["B", "I", "M", "C"]
    said = logical_message(found[2].body)
    assert said.transactional
    assert is_global_prefix(said.prefix)
    assert said.content == b"transfer-4711"


def cells(*values: bytes | None, absent: tuple[int, ...] = ()) -> bytes:
    """Return a tuple of a row message."""
    found = len(values).to_bytes(2, "big")
    for at, value in enumerate(values):
        if at in absent:
            found += b"u"
        else:
            found += b"n" if value is None else b"t" + len(value).to_bytes(4, "big") + value
    return found


def test_words_of_a_dialect() -> None:
    """A dialect has a plugin and kinds of LSN; others are refused by name."""
    check_plugin("yboutput", dialect="yugabyte")
    check_lsn_type("SEQUENCE", dialect="yugabyte")
    check_lsn_type("", dialect="postgres")
    check_lsn_type("HYBRID_TIME", dialect="yugabyte")
    for word, dialect, sqlstate in (
        ("HYBRID_TIME", "postgres", "42601"),
        ("SEQUENCE", "postgres", "42601"),
    ):
        with pytest.raises(Refused) as caught:
            check_lsn_type(word, dialect=dialect)
        assert caught.value.sqlstate == sqlstate
    with pytest.raises(Refused):
        check_plugin("yboutput", dialect="postgres")


@pytest.mark.parametrize(
    ("text", "neutral", "printed"),
    [
        ("0.00001", "float64", "1e-05"),
        ("0.0001", "float64", "0.0001"),
        ("-1.5e+300", "float64", "-1.5e+300"),
        ("100000000000000", "float64", "100000000000000"),
        ("1000000000000000", "float64", "1e+15"),
        ("999999", "float32", "999999"),
        ("1.5e+06", "float32", "1.5e+06"),
        ("-0", "float64", "-0"),
        ("NaN", "float64", "NaN"),
        ("-Infinity", "float32", "-Infinity"),
    ],
)
def test_floats_have_exponents_where_postgresql_prints_them(
    text: str, neutral: str, printed: str
) -> None:
    """Arrow uses exponents from other values on."""
    assert float_text(text, neutral) == printed
