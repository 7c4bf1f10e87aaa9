"""Row filters with an unknown side: NULL is neither true nor false."""

from __future__ import annotations

from itertools import product

import pyarrow as pa
import pytest

from penstock.model import Column, Relation
from penstock.serve.row_filter import row_filter

TRUTHS = (True, False, None)
PAIRS = list(product(TRUTHS, TRUTHS))
TABLE = Relation(
    schema="public",
    name="t",
    columns=(
        Column(name="a", source_type="boolean", neutral="bool"),
        Column(name="b", source_type="boolean", neutral="bool"),
        Column(name="n", source_type="integer", neutral="int32"),
        Column(name="s", source_type="text", neutral="string"),
    ),
    key=(),
    before=(),
)


def list_kept(condition: str) -> list[bool]:
    """Return which pairs a filter keeps; n is 1 where a is true, s is 'x' where b is."""
    columns = {
        "a": pa.array([a for a, _ in PAIRS], pa.bool_()),
        "b": pa.array([b for _, b in PAIRS], pa.bool_()),
        "n": pa.array([None if a is None else 1 if a else 0 for a, _ in PAIRS], pa.int32()),
        "s": pa.array([None if b is None else "x" if b else "y" for _, b in PAIRS], pa.string()),
    }
    found: list[bool] = row_filter(condition, TABLE).keeps(columns).to_pylist()
    return found


def both(a: bool | None, b: bool | None) -> bool | None:
    """Return AND as PostgreSQL does."""
    return False if a is False or b is False else None if a is None or b is None else True


def either(a: bool | None, b: bool | None) -> bool | None:
    """Return OR as PostgreSQL does."""
    return True if a or b else None if a is None or b is None else False


def opposite(a: bool | None) -> bool | None:
    """Return NOT as PostgreSQL does."""
    return None if a is None else not a


@pytest.mark.parametrize(
    ("condition", "truth"),
    [
        ("a and b", both),
        ("a or b", either),
        ("n = 1 or s = 'x'", either),
        ("n = 1 and s = 'x'", both),
        ("not (a and b)", lambda a, b: opposite(both(a, b))),
        ("not (a or b)", lambda a, b: opposite(either(a, b))),
        ("not a", lambda a, _: opposite(a)),
        ("a is not true or b", lambda a, b: either(a is not True, b)),
        ("n is null or s = 'x'", lambda a, b: either(a is None, b)),
        ("n in (1, 7) or s in ('x', 'z')", either),
        ("n not in (0, 7)", lambda a, _: a),
        ("n not in (1, 7) and s <> 'x'", lambda a, b: both(opposite(a), opposite(b))),
        ("n is distinct from 1", lambda a, _: a is not True),
        ("s like 'x%' or n = 1", lambda a, b: either(b, a)),
        ("s not like 'x%'", lambda _, b: opposite(b)),
    ],
)
def test_rows_are_kept_where_the_condition_is_true(condition: str, truth: object) -> None:
    """All pairs of true, false and unknown are compared."""
    assert callable(truth)
    assert list_kept(condition) == [truth(a, b) is True for a, b in PAIRS]
