"""Casts of Arrow values: none wraps or saturates, and every cast in src that might is checked."""

from __future__ import annotations

import ast
import math
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.columns import arrow_type, cast_exactly
from penstock.codec.postgres.pgbinary import Unencodable, binary_form
from penstock.engines.ignite.source import rows
from penstock.engines.ignite.source.shapes import EXPIRES
from penstock.model import Column

ROOT = Path(__file__).resolve().parents[2]
# Casts that Arrow checks itself, or that cannot fail: these may be written out as targets of
# `.cast`.
UNCHECKED = {
    "binary", "large_binary", "string", "large_string",
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("timestamp", "time64", "date32"),
}  # fmt: skip
WIDE = "340282366920938463463374607431768211457.00"  # 2^128 + 1


def cast(values: list[Any], old: pa.DataType, new: pa.DataType) -> list[Any]:
    """Cast a column and return Python values."""
    found = cast_exactly(pa.array(values, old), new)
    assert found.type == new
    return list(found.to_pylist())


@pytest.mark.parametrize(
    "text",
    [
        WIDE,
        "-" + WIDE,
        "340282366920938463463374607431768211456000",
        "1e500",
        "1e38",
        "1e999999999",
        "-1E+999999999",
        "1e99999999999999999999",
        "170141183460469231731687303715884105728",
        "9" * 37,
        "1" + "0" * 400,
        str(2**256 + 1),
        "0.001",
        "1e-3",
        "1." + "0" * 60 + "1",
        "NaN",
        "Infinity",
        "",
    ],
)
@pytest.mark.parametrize("kind", [pa.decimal128(38, 2), pa.decimal128(12, 2)])
def test_a_text_that_no_decimal_of_this_type_equals_is_refused(
    text: str, kind: pa.DataType
) -> None:
    """Such a text is refused alone, and between texts that fit."""
    for texts in ([text], ["1.00", None, text]):
        with pytest.raises(pa.ArrowInvalid):
            cast(texts, pa.string(), kind)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9" * 36 + ".99", "9" * 36 + ".99"),
        ("-" + "9" * 36 + ".9900000", "-" + "9" * 36 + ".99"),
        ("1e35", "1" + "0" * 35),
        ("12E-1", "1.2"),
        ("0e999999999", "0"),
        ("1." + "0" * 70, "1"),
        ("0" * 90 + "7.5", "7.5"),
        ("-0.00", "0"),
    ],
)
def test_a_text_at_the_edge_that_fits_is_read_exactly(text: str, value: str) -> None:
    """The text may have more digits than the type has if these are zeros."""
    (found,) = cast([text], pa.string(), pa.decimal128(38, 2))
    assert found == Decimal(value)


@given(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**45), max_value=10**45),
    st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))),
)
def test_texts_of_decimals_keep_their_value_or_are_refused(
    number: Decimal, kind: tuple[int, int]
) -> None:
    """Texts of any number of digits and any exponent keep their value or are refused."""
    for text in (str(number), f"{number:f}"):
        try:
            (found,) = cast([text], pa.string(), pa.decimal128(*kind))
        except pa.ArrowInvalid:
            continue
        assert found == number


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        # Arrow's own cast turned the first two into 1.02833... and 7.20918...
        ("20491712340380158414961837.00", (33, 2), (37, 36)),
        ("861411071832483486777", (21, 0), (38, 37)),
        ("9" * 38, (38, 0), (38, 38)),
        ("9" * 38, (38, 0), (38, 1)),
        ("1.5", (38, 1), (38, 0)),
    ],
)
def test_a_decimal_that_does_not_fit_another_scale_is_refused(
    value: str, old: tuple[int, int], new: tuple[int, int]
) -> None:
    """Products beyond 128 bits are refused too."""
    with pytest.raises(pa.ArrowInvalid):
        cast([Decimal(value)], pa.decimal128(*old), pa.decimal128(*new))


_TYPES = st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))


@given(st.data(), _TYPES, _TYPES)
def test_decimals_keep_their_value_in_another_scale_or_are_refused(
    data: st.DataObject, old: tuple[int, int], new: tuple[int, int]
) -> None:
    """Decimals of every precision and scale keep their value or are refused."""
    digits = data.draw(st.integers(-(10 ** old[0]) + 1, 10 ** old[0] - 1))
    number = Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -old[1]))
    finer = max(0, new[1] - old[1])
    scaled, rest = divmod(abs(digits) * 10**finer, 10 ** max(0, old[1] - new[1]))
    fits = not rest and scaled < 10 ** new[0]
    try:
        (found,) = cast([number], pa.decimal128(*old), pa.decimal128(*new))
    except pa.ArrowInvalid:
        assert not fits
    else:
        assert found == number


def test_decimals_of_256_bits_are_refused() -> None:
    """No value of penstock is one, and they would wrap too."""
    with pytest.raises(pa.ArrowInvalid):
        cast([Decimal(1)], pa.decimal256(76, 0), pa.decimal128(38, 0))


@pytest.mark.parametrize("value", [1e39, -1e39, 3.4028236e38, 1e-50, -1e-50])
def test_a_double_out_of_the_range_of_a_real_is_refused(value: float) -> None:
    """PostgreSQL does the same, above and below; texts are refused too."""
    with pytest.raises(pa.ArrowInvalid):
        cast([1.0, value, None], pa.float64(), pa.float32())
    with pytest.raises(pa.ArrowInvalid):
        cast(["1", repr(value), None], pa.string(), pa.float32())


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1e-400", "1" + "0" * 400])
def test_a_text_out_of_the_range_of_a_double_is_refused(text: str) -> None:
    """Arrow would read it as infinity or zero."""
    with pytest.raises(pa.ArrowInvalid):
        cast([text], pa.string(), pa.float64())


def test_what_a_float_can_be_stays() -> None:
    """The largest and least value, both infinities, NaN and both zeros stay; scalars too."""
    most, least = 3.4028234663852886e38, 1.401298464324817e-45
    values = [most, -most, least, math.inf, -math.inf, 0.0, None]
    assert cast(values, pa.float64(), pa.float32()) == values
    texts = ["inf", "-inf", "0e9", "-0.0", "1e308", None]
    assert cast(texts, pa.string(), pa.float64()) == [math.inf, -math.inf, 0.0, -0.0, 1e308, None]
    assert math.isnan(cast([math.nan], pa.float64(), pa.float32())[0])
    assert cast_exactly(pa.scalar("12.50"), pa.decimal128(38, 37 - 30)).as_py() == Decimal("12.5")
    with pytest.raises(pa.ArrowInvalid):
        cast_exactly(pa.scalar("1e39"), pa.float32())
    with pytest.raises(pa.ArrowInvalid):
        cast_exactly(pa.scalar(WIDE), pa.decimal128(38, 2))


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        (2**31, pa.int64(), pa.int32()),
        (-(2**15) - 1, pa.int32(), pa.int16()),
        (2**63, pa.uint64(), pa.int64()),
        (-1, pa.int64(), pa.uint64()),
        (2**53 + 1, pa.int64(), pa.float64()),
        (2**24 + 1, pa.int64(), pa.float32()),
        (2**63 - 1, pa.timestamp("s"), pa.timestamp("us")),
        (2**63 - 1, pa.timestamp("ms"), pa.timestamp("us")),
        (1, pa.timestamp("us"), pa.timestamp("ms")),
        (2**63 - 1, pa.int64(), pa.decimal128(18, 0)),
        ("10000-01-01", pa.string(), pa.timestamp("us")),
        ("2020-01-01T00:00:00.0000001", pa.string(), pa.timestamp("us")),
        ("2020-02-30", pa.string(), pa.date32()),
        ("18446744073709551616", pa.string(), pa.uint64()),
        ("32768", pa.string(), pa.int16()),
    ],
)
def test_arrow_checks_integers_and_times_itself(
    value: Any, old: pa.DataType, new: pa.DataType
) -> None:
    """Arrow itself refuses these casts, which `cast_exactly` leaves to it."""
    with pytest.raises(pa.ArrowInvalid):
        cast([value], old, new)


@pytest.mark.parametrize(
    ("oid", "neutral", "kind", "edges"),
    [
        (1082, "date", pa.int32(), (-2_440_588, 2_145_042_905)),
        (1114, "timestamp", pa.int64(), (-210_866_803_200_000_000, 2**63 - 1)),
        (1184, "timestamptz", pa.int64(), (-210_866_803_200_000_000, 2**63 - 1)),
    ],
)
def test_dates_in_binary_form_do_not_wrap(
    oid: int, neutral: str, kind: pa.DataType, edges: tuple[int, int]
) -> None:
    """Binary dates count from 2000: an early date would turn into a late one, or into infinity."""
    form = binary_form(Column(name="v", source_type=neutral, neutral=neutral, type_oid=oid))
    assert form is not None
    epoch = {1082: 10_957}.get(oid, 946_684_800_000_000)
    least = -(2 ** (kind.bit_width - 1))
    for number in (*edges, None):
        (data,) = form(pa.array([number], kind).cast(arrow_type(neutral))).to_pylist()
        assert data == (
            number and (number - epoch).to_bytes(kind.bit_width // 8, "big", signed=True)
        )
    for number in (least, edges[0] - 1):
        with pytest.raises(Unencodable, match="row 1 of the batch has a date"):
            form(pa.array([None, number], kind).cast(arrow_type(neutral)))


@pytest.mark.parametrize("time_ms", [2**63 // 1000 + 1, 2**63 - 1, -(2**63)])
def test_a_time_of_expiry_in_another_age_does_not_wrap(time_ms: int) -> None:
    """Such rows are encoded value by value, which finds the column with the bad time."""
    column: Any = SimpleNamespace(field=EXPIRES, neutral="timestamptz")
    puts: Any = SimpleNamespace(rows={"expire_time_ms": np.array([0, time_ms])})
    assert rows._of_entries(column, puts) is None
    puts.rows["expire_time_ms"][1] = 2**63 // 1000 - 1
    found = rows._of_entries(column, puts)
    assert found is not None
    assert found.cast(pa.int64()).to_pylist() == [None, (2**63 // 1000 - 1) * 1000]


def test_every_cast_in_src_is_to_a_type_that_arrow_checks_or_is_made_exactly() -> None:
    """A `.cast(` or `pc.cast(` names its type in the call, and none may be unsafe."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text()
        if path.match("penstock/codec/columns.py"):
            text = text.split("def cast_exactly")[0]
        if not (".cast(" in text or "safe=" in text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and _is_unchecked_cast(node):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not found, "use penstock.codec.columns.cast_exactly:\n" + "\n".join(found)


def _is_unchecked_cast(call: ast.Call) -> bool:
    function = call.func
    if not (isinstance(function, ast.Attribute) and function.attr == "cast"):
        return False
    if any(one.arg == "safe" for one in call.keywords):
        return True
    is_of_pc = isinstance(function.value, ast.Name) and function.value.id == "pc"
    kind = call.args[1 if is_of_pc else 0]
    if isinstance(kind, ast.Constant):
        return False  # the method of a memoryview
    if isinstance(kind, ast.Call):
        kind = kind.func
    return not (
        isinstance(kind, ast.Attribute)
        and isinstance(kind.value, ast.Name)
        and kind.value.id == "pa"
        and kind.attr in UNCHECKED
    )
