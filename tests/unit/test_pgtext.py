"""Text forms of PostgreSQL, value by value: one suite for the plain reader and the kernel."""

from __future__ import annotations

import itertools
import math
import random
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest

from harness.twins.pgoutput import COMMIT_TIME_US, DECODERS, begin, column, insert, relation
from penstock.codec.postgres.pgoutput import DecodeError, Decoder, Stop
from penstock.codec.postgres.pgtext import Malformed, read_float32, read_float64

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNFIT = object()
WRONG = object()


@pytest.fixture(params=DECODERS)
def kind(request: pytest.FixtureRequest) -> type[Decoder]:
    """Each implementation in turn."""
    return DECODERS[request.param]


def decode_texts(kind: type[Decoder], neutral: str, texts: list[bytes], **more: Any) -> pa.Array:
    """Decode texts as rows of a one-column table; return the column as an Arrow array."""
    decoder = kind()
    decoder.bind(1, relation(column("v", neutral, **more), before=()))
    block = begin() + b"".join(insert(1, [text]) for text in texts)
    assert decoder.feed(block, 0, len(block), len(texts) + 1) == len(block)
    ((rows),) = decoder.take()
    array = rows.batch.column("after").field("v")
    array.validate(full=True)
    return array


def outcome(kind: type[Decoder], neutral: str, text: str | bytes) -> Any:
    """Return the result of one text: its value, UNFIT or WRONG; rows and COPY lines agree."""
    cell = text.encode() if isinstance(text, str) else text
    decoder = kind()
    decoder.bind(1, relation(column("v", neutral), before=()))
    block = begin() + insert(1, [cell])
    try:
        decoder.feed(block, 0, len(block), 2)
    except DecodeError:
        return WRONG
    if decoder.stop is Stop.WIDEN:
        assert decoder.take() == []
        return UNFIT
    (rows,) = decoder.take()
    array = rows.batch.column("after").field("v")
    array.validate(full=True)
    line = cell.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\t", b"\\t") + b"\n"
    assert decoder.feed_copy(line, 0, len(line), 1) == len(line)
    assert decoder.take()[0].batch.column("after").field("v").equals(array) or neutral[0] == "f"
    physical = {"date": pa.int32(), "time": pa.int64()}.get(neutral[:4])
    return array.view(physical)[0].as_py() if physical else array[0].as_py()


def microseconds(moment: datetime) -> int:
    """Return microseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)


CASES: dict[str, dict[str, Any]] = {
    "bool": {"t": True, "f": False, "": WRONG, "true": WRONG, "T": WRONG, "tt": WRONG},
    "int16": {
        "0": 0,
        "-32768": -32768,
        "32767": 32767,
        "32768": WRONG,
        "-32769": WRONG,
        "": WRONG,
        "-": WRONG,
        "+1": WRONG,
        " 1": WRONG,
        "1 ": WRONG,
        "1.0": WRONG,
        "--1": WRONG,
        "１": WRONG,
    },
    "int32": {
        "2147483647": 2**31 - 1,
        "-2147483648": -(2**31),
        "2147483648": WRONG,
        "-2147483649": WRONG,
        "1e3": WRONG,
        "/": WRONG,
        ":": WRONG,
    },
    "int64": {
        "9223372036854775807": 2**63 - 1,
        "-9223372036854775808": -(2**63),
        "9223372036854775808": WRONG,
        "-9223372036854775809": WRONG,
        "18446744073709551616": WRONG,
        "18446744073709551617": WRONG,
        "99999999999999999999": WRONG,
        "-99999999999999999999": WRONG,
        "00000000000000000001": 1,
        "000000000000000000001": WRONG,
        "-1": -1,
    },
    "uint32": {"0": 0, "4294967295": 2**32 - 1, "4294967296": WRONG, "-1": WRONG, "": WRONG},
    "uint64": {
        "18446744073709551615": 2**64 - 1,
        "18446744073709551616": WRONG,
        "20000000000000000000": WRONG,
        "99999999999999999999": WRONG,
        "184467440737095516150": WRONG,
        "-0": WRONG,
    },
    "float64": {
        "0": 0.0,
        "1": 1.0,
        "-1.5": -1.5,
        "0.1": 0.1,
        "1e+21": 1e21,
        "1e-05": 1e-5,
        "1.2345678901234568e+17": 1.2345678901234568e17,
        "5e-324": 5e-324,
        "2.2250738585072014e-308": 2.2250738585072014e-308,
        "1.7976931348623157e+308": 1.7976931348623157e308,
        "9007199254740993": 9007199254740992.0,
        "9007199254740995": 9007199254740996.0,
        "123456789012345678901234567890": 123456789012345678901234567890.0,
        "Infinity": math.inf,
        "-Infinity": -math.inf,
        "1e309": WRONG,
        "1e-400": WRONG,
        "-1e999": WRONG,
        "1e": WRONG,
        "e5": WRONG,
        ".5": WRONG,
        "5.": WRONG,
        "-": WRONG,
        "": WRONG,
        "nan": WRONG,
        "inf": WRONG,
        "-NaN": WRONG,
        "1_0": WRONG,
        "0x10": WRONG,
        "1.2.3": WRONG,
        "1e1000": WRONG,
        " 1": WRONG,
        "1d5": WRONG,
        "1E5": WRONG,
    },
    "float32": {
        "1.5": 1.5,
        "3.4028235e+38": 3.4028234663852886e38,
        "1e-45": 1.401298464324817e-45,
        "1.1754944e-38": 1.1754943508222875e-38,
        "16777217": 16777216.0,
        "16777219": 16777220.0,
        "1.00000005960464477539062500001": 1.0000001192092896,
        "1.000000059604644775390625": 1.0,
        "-Infinity": -math.inf,
        "3.5e+38": WRONG,
        "1e-46": WRONG,
        "x": WRONG,
    },
    "decimal(12,2)": {
        "0.00": Decimal("0.00"),
        "1.10": Decimal("1.10"),
        "-1.10": Decimal("-1.10"),
        "-0.05": Decimal("-0.05"),
        "9999999999.99": Decimal("9999999999.99"),
        "-9999999999.99": Decimal("-9999999999.99"),
        "10000000000.00": WRONG,
        "1.1": WRONG,
        "1.100": WRONG,
        "1": WRONG,
        "1.": WRONG,
        ".10": WRONG,
        "": WRONG,
        "-": WRONG,
        "1.1.": WRONG,
        "1..1": WRONG,
        "1,10": WRONG,
        "1e2": WRONG,
        "NaN": UNFIT,
        "Infinity": UNFIT,
        "-Infinity": UNFIT,
        "-NaN": WRONG,
        "nan": WRONG,
    },
    "decimal(38,0)": {
        "9" * 38: Decimal("9" * 38),
        "-" + "9" * 38: Decimal("-" + "9" * 38),
        "1" + "0" * 37: Decimal("1" + "0" * 37),
        "12345678901234567890": Decimal("12345678901234567890"),
        "-18446744073709551616": Decimal("-18446744073709551616"),
        "1" + "0" * 38: WRONG,
        "0": Decimal(0),
        "1.": WRONG,
        "1.0": WRONG,
    },
    "decimal(38,38)": {
        "0." + "9" * 38: Decimal("0." + "9" * 38),
        "-0." + "0" * 37 + "1": Decimal("-1E-38"),
        "1." + "0" * 38: WRONG,
    },
    "date": {
        "1970-01-01": 0,
        "1969-12-31": -1,
        "2024-02-29": (date(2024, 2, 29) - date(1970, 1, 1)).days,
        "0001-01-01": (date(1, 1, 1) - date(1970, 1, 1)).days,
        "9999-12-31": (date(9999, 12, 31) - date(1970, 1, 1)).days,
        "10000-01-01": (date(9999, 12, 31) - date(1970, 1, 1)).days + 1,
        "0001-12-31 BC": (date(1, 1, 1) - date(1970, 1, 1)).days - 1,
        "0001-02-29 BC": (date(1, 1, 1) - date(1970, 1, 1)).days - 307,
        "4713-01-01 BC": -2_440_550,
        "5874897-12-31": 2_145_042_905,
        "infinity": UNFIT,
        "-infinity": UNFIT,
        "9999999-01-01": UNFIT,
        "9999999-13-01": WRONG,
        "2023-02-29": WRONG,
        "1900-02-29": WRONG,
        "0002-02-29 BC": WRONG,
        "0000-01-01": WRONG,
        "2024-00-01": WRONG,
        "2024-13-01": WRONG,
        "2024-04-31": WRONG,
        "2024-01-00": WRONG,
        "2024-01-32": WRONG,
        "2024-1-1": WRONG,
        "999-01-01": WRONG,
        "12345678-01-01": WRONG,
        "2024-01-01 AD": WRONG,
        "2024-01-01BC": WRONG,
        "2024-01-01 BC ": WRONG,
        "2024/01/01": WRONG,
        "01/02/2024": WRONG,
        "": WRONG,
        "today": WRONG,
        "Infinity": WRONG,
    },
    "time": {
        "00:00:00": 0,
        "23:59:59.999999": 86_399_999_999,
        "12:34:56.7": 45_296_700_000,
        "12:34:56.000001": 45_296_000_001,
        "24:00:00": UNFIT,
        "24:00:01": WRONG,
        "24:00:00.0": WRONG,
        "12:60:00": WRONG,
        "12:00:60": WRONG,
        "12:00": WRONG,
        "12:00:00.": WRONG,
        "12:00:00.1234567": WRONG,
        "1:00:00": WRONG,
        "12-00-00": WRONG,
        "12:00:00+00": WRONG,
        "12:00:0a": WRONG,
        "": WRONG,
    },
    "timestamp": {
        "1970-01-01 00:00:00": 0,
        "2024-02-29 12:34:56.123456": microseconds(
            datetime(2024, 2, 29, 12, 34, 56, 123456, tzinfo=UTC)
        ),
        "1969-12-31 23:59:59.999999": -1,
        "0001-12-31 23:59:59 BC": microseconds(datetime(1, 1, 1, tzinfo=UTC)) - 1_000_000,
        "4713-01-01 00:00:00 BC": -2_440_550 * 86_400_000_000,
        "294247-01-10 04:00:54.775807": 2**63 - 1,
        "294247-01-10 04:00:54.775808": UNFIT,
        "infinity": UNFIT,
        "-infinity": UNFIT,
        "9999999-12-31 23:59:59": UNFIT,
        "2024-01-01": WRONG,
        "2024-01-01 ": WRONG,
        "2024-01-01T00:00:00": WRONG,
        "2024-01-01 00:00:00+00": WRONG,
        "2024-01-01 24:00:00": WRONG,
        "2024-01-01 00:00:00 BC BC": WRONG,
        "2024-01-01 00:00:00 ": WRONG,
    },
    "timestamptz": {
        "1970-01-01 00:00:00+00": 0,
        "1970-01-01 05:30:00+05:30": 0,
        "1969-12-31 20:00:00-04": 0,
        "1879-12-31 19:03:58-04:56:02": microseconds(datetime(1880, 1, 1, tzinfo=UTC)),
        "2024-01-01 00:00:00.5+00": microseconds(
            datetime(2024, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
        ),
        "0044-03-15 10:00:00+00 BC": microseconds(datetime(1, 1, 1, tzinfo=UTC))
        - (43 * 365 + 11 + 292) * 86_400_000_000
        + 36_000_000_000,
        "infinity": UNFIT,
        "294247-01-10 04:00:54.775808+00": UNFIT,
        "294247-01-10 05:00:54.775807+01": 2**63 - 1,
        "2024-01-01 00:00:00": WRONG,
        "2024-01-01 00:00:00Z": WRONG,
        "2024-01-01 00:00:00+0": WRONG,
        "2024-01-01 00:00:00+16": WRONG,
        "2024-01-01 00:00:00+00:60": WRONG,
        "2024-01-01 00:00:00+00:00:60": WRONG,
        "2024-01-01 00:00:00+00:0": WRONG,
        "2024-01-01 00:00:00+00:": WRONG,
        "2024-01-01 00:00:00+00 UTC": WRONG,
    },
    "uuid": {
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11": bytes.fromhex("a0eebc999c0b4ef8bb6d6bb9bd380a11"),
        "FFFFFFFF-ffff-0000-0000-000000000000": b"\xff" * 6 + bytes(10),
        "a0eebc999c0b4ef8bb6d6bb9bd380a11": WRONG,
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1": WRONG,
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1g": WRONG,
        "a0eebc99-9c0b-4ef8-bb6d+6bb9bd380a11": WRONG,
        "": WRONG,
    },
    "binary": {
        "\\x": b"",
        "\\x00ff7F": b"\x00\xff\x7f",
        "\\x0": WRONG,
        "\\x0g": WRONG,
        "\\X00": WRONG,
        "abc": WRONG,
        "": WRONG,
        "\\": WRONG,
    },
    "string": {"": "", "a": "a", "größe": "größe", "𝄞" * 9: "𝄞" * 9, "a\tb\\c\n": "a\tb\\c\n"},
}


@pytest.mark.parametrize("neutral", CASES)
def test_each_form(kind: type[Decoder], neutral: str) -> None:
    """Valid forms give their value, valid values without a place are unfit, others are errors."""
    for text, expected in CASES[neutral].items():
        actual = outcome(kind, neutral, text)
        assert actual == expected, text
        assert type(actual) is type(expected), text


def test_negative_zero_and_nan_keep_their_bits(kind: type[Decoder]) -> None:
    """-0 stays negative; every NaN is the quiet one."""
    wide = decode_texts(kind, "float64", [b"-0", b"NaN", b"0.0", b"-0.0e5"]).view(pa.uint64())
    assert wide.to_pylist() == [1 << 63, 0x7FF8 << 48, 0, 1 << 63]
    single = decode_texts(kind, "float32", [b"-0", b"NaN"]).view(pa.uint32())
    assert single.to_pylist() == [1 << 31, 0x7FC00000]


def test_floats_come_back_from_their_shortest_text(kind: type[Decoder]) -> None:
    """PostgreSQL's texts over all exponents give exactly the same bits."""
    dice = random.Random(20_240_229)
    bits = [dice.getrandbits(64) for _ in range(20_000)]
    values = [struct.unpack("<d", struct.pack("<Q", number))[0] for number in bits]
    values = [value for value in values if math.isfinite(value)]
    array = decode_texts(kind, "float64", [repr(value).encode() for value in values])
    assert array.to_pylist() == values


def test_floats_near_the_middle_round_once(kind: type[Decoder]) -> None:
    """Texts around the middle between two floats, the hardest to round, are rounded right."""
    dice = random.Random(7)
    texts, expected = [], []
    for _ in range(2_000):
        value = math.ldexp(dice.getrandbits(53) | 1 << 52, dice.randint(-110, 60))
        middle = Fraction(value) + Fraction(math.ulp(value)) / 2
        digits = f"{middle.numerator * 10**25 // middle.denominator:d}"
        for shortened in (digits[:17], digits[:18], digits[:19], digits[:25]):
            text = f"{shortened}e{len(digits) - len(shortened) - 25}"
            texts.append(text.encode())
            expected.append(float(text))
    assert decode_texts(kind, "float64", texts).to_pylist() == expected
    singles = [read_float32(text) for text in texts]
    assert decode_texts(kind, "float32", texts).to_pylist() == singles


def test_singles_are_the_nearest_by_exact_arithmetic() -> None:
    """The plain reader against fractions: no other single is nearer."""
    dice = random.Random(11)
    for _ in range(3_000):
        bits = dice.randrange(1, 0x7F7FFFFF)
        low, high = (struct.unpack("<f", struct.pack("<I", b))[0] for b in (bits, bits + 1))
        middle = (Fraction(low) + Fraction(high)) / 2
        exponent = dice.choice([8, 12, 20, 40, 60])
        text = f"{Decimal(middle.numerator) / Decimal(middle.denominator):.{exponent}e}".encode()
        exact = Fraction(text.decode())
        nearest = low if exact < middle or (exact == middle and bits % 2 == 0) else high
        assert read_float32(text) == nearest


@pytest.mark.parametrize("text", ["1e-5000", "9" * 401, "0." + "1" * 401])
def test_numbers_too_long_to_be_postgresqls_are_refused(text: str) -> None:
    """Limits on digits keep broken input from costing much time."""
    with pytest.raises(Malformed):
        read_float64(text.encode())


def test_every_day_from_4713_bc_counts_up_by_one(kind: type[Decoder]) -> None:
    """The calendar has no gaps around leap years, centuries and year one."""
    texts = []
    for year in [*range(-4712, -4690), *range(-410, -390), *range(-5, 6), *range(1890, 2105)]:
        shown = f"{year:04d}" if year > 0 else f"{1 - year:04d}"
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        lengths = (31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
        for month, length in enumerate(lengths, 1):
            for day in range(1, length + 1):
                texts.append(f"{shown}-{month:02d}-{day:02d}{'' if year > 0 else ' BC'}".encode())
    days = decode_texts(kind, "date", texts).view(pa.int32()).to_pylist()
    steps = {later - earlier for earlier, later in itertools.pairwise(days)}
    jumps = sorted(step for step in steps if step != 1)
    assert len(jumps) == 3  # between the four ranges of years, and not elsewhere
    assert all(jump > 1000 for jump in jumps)


def test_text_of_unknown_encoding_is_kept_raw(kind: type[Decoder]) -> None:
    """A text column of a SQL_ASCII database may have any bytes."""
    array = decode_texts(kind, "binary", [b"\xff\x00\\x", b""], source_type="text", type_oid=25)
    assert array.to_pylist() == [b"\xff\x00\\x", b""]


def test_a_domain_over_bytea_is_hex(kind: type[Decoder]) -> None:
    """The base type decides, whatever the domain's oid is."""
    array = decode_texts(
        kind, "binary", [b"\\x4142"], source_type="public.d", base_type="bytea", type_oid=99_999
    )
    assert array.to_pylist() == [b"AB"]


def test_utf8_as_unicode_defines_it(kind: type[Decoder]) -> None:
    """The decoder accepts what Python's strict one does, at every place relative to eight bytes."""
    ends = [
        b"\x7f", b"\x80", b"\xbf", b"\xc1\xbf", b"\xc2\x80", b"\xdf\xbf", b"\xdf", b"\xdf\x7f",
        b"\xe0\x9f\xbf", b"\xe0\xa0\x80", b"\xed\x9f\xbf", b"\xed\xa0\x80", b"\xee\x80\x80",
        b"\xef\xbf\xbf", b"\xef\xbf", b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80\x80",
        b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf0\x90\x80",
        b"\xf0\x90\x80\xc0", b"\xe1\x80\xc0", b"\xff",
    ]  # fmt: skip
    for end in ends:
        for before in range(9):
            for after in (0, 1, 8):
                text = b"a" * before + end + b"z" * after
                try:
                    expected: Any = text.decode()
                except UnicodeDecodeError:
                    expected = WRONG
                assert outcome(kind, "string", text) == expected


def test_commit_time_of_the_cases_is_that_of_the_frames(kind: type[Decoder]) -> None:
    """Times before 1970 are right as well."""
    decoder = kind()
    block = begin(time_us=-5)
    decoder.feed(block, 0, len(block), 1)
    assert decoder.commit_time_us == -5
    assert COMMIT_TIME_US > 0
