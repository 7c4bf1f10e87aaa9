"""Calls of T-SQL's functions, conversions among types, and the types of results."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from sim_sqlserver.errors import SqlError
from sim_sqlserver.sqltypes import BINARIES, MAX, TEXTS, SqlType, parse_type

_ISO, _ISO_LENGTH = 126, 23  # a datetime has three digits after the second
INT, BIGINT = SqlType("int"), SqlType("bigint")
NAME = SqlType("nvarchar", length=128)
_RESULTS = {
    "ms_len": INT, "ms_datalength": INT, "ms_datediff": INT, "ms_datepart": INT,
    "ms_datediff_big": BIGINT, "ms_getdate": SqlType("datetime"),
    "ms_getutcdate": SqlType("datetime"), "ms_current_timestamp": SqlType("datetime"),
    "ms_sysutcdatetime": SqlType("datetime2", scale=7),
    "ms_sysdatetime": SqlType("datetime2", scale=7),
    "ms_sysdatetimeoffset": SqlType("datetimeoffset", scale=7),
    "ms_switchoffset": SqlType("datetimeoffset", scale=7),
    "ms_todatetimeoffset": SqlType("datetimeoffset", scale=7),
    "ms_newid": SqlType("uniqueidentifier"), "ms_serverproperty": NAME, "ms_db_name": NAME,
    "ms_object_name": NAME, "ms_schema_name": NAME, "ms_suser_sname": NAME, "ms_app_name": NAME,
    "ms_to_string": SqlType("nvarchar", length=4000), "ms_srid": INT,
    "ms_wkb": SqlType("varbinary", length=MAX), "ms_wkt": SqlType("nvarchar", length=MAX),
    "ms_sql_variant_property": SqlType("nvarchar", length=4000),
    "ms_hashbytes": SqlType("varbinary", length=8000), "ms_quotename": SqlType("nvarchar", 258),
}  # fmt: skip
_LSN = SqlType("binary", length=10)
_SYSTEM = {
    "fn_cdc_get_max_lsn": _LSN, "fn_cdc_get_min_lsn": _LSN, "fn_cdc_increment_lsn": _LSN,
    "fn_cdc_decrement_lsn": _LSN, "fn_cdc_map_time_to_lsn": _LSN,
    "fn_cdc_map_lsn_to_time": SqlType("datetime"), "fn_cdc_is_bit_set": SqlType("bit"),
    "fn_cdc_get_column_ordinal": INT,
}  # fmt: skip


def _literal_type(node: exp.Expression) -> SqlType | None:
    text = str(node.this)
    if isinstance(node, exp.National):
        return SqlType("nvarchar", length=max(len(text), 1))
    if isinstance(node, exp.HexString):
        return SqlType("varbinary", length=max((len(text) + 1) // 2, 1))
    if node.is_string:
        return SqlType("varchar", length=max(len(text), 1))
    return INT if text.isdigit() and int(text) < 2**31 else None


def static_type(node: exp.Expression | None) -> SqlType | None:
    """Return the type of an expression where its text tells it."""
    if node is None:
        return None
    if isinstance(node, exp.Alias | exp.Paren):
        return static_type(node.this)
    if isinstance(node, exp.National | exp.Literal | exp.HexString):
        return _literal_type(node)
    if isinstance(node, exp.Anonymous):
        name = str(node.this).lower()
        if name in ("ms_cast", "ms_try_cast"):
            return cast_type(node.expressions[1].name)
        return _RESULTS.get(name)
    if isinstance(node, exp.Dot):
        call = node.expression
        return _SYSTEM.get(str(call.this).lower()) if isinstance(call, exp.Anonymous) else None
    if isinstance(node, exp.Count):
        return BIGINT if node.args.get("big_int") else INT
    if isinstance(node, exp.Max | exp.Min | exp.Coalesce | exp.Nullif):
        return static_type(node.this)
    if isinstance(node, exp.Case):
        branches = [branch.args["true"] for branch in node.args["ifs"]]
        types = [static_type(b) for b in (*branches, node.args.get("default")) if b is not None]
        return types[0] if types and all(t == types[0] for t in types) else None
    return None


def result_types(items: Sequence[exp.Expression]) -> dict[int, SqlType]:
    """Return the known types by position; none if a star hides the positions."""
    if any(item.find(exp.Star) and not item.find(exp.Count) for item in items):
        return {}
    found = {place: static_type(item) for place, item in enumerate(items)}
    return {place: sql_type for place, sql_type in found.items() if sql_type is not None}


def cast_type(spelling: str) -> SqlType:
    """Return the type that a CAST names; raises SqlError 243."""
    try:
        return parse_type(spelling, is_cast=True)
    except ValueError as error:
        raise SqlError(243, f"Type {spelling} is not a defined system type.") from error


def annotate(node: exp.Anonymous) -> None:
    """Note whether the value of a conversion is a text of two-byte characters."""
    name = str(node.this)
    if name in ("ms_cast", "ms_try_cast"):
        node.meta["wide"] = _is_wide(node.expressions[0])
        found = static_type(node.expressions[0])
        node.meta["kind"] = "" if found is None else found.name
    elif name in ("ms_hashbytes", "ms_datalength"):
        node.meta["wide"] = _is_wide(node.expressions[-1])


def call(node: exp.Anonymous) -> exp.Expression:
    """Return the call of a function as PostgreSQL makes it."""
    name = str(node.this)
    if name in ("ms_cast", "ms_try_cast"):
        return _cast(node)
    if name in ("ms_hashbytes", "ms_datalength"):
        value = node.expressions[-1]
        if node.meta.get("wide"):
            wide = exp.Anonymous(this="sim.utf16", expressions=[_as_text(value)])
            return exp.Anonymous(this=name, expressions=[*node.expressions[:-1], wide])
    if name in ("ms_checksum", "ms_binary_checksum"):
        texts = [_text_of(value, 0) for value in node.expressions]
        return exp.Anonymous(this=name, expressions=texts)
    if name in ("ms_charindex", "ms_left", "ms_right", "ms_replace", "ms_upper", "ms_lower"):
        node.set("expressions", [_unmark(value) for value in node.expressions])
    return node


def _unmark(node: exp.Expression) -> exp.Expression:
    return exp.Literal.string(str(node.this)) if isinstance(node, exp.National) else node


def _as_text(node: exp.Expression) -> exp.Expression:
    return exp.cast(_unmark(node), "text")


def _is_wide(node: exp.Expression) -> bool:
    found = static_type(node)
    if found is not None:
        return found.name in ("nvarchar", "nchar", "sysname")
    if isinstance(node, exp.Concat):
        return any(_is_wide(part) for part in node.expressions)
    if isinstance(node, exp.Add):
        return _is_wide(node.this) or _is_wide(node.expression)
    return False


def _function(name: str, *arguments: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=name, expressions=list(arguments))


def _number(value: int) -> exp.Expression:
    return exp.Literal.number(value)


def _text_of(value: exp.Expression, style: int) -> exp.Expression:
    return _function("sim.to_text", _unmark(value), _number(style))


def _cast(node: exp.Anonymous) -> exp.Expression:
    value, wanted = node.expressions[0], cast_type(node.expressions[1].name)
    style = int(node.expressions[2].name) if len(node.expressions) > 2 else 0
    if isinstance(value, exp.Null):
        return exp.Null()
    if wanted.name == "sql_variant":
        return _variant(value, str(node.meta.get("kind", "")))
    if wanted.name == "hierarchyid":
        return _function("ms_hierarchyid", _unmark(value))
    if wanted.name in TEXTS | {"sysname", "text", "ntext", "xml", "json", "vector"}:
        out = _cast_text(value, wanted, style)
        is_datetime = style == _ISO and node.meta.get("kind") == "datetime"
        return _function("left", out, _number(_ISO_LENGTH)) if is_datetime else out
    if wanted.name in BINARIES | {"image", "rowversion"}:
        return _cast_binary(value, wanted, style, is_wide=bool(node.meta.get("wide")))
    if isinstance(value, exp.Column):  # it may be a sql_variant, whose value has its type's name
        value = _function("sim.untagged", value)
    return _cast_scalar(_unmark(value), wanted)


def _variant(value: exp.Expression, kind: str) -> exp.Expression:
    """Return a value with the name of its type, as a sql_variant is stored."""
    return _function("sim.tagged", exp.Literal.string(kind), _unmark(value))


def _cast_text(value: exp.Expression, wanted: SqlType, style: int) -> exp.Expression:
    out = _text_of(value, style)
    if wanted.length and wanted.length != MAX:
        out = _function("left", out, _number(wanted.length))
    if wanted.name in ("char", "nchar"):
        fill = "sim.blank_to" if wanted.name == "char" else "sim.blank_wide_to"
        out = _function(fill, out, _number(wanted.length))
    return out


def _cast_binary(
    value: exp.Expression, wanted: SqlType, style: int, *, is_wide: bool
) -> exp.Expression:
    if is_wide:
        out = _function("sim.utf16", _as_text(value))
    else:
        out = _function("sim.to_binary", _unmark(value), _number(style))
    if wanted.length and wanted.length != MAX:
        out = _function("substring", out, _number(1), _number(wanted.length))
    if wanted.name == "binary":
        out = _function("sim.zero_to", out, _number(wanted.length))
    return out


def _cast_scalar(value: exp.Expression, wanted: SqlType) -> exp.Expression:
    name = wanted.name
    integers = {"tinyint": "int2", "smallint": "int2", "int": "int4", "bigint": "int8"}
    if name in integers:
        return _plain(_function("sim.to_number", value), integers[name])
    if name == "bit":
        return _function("sim.to_bit", value)
    if name in ("decimal", "numeric"):
        return _plain(value, f"numeric({wanted.precision}, {wanted.scale})")
    if name in ("money", "smallmoney"):
        return _plain(value, "numeric(19, 4)")
    if name in ("float", "real"):
        return _plain(value, "float8" if name == "float" else "float4")
    if name == "uniqueidentifier":
        return _function("sim.to_guid", value)
    return _cast_time(value, wanted)


def _cast_time(value: exp.Expression, wanted: SqlType) -> exp.Expression:
    name = wanted.name
    if name == "date":
        return _plain(_function("sim.to_stamp", value), "date")
    if name == "datetime":
        return _function("sim.store_datetime", _function("sim.to_stamp", value))
    if name == "smalldatetime":
        return _function("sim.store_smalldatetime", _function("sim.to_stamp", value))
    if name == "datetime2" and wanted.scale < 7:
        return _plain(_function("sim.to_stamp", value), f"timestamp({wanted.scale})")
    if name == "time" and wanted.scale < 7:
        return _plain(_function("sim.to_stamp", value), f"time({wanted.scale})")
    if name == "datetimeoffset":
        return _function("sim.to_dto", value)
    return _function("sim.to_time7" if name == "datetime2" else "sim.to_clock7", value)


def _plain(value: exp.Expression, postgres_type: str) -> exp.Expression:
    spelled = exp.DataType.build(postgres_type, dialect="postgres", udt=True)
    return exp.Cast(this=value, to=spelled)
