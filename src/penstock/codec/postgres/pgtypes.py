"""Which neutral type keeps the values of a built-in PostgreSQL type.

By oid and modifier only, so it works for what a Relation message says. Types made by users
(enums, domains, extensions) have no fixed oid: they are kept as exact text unless the catalogue
reader knows a domain's base type and asks with that one's oid.
"""

from __future__ import annotations

from penstock.codec.columns import DECIMAL_PRECISION_MAX

NUMERIC_OID = 1700
BYTEA_OID = 17
FIRST_USER_OID = 16_384  # oids below belong to PostgreSQL itself
_TYPMOD_HEADER = 4  # numeric's modifier is stored with the size of a length word added
_SCALE_BITS = 11

_NEUTRAL: dict[int, str] = {
    16: "bool",
    BYTEA_OID: "binary",
    20: "int64",
    21: "int16",
    23: "int32",
    26: "uint32",  # oid
    28: "uint32",  # xid
    29: "uint32",  # cid
    700: "float32",
    701: "float64",
    1082: "date",
    1083: "time",
    1114: "timestamp",
    1184: "timestamptz",
    2950: "uuid",
    5069: "uint64",  # xid8
}


def neutral_type(type_oid: int, typmod: int) -> str:
    """The neutral type's name for a built-in type; `string` for all that is not known.

    type_oid: pg_type.oid. typmod: pg_attribute.atttypmod, -1 for none. numeric becomes a decimal
    when its modifier bounds it to at most 38 digits; without a modifier it is text, because any
    value may have any scale.
    """
    if type_oid == NUMERIC_OID:
        return _numeric(typmod)
    return _NEUTRAL.get(type_oid, "string")


def numeric_modifier(typmod: int) -> tuple[int, int] | None:
    """Precision and scale in a numeric's modifier; scale may be negative; None without one."""
    if typmod < _TYPMOD_HEADER:
        return None
    packed = typmod - _TYPMOD_HEADER
    sign = 1 << (_SCALE_BITS - 1)
    scale = ((packed & ((1 << _SCALE_BITS) - 1)) ^ sign) - sign
    return packed >> 16, scale


def _numeric(typmod: int) -> str:
    modifier = numeric_modifier(typmod)
    if modifier is None:
        return "string"
    precision, scale = modifier
    if scale < 0:
        # numeric(5,-2) keeps whole hundreds: seven digits, none behind the point.
        precision, scale = precision - scale, 0
    if scale > precision or precision > DECIMAL_PRECISION_MAX:
        return "string"
    return f"decimal({precision},{scale})"
