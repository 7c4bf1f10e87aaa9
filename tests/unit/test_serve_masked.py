"""Refused statements are logged without secrets."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from harness.pipelines.log import ITEM, inserts, number_rows
from harness.servers.serve import Running, write_log
from harness.servers.serve_client import Raw
from penstock.serve.catalog.masked import LENGTH_MAX, mask_sql

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("select 1", "select 1"),
        ('select "a b" from t', 'select "a b" from t'),
        (f"alter role r password '{SECRET}'", "alter role r password '***'"),
        (f"ALTER ROLE r PASSWORD {SECRET};", "ALTER ROLE r PASSWORD '***';"),
        ("alter role r password null", "alter role r password null"),
        (f"alter role r password e'a\\'{SECRET}'", "alter role r password '***'"),
        (f"alter role r password $${SECRET}$$", "alter role r password '***'"),
        (f"alter role r password $a$ $$ {SECRET}$a$ x", "alter role r password '***' x"),
        (f"select 'it''s {SECRET}', 2", "select '***', 2"),
        (f"select 'a\\' , '{SECRET}'", "select '***' , '***'"),
        (f"select '{SECRET}", "select '***'"),
        (f"select 1 -- {SECRET}\n, 2", "select 1 '***'\n, 2"),
        (f"select /* {SECRET} */ 1", "select '***' 1"),
        (f"select /* {SECRET}", "select '***'"),
        (f'select "{SECRET}', f'select "{SECRET}'),
    ],
)
def test_statements_without_constants(sql: str, shown: str) -> None:
    """Names stay, so that an operator sees what was requested."""
    assert mask_sql(sql) == shown


@given(st.text("'\"$-*/e\\ \nab", max_size=40))
def test_no_quote_shows_what_is_in_it(text: str) -> None:
    """A constant ends where the server ends it."""
    quoted = "'" + f"{text}{SECRET}".replace("'", "''") + "'"
    assert SECRET not in mask_sql(f"alter role r password {quoted}")


def test_a_long_statement_is_cut() -> None:
    """A constant that is cut stays hidden."""
    shown = mask_sql("select '" + SECRET * LENGTH_MAX)
    assert shown == "select '***' ..."
    assert len(mask_sql("select " + "a" * 5000)) < LENGTH_MAX + 10


def test_refused_statements_are_logged_without_secrets(tmp_path: Path) -> None:
    """Every protocol masks them, and replication commands are masked, too."""
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    statement = f"alter role repl password '{SECRET}'"
    with capture_logs() as logs, Running(tmp_path, relations=[ITEM]) as running:
        with psycopg.connect(running.url(), autocommit=True) as connection:
            for sql in (statement, f"select '{SECRET}'::integer", f"select (('{SECRET}"):
                with pytest.raises(psycopg.Error):
                    connection.execute(sql)
            with pytest.raises(psycopg.Error):
                connection.execute(statement, prepare=True, binary=True)
        client = Raw(running)
        client.query(f"CREATE_REPLICATION_SLOT s LOGICAL pgoutput (SNAPSHOT '{SECRET}')")
        client.until(b"Z")
        client.close()
    assert any("query" in one for one in logs)
    assert SECRET not in repr(logs)
