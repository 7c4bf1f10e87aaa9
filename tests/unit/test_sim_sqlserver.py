"""Parts of the simulated SQL Server that need no server, and its table of known texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlfluff
import sqlglot
from sqlglot import exp

from sim_sqlserver.change_rows import lsn_bytes, mask_of
from sim_sqlserver.errors import SqlError
from sim_sqlserver.lexer import BatchSyntaxError, If, Statement, parse_batch
from sim_sqlserver.names import POSTGRES_BYTES_MAX, NameBook, short_name
from sim_sqlserver.rewrite import rewrite
from sim_sqlserver.sqltypes import MAX, SqlType, parse_type
from sim_sqlserver.texts import KnownTexts, facts_of, read_texts, shape_of, shorten

KNOWN_MAX = 250
KNOWN = Path(__file__).parents[1] / "data" / "sqlserver_known_texts.sql"
SQLFLUFF, SQLGLOT = "sqlfluff", "sqlglot"
# Beginnings of statements that are right, though a grammar does not have them, with its reason.
UNREADABLE = {
    ("INSERT BULK", SQLFLUFF): "the driver's bulk copy sends it; no page describes its grammar",
    ("INSERT BULK", SQLGLOT): "the same",
    ("ALTER TABLE [n] NOCHECK CONSTRAINT", SQLGLOT): "kept as a command",
    ("ALTER TABLE [n] WITH CHECK CHECK CONSTRAINT", SQLGLOT): "kept as a command",
    ("ALTER TABLE [n] DISABLE TRIGGER", SQLGLOT): "kept as a command",
    ("ALTER TABLE [n] ENABLE TRIGGER", SQLGLOT): "kept as a command",
    ("ALTER TABLE [n] ADD [n] TYPE NULL CONSTRAINT [n] DEFAULT", SQLGLOT): "a named default",
    ("ALTER TABLE [n] ADD [n] TYPE NULL CONSTRAINT [n] DEFAULT", SQLFLUFF): "WITH VALUES",
    ("ALTER TABLE [n] ADD [n] TYPE NOT NULL CONSTRAINT [n] DEFAULT", SQLFLUFF): "WITH VALUES",
    ("ALTER TABLE [n] ADD [n] TYPE NOT NULL CONSTRAINT [n] DEFAULT", SQLGLOT): "a named default",
    ("ALTER TABLE [n] ADD CONSTRAINT [n] DEFAULT", SQLGLOT): "kept as a command",
    ("SELECT @@TRANCOUNT ; DECLARE @Column_Names", SQLGLOT): "the driver's: text behind OUTPUT",
    ("SET IDENTITY_INSERT", SQLGLOT): "kept as a command",
    ("SET TRANSACTION ISOLATION LEVEL SNAPSHOT", SQLGLOT): "it knows the four standard levels",
    ("UPDATE STATISTICS", SQLGLOT): "kept as a command",
    ("KILL", SQLFLUFF): "it does not have the statement",
}


def heads(batch: str) -> list[str]:
    """Return the first words of a batch's statements."""
    return [node.head if isinstance(node, Statement) else type(node).__name__
            for node in parse_batch(batch)]  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ("SET NOCOUNT ON SET XACT_ABORT ON BEGIN TRAN INSERT INTO t(a) SELECT 1 UPDATE t SET a=1 "
         "COMMIT",
         ["SET", "SET", "BEGIN", "INSERT", "UPDATE", "COMMIT"]),
        ("ALTER TABLE t ADD b int NULL DROP TABLE x", ["ALTER", "DROP"]),
        ("ALTER TABLE t DROP COLUMN IF EXISTS a; SELECT 1", ["ALTER", "SELECT"]),
        ("MERGE t USING s ON 1=1 WHEN MATCHED THEN UPDATE SET a=1 WHEN NOT MATCHED THEN INSERT (a) "
         "VALUES (1); SELECT 2", ["MERGE", "SELECT"]),
        ("SELECT CASE WHEN 1=1 THEN 2 ELSE 3 END UNION ALL SELECT 3 IF @@TRANCOUNT>0 COMMIT",
         ["SELECT", "If"]),
        ("WITH c AS (SELECT 1 a) DELETE FROM c; -- end", ["WITH"]),
        ("CREATE TABLE t (a int REFERENCES b (c) ON DELETE SET NULL ON UPDATE CASCADE) SELECT 1",
         ["CREATE", "SELECT"]),
        ("SELECT 'IF BEGIN END' /* SELECT */ FROM [select]", ["SELECT"]),
    ],
)  # fmt: skip
def test_batches_are_divided(batch: str, expected: list[str]) -> None:
    """Statements end where the next begins, with and without semicolons."""
    assert heads(batch) == expected


def test_if_has_its_branches() -> None:
    """ELSE belongs to its IF, after a block or a statement."""
    (node,) = parse_batch("IF 1 = 1 SELECT 1; ELSE BEGIN SELECT 2 END")
    assert isinstance(node, If)
    assert (node.condition, node.otherwise is not None) == ("1 = 1", True)
    with pytest.raises(BatchSyntaxError):
        parse_batch("BEGIN SELECT 1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nvarchar(max)", SqlType("nvarchar", length=MAX)),
        ("DECIMAL", SqlType("decimal", precision=18)),
        ("datetime2", SqlType("datetime2", scale=7)),
        ("float(24)", SqlType("real")),
        ("national character varying(5)", SqlType("nvarchar", length=5)),
        ("varbinary", SqlType("varbinary", length=1)),
    ],
)
def test_types_have_their_defaults(text: str, expected: SqlType) -> None:
    """A spelling that leaves out lengths has those of the server."""
    assert parse_type(text) == expected


def test_masks_and_lsns() -> None:
    """The last byte of a mask has the first eight ordinals; LSNs keep the order of places."""
    assert mask_of([0, 8], 9).hex() == "0101"
    assert mask_of(range(27), 27).hex() == "07ffffff"
    places = [0, 255, 256, 2**28 - 1, 2**28, 2**40]
    assert sorted(map(lsn_bytes, places)) == list(map(lsn_bytes, places))
    assert {len(lsn_bytes(place)) for place in places} == {10}


def test_long_names_stay_distinct() -> None:
    """PostgreSQL's names are shorter; two long names do not become one."""
    first, second = "a" * 120 + "1", "a" * 120 + "2"
    assert short_name(first) != short_name(second)
    assert len(short_name(first).encode()) <= POSTGRES_BYTES_MAX
    assert short_name("x" * 63) == "x" * 63


def test_names_are_found_in_any_case() -> None:
    """An exact name comes first, then one of a user, then one of the system."""
    book = NameBook()

    def load() -> list[tuple[str, bool]]:
        return [("Name", False), ("id", False), ("ID", False), ("name", True), ("tables", True)]

    assert book.spelling("NAME", load) == "Name"
    assert book.spelling("NAME", load, is_system=True) == "name"
    assert [book.spelling(name, load) for name in ("id", "ID", "TABLES", "new")] == [
        "id", "ID", "tables", "new"
    ]  # fmt: skip


def test_shapes_leave_out_what_differs_among_tables() -> None:
    """Names, literals, types and lengths of lists do not matter; words do."""
    first = "INSERT INTO [a].[b] ([c], [d], [e]) VALUES (@P1, @P2, @P3)"
    assert facts_of(first) >= facts_of("INSERT INTO [x].[y] ([z])  VALUES (@P1)")
    assert not facts_of("SELECT [a] FROM [t] WITH (NOLOCK)") <= facts_of("SELECT [a] FROM [t]")
    assert facts_of("CREATE TABLE [t] ([a] int NOT NULL, [b] nvarchar(9) NOT NULL)") >= facts_of(
        "CREATE TABLE [u] ([c] decimal(3, 1) NOT NULL)"
    )


@pytest.mark.parametrize(
    "other",
    [
        "SELECT [a] FROM [t] WHERE [b] = 1 OR [c] = 2",
        "SELECT [a], MAX([b]) FROM [t] WHERE [b] = 1 AND [c] = 2",
        "SELECT [a] FROM [t] AS x WHERE [b] = 1",
        "SELECT [a] FROM [t] WHERE [b] > 1",
        "SELECT [a] FROM [t] WHERE [b] = 1 ORDER BY [c]",
        "SELECT CASE WHEN [a] = 1 THEN [b] END FROM [t]",
        "DELETE FROM [t] WHERE [b] = 1",
        "SELECT [a] FROM [t] WHERE [b] = 1; SELECT 5",
        "SELECT [a] FROM [t] WHERE [b] = CAST(1 AS int)",
    ],
)
def test_another_word_is_another_text(other: str) -> None:
    """A connector, function, comparison, clause or statement that was never sent is new."""
    known = facts_of("SELECT [a] FROM [t] WHERE [b] = 1 AND [c] = 2")
    assert not facts_of(other) <= known
    assert facts_of("SELECT [d], [e] FROM [u] WHERE [c] = 9") <= known


def test_a_file_of_texts_is_shortened() -> None:
    """A text whose facts others have is left out; the rest is sorted."""
    texts = ["SELECT [a] FROM [t]", "DELETE FROM [t]", "SELECT [a], 1 FROM [u]"]
    assert shorten(texts) == ["DELETE FROM [t]", "SELECT [a], 1 FROM [u]"]


def test_an_unknown_text_is_refused(tmp_path: Path) -> None:
    """A strict server refuses a text with a new fact, and names it."""
    known = tmp_path / "known.sql"
    KnownTexts((), known).check("SELECT [a] FROM [t] WHERE [b] = 1")
    strict = KnownTexts((known,), None)
    strict.check("SELECT [c] FROM [u] WHERE [d] = 2")
    with pytest.raises(SqlError, match="unknown text: DELETE") as caught:
        strict.check("DELETE FROM [t]")
    assert caught.value.number == 50_001


def test_rewriting_keeps_a_querys_meaning() -> None:
    """Hints, brackets, TOP, casts and joined changes become PostgreSQL's."""

    def postgres(text: str) -> str:
        return rewrite(text, lambda name: name, lambda _, __: [], "db").sql

    assert postgres("SELECT TOP (2) [a b] FROM [s].[t] WITH (NOLOCK) OPTION (RECOMPILE)") == (
        'SELECT "a b" FROM "s"."t" LIMIT 2'
    )
    assert postgres("DELETE d FROM t AS d JOIN u ON u.a = d.a WHERE u.b = 1") == (
        'DELETE FROM "t" AS "d" USING "u" WHERE "u"."a" = "d"."a" AND "u"."b" = 1'
    )
    assert postgres("UPDATE d SET d.x = 1 FROM t AS d JOIN u ON u.a = d.a") == (
        'UPDATE "t" AS "d" SET "x" = 1 FROM "u" WHERE "u"."a" = "d"."a"'
    )
    assert postgres("SELECT [a] FROM db.dbo.t WHERE b = @p") == (
        'SELECT "a" FROM "dbo"."t" WHERE "b" = "ms$v$p"'
    )
    with pytest.raises(SqlError, match="Database 'other' does not exist"):
        postgres("SELECT 1 FROM other.dbo.t")


def lacks(text: str, grammar: str) -> bool:
    """Return whether a grammar is known not to have a text."""
    shape = shape_of(text)
    return any(shape.startswith(start) for start, name in UNREADABLE if name == grammar)


@pytest.mark.parametrize("text", read_texts(KNOWN), ids=lambda text: shape_of(text)[:60])
def test_two_grammars_read_known_texts(text: str) -> None:
    """Sqlfluff and sqlglot, with T-SQL, read each text that penstock sends."""
    assert parse_batch(text)
    # The grammar reserves two names of columns that SQL Server's own examples write so.
    bracketed = re.sub(r"\.(precision|definition)\b", r".[\1]", text)
    if not lacks(text, SQLFLUFF):
        assert sqlfluff.parse(bracketed, dialect="tsql")
    if not lacks(text, SQLGLOT):
        trees = sqlglot.parse(text, dialect="tsql")
        assert trees
        assert not any(isinstance(tree, exp.Command) for tree in trees), "kept as it is"


@pytest.mark.parametrize(("start", "grammar"), UNREADABLE)
def test_texts_that_a_grammar_lacks_are_sent(start: str, grammar: str) -> None:
    """An exception that no known text needs any more is removed."""
    assert any(shape_of(text).startswith(start) for text in read_texts(KNOWN)), grammar


def test_known_texts_are_few() -> None:
    """Each text of the file adds something; `python -m sim_sqlserver.texts` removes the others."""
    texts = read_texts(KNOWN)
    assert texts == shorten(texts)
    assert len(texts) < KNOWN_MAX
