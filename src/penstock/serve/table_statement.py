"""A question for a table's rows as a statement of the extended protocol."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.codec.postgres.pgwire_extended import PARAMETERS_MAX
from penstock.codec.postgres.pgwire_server import Refused
from penstock.model import TableName
from penstock.model.whole_number import parse_whole
from penstock.serve.catalog.answers import AnswerColumn
from penstock.serve.catalog.grammar import split
from penstock.serve.sending import Cursor, answer_column
from penstock.serve.table_query import TableQuery, read_select
from penstock.serve.table_rows import shown_columns

if TYPE_CHECKING:
    from penstock.serve.session import ClientSession

_PARAMETER = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$(\d+)")
_TEXT = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatement:
    """Read and typed, as `asked.Prepared` is; its rows are sent by a cursor."""

    table: TableName
    query: TableQuery
    parameters: tuple[int, ...]
    columns: tuple[AnswerColumn, ...]

    async def opened(
        self, session: ClientSession, values: Sequence[str | None], formats: Sequence[int]
    ) -> Cursor:
        """Begin to read. Raises Refused."""
        query = replace(self.query, condition=_filled(self.query.condition, values))
        cursor = await Cursor.opened(session, self.table, query, formats)
        if tuple(map(answer_column, cursor.columns)) != self.columns:
            await cursor.close()
            raise Refused("0A000", "cached plan must not change result type")
        return cursor


def table_statement(
    session: ClientSession, table: TableName, sql: str, types: Sequence[int]
) -> TableStatement:
    """A SELECT of a table. types: that the client gives its parameters. Raises Refused."""
    (statement,) = split(sql)
    query, serving = read_select(statement), session.serving
    words = [found[1] for found in _PARAMETER.finditer(query.condition) if found[1]]
    numbers = [parse_whole(word, PARAMETERS_MAX, otherwise=0) for word in words]
    if 0 in numbers:
        word = words[numbers.index(0)]
        raise Refused("42P02", f"there is no parameter ${word[:20]}")
    count = max([*numbers, len(types)], default=0)
    given = [*types, *[0] * (count - len(types))]
    relation = serving.shape_of(table)
    if relation is None:
        raise Refused("55000", f"the shape of table {table} is not known yet")
    plain = replace(query, condition="")
    shown = shown_columns(relation, plain, serving.head.engine, serving.settings.choices)
    return TableStatement(
        table=table,
        query=query,
        parameters=tuple(oid or _TEXT for oid in given),
        columns=tuple(map(answer_column, shown)),
    )


def _filled(condition: str, values: Sequence[str | None]) -> str:
    """A condition with its parameters as constants."""

    def constant(found: re.Match[str]) -> str:
        if not found[1]:
            return found[0]
        value = values[int(found[1]) - 1]
        return "NULL" if value is None else "'" + value.replace("'", "''") + "'"

    return _PARAMETER.sub(constant, condition)
