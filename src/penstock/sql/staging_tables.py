"""SQL for staging tables in one dialect: the differences between engines that have them.

Texts have places in braces: {table} and {index} are quoted and qualified names, {kept} says how a
generated column is kept. Not here: running the statements (the engines).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingDialect:
    """Staging schema in an engine's SQL.

    Attributes:
        server: beginning of the text of version().
        tables: name of each table that a staging database has once, to its DDL, which does nothing
            if the table exists.
        mutations: DDL of a mutation table.
        mutation_index: DDL of its index.
        mutation_columns: columns that older tables lack, to their DDL.
        retire: statement that deletes applied rows, oldest first; parameters low nanos and
            logical, end nanos and logical, row limit; returns the number of rows and the largest
            nanos.
        name_bytes_max: maximum size of an identifier.
        copies: rows are written by binary COPY if nothing conflicts.
        size: statement that returns the pages of a mutation table, and its bytes with indexes;
            parameter its name. Empty if the engine has no such thing.
        sample: text after a table's name that reads {percent} % of its pages, each time the same.
            Empty if the engine has no such thing.
        operator_statements: statements that an operator should run, each with the reason;
            {database} is its quoted name.
    """

    shown: str
    server: str
    tables: Mapping[str, str]
    mutations: str
    mutation_index: str
    mutation_columns: Mapping[str, str]
    retire: str
    name_bytes_max: int
    copies: bool
    size: str = ""
    sample: str = ""
    operator_statements: Mapping[str, str] = field(default_factory=dict)
