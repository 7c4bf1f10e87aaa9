"""Types and names on their way to the target: namespaces mapped, values staged, casts.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.codec.columns import arrow_type
from penstock.engines.postgres.connect import quote
from penstock.model import Column

_TOKEN = re.compile(
    r"""
      (?P<string>  [eE]?'(?:[^'\\]|''|\\.)*' )
    | (?P<dollar>  \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
    | (?P<quoted>  "(?:[^"]|"")*" )
    | (?P<word>    [^\W\d][\w$]* )
    | (?P<other>   \d[\w.]* | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*\Z")


def map_namespaces(sql: str, namespaces: Mapping[str, str]) -> str:
    """Replace mapped schema names in a piece of SQL that the source's server printed.

    A name counts as schema when a dot follows it and none precedes it; string literals stay as
    they are. Made for type names, index and constraint definitions and default expressions.
    """
    if not namespaces:
        return sql
    tokens = [(match.lastgroup, match[0]) for match in _TOKEN.finditer(sql)]
    result: list[str] = []
    for place, (kind, text) in enumerate(tokens):
        before = tokens[place - 1][1] if place else ""
        after = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        if kind in ("quoted", "word") and after == "." and before != ".":
            name = text[1:-1].replace('""', '"') if kind == "quoted" else text
            result.append(quote(namespaces[name]) if name in namespaces else text)
        else:
            result.append(text)
    return "".join(result)


def same_type(left: str, right: str) -> bool:
    """Return whether two printed types are equal: needless quotes around names are ignored."""
    return _unquote(left) == _unquote(right)


def _unquote(text: str) -> str:
    def bare(match: re.Match[str]) -> str:
        inner = match[0][1:-1]
        # "char" and "bit" with quotes are other types than char and bit without.
        plain = _PLAIN.match(inner) and inner not in ("char", "bit")
        return inner if plain else match[0]

    return re.sub(r'"(?:[^"]|"")*"', bare, text)


@dataclass(frozen=True, slots=True)
class StagedColumn:
    """Staging of a column in a merge table.

    Attributes:
        arrow: the type as which its values are sent.
        sql: the column's type there.
        needs_cast: whether the apply statement must cast it to the target column's type.
        head: bytes that the server's binary form has before each value.
    """

    arrow: pa.DataType
    sql: str
    needs_cast: bool
    head: bytes = b""


AS_TEXT = StagedColumn(pa.string(), "text", needs_cast=True)
# The version of the binary form, then the text. It is parsed by the backends that stage, which are
# several: all wait for the one that applies. Source: PostgreSQL, src/backend/utils/adt/jsonb.c.
AS_JSONB = StagedColumn(pa.binary(), "jsonb", needs_cast=True, head=b"\x01")

_STAGED_SQL = {
    "bool": "boolean",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "float32": "real",
    "float64": "double precision",
    "date": "date",
    "time": "time without time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "uuid": "uuid",
    "binary": "bytea",
}


def staging_of(column: Column) -> StagedColumn:
    """Return the staging of a column by its neutral type.

    Values that are kept as text and unsigned numbers (the bulk protocol would wrap the latter)
    are staged as text and cast when applied, except PostgreSQL's own jsonb, which is valid;
    decimals are staged as numeric; all others as their own type.
    """
    if column.neutral in ("string", "uint32", "uint64"):
        is_jsonb = (column.base_type or column.source_type) == "jsonb"
        return AS_JSONB if is_jsonb else AS_TEXT
    sql = _STAGED_SQL.get(column.neutral, "numeric")
    return StagedColumn(arrow_type(column.neutral), sql, needs_cast=False)
