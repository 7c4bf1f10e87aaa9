"""The DDL fuzzer itself: histories of a seed, shorter scripts, values of two engines compared."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Mapping
from typing import Any

import psycopg
import pytest

from harness.pipelines.ddl_arena import DIFFERENT, EQUAL, REFUSED, Outcome, Running
from harness.pipelines.ddl_histories import Author
from harness.pipelines.ddl_model import ALTERS, FEATURES, ROWS, WHOLE
from harness.pipelines.ddl_script import Script, Statement, Step, read_script
from harness.pipelines.ddl_shrink import atoms_of, shrink, sign, without
from harness.pipelines.ddl_sides import (
    Facts,
    Row,
    base_differences,
    differences,
    kind_of_value,
    neutral,
)
from harness.pipelines.ddl_types import MARIADB, MYSQL, POSTGRES

KINDS = (POSTGRES, MYSQL, MARIADB)
SCRIPT = Script(
    MYSQL,
    (Statement("create table t (id int)"), Statement("insert into t values (1)")),
    (
        Step((Statement("alter table t", ("drop a", "add b int")),)),
        Step(pause=2),
        Step((Statement("insert into t values (2)"), Statement("delete from t"))),
    ),
)


def write_history(source: str, seed: int) -> Script:
    """Return a whole history whose statements all succeed."""
    author = Author(source, seed)
    setup = author.write_setup()
    steps = []
    while (step := author.write_step()) is not None:
        steps.append(step)
    return Script(source, tuple(setup), tuple(steps))


@pytest.mark.parametrize("source", KINDS)
def test_a_seed_writes_the_same_history_again(source: str) -> None:
    """Two authors of one seed write one script; another seed gives another script."""
    assert write_history(source, 5) == write_history(source, 5)
    assert write_history(source, 5) != write_history(source, 6)


@pytest.mark.parametrize("source", KINDS)
def test_only_the_wanted_statements_are_drawn(source: str) -> None:
    """Features that are left out appear in no history."""
    wanted = ["insert", "add", "pause"]
    for seed in range(20):
        author = Author(source, seed, wanted)
        author.write_setup()
        while (step := author.write_step()) is not None:
            for one in step.statements:
                is_row_or_type = one.head.startswith(("insert", "create type", "create domain"))
                assert is_row_or_type or one.actions[0].startswith("add column")


@pytest.mark.parametrize("source", KINDS)
def test_every_feature_is_drawn(source: str) -> None:
    """All methods that the tables of weights name exist, and some histories reach them."""
    assert all(hasattr(Author, f"_{name}") for name in {**ROWS, **ALTERS, **WHOLE})
    text = "\n".join(write_history(source, seed).text for seed in range(400)).lower()
    words = {
        POSTGRES: ("using", "add value", "replica identity", "rename column", "set not null"),
        MYSQL: ("convert to", "temporary", "auto_increment", "collate", "after `", "enum("),
    }
    for word in words[POSTGRES if source == POSTGRES else MYSQL]:
        assert word in text


def test_a_label_is_used_after_its_transaction() -> None:
    """PostgreSQL refuses a row with a label that the row's own transaction added."""
    used = []
    for seed in range(100):
        added: list[str] = []
        for step in write_history(POSTGRES, seed).steps:
            texts = [one.sql for one in step.statements]
            rows = [text for text in texts if text.startswith(("insert", "update"))]
            used += [label for label in added if any(label in text for text in rows)]
            news = [text.split()[-1] for text in texts if "add value" in text]
            assert not any(label in text for label in news for text in rows)
            added += news
    assert used


@pytest.mark.parametrize("source", KINDS)
def test_some_keys_differ_in_case_alone(source: str) -> None:
    """The collation of such a key decides whether two rows are one."""
    text = "\n".join(write_history(source, seed).text for seed in range(40))
    assert re.search(r"'a1'.*'A1'", text, re.DOTALL)


def test_a_refused_step_is_forgotten() -> None:
    """Later statements do not depend on what the server refused: the name stays free."""
    author = Author(MYSQL, 3, ("add",))
    author.write_setup()
    before = copy.deepcopy(author._tables)
    assert author.write_step() is not None
    assert author._tables != before
    author.forget_step()
    assert author._tables == before


def test_a_script_is_text_to_type() -> None:
    """Transactions and pauses are shown."""
    assert SCRIPT.text.splitlines() == [
        "create table t (id int);",
        "insert into t values (1);",
        "-- the pipeline is started",
        "alter table t drop a, add b int;",
        "-- a pause of 2",
        "begin;",
        "insert into t values (2);",
        "delete from t;",
        "commit;",
    ]


def test_a_script_is_read_from_its_text() -> None:
    """A script has statements, transactions and pauses; actions of an ALTER are one text then."""
    read = read_script(f"-- sources: mysql mariadb\n{SCRIPT.text}", MYSQL)
    assert read is not None
    assert read.text == SCRIPT.text
    assert read_script(f"-- sources: mysql mariadb\n{SCRIPT.text}", POSTGRES) is None


def test_what_is_left_out_of_a_script() -> None:
    """Statements, single actions and pauses can be left out; an empty step is dropped too."""
    assert len(list(atoms_of(SCRIPT))) == 7
    shorter = without(SCRIPT, [(-1, 1, -1), (0, 0, 0), (1, 0, -1), (2, 0, -1), (2, 1, -1)])
    assert shorter.text.splitlines() == [
        "create table t (id int);",
        "-- the pipeline is started",
        "alter table t add b int;",
    ]


def test_a_script_shrinks_to_what_matters() -> None:
    """Only the action stays without which the history ends well."""

    def play(given: Any) -> list[Outcome]:
        return [
            Outcome(DIFFERENT, one, lines=["t: lacks x"])
            if "add b" in one.text
            else Outcome(EQUAL, one)
            for one in given()
        ]

    *_, (found,) = shrink(
        [Outcome(DIFFERENT, SCRIPT, lines=["t: lacks y"])], play, random.Random(1)
    )
    assert found.script.text == "-- the pipeline is started\nalter table t add b int;"


def test_ways_to_differ_are_told_apart() -> None:
    """A script that loses rows does not shrink to one that loses a column."""
    lacks = Outcome(DIFFERENT, SCRIPT, lines=["or der: lacks a='x: y'"])
    columns = Outcome(DIFFERENT, SCRIPT, lines=["t: columns ['a'] became []"])
    folded = Outcome(DIFFERENT, SCRIPT, lines=["base: or der: lacks a='x: y'"])
    assert len({sign(lacks), sign(columns), sign(folded)}) == 3
    assert sign(lacks) == sign(Outcome(DIFFERENT, SCRIPT, lines=["t: lacks b='1'"]))
    assert sign(Outcome(REFUSED, SCRIPT, code="TG32")) != sign(
        Outcome(REFUSED, SCRIPT, code="TG20")
    )


@pytest.mark.parametrize(
    ("source", "of_type", "one", "other"),
    [
        (POSTGRES, "integer", "7", "07"),
        (POSTGRES, "numeric(10,2)", "1.50", "1.5"),
        (POSTGRES, "numeric", "100000", "100000.000"),
        (POSTGRES, "real", "0.1", "0.10000000149011612"),
        (POSTGRES, "boolean", "true", "1"),
        (POSTGRES, "character(10)", "a         ", "a"),
        (
            POSTGRES,
            "timestamp with time zone",
            "2020-02-29 10:00:00+00",
            "2020-02-29 10:00:00.000000",
        ),
        (POSTGRES, "bit(8)", "00000101", "101"),
        (MYSQL, "time", "-00:00:10", "-10000000 us"),
        (MYSQL, "json", '{"a": 1, "b": [1.50]}', '{"b":[1.50],"a":1}'),
        (MARIADB, "year(4)", "1970", "1970"),
    ],
)
def test_equal_values_of_two_engines(source: str, of_type: str, one: str, other: str) -> None:
    """Equal values have one neutral form."""
    kind = kind_of_value(source, of_type)
    assert neutral(kind, one) == neutral(kind, other)


@pytest.mark.parametrize(
    ("source", "of_type", "one", "other"),
    [
        (POSTGRES, "integer", "7", "8"),
        (POSTGRES, "text", "a", "a "),
        (POSTGRES, "bytea", "\\x00ff", "\\x323535"),
        (MYSQL, "datetime", "2024-01-02 03:04:05", "2024-01-02 03:04:06"),
        (MYSQL, "decimal(10,2)", "0", "not a number"),
        (MYSQL, "varchar(20)", "", None),
    ],
)
def test_different_values(source: str, of_type: str, one: str, other: str | None) -> None:
    """Different values stay different."""
    kind = kind_of_value(source, of_type)
    assert neutral(kind, one) != neutral(kind, other)


class FakeSide:
    """A side with one table `t`."""

    def __init__(self, types: Mapping[str, str], rows: list[Row], **more: Any) -> None:
        self.kind = POSTGRES
        self._rows = rows
        self._facts = Facts(
            types=types,
            key=frozenset(more.get("key", ())),
            nullable=frozenset(more.get("nullable", ())),
        )

    def facts(self, schema: str, table: str) -> Facts | None:
        return self._facts if table == "t" else None

    def texts(self, schema: str, table: str, columns: Mapping[str, str]) -> list[Row]:
        return self._rows


ONE = FakeSide({"id": "integer"}, [("1",), ("2",)], key=["id"])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (FakeSide({"id": "integer"}, [("1",), ("2",)], key=["id"]), ""),
        (FakeSide({"id": "integer"}, [("2",), ("1",)], key=["id"], nullable=["id"]), ""),
        (FakeSide({"id": "integer"}, [("1",)], key=["id"]), "t: lacks id='2'"),
        (FakeSide({"id": "integer"}, [("1",), ("1",), ("2",)], key=["id"]), "t: has id='1'"),
        (FakeSide({"id": "integer"}, [("1",), ("2",)]), "t: key ['id'] became []"),
        (FakeSide({"ID": "integer"}, [], key=["ID"]), "t: columns ['id'] became ['ID']"),
    ],
)
def test_how_two_sides_differ(other: Any, said: str) -> None:
    """Sides differ by columns, key and rows, where each row is counted."""
    source: Any = ONE
    assert differences(source, other, "h0", "t0", "t") == ([said] if said else [])


def test_a_column_that_takes_no_null_any_more() -> None:
    """The target may accept NULL although the source does not, but not the reverse."""
    source: Any = FakeSide({"v": "text"}, [], nullable=["v"])
    target: Any = FakeSide({"v": "text"}, [])
    assert "NOT NULL in the target only" in differences(source, target, "h0", "t0", "t")[0]
    assert not differences(target, source, "h0", "t0", "t")


class FakeServed:
    """A served log with one table."""

    def __init__(self, names: list[str], rows: list[Row]) -> None:
        self._answer = names, rows

    def rows(self, schema: str, table: str) -> tuple[list[str], list[Row]]:
        if schema == "gone":
            raise psycopg.OperationalError("no such table")
        return self._answer


@pytest.mark.parametrize(
    ("schema", "served", "said"),
    [
        ("h0", FakeServed(["id"], [("2",), ("1",)]), ""),
        ("h0", FakeServed(["id"], [("1",), ("3",)]), "base: t: lacks id='2'"),
        ("h0", FakeServed(["id", "v"], []), "base: t: columns ['id'] became ['id', 'v']"),
        ("gone", FakeServed([], []), "base: t: error no such table"),
    ],
)
def test_how_the_fold_of_the_log_differs(schema: str, served: Any, said: str) -> None:
    """The fold differs by columns and rows; the server's answer is shown."""
    source: Any = ONE
    found = base_differences(source, served, schema, "t")
    assert (found[0] if found else "") == said


class Refusing:
    """A side that refuses statements that contain a word."""

    kind = POSTGRES

    def __init__(self, word: str) -> None:
        self.word = word
        self.ran: list[str] = []

    def run(self, sql: str) -> list[Any]:
        if self.word in sql:
            raise psycopg.errors.SyntaxError(sql)
        self.ran.append(sql)
        return []


def test_a_script_has_what_was_really_run() -> None:
    """A transaction that the server refused is rolled back, and is not in the script."""
    side: Any = Refusing("delete")
    history = Running(0, POSTGRES, SCRIPT)
    history.begin(side)
    history.run_round(side)
    history.run_round(side)
    history.run_round(side)
    assert side.ran[-3:] == ["begin", "insert into t values (2)", "rollback"]
    assert history.is_over
    assert history.script.steps == SCRIPT.steps[:2]


def test_features_are_known_by_one_name() -> None:
    """No feature is listed twice."""
    assert len(set(FEATURES)) == len(FEATURES)


def test_every_feature_that_is_a_statement_has_a_method() -> None:
    """Their methods are called by the features' names."""
    lacking = [name for name in (*ROWS, *ALTERS, *WHOLE) if not hasattr(Author, f"_{name}")]
    assert lacking == []
