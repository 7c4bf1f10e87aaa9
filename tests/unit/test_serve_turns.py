"""The event loop continues whatever SQL a client sends: counted in its turns, not in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlglot

from harness.pipelines.log import ITEM, inserts, number_rows
from harness.servers.serve import Running, source_log, write_base, write_log
from penstock.serve.catalog import grammar
from penstock.serve.catalog.grammar import STATEMENT_LETTERS_MAX, TOKENS_MAX
from penstock.serve.catalog.store import _ANSWER_BYTES_MAX

TURNS = 50


class Turns:
    """Counter of the turns of a server's event loop."""

    def __init__(self, running: Running) -> None:
        self.count, self._loop = 0, running.loop
        self.is_ended = False
        self._loop.call_soon_threadsafe(self._turn)

    def _turn(self) -> None:
        self.count += 1
        if not self.is_ended:
            self._loop.call_later(0.0001, self._turn)

    def pass_by(self) -> bool:
        """Return whether the loop makes its turns while the caller (or the loop itself) waits."""
        wanted = self.count + TURNS
        for _ in range(2000):
            if self.count >= wanted:
                return True
            time.sleep(0.005)
        return False


@pytest.fixture
def based_server(tmp_path: Path) -> Iterator[Running]:
    """A server of a log with a base of one table."""
    write_log(tmp_path / "log", number_rows([inserts(3)]))
    with closing(source_log(tmp_path)) as log:
        write_base(tmp_path, {ITEM: [(7, "seven")]}, log.head().log_id)
    with Running(tmp_path, relations=[ITEM]) as found:
        yield found


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("select 1 + 1", None),
        ("select 1 + %s", (1,)),
        ("select id from item where id > 1", None),
        ("select id from item where id > %s", (1,)),
        ("copy (select id from item where id > 1) to stdout", None),
        ("copy item to stdout", None),
    ],
)
def test_sql_is_parsed_off_the_loop(
    based_server: Running,
    monkeypatch: pytest.MonkeyPatch,
    query: str,
    parameters: tuple[int] | None,
) -> None:
    """Every parse waits until the loop has made its turns, so none runs in the loop."""
    turns = Turns(based_server)
    has_passed: list[bool] = []

    def watch_call(call: Callable[..., Any]) -> Callable[..., Any]:
        def parse(*given: Any, **more: Any) -> Any:
            has_passed.append(turns.pass_by())
            return call(*given, **more)

        return parse

    with psycopg.connect(based_server.url(), autocommit=True) as connection:
        monkeypatch.setattr(sqlglot, "parse", watch_call(sqlglot.parse))
        monkeypatch.setattr(grammar._DIALECT, "tokenize", watch_call(grammar._DIALECT.tokenize))
        if query.startswith("copy"):
            with connection.cursor().copy(query) as copy:  # type: ignore[arg-type]
                assert list(copy)
        else:
            assert connection.execute(query, parameters).fetchall()  # type: ignore[arg-type]
    turns.is_ended = True
    assert has_passed
    assert all(has_passed)


@pytest.mark.parametrize(
    ("query", "state"),
    [
        ("select '" + "x" * STATEMENT_LETTERS_MAX + "'", "54000"),
        ("select 1" + ",1" * (TOKENS_MAX // 2), "54000"),
        ("select id from item where id in (1" + ",1" * (TOKENS_MAX // 2) + ")", "54000"),
    ],
)
def test_the_size_of_a_query_is_limited(based_server: Running, query: str, state: str) -> None:
    """The limit counts letters and words; the connection continues."""
    with psycopg.connect(based_server.url(), autocommit=True) as connection:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(query)  # type: ignore[arg-type]
        assert caught.value.sqlstate == state
        assert connection.execute("select 1").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("query", "state"),
    [
        # Each call is short and there are many, which SQLite's own steps do not count.
        (
            "select sum(length(replace('a', 'a', 'b'))) from generate_series(1, 50000) a, "
            "generate_series(1, 50000) b",
            "57014",
        ),
        (
            "select count(*) from generate_series(1, 50000) a, generate_series(1, 50000) b "
            "where a::text || b::text ~ '^(1+)+$'",
            "57014",
        ),
        ("select string_agg('{x}', '') from generate_series(1, 90000)", "57014"),
        ("select '{x}' from generate_series(1, 90000)", "54000"),
        ("select replace(replace('{a}', 'a', '{x}'), 'x', '{x}')", "54000"),
        ("select regexp_replace('{a}', 'a', '{x}', 'g')", "54000"),
        ("select count(*) from generate_series(1, 100001)", "54000"),
    ],
)
def test_what_a_query_may_cost_is_limited(based_server: Running, query: str, state: str) -> None:
    """The limits count calls of functions, letters of arguments, and letters of the answer."""
    assert _ANSWER_BYTES_MAX < 90_000 * 10_000
    text = query.replace("{x}", "x" * 10_000).replace("{a}", "a" * 10_000)
    with psycopg.connect(based_server.url(), autocommit=True) as connection:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(text)  # type: ignore[arg-type]
        assert caught.value.sqlstate == state
        assert connection.execute("select 1").fetchall() == [(1,)]
