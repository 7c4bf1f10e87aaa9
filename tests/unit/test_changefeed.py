"""Bodies of changefeeds: strict decoding by twin and kernel, and the result for each line."""

from __future__ import annotations

import os

import pytest

from harness.feeds.staging import SHOP, FakeCatalog
from penstock.codec import changefeed
from penstock.codec.changefeed import (
    DEPTH_MAX,
    BareEnvelope,
    LineTooLong,
    PayloadInvalid,
    Plain,
    UpdatedMissing,
    make_scanner,
)
from penstock.feeds.receiver.decode import Decoder, PrimaryKeyMissing, Request
from penstock.feeds.receiver.targets import Kind, Place, TableUnknown, TargetTables, relative_name
from penstock.model import PenstockError
from penstock.model.hlc import Hlc, HlcInvalid
from penstock.ports.feeds import KeyEmpty, Mutation, StagedTable, mutations_of

BATCH = Place(group=SHOP, kind=Kind.BATCH)
QUERY = Place(group=SHOP, kind=Kind.QUERY_BATCH, table="accounts")
LINES = Place(group=SHOP, kind=Kind.LINES, table="accounts")
QUERY_LINES = Place(group=SHOP, kind=Kind.QUERY_LINES, table="accounts")
TIME = '"updated":"7.0000000009"'
LINE = f'{{"after":{{"id":1}},"key":[1],"topic":"accounts",{TIME}}}'


@pytest.fixture(params=["kernel", "twin"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """A decoder over either scanner."""
    if request.param == "twin":
        monkeypatch.setenv("PENSTOCK_PURE", "1")
    return Decoder(TargetTables(FakeCatalog()))


def rows(found: Request, name: str = "accounts") -> list[Mutation]:
    """Return the mutations of the only table."""
    (table,) = found.batches
    assert table == StagedTable(SHOP, name)
    return list(mutations_of(found.batches[table]))


def batch(*lines: str) -> bytes:
    """Return the body of a webhook."""
    return f'{{"payload":[{",".join(lines)}],"length":{len(lines)}}}'.encode()


def test_the_kernel_is_built_where_it_must_be() -> None:
    """The decoder uses the kernel as well."""
    assert changefeed.COMPILED or os.environ.get("PENSTOCK_REQUIRE_KERNEL") != "1"
    assert (type(make_scanner()) is Plain) == (not changefeed.COMPILED)


def test_images_and_keys_keep_every_byte(decoder: Decoder) -> None:
    """Numbers stay text and spaces stay; characters around a value are not part of it."""
    after = '{ "id" :1.10, "d":4E+2,"s":"\\u00e7 ç", "n": [null , {}] }'
    line = f'{{"key": [ 1.10,"x" ] , "after" : {after} ,"before":null,{TIME},"topic":"accounts"}}'
    (found,) = rows(decoder.decode(BATCH, batch(line)))
    assert found.after == after.encode()
    assert (found.key, found.before, found.time) == ('[ 1.10,"x" ]', None, Hlc(7, 9))


def test_null_and_absent_images_are_one(decoder: Decoder) -> None:
    """A row whose `after` is null or absent is a removal."""
    lines = [
        f'{{"after":null,"key":[1],{TIME},"topic":"accounts"}}',
        LINE.replace('"after":{"id":1},', ""),
    ]
    assert [one.after for one in rows(decoder.decode(BATCH, batch(*lines)))] == [None, None]


def test_lines_go_to_the_tables_of_their_topics(decoder: Decoder) -> None:
    """Any order, qualification, letter case and escape works."""
    topics = ["accounts", "orders", "shop.public.accounts", "x.y.ORDERS", "audit-log",
              "acc\\u006funts", '\\"accounts\\"']  # fmt: skip
    found = decoder.decode(BATCH, batch(*(LINE.replace("accounts", one) for one in topics)))
    sizes = {table.name: batch.num_rows for table, batch in found.batches.items()}
    assert sizes == {"accounts": 4, "orders": 2, "audit-log": 1}


def test_of_two_spellings_the_order_of_the_lines_stays(decoder: Decoder) -> None:
    """The last repeat counts, also if the first is spelled like a third."""
    lines = [LINE, LINE.replace("accounts", "public.accounts"), LINE]
    bodies = batch(*(line.replace('"id":1', f'"id":{n}') for n, line in enumerate(lines)))
    assert [one.after for one in rows(decoder.decode(BATCH, bodies))] == [
        b'{"id":0}', b'{"id":1}', b'{"id":2}'
    ]  # fmt: skip


@pytest.mark.parametrize(
    "body", ["", "  \n", "{}", '{"payload":[]}', '{"payload":null,"length":0}']
)
def test_nothing_is_accepted(decoder: Decoder, body: str) -> None:
    """An empty body and an empty batch are accepted."""
    assert decoder.decode(BATCH, body.encode()) == Request(partition="shop.public")


def test_resolved_is_a_time(decoder: Decoder) -> None:
    """Resolved times may be posted to a schema or to a table."""
    for place, partition in ((BATCH, "shop.public"), (QUERY, "shop.public.accounts")):
        found = decoder.decode(place, b' {"resolved" : "9.0000000001"} ')
        assert found == Request(partition=partition, resolved=Hlc(9, 1))


DEEP = '{"a":' + "[" * (DEPTH_MAX - 1) + "]" * (DEPTH_MAX - 1) + "}"
REFUSED = [
    *("hello", "[]", "null", "1", '"x"', "{", "{]"),
    *('{"payload":[', '{"payload":[{', '{"length":1,}'),
    *('{"payload":{}}', '{"payload":[1]}', '{"length":"1"}', '{"length":1.0}', '{"resolved":1}'),
    *('{"payload":[],"payload":[]}', '{"extra":1}', '{"Payload":[]}', '{"pay\\u006coad":[]}'),
    *('{"payload":[]} x', '{"payload":[]}{}', "{}}", '{"payload":[],"resolved":"1.0"}', "{}\0"),
    *('{"payload":[{"after":1}]}', '{"payload":[{"key":{}}]}', '{"payload":[{"topic":1}]}'),
    *(f'{{"payload":[{LINE},]}}', f'{{"payload":[{LINE}{LINE}]}}', f'{{"payload":[{LINE}'),
    *(f'{{"payload":[{LINE.replace("1}", bad)}]}}' for bad in (
        "01}", "1.}", ".1}", "+1}", "1e}", "-}", "0x1}", "NaN}", "1,}", "tru}", "nul}",
        '"\\x"}', '"\n"}',
        '"\t"}', '"\\u12g4"}', '"}', "'1'}", "[1,]}", "{1:2}}", "{\"a\"}}", "1]", "Infinity}",
        "[1}}",
    )),
    batch(LINE.replace('"key"', '"mvcc_timestamp":"1.0","key"')).decode(),
    batch(LINE.replace('"key"', '"key":[1],"key"')).decode(),
    batch(LINE.replace('{"id":1}', '{"a":' + DEEP + "}")).decode(),
    batch(LINE.replace('"accounts"', '"\\ud800"')).decode(),
    batch(LINE.replace('"accounts"', '"a.b.c.accounts"')).decode(),
    batch(LINE.replace('"topic":"accounts",', "")).decode(),
    batch(LINE.replace('"accounts"', '""')).decode(),
]  # fmt: skip


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body[:60])
def test_what_is_not_a_feed_is_refused_whole(decoder: Decoder, body: str) -> None:
    """Everything that JSON does not allow, or a feed does not send, is refused."""
    with pytest.raises(PayloadInvalid):
        decoder.decode(BATCH, body.encode())


def test_the_deepest_that_is_taken(decoder: Decoder) -> None:
    """The deepest accepted body has one level less than the refused one."""
    assert len(rows(decoder.decode(BATCH, batch(LINE.replace('{"id":1}', DEEP))))) == 1


@pytest.mark.parametrize("raw", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf"])
def test_what_is_not_utf_8_is_refused(decoder: Decoder, raw: bytes) -> None:
    """Wrong bytes are refused in a value, and so is a byte order mark in front of it."""
    body = batch(LINE) if raw != b"\xef\xbb\xbf" else raw + batch(LINE)
    with pytest.raises(PayloadInvalid, match="could not decode payload"):
        decoder.decode(BATCH, body.replace(b'"id":1', b'"id":"' + raw + b'"'))


@pytest.mark.parametrize(
    "text", ["", "abc", "7", "7.5", "7.000000001", "-5.0000000000", "1.2.3", "0.0000000000", "0.0",
             "9223372036854775808.0", "00000000000000000007.0", "7.00000000010", "7.", ".0", "7.0 "]
)  # fmt: skip
@pytest.mark.parametrize("form", ["batch", "resolved", "line"])
def test_a_bad_time_has_the_published_words(decoder: Decoder, text: str, form: str) -> None:
    """A bad time is refused in lines and in resolved; the zero time is invalid."""
    line = LINE.replace("7.0000000009", text)
    resolved = f'{{"resolved":"{text}"}}'.encode()
    place = LINES if form == "line" else BATCH
    body = {"batch": batch(LINE, line), "resolved": resolved, "line": line.encode()}[form]
    with pytest.raises(HlcInvalid, match="can't parse timestamp"):
        decoder.decode(place, body)


def test_long_spellings_of_zero(decoder: Decoder) -> None:
    """Such zeros are longer than what int() accepts."""
    line = LINE.replace("7.0000000009", "7." + "0" * 5000)
    assert rows(decoder.decode(BATCH, batch(line)))[0].time == Hlc(7)


def test_a_line_without_updated(decoder: Decoder) -> None:
    """The line of a webhook has an empty time; the error for a file has the published advice."""
    line = LINE.replace(f",{TIME}", "")
    with pytest.raises(HlcInvalid, match="can't parse timestamp ''"):
        decoder.decode(BATCH, batch(line))
    for place in (LINES, QUERY_LINES):
        with pytest.raises(UpdatedMissing, match="WITH updated"):
            decoder.decode(place, line.encode())


@pytest.mark.parametrize("key", ['"key":[],', '"key":[ ],', '"key":null,', ""])
def test_a_line_without_key(decoder: Decoder, key: str) -> None:
    """No row could be found by it."""
    with pytest.raises(KeyEmpty, match="empty key"):
        decoder.decode(BATCH, batch(LINE.replace('"key":[1],', key)))


def test_a_table_that_the_target_lacks(decoder: Decoder) -> None:
    """The error is also raised if the schema is missing."""
    with pytest.raises(TableUnknown, match=r"unknown table shop\.public\.nope"):
        decoder.decode(BATCH, batch(LINE.replace("accounts", "nope")))
    with pytest.raises(TableUnknown, match="no such schema"):
        decoder.decode(Place(group=("no", "where"), kind=Kind.BATCH), batch(LINE))


def test_a_file_has_one_line_per_row(decoder: Decoder) -> None:
    """Blank lines and unknown fields are skipped; the last line needs no newline."""
    body = "\n".join(
        ["", LINE, "  ", LINE.replace('"key"', '"mvcc_timestamp":[1,{}],"key"') + "\r", LINE]
    )
    assert len(rows(decoder.decode(LINES, body.encode()))) == 3


@pytest.mark.parametrize(
    "body", [f"{LINE}\n{LINE[:-5]}", f"{LINE} {LINE}", f"{LINE},", f"[{LINE}]", "x", '{"After":1}',
             LINE.replace("after", "\\u0061fter"), LINE.replace('"key"', '"KEY"'),
             LINE.replace('"key"', '"after":null,"key"')]
)  # fmt: skip
def test_a_broken_line_refuses_the_file(decoder: Decoder, body: str) -> None:
    """A name that a reader might take for a known one refuses it too: it would be a removal."""
    with pytest.raises(PayloadInvalid):
        decoder.decode(LINES, body.encode())


def test_a_line_has_fewer_bytes_than_the_limit(decoder: Decoder) -> None:
    """The line's end does not count; the limit is 65536, as published."""
    long = LINE.replace('"id":1', '"id":"' + "x" * (65_535 - len(LINE) - 1) + '"')
    assert len(long) == 65_535
    assert len(rows(decoder.decode(LINES, f"{long}\n{LINE}\n".encode()))) == 2
    with pytest.raises(LineTooLong, match="token too long"):
        decoder.decode(LINES, f"{LINE}\n{long} \n".encode())
    wider = Decoder(TargetTables(FakeCatalog()), ndjson_buffer_bytes=70_000)
    assert len(rows(wider.decode(LINES, f"{long} \n".encode()))) == 1


def test_a_query_feed_has_its_key_from_the_image(decoder: Decoder) -> None:
    """Values are raw, in the order of the primary key; removals take them from the image before."""
    place = Place(group=SHOP, kind=Kind.QUERY_BATCH, table="Orders")
    image = '{"order_no": 1.0 ,"x":{"region":2},"region":"eu\\u0031"}'
    new = f'{{"after":{image},"before":null,{TIME}}}'
    old = f'{{"after":null,"before":{{"REGION":"a","order_no":2}},{TIME}}}'
    both = f'{{"after":null,"before":null,{TIME}}}'
    keyed = f'{{"after":null,"key":["z", 3],{TIME},"extra":1}}'
    for where, body in (
        (place, batch(new, both, old, keyed)),
        (
            Place(group=SHOP, kind=Kind.QUERY_LINES, table="orders"),
            "\n".join([new, both, old, keyed]).encode(),
        ),
    ):
        found = rows(decoder.decode(where, body), "orders")
        assert [one.key for one in found] == ['["eu\\u0031",1.0]', '["a",2]', '["z", 3]']
        assert [one.after is None for one in found] == [False, True, True]
    assert decoder.decode(place, batch(both)) == Request(partition="shop.public.orders")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (batch(f'{{"after":{{"balance":1}},{TIME}}}'), PrimaryKeyMissing),
        (batch('{"__crdb__":{},"id":4}'), BareEnvelope),
        (b'{"__crdb__":{"resolved":"1.0"}}', BareEnvelope),
        (batch(f'{{"after":{{"\\ud800":1}},{TIME}}}'), PayloadInvalid),
        (b'{"payload":[],"extra":1}', PayloadInvalid),
    ],
)
def test_a_query_feed_that_was_made_wrongly(
    decoder: Decoder, body: bytes, error: type[PenstockError]
) -> None:
    """Each error says what to change in the statement."""
    with pytest.raises(error):
        decoder.decode(QUERY, body)


def test_a_query_feed_of_a_table_without_key(decoder: Decoder) -> None:
    """The feed is refused, because its rows have no key."""
    place = Place(group=SHOP, kind=Kind.QUERY_BATCH, table="keyless")
    with pytest.raises(PrimaryKeyMissing, match="has none in the target"):
        decoder.decode(place, batch(f'{{"after":{{"a":1}},{TIME}}}'))


def test_only_a_schema_feed_is_strict_about_its_lines(decoder: Decoder) -> None:
    """Lines of a query or of a file may have additional fields, as published."""
    line = f'{{"after":{{"id":1}},"more":{{"a":[]}},"topic":5,{TIME}}}'
    assert len(rows(decoder.decode(QUERY, batch(line)))) == 1


@pytest.mark.parametrize(
    ("topic", "name"),
    [("a", "a"), ("b.a", "a"), ("c.b.a", "a"), ('"x.y"', "x.y"), ('b."x""y"', 'x"y'),
     ('"b".a', "a"), ("", ""), ("a.", "")],
)  # fmt: skip
def test_topics_are_names(topic: str, name: str) -> None:
    """Quoted parts may contain dots."""
    assert relative_name(topic) == name


@pytest.mark.parametrize("topic", ["a.b.c.d", '"a', '"a"b', 'a"b'])
def test_topics_that_are_no_names(topic: str) -> None:
    """Invalid topics are refused."""
    with pytest.raises(PayloadInvalid):
        relative_name(topic)


def test_the_targets_tables_are_asked_for_now_and_then() -> None:
    """Tables are not read for each request, but again for a table that is not known yet."""

    class Stopped:
        now_s = 0.0

        def monotonic_s(self) -> float:
            return self.now_s

    clock = Stopped()
    catalog = FakeCatalog()
    tables = TargetTables(catalog, clock)  # type: ignore[arg-type]
    for _ in range(3):
        tables.find_table(SHOP, "accounts")
    assert catalog.asked == 1
    catalog.schemas[SHOP]["new"] = ("id",)
    with pytest.raises(TableUnknown):
        tables.find_table(SHOP, "new")
    clock.now_s = 2.0
    assert tables.key_columns(tables.find_table(SHOP, "new")) == ("id",)
    assert catalog.asked == 2
    clock.now_s = 70.0
    tables.find_table(SHOP, "new")
    assert catalog.asked == 3


def test_names_that_differ_in_case_alone_are_told_apart() -> None:
    """Any other spelling matches neither."""
    catalog = FakeCatalog(schemas={SHOP: {"Item": ("id",), "item": ("id",)}})
    tables = TargetTables(catalog)
    assert tables.find_table(SHOP, "Item").name == "Item"
    with pytest.raises(TableUnknown):
        tables.find_table(SHOP, "ITEM")


def test_a_dotted_name_that_the_target_has_is_meant() -> None:
    """The dotted name is tried before it is read as schema and table."""
    tables = TargetTables(FakeCatalog(schemas={SHOP: {"a.b": (), "b": ()}}))
    assert [tables.of_topic(SHOP, one).name for one in ("a.b", "x.b")] == ["a.b", "b"]


PUBLISHED = [
    (BATCH, batch(LINE.replace(f",{TIME}", "")), "can't parse timestamp"),
    (BATCH, batch(LINE.replace("7.0000000009", "0.0000000000")), "zero"),
    (BATCH, batch(LINE.replace('"key":[1],', "")), "empty key"),
    (BATCH, batch(LINE.replace("accounts", "nobody")), "unknown table"),
    (BATCH, batch(LINE.replace('"topic":"accounts",', "")), "table name is empty"),
    (BATCH, batch(LINE.replace(TIME, f'{TIME},"mvcc_timestamp":"1.0"')), "unknown field"),
    (BATCH, b'{"resolved":"soon"}', "can't parse timestamp"),
    (QUERY, batch('{"__crdb__":{"updated":"7.0"},"id":1}'), "bare envelope is not supported"),
    (
        LINES,
        b'{"after":{"id":1},"key":[1],"topic":"accounts"}\n',
        "CREATE CHANGEFEED must specify the 'WITH updated' option",
    ),
    (
        QUERY_LINES,
        b'{"after":{"id":1},"before":null}\n',
        "CREATE CHANGEFEED must specify the 'WITH updated' option",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("place", "body", "text"), PUBLISHED)
def test_what_is_refused_says_so_as_published(
    decoder: Decoder, place: Place, body: bytes, text: str
) -> None:
    """Operators look for these texts."""
    with pytest.raises(PenstockError) as error:
        decoder.decode(place, body)
    assert text in error.value.message
