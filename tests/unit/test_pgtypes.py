"""Built-in PostgreSQL types and the neutral types that keep them."""

from __future__ import annotations

import pytest

from penstock.codec.columns import arrow_type
from penstock.codec.postgres.pgtypes import neutral_type, numeric_modifier


@pytest.mark.parametrize(
    ("type_oid", "typmod", "neutral"),
    [
        (16, -1, "bool"),
        (21, -1, "int16"),
        (23, -1, "int32"),
        (20, -1, "int64"),
        (26, -1, "uint32"),
        (28, -1, "uint32"),
        (29, -1, "uint32"),
        (5069, -1, "uint64"),
        (700, -1, "float32"),
        (701, -1, "float64"),
        (17, -1, "binary"),
        (25, -1, "string"),
        (1043, 14, "string"),
        (1042, 14, "string"),
        (18, -1, "string"),
        (1082, -1, "date"),
        (1083, 3, "time"),
        (1114, -1, "timestamp"),
        (1184, 0, "timestamptz"),
        (2950, -1, "uuid"),
    ],
)
def test_types_with_an_exact_place_in_arrow(type_oid: int, typmod: int, neutral: str) -> None:
    """Each of these keeps its values without loss."""
    assert neutral_type(type_oid, typmod) == neutral
    arrow_type(neutral)


@pytest.mark.parametrize(
    "type_oid",
    [1266, 1186, 790, 3220, 114, 3802, 142, 869, 600, 3904, 1007, 1009, 24, 2205, 16_385, 99_999],
)
def test_other_types_are_kept_as_text(type_oid: int) -> None:
    """No neutral type holds them exactly: times with zone, money, arrays, users' types."""
    assert neutral_type(type_oid, -1) == "string"


@pytest.mark.parametrize(
    ("typmod", "modifier", "neutral"),
    [
        (-1, None, "string"),
        (((12 << 16) | 2) + 4, (12, 2), "decimal(12,2)"),
        (((38 << 16) | 38) + 4, (38, 38), "decimal(38,38)"),
        (((39 << 16) | 0) + 4, (39, 0), "string"),
        (329_730, (5, -2), "decimal(7,0)"),
        (196_617, (3, 5), "string"),
        (((37 << 16) | (-2 & 0x7FF)) + 4, (37, -2), "string"),
    ],
)
def test_numeric_by_its_modifier(
    typmod: int, modifier: tuple[int, int] | None, neutral: str
) -> None:
    """A limited numeric is a decimal of that shape; a wider or unlimited one is text."""
    assert numeric_modifier(typmod) == modifier
    assert neutral_type(1700, typmod) == neutral
