"""How staging tables are written in one SQL dialect: what differs between engines that have them.

Texts with places in braces: {table} and {index} are quoted and qualified names, {kept} says how a
generated column is kept. Not here: running them (the engines).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingDialect:
    """The staging schema in an engine's SQL.

    server: what the text of version() begins with. tables: name of each table that a staging
    database has once, to its DDL, which does nothing where it is there. mutations: DDL of a
    mutation table; mutation_index: of its index. mutation_columns: those that older tables lack, to
    their DDL. retire: delete applied rows, oldest first; parameters low nanos and logical, end
    nanos and logical, how many; returns how many they were and the largest nanos. name_bytes_max:
    of an identifier. copies: whether rows go in by binary COPY where nothing conflicts. size: pages
    of a mutation table, and its bytes with indexes; parameter its name; sample: what stands behind
    a table's name to read {percent} % of its pages, each time the same. Both are empty where the
    engine has no such thing.
    operator_statements: what an operator should run, each with the reason; {database} is its quoted
    name.
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
