"""Coercion of a bound expression to another type: literals now, all else in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.grammar import make_unsupported
from penstock.serve.catalog.scope import Bound, text
from penstock.serve.catalog.types import (
    BOOL,
    BPCHAR,
    CHAR,
    INTEGERS,
    INTERVAL,
    NAME,
    NUMBERS,
    NUMERIC,
    OIDS,
    PG_LSN,
    RANGES,
    REG_TYPES,
    TEXT,
    TEXTS,
    TIMES,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    VARCHAR,
    VECTORS,
    XID,
    XID8,
    Types,
    read_value,
)

_WHOLE = frozenset((*INTEGERS, *OIDS, XID, XID8))


class Coercions:
    """Coercions of one query.

    Attributes:
        parameters: known types of $1, $2, ...
    """

    def __init__(self, types: Types, parameters: dict[int, int]) -> None:
        """Set the known types by number; types that are found out are added."""
        self.types, self.parameters = types, parameters

    def base(self, bound: Bound) -> int:
        """Return the type below domains."""
        return self.types.base_of(bound.type)[0]

    def to(self, bound: Bound, oid: int, typmod: int = -1, *, explicit: bool = False) -> Bound:
        """Return the expression as a value of a type. Raises Refused: 42846, 42804,
        22P02, 0A000.
        """
        target, below = self.types.base_of(oid, typmod)
        if typmod == -1:
            typmod = below
        source = self.base(bound)
        if bound.parameter and bound.parameter not in self.parameters:
            self.parameters[bound.parameter] = target
            return replace(bound, type=target, parameter=0)
        if source == UNKNOWN:
            made = self._from_unknown(bound, target)
        elif source == target:
            made = bound
        else:
            made = self._between(bound, source, target, explicit=explicit)
        if typmod >= 0 and target in (VARCHAR, BPCHAR) and (bound.typmod != typmod or explicit):
            made = replace(made, sql=f"substr({made.sql}, 1, {typmod - 4})")
        return replace(made, type=oid, typmod=typmod, literal=None, parameter=0)

    def _from_unknown(self, bound: Bound, target: int) -> Bound:
        if bound.literal is None:
            if bound.sql == "NULL":
                return bound
            return replace(bound, sql=f"pg_read({target}, {bound.sql})")
        if target in REG_TYPES or self.types.element_of(target) in REG_TYPES:
            return replace(bound, sql=f"pg_read({target}, {bound.sql})")
        value = read_value(self.types, target, bound.literal, _no_reg)
        return replace(bound, sql=text(value) if isinstance(value, str) else repr(value))

    def _between(self, bound: Bound, source: int, target: int, *, explicit: bool) -> Bound:
        sql = self._conversion(bound.sql, source, target)
        if sql is None or (not explicit and self.types.fits(source, target) is None):
            if target == BOOL or source == BOOL or not explicit:
                raise Refused(
                    "42804" if not explicit else "42846",
                    f"cannot cast type {self.types.name(source)} to {self.types.name(target)}",
                )
            raise make_unsupported(
                f"a cast from {self.types.name(source)} to {self.types.name(target)}"
            )
        return replace(bound, sql=sql, fields=())

    def _conversion(self, sql: str, source: int, target: int) -> str | None:
        if source in _WHOLE and target in _WHOLE:
            return self._whole(sql, source, target)
        if target in TEXTS or target == UNKNOWN:
            return self._to_text(sql, source, target)
        if source in TEXTS:
            return f"pg_read({target}, {sql})"
        if source in INTEGERS and target in NUMBERS:
            return sql
        if source in NUMBERS and target in (*INTEGERS, *NUMBERS):
            return f"pg_round({target}, {sql})" if target in INTEGERS else sql
        if source in INTEGERS and target == BOOL:
            return f"({sql} <> 0)"
        if source == BOOL and target in INTEGERS:
            return sql
        if source in TIMES and target in TIMES:
            return None
        return self._array(sql, source, target)

    @staticmethod
    def _whole(sql: str, source: int, target: int) -> str:
        if target in (source, *REG_TYPES) or (source in REG_TYPES and target in RANGES):
            return sql
        if source in INTEGERS and target in INTEGERS and target > source != 20:
            return sql
        return f"pg_whole({target}, {sql})"

    def _to_text(self, sql: str, source: int, target: int) -> str:
        if source not in TEXTS:
            sql = f"pg_text({source}, {sql})"
        if target == NAME and source != NAME:
            return f"substr({sql}, 1, 63)"
        return f"substr({sql}, 1, 1)" if target == CHAR else sql

    def _array(self, sql: str, source: int, target: int) -> str | None:
        inner, outer = self.types.element_of(source), self.types.element_of(target)
        if not inner or not outer:
            return None
        same = inner == outer or {inner, outer} <= TEXTS or {inner, outer} <= _WHOLE
        if same or (source in VECTORS and inner == outer):
            return sql
        return f"pg_array_cast({inner}, {outer}, {sql})"

    # -- operators ----------------------------------------------------------------------------

    def same(self, left: Bound, right: Bound, operator: str) -> tuple[Bound, Bound]:
        """Return both sides as values that SQLite compares. Raises Refused: 42883."""
        one, other = self.base(left), self.base(right)
        if one == UNKNOWN and other == UNKNOWN:
            return self.to(left, TEXT), self.to(right, TEXT)
        if one == UNKNOWN:
            return self.to(left, right.type), right
        if other == UNKNOWN:
            return left, self.to(right, left.type)
        if not self.comparable(one, other):
            raise self.no_operator(operator, one, other)
        return left, right

    def comparable(self, one: int, other: int) -> bool:
        """Return whether values of two types are compared as they are."""
        if INTERVAL in (one, other):  # its texts sort in another order
            raise make_unsupported("a comparison of intervals")
        if one == other:
            return True
        groups: Sequence[frozenset[int]] = (
            frozenset(NUMBERS),
            frozenset((*INTEGERS, *OIDS)),
            TEXTS,
        )
        if any({one, other} <= group for group in groups):
            return True
        if XID in (one, other) and ({one, other} - {XID}) <= {23}:
            return True
        inner, outer = self.types.element_of(one), self.types.element_of(other)
        return bool(inner) and inner == outer

    def no_operator(self, operator: str, one: int, other: int) -> Refused:
        """Return the refusal of an operator for two types."""
        return Refused(
            "42883",
            f"operator does not exist: {self.types.name(one)} {operator} {self.types.name(other)}",
            hint="No operator matches the given name and argument types. You might need to add "
            "explicit type casts.",
        )

    def condition(self, bound: Bound, where: str) -> Bound:
        """Return a boolean. Raises Refused: 42804."""
        if self.base(bound) not in (BOOL, UNKNOWN):
            raise Refused(
                "42804",
                f"argument of {where} must be type boolean, not type "
                f"{self.types.name(self.base(bound))}",
            )
        return self.to(bound, BOOL)

    def arithmetic(self, operator: str, left: Bound, right: Bound) -> Bound:
        """Return `+ - * / %` and `& |` of numbers and positions. Raises Refused: 42883, 0A000."""
        one, other = self.base(left), self.base(right)
        if one == PG_LSN and other in (PG_LSN, UNKNOWN) and operator == "-":
            right = self.to(right, PG_LSN)
            return Bound(sql=f"({left.sql} - {right.sql})", type=NUMERIC)
        if one == PG_LSN and other in NUMBERS and operator in "+-":
            return Bound(sql=f"({left.sql} {operator} {right.sql})", type=PG_LSN)
        if one == UNKNOWN and other in NUMBERS:
            left, one = self.to(left, other), other
        if other == UNKNOWN and one in NUMBERS:
            right, other = self.to(right, one), one
        if one not in NUMBERS or other not in NUMBERS:
            if operator == "-" and one == other and one in (TIMESTAMP, TIMESTAMPTZ):
                call = f"pg_time_difference({left.sql}, {right.sql})"
                return Bound(sql=call, type=INTERVAL)
            if one in TIMES or other in TIMES:
                raise make_unsupported("arithmetic of times")
            raise self.no_operator(operator, one, other)
        result = max(one, other, key=NUMBERS.index)
        if result not in INTEGERS and operator in ("&", "|", "%"):
            raise make_unsupported(f"{operator} of numbers that are not whole")
        call = f"pg_calculate({text(operator)}, {result}, {left.sql}, {right.sql})"
        return Bound(sql=call, type=result)


def _no_reg(_oid: int, _text: str) -> int:
    raise AssertionError("names are read when the query runs")
