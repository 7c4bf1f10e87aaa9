"""LogMiner's rows in batches: the recorded samples, images, absent values, stops and errors."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from msgspec import structs

from harness.twins.oracle_rows import (
    BY_KEY,
    DECODERS,
    PASSED,
    SCN,
    WHOLE,
    XID,
    make_relation,
    row_of,
    sample_relations,
    sample_rows,
)
from penstock.codec.oracle.mined_rows import RowKind, row_kind
from penstock.codec.oracle.pieces import PieceJoiner
from penstock.codec.oracle.redo_outcome import (
    DictionaryMismatch,
    RedoBroken,
    RedoRow,
    RedoUnlogged,
    RedoUnsupported,
    SessionFormats,
    Stop,
)
from penstock.codec.oracle.sql_redo import make_decoder
from penstock.model import Relation

TYPES = {"ID": "NUMBER(9)", "A": "VARCHAR2(40)", "B": "NUMBER(4)", "C": "CLOB"}
SMALL = make_relation(TYPES)


@pytest.fixture(params=DECODERS, ids=["twin", "kernel"])
def kind(request: pytest.FixtureRequest) -> Any:
    """Return the class of a decoder."""
    return request.param


def decode(kind: Any, *texts: str, relation: Relation = SMALL) -> list[dict[str, Any]]:
    """Return the rows of statements of one table."""
    decoder = kind()
    decoder.bind(1, relation, PASSED)
    assert decoder.decode([row_of(text) for text in texts], 7) == len(texts)
    found: list[dict[str, Any]] = decoder.take()[0].batch.to_pylist()
    return found


def refuse(kind: Any, text: str, relation: Relation = SMALL) -> RedoBroken:
    """Return the error of a statement."""
    decoder = kind()
    decoder.bind(1, relation, PASSED)
    with pytest.raises(RedoBroken) as caught:
        decoder.decode([row_of(text)], 7)
    assert decoder.row_count == 0
    return caught.value


# -- samples ---------------------------------------------------------------------------------------


def whole_rows() -> Iterator[dict[str, Any]]:
    """Yield the sample rows that are changes, each with its whole statement."""
    joiner = PieceJoiner()
    for row in sample_rows():
        what = row_kind(
            row["OPERATION_CODE"],
            is_undo=bool(row["ROLLBACK"]),
            status=row["STATUS"],
            info=row["INFO"],
            text=row["SQL_REDO"],
        )
        if what is not RowKind.CHANGE:
            continue
        piece = RedoRow(1, row["SQL_REDO"], row["SCN"], row["XID"], row["RS_ID"])
        whole = joiner.add(piece, operation=row["OPERATION_CODE"], is_continued=bool(row["CSF"]))
        if whole is not None:
            yield {**row, "whole": whole}


def expect_value(value: Any) -> Any:
    """Return a value of the sample file as Python has it."""
    if not isinstance(value, dict):
        return value
    ((tag, inner),) = ((key, one) for key, one in value.items() if key != "$then")
    if tag == "$repeat":
        return inner[0] * inner[1] + value["$then"]
    readers = {
        "$num": Decimal,
        "$float": lambda text: float(text.replace("Nan", "nan")),
        "$hex": bytes.fromhex,
        "$ts": dt.datetime.fromisoformat,
    }
    return readers[tag](inner) if tag in readers else None


UNTOLD = ("$unavailable", "$oson_hex", "$months", "$dsinterval_s", "$tstz", "$tsltz", "$empty_lob")


def check_image(found: dict[str, Any], expected: dict[str, Any], row: Any) -> None:
    """Compare an image with that of the sample."""
    for name, value in expected.items():
        if isinstance(value, dict) and any(tag in value for tag in UNTOLD):
            continue
        given, wanted = found[name], expect_value(value)
        if isinstance(wanted, Decimal):
            given = Decimal(given)
        if isinstance(wanted, float):
            assert abs(given - wanted) <= 1e-6 * abs(wanted) or wanted != wanted, row
        elif name != "C_TS9":  # it is text, for the next test
            assert given == wanted, (name, row)


def test_the_samples_are_decoded_as_recorded(kind: Any) -> None:
    """Every change of the sample file has its images, or the error that the file names."""
    relations = sample_relations()
    count = 0
    for row in whole_rows():
        relation = relations[row["TABLE_NAME"]]
        if row["TABLE_NAME"] == "ALL_TYPES":  # a value in it has nanoseconds
            relation = relation.with_text_column(12)
        decoder = kind()
        decoder.bind(1, relation)
        expect = row["expect"]
        if expect["kind"] == "error":
            error = RedoUnsupported if HIDDEN in row["SQL_REDO"] else SessionFormats
            with pytest.raises(error, match=f"SCN {row['SCN']}, XID {row['XID']}"):
                decoder.decode([row["whole"]], 1)
            continue
        assert decoder.decode([row["whole"]], 1) == 1, row
        (image,) = decoder.take()[0].batch.to_pylist()
        assert chr(image["op"]) == {"c": "I", "u": "U", "d": "D"}[expect["op"]]
        if expect["after"] is not None:
            check_image(image["after"], expect["after"], row)
        if expect["op"] == "d":
            keys = {name: expect["before"][name] for name in image["before"]}
            check_image(image["before"], keys, row)
        count += 1
    assert count == sum(row["expect"]["kind"] == "change" for row in sample_rows())


def test_a_sample_of_all_types(kind: Any) -> None:
    """Texts of times, intervals and floats have the form of the log."""
    row = next(one for one in sample_rows() if one["case"] == "all_types" and one["seq"] == 2)
    relation = sample_relations()["ALL_TYPES"].with_text_column(12)
    decoder = kind()
    decoder.bind(1, relation)
    decoder.decode([row_of(row["SQL_REDO"])], 1)
    after = decoder.take()[0].batch.to_pylist()[0]["after"]
    assert after["C_NUM"] == "-1234567890123456789.000001"
    assert after["C_TS9"] == "2026-03-29 01:30:00.123456789"
    assert after["C_TSTZ"] == "2026-03-29 01:30:00.5+05:30"
    assert after["C_TSLTZ"] == dt.datetime(2026, 10, 25, 2, 30, 0, 250000, dt.UTC)
    assert after["C_IYM"] == "P-12Y-3M"
    assert after["C_IDS"] == "P5DT4H3M2.123456S"


# -- images ----------------------------------------------------------------------------------------

INSERT = 'insert into "S"."T"("ID","A","B","C") values (\'1\',\'x\',\'2\',EMPTY_CLOB())'


def test_an_update_overlays_where_with_set(kind: Any) -> None:
    """Columns of SET are new, those of WHERE alone are kept, and the rest is absent, not NULL."""
    text = (
        'update "S"."T" set "A" = \'new\', "B" = NULL where "ID" = \'1\' and "A" = \'old\' '
        "and \"B\" = '2'"
    )
    (row,) = decode(kind, text)
    assert row["after"] == {"ID": 1, "A": "new", "B": None, "C": None}
    assert row["absent"] == b"\x08"
    assert row["before"] is None
    assert (row["gsn"], row["trx"], row["op"]) == (1, 7, ord("U"))


def test_an_untold_value_of_set_hides_that_of_where(kind: Any) -> None:
    """The old value is not taken for the new one that the statement does not tell."""
    text = 'update "S"."T" set "C" = LM_EMPTY_STRING where "ID" = \'1\' and "C" = \'old\''
    (row,) = decode(kind, text)
    assert row["after"] == {"ID": 1, "A": None, "B": None, "C": None}
    assert row["absent"] == b"\x0e"


@pytest.mark.parametrize(
    "value",
    ["LM_EMPTY_STRING", "XMLType(:1)", "/* JSON */ EMPTY_CLOB()",
     "/* JSON */ HEXTORAW('ff4a')", "/* JSON */NULL"],
)  # fmt: skip
def test_a_value_that_the_statement_does_not_tell_is_absent(kind: Any, value: str) -> None:
    """An insert has it as absent, too."""
    (row,) = decode(kind, f'insert into "S"."T"("ID","C","B") values (\'1\',{value},NULL)')
    assert row["after"] == {"ID": 1, "A": None, "B": None, "C": None}
    assert row["absent"] == b"\x0a"


HIDDEN = "Unsupported Type"
I_ONE = 'insert into "S"."T"("ID","{}") values (\'1\',{})'
U_ONE = 'update "S"."T" set "{}" = {} where "ID" = \'1\''
W_ONE = 'update "S"."T" set "B" = \'3\' where "ID" = \'1\' and "{}" = {}'
D_ONE = 'delete from "S"."T" where "ID" = \'1\' and "{}" = {}'


@pytest.mark.parametrize(
    ("form", "column", "value"),
    [
        *((form, "A", HIDDEN) for form in (I_ONE, U_ONE, W_ONE, D_ONE)),
        *((form, "C", HIDDEN) for form in (I_ONE, U_ONE)),
        *((I_ONE, "A", value) for value in ("LM_EMPTY_STRING", "XMLType(:1)", "/* JSON */ NULL")),
        (U_ONE, "A", "LM_EMPTY_STRING"),
    ],
)
def test_a_value_that_the_server_hides(kind: Any, form: str, column: str, value: str) -> None:
    """A column whose type does not explain it is not taken for an unchanged one."""
    text = form.format(column, value)
    caught = refuse(kind, text)
    assert type(caught) is RedoUnsupported
    assert (caught.fields["reason"], caught.offset) == ("untold", text.index(value))
    assert caught.fields["column"] == column
    assert f"SCN {SCN}, XID {XID}, RS_ID 0x0001a4.00002f13.0010" in str(caught)
    assert f"SHOP.T column {column} ({TYPES[column]} as" in str(caught)
    assert "penstock table remove" in (caught.hint or "")


def test_a_hidden_value_of_a_large_object_is_unchanged(kind: Any) -> None:
    """Conditions lack it in any case, so it counts as absent."""
    (update,) = decode(kind, W_ONE.format("C", HIDDEN))
    assert (update["after"]["B"], update["absent"]) == (3, b"\x0a")
    (delete,) = decode(kind, D_ONE.format("C", HIDDEN))
    assert delete["before"] == {"ID": 1}


def test_hidden_values_of_columns_that_are_not_captured(kind: Any) -> None:
    """Columns that the log lacks, and those of types that penstock does not read, may have any."""
    relation = make_relation({"ID": "NUMBER(9)", "X": "XMLTYPE", "L": "VARCHAR2(32767)"})
    texts = [I_ONE.format(PASSED[0], HIDDEN), I_ONE.format("X", HIDDEN), D_ONE.format("X", HIDDEN)]
    *rows, delete = decode(kind, *texts, relation=relation)
    assert [one["absent"] for one in rows] == [b"\x06", b"\x06"]
    assert delete["before"] == {"ID": 1}
    (long_text,) = decode(kind, I_ONE.format("L", "LM_EMPTY_STRING"), relation=relation)
    assert long_text["absent"] == b"\x06"


@pytest.mark.parametrize("form", [I_ONE, U_ONE])
@pytest.mark.parametrize("long_type", ["LONG", "LONG RAW"])
def test_a_long_value_that_is_too_large_for_a_statement(
    kind: Any, form: str, long_type: str
) -> None:
    """LogMiner prints two words in its place, which are not the value."""
    relation = make_relation({"ID": "NUMBER(9)", "L": long_type, "B": "VARCHAR2(20)"})
    text = form.format("L", "'LONG DATA'")
    with pytest.raises(RedoUnsupported) as caught:
        decode(kind, text, relation=relation)
    assert (caught.value.fields["reason"], caught.value.fields["column"]) == ("untold", "L")
    (same,) = decode(kind, form.format("B", "'LONG DATA'"), relation=relation)
    assert same["after"]["B"] == "LONG DATA"
    (update,) = decode(kind, W_ONE.format("L", "'LONG DATA'"), relation=relation)
    assert (update["after"]["B"], update["absent"]) == ("3", b"\x02")
    (delete,) = decode(kind, D_ONE.format("L", "'LONG DATA'"), relation=relation)
    assert delete["before"] == {"ID": 1}
    if long_type == "LONG":
        (short,) = decode(kind, form.format("L", "'LONG DATA.'"), relation=relation)
        assert short["after"]["L"] == "LONG DATA."


def test_a_null_is_not_absent(kind: Any) -> None:
    """NULL, IS NULL, the old `= NULL` and an empty text are NULL; an empty LOB is not."""
    insert, update = decode(
        kind,
        'insert into "S"."T"("ID","A","B","C") values (\'1\',\'\',NULL,EMPTY_CLOB())',
        'update "S"."T" set "A" = NULL where "ID" = \'1\' and "B" = NULL and "C" IS NULL',
    )
    assert insert["after"] == {"ID": 1, "A": None, "B": None, "C": ""}
    assert insert["absent"] is None
    assert update["after"] == {"ID": 1, "A": None, "B": None, "C": None}
    assert update["absent"] is None


def test_is_not_null_tells_no_value(kind: Any) -> None:
    """The column is absent if SET does not have it."""
    text = 'update "S"."T" set "B" = \'3\' where "ID" = \'1\' and "A" IS NOT NULL'
    (row,) = decode(kind, text)
    assert row["absent"] == b"\x0a"


def test_an_update_of_the_key_has_two_numbers(kind: Any) -> None:
    """Only an update that sets another key has the old one, and the number before its own."""
    where = 'where "ID" = \'1\' and "A" IS NULL'
    moved, same, next_row = decode(
        kind,
        f'update "S"."T" set "ID" = \'2\' {where}',
        f'update "S"."T" set "ID" = \'1\' {where}',
        INSERT,
    )
    assert (moved["gsn"], same["gsn"], next_row["gsn"]) == (2, 3, 4)
    assert moved["before"] == {"ID": 1}
    assert moved["after"]["ID"] == 2
    assert same["before"] is None


def test_a_table_without_a_key_has_whole_before_images(kind: Any) -> None:
    """All logged columns identify the row, so that any change of one moves it."""
    relation = make_relation({"A": "VARCHAR2(4)", "B": "NUMBER(4)"}, ())
    where = 'where "A" = \'x\' and "B" IS NULL'
    moved, same, gone = decode(
        kind,
        f'update "S"."T" set "B" = \'1\' {where}',
        f'update "S"."T" set "B" = NULL {where}',
        f'delete from "S"."T" {where}',
        relation=relation,
    )
    assert [one["before"] for one in (moved, same, gone)] == [{"A": "x", "B": None}] * 3
    assert [one["gsn"] for one in (moved, same, gone)] == [2, 3, 4]
    assert gone["after"] is None


def test_hidden_columns_are_passed_over(kind: Any) -> None:
    """Their values are scanned and not kept."""
    text = (
        'insert into "S"."T"("SYS_NC00026$","ID","ORA_ARCHIVE_STATE","A") values '
        "(HEXTORAW('0'),'1','0','a')"
    )
    (row,) = decode(kind, text)
    assert row["after"] == {"ID": 1, "A": "a", "B": None, "C": None}


# Facts about forms in public test suites of other readers, in words and values of our own.
FORMS = [
    'insert into "S"."T" ("ID", "A") values (\'1\', \'v\')',
    'insert into "S"."T"("ID","A") values (\'1\',\'v\');',
    ' insert into "S"."T"\n("ID" , "A")\nvalues\n(\'1\' ,\'v\' ) ; ',
    'insert into "S"."T" a ("ID",a."A") values (1,\'v\')',
    'update "S"."T" a set a."A" = \'v\' where a."ID" = \'1\' and a.ROWID = \'AAAV9cAAHAAAACjAAB\';',
    'update "S"."T" set "A"=\'v\' where "ID"=1 and ROWID=\'AAAV9cAAHAAAACjAAB\'',
    'update "S"."T" set "A" = \'v\' where ROWID = \'AAAV9cAAHAAAACjAAB\' and "ID" = \'1\'',
    'update "S"."T"\r\nset "A" = \'v\'\r\nwhere\r\n"ID" = \'1\'\r\nand "B" IS NULL',
]


@pytest.mark.parametrize("text", FORMS)
def test_forms_of_statements(kind: Any, text: str) -> None:
    """Blanks, line ends, aliases, a semicolon and ROWID may be where servers write them."""
    (row,) = decode(kind, text)
    assert (row["after"]["ID"], row["after"]["A"]) == (1, "v")


TRAPS = ["it's", "''", "', '", "x || y", "NULL", 'where "A" IS NULL', "; commit; --", "a\nb",
         "TO_DATE('2026-01-01')", "Unsupported Type", "d'un, l'autre", "' and \"ID\" = '2",
         "HEXTORAW('00')", "\U0001f600", "\\00E9", "/* JSON */",
         "UNISTR('a') || UNISTR('b')"]  # fmt: skip


@pytest.mark.parametrize("value", TRAPS)
def test_text_that_looks_like_a_statement(kind: Any, value: str) -> None:
    """Quotes are doubled, so text is text, in all places of a statement."""
    quoted = "'" + value.replace("'", "''") + "'"
    rows = decode(
        kind,
        f'insert into "S"."T"("ID","A") values (\'1\',{quoted})',
        f'update "S"."T" set "A" = {quoted}, "B" = \'1\' where "ID" = \'1\' and "C" = {quoted}',
        f'update "S"."T" set "B" = NULL where "A" = {quoted} and "ID" = \'1\'',
    )
    assert [row["after"]["A"] for row in rows] == [value] * 3
    assert rows[1]["after"]["C"] == value


# -- stops -----------------------------------------------------------------------------------------


def test_a_value_that_does_not_fit_widens_the_column(kind: Any) -> None:
    """The row is decoded again after the column is bound as text."""
    relation = make_relation({"ID": "NUMBER(9)", "N": "NUMBER(*,0)"})
    big = "9" * 40
    rows = [row_of(f'insert into "S"."T"("ID","N") values (\'1\',\'{n}\')') for n in ("5", big)]
    decoder = kind()
    decoder.bind(4, relation)
    rows = [structs.replace(row, table=4) for row in rows]
    assert decoder.decode(rows, 1) == 1
    assert (decoder.stop, decoder.widen) == (Stop.WIDEN, (4, 1))
    decoder.bind(4, relation.with_text_column(1))
    assert decoder.decode(rows, 1, 1) == 2
    assert decoder.stop is Stop.MORE
    first, second = decoder.take()
    assert first.batch.to_pylist()[0]["after"] == {"ID": 1, "N": Decimal(5)}
    assert second.batch.to_pylist()[0]["after"] == {"ID": 1, "N": big}
    assert second.batch.column("gsn").to_pylist() == [2]
    assert decoder.take() == []


def test_limits_stop_before_a_row(kind: Any) -> None:
    """Rows and bytes are counted until the batches are taken."""
    rows = [row_of(INSERT)] * 5
    decoder = kind(gsn=10, byte_limit=3 * len(INSERT))
    decoder.bind(1, SMALL)
    assert decoder.decode(rows, 1, row_limit=2) == 2
    assert decoder.stop is Stop.LIMIT
    assert (decoder.row_count, decoder.byte_count) == (2, 2 * len(INSERT))
    assert decoder.decode(rows, 1, 2) == 3
    assert decoder.stop is Stop.LIMIT
    assert decoder.take()[0].batch.column("gsn").to_pylist() == [11, 12, 13]
    assert decoder.decode(rows, 1, 3) == 5
    assert (decoder.gsn, decoder.row_count, decoder.stop) == (15, 2, Stop.MORE)


def test_rows_of_several_tables_are_numbered_in_order(kind: Any) -> None:
    """Tables of the same relation share a batch; others have their own."""
    other = replace(SMALL, name="U")
    decoder = kind()
    for table, relation in ((1, SMALL), (2, other), (2**40, SMALL)):
        decoder.bind(table, relation)
    rows = [row_of(INSERT, table) for table in (1, 2, 2**40, 2, 1)]
    assert decoder.decode(rows, 3) == 5
    taken = {one.relation.name: one.batch.column("gsn").to_pylist() for one in decoder.take()}
    assert taken == {"T": [1, 3, 5], "U": [2, 4]}
    decoder.unbind(2)
    with pytest.raises(RedoBroken, match="was not announced"):
        decoder.decode(rows, 4)
    assert decoder.gsn == 6


def test_many_rows_make_one_batch(kind: Any) -> None:
    """More rows than are looked up at a time, with absent columns from the middle on."""
    texts = [INSERT.replace("'x'", f"'{at}'") for at in range(3000)]
    texts[2500] = 'insert into "S"."T"("ID","A") values (\'1\',\'2500\')'
    rows = decode(kind, *texts)
    assert [row["after"]["A"] for row in rows] == [str(at) for at in range(3000)]
    assert [row["gsn"] for row in rows if row["absent"] is not None] == [2501]


def test_arguments_are_checked(kind: Any) -> None:
    """Limits below one are refused, and types that a column cannot have."""
    with pytest.raises(ValueError, match="byte_limit"):
        kind(byte_limit=0)
    decoder = kind()
    with pytest.raises(ValueError, match="row_limit"):
        decoder.decode([], 1, row_limit=0)
    for text, neutral in (("NUMBER(4)", "timestamp"), ("DATE", "int32"), ("RAW(4)", "string")):
        column = replace(SMALL.columns[0], source_type=text, neutral=neutral)
        with pytest.raises(ValueError, match="is not read as"):
            decoder.bind(1, replace(SMALL, columns=(column, *SMALL.columns[1:])))


def test_make_decoder_prefers_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """PENSTOCK_PURE=1 chooses the twin."""
    monkeypatch.setenv("PENSTOCK_PURE", "0")
    assert type(make_decoder(gsn=3)) is DECODERS[1]
    monkeypatch.setenv("PENSTOCK_PURE", "1")
    assert type(make_decoder(gsn=3)) is DECODERS[0]


# -- errors ----------------------------------------------------------------------------------------

I_BEGIN = 'insert into "S"."T"("ID","A") values '
ERRORS: list[tuple[str, type[RedoBroken], str, int]] = [
    ("", RedoBroken, "empty", 0),
    (" \n", RedoBroken, "empty", 2),
    ("merge into x", RedoBroken, "syntax", 0),
    ("Unsupported", RedoUnsupported, "unsupported", 0),
    ("Dictionary Version Mismatch", DictionaryMismatch, "dictionary", 0),
    ("/* No SQL_REDO for temporary tables */", RedoUnsupported, "temporary", 0),
    ('update "S"."T" set "A" = \'x\'', RedoUnlogged, "unlogged", 28),
    ('delete from "S"."T";', RedoUnlogged, "unlogged", 19),
    ('delete from "S"."T" where ROWID = \'AAAV9cAAHAAAACjAAB\'', RedoUnlogged, "before", 0),
    ('delete from "S"."T" where "A" = \'x\'', RedoUnlogged, "before", 0),
    ('delete from "S"."T" where "ID" IS NOT NULL', RedoUnlogged, "before", 0),
    ('update "S"."T" set "ID" = Unsupported Type where "ID" = 1', RedoUnsupported, "untold", 26),
    ('delete from "S"."T" where "ID" = Unsupported Type', RedoUnsupported, "untold", 33),
    ('insert into "S"."T"("A") values (\'x\')', RedoUnlogged, "before", 0),
    ('insert into "S"."T" values (\'x\')', RedoUnsupported, "no_columns", 20),
    (I_BEGIN + "('1')", RedoBroken, "count", 41),
    (I_BEGIN + "('1','x','y')", RedoBroken, "count", 45),
    (I_BEGIN + "('1',''x'')", RedoBroken, "syntax", 44),
    (I_BEGIN + "('1','x'", RedoBroken, "syntax", 45),
    (I_BEGIN + "('1','x", RedoBroken, "syntax", 42),
    (I_BEGIN + "('1','x''", RedoBroken, "syntax", 42),
    (I_BEGIN + "('1','x') returning", RedoBroken, "syntax", 47),
    (I_BEGIN + "('1',SYSDATE)", RedoBroken, "syntax", 42),
    (I_BEGIN + "('1',XMLTYPE('<a/>'))", RedoBroken, "syntax", 42),
    (I_BEGIN + "('1',UNISTR('a') || 'b')", RedoBroken, "syntax", 57),
    (I_BEGIN + "('1',HEXTORAW('00'))", RedoBroken, "value", 42),
    (I_BEGIN + "('1x','x')", RedoBroken, "value", 38),
    (I_BEGIN + "(HEXTORAW('c102'),'x')", RedoBroken, "value", 38),
    (I_BEGIN + "('1',UNISTR('\\D83D'))", RedoBroken, "text", 42),
    (I_BEGIN + "('1','\ud800')", RedoBroken, "text", 0),
    ('insert into "S"."T"("ID","NONE") values (\'1\',NULL)', RedoBroken, "column", 25),
    ('insert into "S"."T"("COL 1") values (HEXTORAW(\'c102\'))', DictionaryMismatch,
     "dictionary", 20),
    ('insert into "S"."T"("ID","ID") values (\'1\',\'1\')', RedoBroken, "twice", 25),
    ('update "S"."T" set "A" = NULL wher', RedoBroken, "syntax", 30),
    ('update "S"."T" set "A" = NULL where "ID" = \'1\' and', RedoBroken, "syntax", 47),
    ('update "S"."T" set "A" = NULL where "ID" = \'1\' or "A" = NULL', RedoBroken, "syntax", 47),
    ('update "S"."T" set "A" IS NULL where "ID" = \'1\'', RedoBroken, "syntax", 23),
]  # fmt: skip


@pytest.mark.parametrize(("text", "error", "reason", "offset"), ERRORS)
def test_an_unknown_form_is_an_error(
    kind: Any, text: str, error: type[RedoBroken], reason: str, offset: int
) -> None:
    """The error has the row's SCN, XID and RS_ID, and never its values."""
    caught = refuse(kind, text)
    assert type(caught) is error
    assert (caught.fields["reason"], caught.offset) == (reason, offset)
    assert caught.fields["scn"] == SCN
    assert caught.fields["xid"] == XID
    assert f"SCN {SCN}, XID {XID}, RS_ID 0x0001a4.00002f13.0010" in str(caught)
    assert caught.fields["table"] == "SHOP.T"
    assert caught.hint


def test_an_error_names_the_column(kind: Any) -> None:
    """Codes are those of the documentation."""
    caught = refuse(
        kind, 'insert into "S"."T"("ID","C_DATE") values (\'1\',TO_DATE(\'28-FEB-26\'))', BY_KEY
    )
    assert (caught.code, caught.fields["column"]) == ("DC84", "C_DATE")
    codes = [RedoBroken.code, RedoUnlogged.code, RedoUnsupported.code, DictionaryMismatch.code]
    assert codes == ["DC80", "DC81", "DC82", "DC83"]


def test_rows_before_an_error_are_kept(kind: Any) -> None:
    """A row that fails leaves nothing, and the next one can be decoded."""
    texts = [INSERT, I_BEGIN + "('1','a long text before it',NULL)", INSERT.replace("'2'", "'x'")]
    decoder = kind()
    decoder.bind(1, SMALL)
    for at, text in enumerate((*texts, INSERT)):
        if at in (1, 2):
            with pytest.raises(RedoBroken):
                decoder.decode([row_of(text)], 1)
        else:
            decoder.decode([row_of(text)], 1)
    batch = decoder.take()[0].batch
    batch.validate(full=True)
    assert [one["after"]["A"] for one in batch.to_pylist()] == ["x", "x"]
    assert batch.column("gsn").to_pylist() == [1, 2]


def test_a_relation_without_before_columns_is_refused(kind: Any) -> None:
    """A delete that names no row would do nothing in the target."""
    caught = refuse(kind, 'delete from "S"."T" where "A" = \'x\'', replace(WHOLE, before=()))
    assert caught.fields["reason"] in ("before", "column")
