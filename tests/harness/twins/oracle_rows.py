"""Statements of LogMiner for the tests of its decoder: samples, drawn rows, damaged texts.

`assert_same` decodes texts by twin and kernel. `check_read` compares a decoded statement with an
independent reading: a grammar as one regular expression, and values by Python's own types.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.codec.oracle import _sql_redo, sql_redo
from penstock.codec.oracle.redo_outcome import RedoBroken, RedoRow, Stop
from penstock.codec.oracle.types import parse_type
from penstock.model import Column, Identity, Relation

SAMPLES = Path(__file__).parents[2] / "data" / "oracle_logminer_samples.jsonl"
SCN, XID, RS_ID = 8_800_153, "0A00070084220000", " 0x0001a4.00002f13.0010 "
TYPES = {
    "ID": "NUMBER(10)",
    "C_SMALL": "NUMBER(4)",
    "C_BIG": "NUMBER(18)",
    "C_HUGE": "NUMBER(*,0)",
    "C_DEC": "NUMBER(12,2)",
    "C_CENTS": "NUMBER(3,5)",
    "C_TENS": "NUMBER(5,-2)",
    "C_NUM": "NUMBER",
    "C_FLOAT": "FLOAT(126)",
    "C_BF": "BINARY_FLOAT",
    "C_BD": "BINARY_DOUBLE",
    "C_CHAR": "CHAR(6)",
    "C_VC": "VARCHAR2(80)",
    "C_NVC": "NVARCHAR2(80)",
    "C_RAW": "RAW(64)",
    "C_DATE": "DATE",
    "C_TS6": "TIMESTAMP(6)",
    "C_TS9": "TIMESTAMP(9)",
    "C_TSTZ": "TIMESTAMP(6) WITH TIME ZONE",
    "C_TSLTZ": "TIMESTAMP(6) WITH LOCAL TIME ZONE",
    "C_IYM": "INTERVAL YEAR(4) TO MONTH",
    "C_IDS": "INTERVAL DAY(5) TO SECOND(6)",
    "C_CLOB": "CLOB",
    "C_BLOB": "BLOB",
    "C_ROWID": "ROWID",
}
PASSED = ("SYS_NC00026$", "ORA_ARCHIVE_STATE")


def make_relation(types: dict[str, str], key: Sequence[str] = ("ID",)) -> Relation:
    """Return a table's relation; without a key, its identity are all columns that are logged."""
    columns = tuple(
        Column(name=name, source_type=text, neutral=parse_type(text).neutral)
        for name, text in types.items()
    )
    logged = [at for at, text in enumerate(types.values()) if not parse_type(text).is_large]
    chosen = tuple(at for at, name in enumerate(types) if name in key)
    return Relation(
        schema="SHOP",
        name="T",
        columns=columns,
        key=chosen,
        before=chosen or tuple(logged),
        identity=Identity.DEFAULT if chosen else Identity.FULL,
    )


BY_KEY = make_relation(TYPES)
WHOLE = make_relation(dict(list(TYPES.items())[:14]), ())
AS_TEXT = replace(
    BY_KEY,
    columns=tuple(
        column.as_text() if column.neutral not in ("binary", "string") else column
        for column in BY_KEY.columns
    ),
)
RELATIONS = (BY_KEY, WHOLE, AS_TEXT)
DECODERS = (sql_redo.Decoder, _sql_redo.Decoder)


def row_of(text: str, table: int = 1) -> RedoRow:
    """Return a row of LogMiner with this statement."""
    return RedoRow(table, text, SCN, XID, RS_ID)


# -- both decoders ---------------------------------------------------------------------------------


def plain_values(column: Any) -> Any:
    """Return an Arrow column as Python's values; numbers of days and times stay numbers."""
    if pa.types.is_struct(column.type):
        names = [field.name for field in column.type]
        return [
            column.is_valid().to_pylist(),
            *([name, plain_values(column.field(at))] for at, name in enumerate(names)),
        ]
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    return [repr(value) for value in column.to_pylist()]


def decode_all(kind: Any, texts: Sequence[str], relation: Relation) -> list[Any]:
    """Return what a decoder does with each text, and the batches of those that it decoded."""
    decoder = kind(gsn=41)
    decoder.bind(1, relation, PASSED)
    rows = [row_of(text) for text in texts]
    outcome: list[Any] = []
    at = 0
    while at < len(rows):
        done = decoder.row_count
        try:
            at = decoder.decode(rows, 7, at)
        except RedoBroken as error:
            at += decoder.row_count - done
            outcome.append((at, type(error), str(error), error.hint, error.fields, decoder.gsn))
        else:
            outcome.append((at, decoder.stop, decoder.widen, decoder.gsn, decoder.byte_count))
            if decoder.stop is Stop.MORE:
                break
        at += 1
    for rows_of in decoder.take():
        rows_of.batch.validate(full=True)
        outcome.append([plain_values(column) for column in rows_of.batch.columns])
    return outcome


def assert_same(texts: Sequence[str], relation: Relation = BY_KEY) -> list[Any]:
    """Check that twin and kernel give the same rows and refuse the same texts; return what they
    do.
    """
    twin, kernel = (decode_all(kind, texts, relation) for kind in DECODERS)
    if twin != kernel:
        for text in texts:
            one, other = (decode_all(kind, [text], relation) for kind in DECODERS)
            assert one == other, text
    assert twin == kernel
    return twin


# -- an independent reading ------------------------------------------------------------------------

_S = r"[ \t\r\n]*"
_B = r"[ \t\r\n]+"
_Q = r"'[^']*+(?:''[^']*+)*+'"
_NAME = r'"[^"]+"'
_CALL = (
    rf"(?:TO_DATE|TO_TIMESTAMP|TO_TIMESTAMP_TZ)\({_S}{_Q}{_S}(?:,{_S}{_Q}{_S})?\)"
    rf"|(?:TO_YMINTERVAL|TO_DSINTERVAL|HEXTORAW)\({_S}{_Q}{_S}\)"
)
_CHAIN = rf"UNISTR\({_S}{_Q}{_S}\)(?:{_S}\|\|{_S}UNISTR\({_S}{_Q}{_S}\))*+"
_WORD = (
    r"NULL|EMPTY_CLOB\(\)|EMPTY_BLOB\(\)|LM_EMPTY_STRING|Unsupported Type|XMLType\(:1\)"
    r"|[-.0-9][-+.E0-9]*+"
)
_VALUE = rf"(?:/\* JSON \*/{_S})?(?:{_Q}|{_CALL}|{_CHAIN}|{_WORD})"
_COLUMN = rf"(?:a\.)?{_NAME}"
_CONDITION = (
    rf"(?:(?:a\.)?ROWID{_S}={_S}{_Q}"
    rf"|{_COLUMN}{_S}(?:IS NULL|IS NOT NULL|={_S}{_VALUE})){_S}"
)
_WHERE = rf"where{_B}{_CONDITION}(?:and{_B}{_CONDITION})*"
_TABLE = rf"{_NAME}\.{_NAME}{_S}(?:a{_B})?"
_END = rf"(?:;{_S})?"
STATEMENT = re.compile(
    rf"{_S}(?:"
    rf"insert into{_B}{_TABLE}\({_S}(?P<names>{_COLUMN}{_S}(?:,{_S}{_COLUMN}{_S})*)\){_S}values{_S}"
    rf"\({_S}(?P<values>{_VALUE}{_S}(?:,{_S}{_VALUE}{_S})*)\){_S}"
    rf"|update{_B}{_TABLE}set{_B}"
    rf"(?P<set>{_COLUMN}{_S}={_S}{_VALUE}{_S}(?:,{_S}{_COLUMN}{_S}={_S}{_VALUE}{_S})*){_WHERE}"
    rf"|delete from{_B}{_TABLE}{_WHERE}"
    rf"){_END}"
)
_PAIR = re.compile(rf"({_COLUMN}){_S}(?:(IS NULL|IS NOT NULL)|={_S}({_VALUE}))")
_TOKEN = re.compile(rf"({_VALUE})")
_ARGUMENT = re.compile(_Q)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_statement(text: str) -> bool:
    """Return whether the grammar has a text."""
    return STATEMENT.fullmatch(text) is not None


def _text_of(value: str) -> str:
    return value[1:-1].replace("''", "'")


def evaluate(value: str, neutral: str) -> Any:
    """Return a value of the statement as Python reads it; None for NULL."""
    if value == "NULL":
        return None
    if value.startswith("UNISTR"):
        joined = "".join(_text_of(one) for one in _ARGUMENT.findall(value))
        units = re.sub(
            r"\\(\\|[0-9A-Fa-f]{4})",
            lambda found: "\\" if found[1] == "\\" else chr(int(found[1], 16)),
            joined,
        )
        return units.encode("utf-16", "surrogatepass").decode("utf-16") or None
    texts = _ARGUMENT.findall(value)
    text = _text_of(texts[0]) if texts else value
    if value.startswith("HEXTORAW"):
        return bytes.fromhex(text) or None
    if value.startswith("EMPTY"):
        return b"" if "BLOB" in value else ""
    if not text:
        return None
    if neutral.startswith("decimal") or neutral.startswith("int"):
        return Decimal(text)
    if neutral.startswith("float"):
        return float(text.replace("Nan", "nan"))
    return text


def check_read(text: str, after: dict[str, Any], relation: Relation) -> None:
    """Check the after image of an insert: its columns and values, read from the text again."""
    match = STATEMENT.fullmatch(text)
    assert match is not None, text
    assert match["names"] is not None, text
    names = [one.removeprefix("a.")[1:-1] for one in re.findall(_COLUMN, match["names"])]
    values = _TOKEN.findall(match["values"])
    for name, value in zip(names, values, strict=True):
        if name in PASSED or value.startswith(("/*", "LM_", "Unsupported", "XML")):
            continue
        column = next(one for one in relation.columns if one.name == name)
        expected = evaluate(value, column.neutral)
        found = after[name]
        if value.startswith(("TO_YM", "TO_DS")) or column.source_type.endswith("TIME ZONE"):
            continue  # `test_oracle_values` has these
        if column.neutral == "timestamp" and expected is not None:
            expected = micros_of(expected)
        if column.source_type in ("NUMBER", "FLOAT(126)"):
            assert Decimal(found) == Decimal(expected) if found else found == expected, text
        elif isinstance(expected, float) and column.neutral == "float32":
            assert repr(found) == repr(struct_single(expected)), text
        else:
            assert repr(found) == repr(expected) or found == expected, (text, name)


def struct_single(value: float) -> float:
    """Return a number rounded to a single."""
    found: float = pa.array([value], pa.float64()).cast(pa.float32())[0].as_py()
    return found


def micros_of(text: str) -> int:
    """Return microseconds since 1970 of a text of the years 1 to 9999."""
    whole, _, fraction = text.strip().partition(".")
    moment = datetime.strptime(f"{whole}Z", "%Y-%m-%d %H:%M:%S%z")
    return (moment - _EPOCH) // timedelta(microseconds=1) + int(fraction.ljust(6, "0")[:6])


# -- texts -----------------------------------------------------------------------------------------


def sample_rows() -> list[dict[str, Any]]:
    """Return the rows of the sample file."""
    lines = SAMPLES.read_text(encoding="utf-8").splitlines()
    return [one for one in map(json.loads, lines) if one["record"] == "row"]


def sample_relations() -> dict[str, Relation]:
    """Return the relations of the sample file by table."""
    lines = SAMPLES.read_text(encoding="utf-8").splitlines()
    catalogue = [one for one in map(json.loads, lines) if one["record"] == "catalog"]
    return {
        one["table"]: replace(
            make_relation(one["columns"], one["primary_key"]),
            schema=one["schema"],
            name=one["table"],
        )
        for one in catalogue
    }


VALUES = {
    "ID": ("'1'", "7", "'-12'", "'1200'", "'2147483648'"),
    "C_SMALL": ("'0'", "'32767'", "'32768'", "'-32768'", "'1.5'", "'1.0'", "'-0'"),
    "C_BIG": ("'9223372036854775807'", "'-9223372036854775808'", "'9223372036854775808'"),
    "C_HUGE": ("'" + "9" * 38 + "'", "'" + "9" * 40 + "'", "1E+37", "'1E-1'", "'~'"),
    "C_DEC": ("'12.5'", "'-.75'", "'.5'", "'9999999999.99'", "'12345678901'", "'.001'", "'1.'"),
    "C_CENTS": ("'.00123'", "'-.00001'", "'0'", "'1'"),
    "C_TENS": ("'9999900'", "'-100'", "'50'"),
    "C_NUM": ("'-1234567890123456789.000001'", "1.79E+100", "'1E-130'", "'~'", "'-~'", "'1E126'"),
    "C_FLOAT": ("'3.14159'", "'.5E-10'", "'0'"),
    "C_BF": ("'1.50000005E+010'", "'Nan'", "'-Inf'", "'1E+39'", "'1E-50'", "'.5'"),
    "C_BD": ("'-2.5E+000'", "'1.79769313486231571E+308'", "'2.5E-324'", "'nan'", "'-.5E+1'"),
    "C_CHAR": ("'ab    '", "''''", "'it''s'", "''", "NULL"),
    "C_VC": ("'x || y'", "'TO_DATE(''a'')'", "'\n'", "'é😀'", "LM_EMPTY_STRING", "'a''''b'"),
    "C_NVC": (
        r"UNISTR('\00E9t\4F60 \D83D\DE00 a\\b')",
        r"UNISTR('\D83D') || UNISTR('\DE00''x''')",
        r"UNISTR('\D83D')",
        r"UNISTR('\DE00')",
        r"UNISTR('\D83Dx')",
        r"UNISTR('\00G9')",
        "UNISTR('')",
        "UNISTR('a')||UNISTR( 'b' )",
        "UNISTR('|| ''|| ')",
    ),
    "C_RAW": (
        "HEXTORAW('deadBEEF')",
        "HEXTORAW('abc')",
        "HEXTORAW('')",
        "HEXTORAW('zz')",
        "Unsupported Type",
    ),
    "C_DATE": (
        "TO_DATE('2026-02-28 13:45:59', 'YYYY-MM-DD HH24:MI:SS')",
        "TO_DATE('-0044-03-15 00:00:00', 'SYYYY-MM-DD HH24:MI:SS')",
        "TO_DATE(' 2026-01-01 00:00:00')",
        "TO_DATE('0000-01-01 00:00:00')",
        "TO_DATE('1500-02-29 00:00:00')",
        "TO_DATE('1900-02-29 00:00:00')",
        "TO_DATE('28-FEB-26', 'DD-MON-RR')",
        "TO_DATE('9999-12-31 23:59:59')",
        "TO_DATE('2026-02-28 24:00:00')",
        "TO_DATE('2026-02-28 13:45:59 +01:00')",
    ),
    "C_TS6": (
        "TO_TIMESTAMP('2026-03-29 01:30:00.123456000')",
        "TO_TIMESTAMP('2026-03-29 00:00:00.')",
        "TO_TIMESTAMP('2026-03-29 00:00:00', 'YYYY-MM-DD HH24:MI:SS.FF9')",
        "TO_TIMESTAMP('28-FEB-26 01.45.59 PM')",
    ),
    "C_TS9": (
        "TO_TIMESTAMP('2026-03-29 01:30:00.123456789')",
        "TO_TIMESTAMP('2026-03-29 01:30:00.1234567890')",
        "TO_TIMESTAMP('-4712-01-01 00:00:00.000000001')",
    ),
    "C_TSTZ": (
        "TO_TIMESTAMP_TZ('2026-03-29 01:30:00.500000000 +05:30')",
        "TO_TIMESTAMP_TZ('2026-03-29 01:30:00.5 -00:30')",
        "TO_TIMESTAMP_TZ('2026-03-29 01:30:00.5')",
        "TO_TIMESTAMP_TZ('2026-03-29 01:30:00 +16:00')",
        "TO_TIMESTAMP_TZ('-0001-03-29 01:30:00 +01:00','SYYYY-MM-DD HH24:MI:SS.FF9 TZH:TZM')",
    ),
    "C_TSLTZ": (
        "TO_TIMESTAMP_TZ('2026-10-25 02:30:00.250000000')",
        "TO_TIMESTAMP_TZ('2026-10-25 02:30:00.250000000 +02:00')",
        "TO_TIMESTAMP_TZ('2026-10-25 02:30:00.2500000001')",
    ),
    "C_IYM": ("TO_YMINTERVAL('-0012-03')", "TO_YMINTERVAL('+1-12')", "TO_YMINTERVAL('0-00')"),
    "C_IDS": (
        "TO_DSINTERVAL('+00005 04:03:02.123456')",
        "TO_DSINTERVAL('-00000 00:00:00.000001')",
        "TO_DSINTERVAL('5 24:00:00')",
    ),
    "C_CLOB": ("EMPTY_CLOB()", "'short'", "Unsupported Type", "EMPTY_BLOB()"),
    "C_BLOB": (
        "EMPTY_BLOB()",
        "HEXTORAW('00ff')",
        "/* JSON */ EMPTY_BLOB()",
        "/* JSON */HEXTORAW('ff4a')",
        "/* JSON */ /* JSON */ NULL",
    ),
    "C_ROWID": ("'AAAV9cAAHAAAACjAAA'", "XMLType(:1)"),
    "SYS_NC00026$": ("'x'", "NULL", "HEXTORAW('0')"),
}
PIECES = (
    "'", "''", '"', "(", ")", ",", ";", " ", "\n", "=", " and ", " where ", "NULL", "IS NULL",
    "IS NOT NULL", "ROWID = 'AAAV9cAAHAAAACjAAB'", "a.", "a ", "UNISTR(", "||", "HEXTORAW('",
    "TO_DATE('", "\\", "\\00E9", "\\D83D", "/* JSON */ ", "Unsupported Type", "LM_EMPTY_STRING",
    "EMPTY_CLOB()", "0", "9", ".", "-", "E+10", "é", "\0", "COL 1", '"COL 1"', "\ud800", "insert",
    "values", "set ", "delete from ", "Unsupported", '"C_VC"', '"NONE" = NULL', "~",
)  # fmt: skip


class Texts:
    """A maker of statements and of damaged statements; its seed decides everything."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.samples = [row["SQL_REDO"] for row in sample_rows() if row["SQL_REDO"]]

    def statement(self) -> str:
        """Return an insert, update or delete of all types; its values are often refused."""
        dice = self.dice
        names = [name for name in VALUES if name == "ID" or dice.random() < 0.3]
        pairs = [(f'"{name}"', self.value(name)) for name in names]
        kind = dice.randrange(3)
        if kind == 0:
            columns, values = ",".join(n for n, _ in pairs), ",".join(v for _, v in pairs)
            return f'insert into "SHOP"."T"({columns}) values ({values})'
        where = " and ".join(
            f"{name} IS NULL" if value == "NULL" else f"{name} = {value}" for name, value in pairs
        )
        if kind == 1:
            return f'delete from "SHOP"."T" where {where}'
        changed = [dice.choice(list(VALUES)) for _ in range(dice.randint(1, 3))]
        shown = ", ".join(f'"{name}" = {self.value(name)}' for name in changed)
        return f'update "SHOP"."T" set {shown} where {where}'

    def value(self, name: str) -> str:
        """Return a value of a column, mostly one that it can have."""
        found = VALUES[name]
        if self.dice.random() < 0.7:
            return found[0]
        return self.dice.choice(found) if self.dice.random() < 0.9 else "NULL"

    def damage_statement(self) -> str:
        """Return a statement, cut, or with pieces removed, added, moved or repeated."""
        dice = self.dice
        text = self.statement() if dice.random() < 0.8 else dice.choice(self.samples)
        for _ in range(dice.choice((1, 1, 1, 2, 3, 5))):
            at = dice.randint(0, len(text))
            end = min(len(text), at + dice.choice((0, 1, 1, 2, 4, 9, 30)))
            what = dice.randrange(6)
            if what == 0:
                text = text[:at] + text[end:]
            elif what == 1:
                text = text[:at] + dice.choice(PIECES) + text[at:]
            elif what == 2:
                text = text[:at] + dice.choice(PIECES) + text[end:]
            elif what == 3:
                text = text[:at] + text[at:end] * 2 + text[end:]
            elif what == 4:
                text = text[:at]
            else:
                other = self.statement()
                text = text[:at] + other[dice.randint(0, len(other)) :]
        return text
