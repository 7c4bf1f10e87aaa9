"""Oracle's numbers, dates and intervals: printed texts, internal forms, `COL n` statements."""

from __future__ import annotations

import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.twins.oracle_rows import BY_KEY, DECODERS, RELATIONS, assert_same, row_of
from penstock.codec.oracle import intervals, moments, numbers
from penstock.codec.oracle.column_images import TableColumns, name_columns, print_internal
from penstock.codec.oracle.redo_outcome import Defect, Reason
from penstock.codec.oracle.types import parse_type
from penstock.codec.oracle.values import FormatUnknown, Malformed, Unfit

# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0", "0"), ("-0", "0"), ("000.000", "0"), ("7", "7"), ("-.75", "-0.75"), (".5", "0.5"),
        ("1200", "1200"), ("1.", "1"), ("1.50", "1.5"), ("1.79E+3", "1790"), ("1E-3", "0.001"),
        ("-12.5E1", "-125"), ("-12.5E-1", "-1.25"), ("100E-2", "1"), ("1E126", "1" + "0" * 126),
        ("1E-130", "0." + "0" * 129 + "1"), ("9" * 40, "9" * 40), ("~", "Infinity"),
        ("-~", "-Infinity"), ("0E999", "0"),
    ],
)  # fmt: skip
def test_a_number_has_all_its_digits(text: str, shown: str) -> None:
    """The text has no exponent, and no zeros that mean nothing."""
    assert numbers.read_number_text(text.encode()) == shown


@pytest.mark.parametrize(
    "text",
    ["", "-", ".", "+1", "1,5", "1e5", "1E", "1E+", "1E1000", "1E127", "1E-131", "9" * 41, "0x1",
     "1 ", " 1", "1.2.3", "--1", "~1", "NaN", "\u0661", "0" * 201],
)  # fmt: skip
def test_another_text_is_not_a_number(text: str) -> None:
    """No form is guessed."""
    with pytest.raises(Malformed):
        numbers.read_number_text(text.encode())


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_numbers_are_exact(number: Decimal) -> None:
    """A number of at most 40 digits means the same, whether it is printed with an exponent."""
    digits = number.as_tuple()
    if len(digits.digits) > 40 or not -130 <= number.adjusted() <= 126 or not number:
        return
    for text in (f"{number:E}", f"{number:f}"):
        if len(text) <= numbers.TEXT_MAX and "+0" not in text:
            assert Decimal(numbers.read_number_text(text.encode())) == number


@pytest.mark.parametrize(
    ("text", "neutral"),
    [("32768", "int16"), ("-32769", "int16"), ("1.5", "int16"), ("2147483648", "int32"),
     ("9223372036854775808", "int64"), ("1E19", "int64"), ("~", "int64"), ("1E-2", "int32")],
)  # fmt: skip
def test_a_whole_number_out_of_range_is_unfit(text: str, neutral: str) -> None:
    """The column becomes text; a fraction is not cut."""
    with pytest.raises(Unfit):
        numbers.read_integer(text.encode(), neutral)


def test_whole_numbers_at_their_bounds() -> None:
    """Bounds and exponents are exact."""
    assert numbers.read_integer(b"-32768", "int16") == -32768
    assert numbers.read_integer(b"-9223372036854775808", "int64") == -(2**63)
    assert numbers.read_integer(b"9.2E2", "int16") == 920
    assert numbers.read_integer(b"7.0", "int16") == 7


def test_decimals_keep_their_scale() -> None:
    """Digits beyond precision or scale are not rounded."""
    assert str(numbers.read_decimal(b"12.5", 4, 2)) == "12.50"
    assert str(numbers.read_decimal(b"-0", 4, 2)) == "0.00"
    for text in (b"100", b".001", b"-~"):
        with pytest.raises(Unfit):
            numbers.read_decimal(text, 4, 2)


def test_binary_floats() -> None:
    """NaN and the infinities have Oracle's spellings; what overflows is unfit."""
    assert numbers.read_float(b"1.50000005E+010", "float64") == 15000000500.0
    assert numbers.read_float(b"1.50000005E+010", "float32") == 15000000512.0
    assert numbers.read_float(b"-Inf", "float64") == -numbers.read_float(b"inf", "float32")
    assert str(numbers.read_float(b"Nan", "float32")) == "nan"
    assert numbers.plain_float(b"-.5E+1") == b"-0.5e+1"
    for text, neutral in ((b"1E+39", "float32"), (b"1E+309", "float64"), (b"1E-400", "float64")):
        with pytest.raises(Unfit):
            numbers.read_float(text, neutral)
    for text in (b"1e5", b"1E+", b"infinite", b"", b"1.5d"):
        with pytest.raises(Malformed):
            numbers.read_float(text, "float64")


INTERNAL_NUMBERS = [
    ("80", "0"), ("c102", "1"), ("c20d", "1200"), ("c10b", "10"), ("3e6466", "-1"),
    ("c0070f38", "0.061455"), ("3d5966", "-1200"), ("ff65", "Infinity"), ("00", "-Infinity"),
    ("c118", "23"), ("3f64665a66", None), ("c200", None), ("c1", None), ("c10100", None),
    ("c10166", None), ("", None),
]  # fmt: skip


@pytest.mark.parametrize(("data", "shown"), INTERNAL_NUMBERS)
def test_internal_numbers(data: str, shown: str | None) -> None:
    """Digits of base 100, and the complement for negative numbers."""
    if shown is None:
        with pytest.raises(Malformed):
            numbers.read_internal_number(bytes.fromhex(data))
    else:
        assert numbers.read_internal_number(bytes.fromhex(data)) == shown


def encode_number(number: Decimal) -> bytes:
    """Return a number's internal form, as Oracle's guide describes it."""
    if not number:
        return b"\x80"
    sign, digits, exponent = number.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    assert isinstance(exponent, int)
    if exponent % 2:
        text, exponent = text + "0", exponent - 1
    text = text.zfill(len(text) + len(text) % 2)
    pairs = [int(text[at : at + 2]) for at in range(0, len(text), 2)]
    power = exponent // 2 + len(pairs) - 1
    while not pairs[-1]:
        pairs.pop()
    if sign:
        body = bytes(101 - pair for pair in pairs)
        return bytes((62 - power,)) + body + (b"\x66" if len(pairs) < 20 else b"")
    return bytes((193 + power,)) + bytes(pair + 1 for pair in pairs)


@given(st.integers(-(10**38), 10**38), st.integers(-80, 60))
def test_internal_numbers_mean_the_same(digits: int, exponent: int) -> None:
    """Each number is read from its internal form as it was."""
    number = Decimal(digits).scaleb(exponent)
    if not -130 <= number.adjusted() <= 125 and number:
        return
    assert Decimal(numbers.read_internal_number(encode_number(number))) == number


@given(st.floats(allow_nan=False))
def test_internal_floats(value: float) -> None:
    """The sign's bit is inverted, and all bits of a negative number."""
    data = struct.pack(">d", value)
    stored = (
        bytes(b ^ 0xFF for b in data) if data[0] & 0x80 else bytes((data[0] | 0x80,)) + data[1:]
    )
    text = numbers.read_internal_float(stored)
    assert numbers.read_float(text.encode(), "float64") == value


# -- dates and times -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "micros", "shown"),
    [
        ("1970-01-01 00:00:00", 0, "1970-01-01 00:00:00"),
        ("1969-12-31 23:59:59.999999000", -1, "1969-12-31 23:59:59.999999"),
        ("2026-03-29 00:00:00.", 1774742400000000, "2026-03-29 00:00:00"),
        (" 2000-02-29 12:00:00.5", 951825600500000, "2000-02-29 12:00:00.5"),
        ("0001-01-01 00:00:00", -62135596800000000, "0001-01-01 00:00:00"),
        ("-0001-12-31 00:00:00", -62135683200000000, "0001-12-31 00:00:00 BC"),
        ("-4712-01-01 00:00:00", -210831897600000000, "4712-01-01 00:00:00 BC"),
        ("9999-12-31 23:59:59", 253402300799000000, "9999-12-31 23:59:59"),
        ("2026-01-01 00:00:00 +05:30", 1767205800000000, "2026-01-01 00:00:00+05:30"),
        ("2026-01-01 00:00:00 -00:30", 1767227400000000, "2026-01-01 00:00:00-00:30"),
        ("0000-01-01 00:00:00", None, "0000-01-01 00:00:00"),
        ("-0000-01-01 00:00:00", None, "0000-01-01 00:00:00"),
        ("1500-02-29 00:00:00", None, "1500-02-29 00:00:00"),
        ("-0101-02-29 00:00:00", None, "0101-02-29 00:00:00 BC"),
        ("2026-01-01 00:00:00.123456789", None, "2026-01-01 00:00:00.123456789"),
    ],
)
def test_moments(text: str, micros: int | None, shown: str) -> None:
    """Values without microseconds here are those that only a text can hold."""
    moment = moments.parse_moment(text.encode())
    assert moments.text_of(moment) == shown
    if micros is None:
        with pytest.raises(Unfit):
            moments.microseconds_of(moment)
    else:
        assert moments.microseconds_of(moment) == micros


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("28-FEB-26", FormatUnknown), ("2026-02-28", FormatUnknown), ("", FormatUnknown),
        ("2026-02-28T00:00:00", FormatUnknown), ("2026-02-28 00:00", FormatUnknown),
        ("2026-02-28 00:00:00.1234567890", FormatUnknown), ("+2026-02-28 00:00:00", FormatUnknown),
        ("2026-02-28 00:00:00+01:00", FormatUnknown), ("2026-02-28 00:00:00 UTC", FormatUnknown),
        ("2026-02-29 00:00:00", Malformed), ("2026-13-01 00:00:00", Malformed),
        ("2026-00-01 00:00:00", Malformed), ("1900-02-29 00:00:00", Malformed),
        ("2026-04-31 00:00:00", Malformed), ("2026-01-01 24:00:00", Malformed),
        ("2026-01-01 00:60:00", Malformed), ("2026-01-01 00:00:60", Malformed),
        ("2026-01-01 00:00:00 +16:00", Malformed), ("2026-01-01 00:00:00 +01:60", Malformed),
    ],
)  # fmt: skip
def test_other_texts_are_not_moments(text: str, error: type[Exception]) -> None:
    """A text of another format has lost its time of day; a day has to be in a calendar."""
    with pytest.raises(error):
        moments.parse_moment(text.encode())


def test_a_date_has_no_offset_and_a_zoned_time_has_one() -> None:
    """Both would be the texts of another format."""
    for name, value in (
        ("C_DATE", "TO_DATE('2026-02-28 00:00:00 +01:00')"),
        ("C_TS6", "TO_TIMESTAMP('2026-02-28 00:00:00 +01:00')"),
        ("C_TSTZ", "TO_TIMESTAMP_TZ('2026-02-28 00:00:00')"),
        ("C_DATE", "TO_DATE('2026-02-28 00:00:00', 'YYYY-MM-DD')"),
        ("C_DATE", "TO_DATE('2026-02-28 00:00:00', 'YYYY-MM-DD HH24:MI:SS.FF9')"),
    ):
        text = f'insert into "S"."T"("ID","{name}") values (\'1\',{value})'
        for relation in (RELATIONS[0], RELATIONS[2]):
            (outcome,) = assert_same([text], relation)[:1]
            assert outcome[4]["reason"] == "format", (name, value)


def test_a_local_time_is_in_utc() -> None:
    """The sessions' zone is UTC: its text says so if the column is text."""
    texts = ["2026-10-25 02:30:00.25", "2026-10-25 02:30:00.25 +02:00"]
    rows = [
        row_of(f'insert into "S"."T"("ID","C_TSLTZ") values (1,TO_TIMESTAMP_TZ(\'{text}\'))')
        for text in texts
    ]
    for kind in DECODERS:
        found = []
        for relation in (BY_KEY, RELATIONS[2]):
            decoder = kind()
            decoder.bind(1, relation)
            decoder.decode(rows, 1)
            batch = decoder.take()[0].batch
            found.append([str(one["after"]["C_TSLTZ"]) for one in batch.to_pylist()])
        assert found[0] == ["2026-10-25 02:30:00.250000+00:00", "2026-10-25 00:30:00.250000+00:00"]
        assert found[1] == ["2026-10-25 02:30:00.25+00:00", "2026-10-25 02:30:00.25+02:00"]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("787e0102040506", "2026-01-02 03:04:05"),
        ("787e010204050600bc614e", "2026-01-02 03:04:05.012345678"),
        ("3538010d010101", "-4744-01-13 00:00:00"),
        ("787e010105010100000000195a", "2026-01-01 09:30:00.000000000 +05:30"),
        ("787e0101050101000000000f3c", "2025-12-31 23:00:00.000000000 -05:00"),
        ("787e02011901010000000017", None),
    ],
)
def test_internal_moments(data: str, shown: str | None) -> None:
    """Centuries and years plus 100, hours, minutes and seconds plus 1, zones in UTC."""
    if shown is None:
        with pytest.raises(Malformed):
            moments.read_internal_moment(bytes.fromhex(data))
    else:
        assert moments.read_internal_moment(bytes.fromhex(data)) == shown


@pytest.mark.parametrize("data", ["787e0102040506070809", "787e0102990506", "787e0d02040506",
                                  "787e01020405063b9aca00", "787e01010501010000000080aa",
                                  "787e0101000101"])  # fmt: skip
def test_other_bytes_are_not_moments(data: str) -> None:
    """Wrong lengths, days and times, and regions, whose offsets only the server knows."""
    with pytest.raises(Malformed):
        moments.read_internal_moment(bytes.fromhex(data))


# -- intervals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [("-0012-03", "P-12Y-3M"), ("+1-11", "P1Y11M"), ("0-00", "P0Y0M"), ("-0-01", "P0Y-1M")],
)
def test_intervals_of_months(text: str, shown: str) -> None:
    """Each part has the sign."""
    assert intervals.read_months(text.encode()) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("+00005 04:03:02.123456", "P5DT4H3M2.123456S"),
        ("-5 00:00:00.500000000", "P-5DT0H0M-0.5S"),
        ("0 23:59:59", "P0DT23H59M59S"),
        ("-00000 00:00:00.", "P0DT0H0M0S"),
    ],
)
def test_intervals_of_seconds(text: str, shown: str) -> None:
    """Zeros at the end of a fraction mean nothing."""
    assert intervals.read_seconds(text.encode()) == shown


@pytest.mark.parametrize("text", ["", "1", "1-12", "1-1", "5 24:00:00", "5 00:60:00", "5 00:00:60",
                                  "5 1:00:00", "x 00:00:00", "1 00:00:00.0000000000"])  # fmt: skip
def test_other_texts_are_not_intervals(text: str) -> None:
    """No hours are carried over to days."""
    with pytest.raises(Malformed):
        intervals.read_seconds(text.encode())
    with pytest.raises(Malformed):
        intervals.read_months(text.encode())


def test_internal_intervals() -> None:
    """Numbers have a bias, so that they are never negative."""
    assert intervals.read_internal_months(bytes.fromhex("800000013f")) == "+1-03"
    assert intervals.read_internal_months(bytes.fromhex("7ffffff439")) == "-12-03"
    shown = intervals.read_internal_seconds(bytes.fromhex("80000005403f3e875bca00"))
    assert shown == "+5 04:03:02.123456000"
    assert intervals.read_internal_seconds(bytes.fromhex("7fffffff3c3c3c80000000")).startswith("-1")
    for data in ("8000000148", "800000013b", "80000001", ""):
        with pytest.raises(Malformed):
            intervals.read_internal_months(bytes.fromhex(data))
    for data in ("80000005403f3e7fffffff", "80000005553f3e80000000", "80"):
        with pytest.raises(Malformed):
            intervals.read_internal_seconds(bytes.fromhex(data))


# -- statements with `COL n` -----------------------------------------------------------------------

LAG = TableColumns(
    schema="SHOP",
    table="LAG",
    columns=[
        ("ID", parse_type("NUMBER(10)")),
        ("NAME", parse_type("VARCHAR2(20)")),
        ("WHEN_AT", parse_type("DATE")),
        ("BODY", parse_type("CLOB")),
    ],
)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            'insert into "SHOP"."LAG"("COL 1","COL 2","COL 3","COL 4") values '
            "(HEXTORAW('c20d'),HEXTORAW('5a6f27'),HEXTORAW('787e0102040506'),EMPTY_CLOB())",
            'insert into "SHOP"."LAG"("ID","NAME","WHEN_AT","BODY") values (\'1200\',\'Zo\'\'\','
            "TO_DATE('2026-01-02 03:04:05', 'SYYYY-MM-DD HH24:MI:SS'),EMPTY_CLOB())",
        ),
        (
            'update "SHOP"."LAG" set "COL 2" = NULL where "COL 1" = HEXTORAW(\'c108\') and '
            "\"COL 2\" = HEXTORAW('426f') and \"COL 3\" IS NULL and ROWID = 'AAAV9cAAHAAAACjAAB'",
            'update "SHOP"."LAG" set "NAME" = NULL where "ID" = \'7\' and "NAME" = \'Bo\' and '
            "\"WHEN_AT\" IS NULL and ROWID = 'AAAV9cAAHAAAACjAAB'",
        ),
        (
            'delete from "UNKNOWN"."OBJ# 7" where "COL 1" = HEXTORAW(\'c108\') and '
            "\"COL 4\" = HEXTORAW('0054')",
            'delete from "SHOP"."LAG" where "ID" = \'7\' and "BODY" = Unsupported Type',
        ),
    ],
)
def test_columns_are_named(text: str, named: str) -> None:
    """The statement is what LogMiner writes with the right dictionary."""
    assert name_columns(text, LAG) == named


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('delete from "S"."T" where "COL 5" = HEXTORAW(\'c108\')', Reason.COLUMN),
        ('delete from "S"."T" where "COL 0" = HEXTORAW(\'c108\')', Reason.COLUMN),
        ('delete from "S"."T" where "ID" = HEXTORAW(\'c108\')', Reason.COLUMN),
        ('delete from "S"."T" where "COL 1" = HEXTORAW(\'c1\')', Reason.IMAGE),
        ('delete from "S"."T" where "COL 1" = \'7\'', Reason.IMAGE),
        ('delete from "S"."T" where "COL 2" = HEXTORAW(\'ff\')', Reason.IMAGE),
        ('delete from "S"."T" where "COL 3" = HEXTORAW(\'787e01020405\')', Reason.IMAGE),
        ('delete from "S"."T" where "COL 3" = HEXTORAW(\'787e0d02040506\')', Reason.IMAGE),
        ('delete from "S"."T" where "COL 1" = HEXTORAW(\'c\')', Reason.IMAGE),
        ('delete from "S"."T" where "COL 1" = Unsupported Type', Reason.IMAGE),
        (
            'update "S"."T" set "COL 2" = Unsupported Type where "COL 1" = HEXTORAW(\'c108\')',
            Reason.IMAGE,
        ),
        ('delete from "S"."T" where "COL 1" = \'\ud800\'', Reason.TEXT),
        ('delete from "S"."T"', Reason.UNLOGGED),
    ],
)
def test_other_statements_are_refused(text: str, reason: Reason) -> None:
    """A value of an unknown form, or of a column that the table did not have, is an error."""
    with pytest.raises(Defect) as caught:
        name_columns(text, LAG)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("type_text", "data", "literal"),
    [
        ("NUMBER", "ff65", "'~'"),
        ("FLOAT(10)", "00", "'-~'"),
        ("NUMBER", "", "NULL"),
        ("BINARY_FLOAT", "bfc00000", "'1.5'"),
        ("BINARY_DOUBLE", "400fffffffffffff", "'-1'"),
        ("BINARY_DOUBLE", "fff8000000000000", "'Nan'"),
        ("BINARY_FLOAT", "007fffff", "'-Inf'"),
        ("NVARCHAR2(9)", "00e9d83dde00", "'é😀'"),
        ("RAW(9)", "00ff", "HEXTORAW('00ff')"),
        ("TIMESTAMP(6)", "787e0102040506", "TO_TIMESTAMP('2026-01-02 03:04:05')"),
        ("TIMESTAMP(6) WITH TIME ZONE", "787e010105010100000000195a",
         "TO_TIMESTAMP_TZ('2026-01-01 09:30:00.000000000 +05:30')"),
        ("TIMESTAMP(6) WITH LOCAL TIME ZONE", "787e0102040506",
         "TO_TIMESTAMP_TZ('2026-01-02 03:04:05 -02:30')"),
        ("INTERVAL YEAR TO MONTH", "800000013f", "TO_YMINTERVAL('+1-03')"),
        ("INTERVAL DAY TO SECOND", "80000005403f3e875bca00",
         "TO_DSINTERVAL('+5 04:03:02.123456000')"),
        ("BLOB", "0001", "Unsupported Type"),
    ],
)  # fmt: skip
def test_internal_values_are_printed(type_text: str, data: str, literal: str) -> None:
    """Each literal is one that the decoders read for the type."""
    known = TableColumns(schema="S", table="T", columns=[], zone_offset=-150)
    assert print_internal(bytes.fromhex(data), parse_type(type_text), known) == literal


def test_a_local_time_needs_the_zone_of_the_database() -> None:
    """The value is stored in DBTIMEZONE; with a region its offset is not known."""
    kind = parse_type("TIMESTAMP WITH LOCAL TIME ZONE")
    with pytest.raises(Malformed):
        print_internal(bytes.fromhex("787e0102040506"), kind, LAG)
    with pytest.raises(Malformed):
        print_internal(bytes.fromhex("bfc0"), parse_type("BINARY_FLOAT"), LAG)
    with pytest.raises(Malformed):
        print_internal(bytes.fromhex("0001"), parse_type("ROWID"), LAG)
