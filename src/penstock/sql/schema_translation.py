"""What a table has besides columns and keys, from one engine to another: what has an equal there.

Defaults, numbers that the server gives, indexes, foreign keys. None of it touches a row that is
loaded: what has no equal in the target is left out, with a sentence that `penstock plan` prints.
Pure. Not here: the statements that make tables (`schema.py`, `shapes.py` of the targets), and what
goes between servers of one engine, where everything has an equal.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.codec.types import Engine, Server, filled
from penstock.codec.types import Mapping as TypeMapping
from penstock.model import ColumnDefinition, ForeignKey, TableDefinition, TableName
from penstock.ports.registry import engine_with_types

# Of an index: what InnoDB allows, and what fits a page of PostgreSQL's whatever the values are.
MYSQL_INDEX_BYTES_MAX = 3072
POSTGRES_INDEX_BYTES_MAX = 2600
PREFIX_CHARACTERS = 255
_CHARACTER_BYTES = 4
_FIXED_BYTES = 40  # the longest of the types that have no length: an interval, a numeric

_NEXT = re.compile(r"nextval\('(?:[^']|'')+'::regclass\)\Z", re.IGNORECASE)
_CAST = re.compile(r"::[\w\s.\"]+(?:\(\d+(?:,\d+)?\))?(?:\s+with(?:out)? time zone)?\Z")
_STRING = re.compile(r"(?:_\w+\s*)?'((?:[^'\\]|''|\\.)*)'\Z", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\Z")
_BITS = re.compile(r"b'([01]*)'\Z", re.IGNORECASE)
_NOW = re.compile(
    r"\(?\s*(?:now\(\)|(?:current_timestamp|localtimestamp|transaction_timestamp)"
    r"(?:\(\d?\))?)\s*\)?\Z",
    re.IGNORECASE,
)
_PG_INDEX = re.compile(
    r"CREATE (?:UNIQUE )?INDEX (?P<name>(?:\"(?:[^\"]|\"\")*\"|\S)+) ON .*? USING (?P<way>\w+) "
    r"\((?P<columns>.*?)\)(?P<rest>.*)\Z",
    re.DOTALL,
)
_PG_PART = re.compile(r"(?P<name>[a-z_][\w$]*|\"(?:[^\"]|\"\")*\")(?P<down> DESC)?\Z")
_MY_INDEX = re.compile(
    r"(?P<kind>\w+ )?key (?P<name>`(?:[^`]|``)+`) \((?P<columns>.*)\)\Z", re.DOTALL
)
_MY_PART = re.compile(r"`(?P<name>(?:[^`]|``)+)`(?P<prefix>\(\d+\))?\Z")
_ON_DELETE = re.compile(r" ON DELETE (CASCADE|RESTRICT|NO ACTION|SET NULL|SET DEFAULT)")
_ON_UPDATE = re.compile(r" ON UPDATE (CASCADE|RESTRICT|NO ACTION|SET NULL|SET DEFAULT)")
_TIMES = ("timestamp", "datetime")


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A secondary index. parts: columns, each with a prefix's characters (0: whole), and DESC."""

    name: str
    parts: tuple[tuple[str, int, bool], ...]


@dataclass(slots=True, kw_only=True)
class Extras:
    """What a table gets besides columns and keys. lacking: what it does not get, and why.

    defaults: by column, as SQL of the target. counted: columns that the target numbers.
    foreign_keys: with on_delete and on_update as words.
    """

    defaults: dict[str, str] = field(default_factory=dict)
    counted: list[str] = field(default_factory=list)
    indexes: list[Index] = field(default_factory=list)
    foreign_keys: list[ForeignKey] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)


def extras_of(
    definition: TableDefinition,
    source: Server,
    target: Server,
    mappings: Mapping[str, TypeMapping],
) -> Extras:
    """What of a table's extras has an equal in a target of another engine."""
    extras = Extras()
    for column in definition.columns:
        mapping = mappings.get(column.name)
        if mapping is not None and mapping.target_type and not column.generated:
            _column(extras, definition, column, mapping, (source, target))
    indexes = definition.indexes if source.engine.is_mysql else _plain_indexes(definition, extras)
    for text in indexes:
        _index(extras, definition, text, mappings, (source, target))
    for key in definition.foreign_keys:
        _foreign_key(extras, key, source, target)
    return extras


# --- columns --------------------------------------------------------------------------------------


def _column(
    extras: Extras,
    definition: TableDefinition,
    column: ColumnDefinition,
    mapping: TypeMapping,
    ends: tuple[Server, Server],
) -> None:
    source, target = ends
    is_serial = column.default is not None and _NEXT.match(column.default) is not None
    if column.identity_kind or is_serial:
        if _may_count(definition, column, mapping, target):
            extras.counted.append(column.name)
        else:
            extras.lacking.append(f"column {column.name} is not counted up by the target")
        return
    if column.default is None or _text_of(column.default) == "NULL":
        return
    sql = _default(column, mapping, source, target)
    if sql is None:
        extras.lacking.append(
            f"column {column.name} has no default: {column.default} has no equal there"
        )
    else:
        extras.defaults[column.name] = sql


def _may_count(
    definition: TableDefinition, column: ColumnDefinition, mapping: TypeMapping, target: Server
) -> bool:
    """AUTO_INCREMENT wants to be first in a key; GENERATED AS IDENTITY wants an integer."""
    kind = mapping.target_type.lower()
    if not target.engine.is_mysql:
        return kind in ("smallint", "integer", "bigint")
    is_whole = kind.partition(" ")[0].partition("(")[0] in (
        *("tinyint", "smallint", "mediumint", "int", "bigint"),
    )
    counted = [
        one.name
        for one in definition.columns
        if one.identity_kind or (one.default and _NEXT.match(one.default))
    ]
    first = definition.primary_key[:1] == (column.name,)
    return is_whole and first and counted[0] == column.name


def _text_of(default: str) -> str:
    """A default without the casts that PostgreSQL prints behind it."""
    text = default.strip()
    while (match := _CAST.search(text)) is not None and not _is_inside(text, match.start()):
        text = text[: match.start()].strip()
        if text.startswith("(") and text.endswith(")"):
            text = text[1:-1].strip()
    return text.upper() if text.upper() in ("NULL", "TRUE", "FALSE") else text


def _is_inside(text: str, place: int) -> bool:
    """Whether a place is inside of a string literal."""
    return text[:place].count("'") % 2 == 1


def _default(
    column: ColumnDefinition, mapping: TypeMapping, source: Server, target: Server
) -> str | None:
    text = _text_of(column.default or "")
    is_mysql = target.engine.is_mysql
    base = column.type_text.partition("(")[0].partition(" ")[0].lower()
    if _NOW.match(text):
        return _now(base, mapping) if base in _TIMES else None
    if bits := _BITS.match(text):
        if not mapping.target_type.startswith("bit"):
            return str(int(bits[1] or "0", 2))
        width = re.search(r"\d+", mapping.target_type)
        padded = bits[1].zfill(int(width[0]) if width else 1)
        return f"B'{padded}'"
    if text in ("TRUE", "FALSE"):
        return ("1" if text == "TRUE" else "0") if is_mysql else text.lower()
    if string := _STRING.match(text):
        value = _unescaped(string[1], is_mysql=source.engine.is_mysql)
        return _written(value, column, mapping, target)
    return text if _NUMBER.match(text) else None


def _now(base: str, mapping: TypeMapping) -> str:
    digits = re.search(r"(?:timestamp|datetime)\((\d)\)", mapping.target_type)
    del base
    return f"current_timestamp({digits[1]})" if digits else "current_timestamp"


def _unescaped(text: str, *, is_mysql: bool) -> str:
    text = text.replace("''", "'")
    if not is_mysql:
        return text
    plain = {"0": "\0", "n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"\\(.)", lambda match: plain.get(match[1], match[1]), text, flags=re.DOTALL)


def _written(
    value: str, column: ColumnDefinition, mapping: TypeMapping, target: Server
) -> str | None:
    """A text as default of the target's type; None where it would have to be converted."""
    if column.neutral == "binary" or "\0" in value:
        return None
    kind = mapping.target_type
    literal = engine_with_types(target.engine).part("literal")
    if not target.engine.is_mysql:
        return f"{literal(value)}::{kind}"
    if column.neutral in ("timestamptz", "bool"):
        return None
    text: str = literal(value)
    base = kind.partition("(")[0].partition(" ")[0].lower()
    if not base.endswith(("text", "json")):
        return text
    # MySQL has no ALTER TABLE that would give a text its default.
    is_mariadb = target.engine is Engine.MARIADB
    return f"({filled(mapping.write.sql, text)})" if is_mariadb else None


# --- indexes --------------------------------------------------------------------------------------


def _plain_indexes(definition: TableDefinition, extras: Extras) -> Iterable[str]:
    """Indexes of PostgreSQL; unique ones that are no constraint are only named."""
    for key in definition.unique_keys:
        if not key.is_constraint:
            extras.lacking.append(
                f"unique index {key.name} is not made: only unique constraints have an equal"
            )
    return definition.indexes


def _index(
    extras: Extras,
    definition: TableDefinition,
    text: str,
    mappings: Mapping[str, TypeMapping],
    ends: tuple[Server, Server],
) -> None:
    source, target = ends
    name, parts, reason = (_from_mysql if source.engine.is_mysql else _from_postgres)(text)
    if not reason:
        parts, reason = _fitting(definition, parts, mappings, target)
    if reason:
        extras.lacking.append(f"index {name} is not made: {reason}")
    else:
        extras.indexes.append(Index(name=name, parts=tuple(parts)))


_Parts = list[tuple[str, int, bool]]


def _from_postgres(text: str) -> tuple[str, _Parts, str]:
    match = _PG_INDEX.match(text)
    if match is None:
        return text, [], "its definition is not understood"
    name = _bare(match["name"])
    if match["way"] not in ("btree", "hash"):
        return name, [], f"the target has no index of the kind {match['way']}"
    if match["rest"].strip():
        return name, [], "it is over some of the rows, or has columns beside its key"
    parts: _Parts = []
    for part in match["columns"].split(", "):
        found = _PG_PART.match(part)
        if found is None:
            return name, [], f"{part} is no plain column"
        parts.append((_bare(found["name"]), 0, bool(found["down"])))
    return name, parts, ""


def _bare(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _from_mysql(text: str) -> tuple[str, _Parts, str]:
    match = _MY_INDEX.match(text)
    if match is None:
        return text, [], "its definition is not understood"
    name = match["name"][1:-1].replace("``", "`")
    if match["kind"]:
        return name, [], f"the target has no {match['kind'].strip()} index like it"
    parts: _Parts = []
    for part in match["columns"].split(", "):
        found = _MY_PART.match(part)
        if found is None:
            return name, [], "it is over an expression"
        if found["prefix"]:
            return name, [], f"it is over the beginning of {found['name']}"
        parts.append((found["name"].replace("``", "`"), 0, False))
    return name, parts, ""


def _fitting(
    definition: TableDefinition,
    parts: _Parts,
    mappings: Mapping[str, TypeMapping],
    target: Server,
) -> tuple[_Parts, str]:
    """The parts as the target can have them, or why it cannot."""
    is_mysql = target.engine.is_mysql
    room = MYSQL_INDEX_BYTES_MAX if is_mysql else POSTGRES_INDEX_BYTES_MAX
    made: _Parts = []
    computed = {column.name for column in definition.columns if column.generated}
    for name, _, is_down in parts:
        mapping = mappings.get(name)
        if mapping is None or not mapping.target_type or (is_mysql and name in computed):
            return [], f"column {name} is not in the target"
        size, prefix, reason = _indexed(mapping.target_type.lower(), is_mysql=is_mysql)
        if reason:
            return [], f"column {name} {reason}"
        room -= size
        made.append((name, prefix, is_down))
    return (made, "") if room >= 0 else ([], "its columns are longer than an index may be")


def _indexed(kind: str, *, is_mysql: bool) -> tuple[int, int, str]:
    """Bytes of a column in an index, how many characters of it, and why it cannot be."""
    base = kind.partition("(")[0].partition(" ")[0]
    length = re.search(r"\((\d+)", kind)
    if base in ("varchar", "char", "character"):
        return int(length[1] if length else 1) * _CHARACTER_BYTES, 0, ""
    if base in ("varbinary", "binary"):
        return int(length[1] if length else 1), 0, ""
    if is_mysql and base.endswith(("text", "blob")):
        return PREFIX_CHARACTERS * _CHARACTER_BYTES, PREFIX_CHARACTERS, ""
    if base in ("json", "jsonb", "point", "geometry") or base.endswith("geometry"):
        return 0, 0, f"is {base} there, which has no such index"
    if base in ("text", "bytea"):
        return 0, 0, f"is {base} there, which an index may refuse when it is long"
    return _FIXED_BYTES, 0, ""


# --- foreign keys ---------------------------------------------------------------------------------


def _foreign_key(extras: Extras, key: ForeignKey, source: Server, target: Server) -> None:
    on_delete, on_update = key.on_delete, key.on_update
    if not source.engine.is_mysql:
        deleted, updated = _ON_DELETE.search(key.definition), _ON_UPDATE.search(key.definition)
        on_delete = deleted[1] if deleted else "NO ACTION"
        on_update = updated[1] if updated else "NO ACTION"
    if target.engine.is_mysql and "SET DEFAULT" in (on_delete, on_update):
        extras.lacking.append(f"foreign key {key.name} is not made: the target has no SET DEFAULT")
        return
    extras.foreign_keys.append(
        ForeignKey(
            name=key.name,
            columns=key.columns,
            target=key.target,
            target_columns=key.target_columns,
            definition=key.definition,
            on_update=on_update.upper(),
            on_delete=on_delete.upper(),
        )
    )


# --- as SQL ---------------------------------------------------------------------------------------


def short_name(name: str, fits: Callable[[str], bool]) -> str:
    """A name that fits: itself, or its beginning and a number made from all of it."""
    if fits(name):
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    kept = name
    while not fits(f"{kept}_{digest}"):
        kept = kept[:-1]
    return f"{kept}_{digest}"


def tables_by_name(definitions: Sequence[TableDefinition]) -> dict[TableName, TableDefinition]:
    """Definitions by their names in the source."""
    return {definition.name: definition for definition in definitions}
