"""Staging DDL: CockroachDB's equals the published one; PostgreSQL's has the same columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.engines.cockroach.feeds import CHECKPOINTS, DIALECT, LEASES, MEMO, MUTATIONS
from penstock.engines.postgres.feeds.tables import DIALECT as POSTGRES
from penstock.ports.feeds import StagingDialect

DOCUMENT = Path(__file__).parents[1] / "data" / "staging" / "document_001.txt"


def read_published(table: str) -> list[str]:
    """Return the columns that Replicator's page prints, without comments and extra blanks."""
    found = re.search(rf"CREATE TABLE {table}\s*\((.*?)\n\)", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    return items(re.sub(r"--.*", "", found[1]))


def items(body: str) -> list[str]:
    """Return the parts between commas that are not in parentheses."""
    parts, depth = [""], 0
    for letter in body:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [text for part in parts if (text := " ".join(part.split()))]


def ours(ddl: str) -> list[str]:
    """Return the definitions of a table of ours."""
    return items(ddl[ddl.index("(") + 1 : ddl.rindex(")")])


@pytest.mark.parametrize(
    ("table", "ddl"),
    [("_targetDB_targetSchema_targetTable", MUTATIONS), ("public.checkpoints", CHECKPOINTS)],
)
def test_columns_are_the_documents_word_for_word(table: str, ddl: str) -> None:
    """Columns are in its order; those that Replicator's page omits for clarity follow."""
    columns = read_published(table)
    assert len(columns) in (7, 8)
    assert ours(ddl)[: len(columns)] == columns


def test_what_the_document_leaves_out() -> None:
    """Later columns, keys, indexes and column families are as in its source of record."""
    assert ours(MUTATIONS)[7:] == [
        "deletion BOOL NOT NULL DEFAULT false",
        "source_time TIMESTAMPTZ AS (to_timestamp(nanos::float/1e9)) VIRTUAL",
        "PRIMARY KEY (nanos, logical, key)",
        "INDEX {index} (key) STORING (applied)",
        "FAMILY cold (mut, before, deletion)",
        "FAMILY hot (applied, applied_at)",
    ]
    assert ours(CHECKPOINTS)[8:] == [
        "PRIMARY KEY (group_name, source_hlc, partition)",
        "INDEX (group_name, target_applied_at, partition)",
    ]
    assert ours(LEASES) == [
        "name STRING PRIMARY KEY",
        "expires TIMESTAMP NOT NULL",
        "nonce UUID NOT NULL",
        "hostname STRING NOT NULL",
    ]
    assert ours(MEMO) == ["key STRING PRIMARY KEY", "value BYTES NOT NULL"]


def names(dialect: StagingDialect) -> dict[str, list[str]]:
    """Return the columns of each table of a dialect."""
    tables = {**dialect.tables, "mutations": dialect.mutations}
    apart = ("primary key", "index", "family")
    found = {}
    for table, ddl in tables.items():
        first = ddl.partition(";")[0].partition(") with (")[0]
        body = first[first.index("(") + 1 :].rstrip().removesuffix(")")
        found[table] = [one.split()[0] for one in items(body) if not one.lower().startswith(apart)]
    return found


def test_both_dialects_have_the_same_tables_and_columns() -> None:
    """Tables and columns are in the same order."""
    assert names(POSTGRES) == names(DIALECT)
    assert POSTGRES.mutation_columns.keys() == DIALECT.mutation_columns.keys()
