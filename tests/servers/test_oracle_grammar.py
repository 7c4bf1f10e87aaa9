"""Texts that penstock sends to Oracle, judged by Debezium's grammar of PL/SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.servers.plsql_grammar import plsql_grammar
from sim_oracle.texts import read_texts

Judge = Callable[[str], int]
DATA = Path(__file__).parents[1] / "data"
KNOWN = [DATA / "oracle_known_texts.sql", DATA / "oracle_suite_texts.sql"]
# Statements that the grammar lacks, or has without these options.
NOT_IN_THE_GRAMMAR = (
    "ALTER SESSION SET DDL_LOCK_TIMEOUT",
    "ALTER SYSTEM ARCHIVE LOG CURRENT",
    "ALTER SYSTEM KILL SESSION",
    "CREATE USER",
)


@pytest.fixture(scope="module")
def count_errors() -> Iterator[Judge]:
    """Count the errors of a text."""
    with plsql_grammar() as judge:
        yield judge


def test_each_text_is_in_the_grammar(count_errors: Judge) -> None:
    """The texts of the suites, too; each exception is really refused."""
    texts = [" ".join(text.split()) for file in KNOWN for text in read_texts(file)]
    refused = [text for text in texts if count_errors(text)]
    assert [text for text in refused if not text.startswith(NOT_IN_THE_GRAMMAR)] == []
    assert all(any(text.startswith(one) for text in refused) for one in NOT_IN_THE_GRAMMAR)


@pytest.mark.parametrize(
    "text",
    [
        'SELECT "A" FORM "SHOP"."T"',
        'SELECT "A" FROM "SHOP"."T" AS OF SCN',
        'UPDATE "SHOP"."T" SET "A" WHERE "ID" = :1',
        'MERGE INTO "SHOP"."T" t USING s ON (t.a = s.a) WHEN MATCHED UPDATE SET t.b = s.b',
        'ALTER TABLE "SHOP"."T" ADD CONSTRAINT "K" PRIMARY ("ID")',
        "BEGIN DBMS_LOGMNR.END_LOGMNR;",
        'LOCK TABLE "SHOP"."T" EXCLUSIVE MODE',
        "SELECT 'open FROM DUAL",
    ],
)
def test_a_wrong_text_is_refused(count_errors: Judge, text: str) -> None:
    """A missing, misspelt or superfluous word is an error."""
    assert count_errors(text)
