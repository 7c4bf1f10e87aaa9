"""Rows of LogMiner that are not whole changes: pieces, kinds of rows, large objects, documents."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from harness.twins.oracle_rows import make_relation, row_of, sample_rows
from penstock.codec.oracle.lob_statements import (
    LobErase,
    LobSelect,
    LobTrim,
    LobWrite,
    bytes_literal,
    parse_lob_statement,
    parse_long_string,
    text_literal,
)
from penstock.codec.oracle.mined_rows import RowKind, row_kind, unreadable_reason
from penstock.codec.oracle.pieces import PieceJoiner
from penstock.codec.oracle.redo_outcome import Defect, Reason, RedoBroken
from penstock.codec.oracle.sql_redo import Decoder
from penstock.codec.oracle.xml_statements import XmlBegin, XmlWrite, parse_xml_statement

# -- pieces ----------------------------------------------------------------------------------------

LONG = 'insert into "S"."T"("ID","A","R") values (\'1\',\'it\'\'s é\',HEXTORAW(\'00ff\'))'


def test_a_statement_may_be_cut_anywhere() -> None:
    """Also between two quotes that mean one, and between the digits of a byte."""
    relation = make_relation({"ID": "NUMBER(9)", "A": "VARCHAR2(9)", "R": "RAW(9)"})
    for cut in range(1, len(LONG)):
        joiner = PieceJoiner()
        pieces = [LONG[:cut], "", LONG[cut:]]
        rows = [structs.replace(row_of(piece), rs_id=f" {at} ") for at, piece in enumerate(pieces)]
        assert joiner.add(rows[0], operation=1, is_continued=True) is None
        assert joiner.first is rows[0]
        assert joiner.add(rows[1], operation=1, is_continued=True) is None
        whole = joiner.add(rows[2], operation=1, is_continued=False)
        assert whole == structs.replace(rows[0], text=LONG)
        joiner.close()
        decoder = Decoder()
        decoder.bind(1, relation)
        decoder.decode([whole], 1)
        after = decoder.take()[0].batch.to_pylist()[0]["after"]
        assert after == {"ID": 1, "A": "it's é", "R": b"\x00\xff"}


@pytest.mark.parametrize(
    ("changes", "operation"), [({"scn": 1}, 1), ({"xid": "0B"}, 1), ({"table": 2}, 1), ({}, 3)]
)
def test_a_foreign_row_is_not_the_next_piece(changes: dict[str, Any], operation: int) -> None:
    """The error has the place of the first piece."""
    joiner = PieceJoiner()
    joiner.add(row_of("insert"), operation=1, is_continued=True)
    with pytest.raises(RedoBroken, match=r"pieces do not follow.*SCN 8800153, XID 0A0007008"):
        joiner.add(structs.replace(row_of("x"), **changes), operation=operation, is_continued=False)


def test_the_end_of_a_window_needs_whole_statements() -> None:
    """A window that ends inside a statement is read again."""
    joiner = PieceJoiner()
    joiner.add(row_of("insert"), operation=1, is_continued=True)
    with pytest.raises(RedoBroken, match="at byte 6"):
        joiner.close()
    joiner.forget()
    joiner.close()
    assert joiner.add(row_of("x"), operation=1, is_continued=False) == row_of("x")


# -- kinds of rows ---------------------------------------------------------------------------------

KINDS = {
    "begin": RowKind.BEGIN, "commit": RowKind.COMMIT, "rollback": RowKind.ROLLBACK,
    "change": RowKind.CHANGE, "undo": RowKind.UNDO, "ddl": RowKind.DDL, "truncate": RowKind.DDL,
    "lob_locator": RowKind.LOB, "lob_write": RowKind.LOB, "lob_trim": RowKind.LOB,
    "lob_erase": RowKind.LOB, "xml_begin": RowKind.XML, "xml_write": RowKind.XML,
    "xml_end": RowKind.XML, "extended_string_begin": RowKind.LONG_STRING, "skip": RowKind.PASSED,
    "unsupported": RowKind.UNREADABLE, "undecodable": RowKind.UNREADABLE, "gap": RowKind.GAP,
    "continuation": RowKind.CHANGE,
}  # fmt: skip


def kind_of(row: dict[str, Any]) -> RowKind:
    """Return the kind of a sample row."""
    return row_kind(
        row["OPERATION_CODE"],
        is_undo=bool(row["ROLLBACK"]),
        status=row["STATUS"],
        info=row["INFO"],
        text=row["SQL_REDO"],
    )


def test_the_samples_have_their_kinds() -> None:
    """Every row of the sample file is what the file says; errors are found by the decoder."""
    seen = set()
    for row in sample_rows():
        expected = row["expect"]["kind"]
        if expected == "error":
            assert kind_of(row) in (RowKind.CHANGE, RowKind.UNREADABLE)
        else:
            assert kind_of(row) is KINDS[expected], row
        seen.add(expected)
    assert seen - {"error"} == KINDS.keys()


def test_other_operations_and_states() -> None:
    """An unknown operation is not passed over; a corrupt block is a gap."""
    plain: dict[str, Any] = {"is_undo": False, "status": 0, "info": None, "text": "x"}
    assert row_kind(77, **plain) is RowKind.UNKNOWN
    assert row_kind(1, **{**plain, "status": 1343}) is RowKind.GAP
    assert row_kind(27, **plain) is RowKind.PASSED
    assert row_kind(28, **plain) is row_kind(29, **plain) is RowKind.LOB
    assert unreadable_reason(status=3, info="no supplemental log data found") is Reason.UNLOGGED
    assert unreadable_reason(status=2, info="Dictionary Mismatch") is Reason.DICTIONARY
    assert unreadable_reason(status=2, info="Object or Data type Unsupported") is Reason.UNSUPPORTED
    assert unreadable_reason(status=2, info=None) is None


# -- large objects ---------------------------------------------------------------------------------

HEAD = (
    "DECLARE \n loc_c CLOB; \n buf_c VARCHAR2(6156); \n loc_b BLOB; \n buf_b RAW(6156); \n"
    " loc_nc NCLOB; \n buf_nc NVARCHAR2(6156); \n e_len NUMBER; \nBEGIN\n"
)
SELECT = ' select "BODY" into loc_c from "S"."D" where "ID" = \'2\' and "T" = \'t\' for update;\n'


def test_the_samples_of_large_objects() -> None:
    """Both layouts are read, with column, row, data and places."""
    count = 0
    for row in sample_rows():
        expect = row["expect"]
        if not expect["kind"].startswith("lob_") or not row["SQL_REDO"]:
            continue
        found = parse_lob_statement(row["SQL_REDO"])
        select = found if isinstance(found, LobSelect) else found.select
        if "column" in expect:
            assert select is not None
            assert select.column == expect["column"]
            names = [cell.name.decode() for cell in select.statement.old]
            assert names == list(expect["where"])
            assert select.statement.table == expect["table"].encode()
        if isinstance(found, LobWrite):
            data = expect["data"]
            assert found.data == (bytes.fromhex(data["$hex"]) if isinstance(data, dict) else data)
        for name in ("amount", "offset", "length", "locator"):
            if name in expect:
                assert getattr(found, name) == expect[name]
        count += 1
    assert count == 11


def test_a_select_becomes_an_update() -> None:
    """The value that is put together is set by a statement that the decoder reads."""
    text = SELECT.replace("'t'", "'x for update; ''y'")
    select = parse_lob_statement(HEAD + text)
    assert isinstance(select, LobSelect)
    update = select.update_text(text_literal("it's"))
    assert update == (
        'update "S"."D" set "BODY" = \'it\'\'s\' where "ID" = \'2\' and "T" = '
        "'x for update; ''y'"
    )
    assert text_literal("") == "EMPTY_CLOB()"
    assert bytes_literal(b"\x00\xff") == "HEXTORAW('00ff')"
    assert bytes_literal(b"") == "EMPTY_BLOB()"
    relation = make_relation({"ID": "NUMBER(9)", "T": "VARCHAR2(30)", "BODY": "CLOB"})
    decoder = Decoder()
    decoder.bind(1, relation)
    decoder.decode([row_of(update), row_of(select.update_text("EMPTY_CLOB()"))], 1)
    rows = decoder.take()[0].batch.to_pylist()
    assert [row["after"]["BODY"] for row in rows] == ["it's", ""]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (" buf_nc := 'é'; dbms_lob.write(loc_nc, 1, 7, buf_nc);", LobWrite),
        (" buf_nc := UNISTR('\\00E9'); dbms_lob.write(loc_nc, 1, 7, buf_nc);", LobWrite),
        (" buf_c := HEXTORAW('c3a9'); dbms_lob.write(loc_c, 1, 7, buf_c);", LobWrite),
        (" dbms_lob.trim(loc_b, 0);", LobTrim),
        (" e_len := 2; dbms_lob.erase(loc_c, e_len, 1);", LobErase),
    ],
)
def test_actions_without_a_select(text: str, kind: type) -> None:
    """Actions without a column are about that of the last SELECT."""
    found = parse_lob_statement(text)
    assert type(found) is kind
    assert not isinstance(found, LobSelect)
    assert found.select is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", Reason.LOB),
        ("BEGIN null; END;", Reason.LOB),
        (" buf_c := 'xy'; dbms_lob.write(loc_c, 3, 1, buf_c);", Reason.LOB),
        (" buf_c := 'xy'; dbms_lob.write(loc_c, 2, 0, buf_c);", Reason.LOB),
        (" buf_c := 'xy'; dbms_lob.write(loc_b, 2, 1, buf_c);", Reason.LOB),
        (" buf_c := 'xy'; dbms_lob.write(loc_c, 2, 1, buf_nc);", Reason.LOB),
        (" buf_b := 'xy'; dbms_lob.write(loc_b, 2, 1, buf_b);", Reason.LOB),
        (" buf_b := HEXTORAW('0'); dbms_lob.write(loc_b, 1, 1, buf_b);", Reason.VALUE),
        (" buf_nc := UNISTR('\\D83D'); dbms_lob.write(loc_nc, 1, 1, buf_nc);", Reason.TEXT),
        (" buf_c := '\ud800'; dbms_lob.write(loc_c, 1, 1, buf_c);", Reason.TEXT),
        (" dbms_lob.trim(loc_c, 1); dbms_lob.trim(loc_c, 2);", Reason.LOB),
        (HEAD + SELECT + " dbms_lob.trim(loc_b, 1);\nEND;", Reason.LOB),
        (HEAD + SELECT.replace("for update", "for"), Reason.LOB),
        (HEAD + SELECT.replace("where", "were"), Reason.SYNTAX),
        (HEAD + ' select "B" into loc_c from "S"."D" for update;', Reason.UNLOGGED),
    ],
)
def test_other_statements_for_large_objects(text: str, reason: Reason) -> None:
    """An amount that is not that of the data is not believed."""
    with pytest.raises(Defect) as caught:
        parse_lob_statement(text)
    assert caught.value.reason is reason


def test_the_begin_of_a_long_string() -> None:
    """The statement inside has doubled quotes; its row is known, its value is not."""
    row = next(one for one in sample_rows() if one["OPERATION_CODE"] == 91)
    found = parse_long_string(row["SQL_REDO"])
    assert found.column == "DATA"
    assert [cell.name for cell in found.statement.old] == [b"ID"]
    assert (found.statement.owner, found.statement.table) == (b"SHOP", b"BIGTEXT")
    for text in ("", row["SQL_REDO"].replace("Stmt := 'update", "Stmt := 'delete"), "\ud800",
                 row["SQL_REDO"] + " x"):  # fmt: skip
        with pytest.raises(Defect):
            parse_long_string(text)


# -- documents -------------------------------------------------------------------------------------


def test_documents_are_recognised() -> None:
    """The begin names column and row; parts say only how long they are."""
    begins = []
    for row in sample_rows():
        if row["OPERATION_CODE"] not in (68, 70):
            continue
        found = parse_xml_statement(row["SQL_REDO"])
        if isinstance(found, XmlBegin):
            begins.append((found.column, [cell.name for cell in found.statement.old]))
        else:
            assert found.amount == row["expect"]["amount"]
    assert begins == [("PAYLOAD", [b"ID"])] * 2
    open_quote = "XML_REDO := HEXTORAW('3c612f3e):4"
    assert parse_xml_statement(open_quote) == XmlWrite(is_binary=True, amount=4)
    text = "XML_REDO := 'it''s'\n amount: 4"
    assert parse_xml_statement(text) == XmlWrite(is_binary=False, amount=4)


@pytest.mark.parametrize(
    "text",
    ["", "XML_REDO := 'x'", "XML_REDO := 'x' amount: 1 x", "XML DOC BEGIN: x", "\ud800",
     'XML DOC BEGIN: select "C" from "S"."T"', 'update "S"."T" set "A" = \'x\' where "ID" = 1',
     'update "S"."T" set "A" = XMLType(:1), "B" = XMLType(:1) where "ID" = 1'],
)  # fmt: skip
def test_other_statements_for_documents(text: str) -> None:
    """No form is guessed."""
    with pytest.raises(Defect):
        parse_xml_statement(text)
