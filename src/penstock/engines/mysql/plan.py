"""Questions of a plan to MySQL and MariaDB servers.

Some concern generated columns: a server in another mode has stored rows with cut or rounded values;
a target computes them again in strict mode and refuses them. The conditions are SQL over the
expression, so that the source can look for such rows without writing anything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing

from penstock.codec.types import Engine, Server
from penstock.engines.mysql.connect import Connection, connect, literal, quote, rows
from penstock.engines.mysql.source.catalog import Exclusion, open_catalog, survey
from penstock.host.errors import StatementFailed
from penstock.model import ColumnDefinition, TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.tables import PLAN_APPLICATION, SourceFacts

_TYPE = re.compile(
    r"(?P<name>[a-z]+)\s*(?:\((?P<inside>.*?)\))?(?P<rest>.*)", re.IGNORECASE | re.DOTALL
)
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_INTEGER_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "integer": 4, "bigint": 8}
_TEXT_BYTES = {"tiny": 2**8 - 1, "": 2**16 - 1, "medium": 2**24 - 1, "long": 2**32 - 1}
_FLOAT_MAX = "3.4028234663852886e38"
_TEMPORALS = frozenset({"date", "datetime", "timestamp", "time"})


def strict_refusal(column: ColumnDefinition) -> str:
    """Return the SQL condition of rows whose value a strict target refuses; empty if there is none.

    column: its `default` is the expression.
    """
    value = f"({column.default})"
    conditions = [_of_type(column, value)]
    if column.not_null:
        conditions.append(f"{value} is null")
    return " or ".join(f"({one})" for one in conditions if one)


def convert_sql(column: ColumnDefinition) -> str:
    """Return the expression as the column's type; the server warns of values that do not fit."""
    found = _TYPE.match(column.type_text)
    name = found["name"].lower() if found is not None else ""
    if name not in _TEMPORALS:
        return f"({column.default})"
    inside = f"({found['inside']})" if found is not None and found["inside"] else ""
    as_type = "datetime" if name == "timestamp" else name
    return f"cast(({column.default}) as {as_type}{inside})"


def _of_type(column: ColumnDefinition, value: str) -> str:
    found = _TYPE.match(column.type_text)
    if found is None:
        return ""
    name, inside, rest = found["name"].lower(), found["inside"] or "", found["rest"].lower()
    is_unsigned = "unsigned" in rest or "zerofill" in rest
    if name in _INTEGER_BYTES:
        return _outside(f"round({value})", 8 * _INTEGER_BYTES[name], is_unsigned=is_unsigned)
    if name == "bit":
        return _outside(value, int(inside or 1), is_unsigned=True)
    if name in ("decimal", "numeric", "dec", "fixed"):
        return _beyond_digits(value, inside, is_unsigned=is_unsigned)
    if name in ("float", "double", "real"):
        below = f"{value} < 0" if is_unsigned else ""
        beyond = f"abs({value}) > {_FLOAT_MAX}" if name == "float" else ""
        return " or ".join(one for one in (below, beyond) if one)
    if name == "year":
        return (
            f"{value} <> 0 and {value} not between 1901 and 2155 and {value} not between 1 and 99"
        )
    if name in ("char", "varchar"):
        return f"char_length(trim(trailing ' ' from {value})) > {int(inside or 1)}"
    if name in ("binary", "varbinary"):
        return f"length({value}) > {int(inside or 1)}"
    if name.endswith(("text", "blob")):
        size = _TEXT_BYTES.get(name.removesuffix("text").removesuffix("blob"))
        return f"length({value}) > {size}" if size is not None else ""
    if name == "enum":
        labels = [one.replace("''", "'") for one in _LABEL.findall(inside)]
        listed = ", ".join(literal(one) for one in labels)
        return f"{value} not in ({listed}) and cast({value} as char) not regexp '^[1-9][0-9]*$'"
    return f"not json_valid({value})" if name == "json" else ""


def _outside(value: str, bits: int, *, is_unsigned: bool) -> str:
    low = 0 if is_unsigned else -(2 ** (bits - 1))
    high = 2**bits - 1 if is_unsigned else 2 ** (bits - 1) - 1
    return f"{value} < {low} or {value} > {high}"


def _beyond_digits(value: str, inside: str, *, is_unsigned: bool) -> str:
    precision, _, scale = (inside or "10").partition(",")
    digits, places = int(precision), int(scale or 0)
    limit = f"1{'0' * (digits - places)}"
    below = f" or {value} < 0" if is_unsigned else ""
    return f"abs(round({value}, {places})) >= {limit}{below}"


def read_source(
    config: Config,
    *,
    dropped: Collection[TableName],  # noqa: ARG001 - the port's
) -> SourceFacts:
    """Return the source and its captured tables.

    Raises the errors of connecting and of the catalogue.
    """
    with closing(open_catalog(config.source.url, application_name=PLAN_APPLICATION)) as session:
        found = survey(session, config.source.tables)
        out = [one for one in found.excluded if one.reason is not Exclusion.PATTERN]
        return SourceFacts(
            server=_server(session),
            tables=found.tables,
            left_out=tuple(map(str, out)),
            problems=(
                *(f"no table {name} in the source" for name in found.unmatched),
                *(f"{one}, and [source] tables names it" for one in out if one.is_named),
                *(_warn_of_versioned(found.tables) if config.pipeline.mode.has_change else ()),
            ),
        )


def _warn_of_versioned(definitions: Iterable[TableDefinition]) -> list[str]:
    return [
        f"{definition.name} is system-versioned: the binlog holds its past rows as rows of their "
        "own, under the keys of the present ones"
        for definition in definitions
        if definition.is_versioned
    ]


def problems_between(
    config: Config, tables: Sequence[TableDefinition], *, planned: Collection[TableName]
) -> list[str]:
    """Find generated columns whose values a strict target would refuse for some rows.

    The target computes them again in strict mode, although the source may have stored the rows in
    another mode: a warning of a SELECT is an error there. This takes one pass over each table that
    has such columns, and none once its bulk load has been planned.
    """
    found: list[str] = []
    with closing(open_catalog(config.source.url, application_name=PLAN_APPLICATION)) as session:
        for table in tables:
            computed = [column for column in table.columns if column.generated and column.default]
            if not computed or table.is_versioned or table.name in planned:
                continue
            found += _find_refused_rows(session, table, computed)
            if next(_warnings(session, table, computed), None) is None:
                continue
            found += [
                f"{table.name}.{column.name} is generated, and its expression gives "
                f'"{first}" for a row of the table: a strict server refuses that row'
                for column in computed
                if (first := next(_warnings(session, table, [column]), None)) is not None
            ]
    return found


def _find_refused_rows(
    session: Connection, table: TableDefinition, columns: Sequence[ColumnDefinition]
) -> Iterator[str]:
    """Look for rows whose computed values a column's type refuses in strict mode."""
    conditions = [(column, strict_refusal(column)) for column in columns]
    asked = [(column, one) for column, one in conditions if one]
    if not asked:
        return
    sums = ", ".join(f"coalesce(sum({one}), 0) as c{place}" for place, (_, one) in enumerate(asked))
    doing = f"computing generated columns of {table.name}"
    try:
        counts = rows(session, f"select {sums} from {quote(*table.name)}", doing=doing)[0]
    except StatementFailed:
        return  # the expression itself fails for a row, which `_warnings` reports
    for place, (column, condition) in enumerate(asked):
        if count := int(counts[f"c{place}"]):
            yield (
                f"{table.name}.{column.name} is generated, and its expression gives {count} values "
                f"that {column.type_text} does not hold: a strict server refuses these rows; "
                f"select * from {quote(*table.name)} where {condition} lists them"
            )


def _warnings(
    session: Connection, table: TableDefinition, columns: Sequence[ColumnDefinition]
) -> Iterator[str]:
    """Yield the server's warnings when it computes these columns for all rows."""
    doing = f"computing generated columns of {table.name}"
    counts = ", ".join(f"count({convert_sql(column)})" for column in columns)
    try:
        rows(session, f"select {counts} from {quote(*table.name)}", doing=doing)
    except StatementFailed as error:
        yield error.message
        return
    for row in rows(session, "show warnings", doing=doing):
        yield str(row["message"])


def read_target(config: Config) -> tuple[Server, int]:
    """Return the target, and its lower_case_table_names. Raises the errors of connecting."""
    with closing(connect(config.target.url, application_name=PLAN_APPLICATION)) as session:
        found = rows(
            session,
            "select @@lower_case_table_names as folding",
            doing="asking the target how it keeps names",
        )
        return _server(session), int(found[0]["folding"])


def _server(session: Connection) -> Server:
    found = session.server
    return Server(engine=Engine(found.flavour.value), version=found.number)
