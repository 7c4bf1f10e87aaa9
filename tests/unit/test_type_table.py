"""Table of types: what holds a type in another engine, what is lost, and what users must choose."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from penstock.codec.mysql.types import neutral_type
from penstock.codec.types import (
    LOSSES,
    Choices,
    Engine,
    Mapping,
    Server,
    TypeChoiceInvalid,
    TypeChoiceUnknown,
    builtin_types,
    map_column,
    map_table,
    parse_choices,
)
from penstock.model import (
    ColumnDefinition,
    Identity,
    TableDefinition,
    TableName,
    TypeDefinition,
    UniqueKey,
)

PG = Server(engine=Engine.POSTGRESQL, version=(18,))
MYSQL = Server(engine=Engine.MYSQL, version=(8, 0, 15))
MYSQL_NEW = Server(engine=Engine.MYSQL, version=(9, 7, 4))
MARIADB = Server(engine=Engine.MARIADB, version=(10, 11, 19))
MARIADB_OLD = Server(engine=Engine.MARIADB, version=(10, 5, 0))
SERVERS = (PG, MYSQL, MYSQL_NEW, MARIADB, MARIADB_OLD)
NAME = TableName("shop", "t")
NOPAD = "collate utf8mb4_nopad_bin"


def column(text: str, name: str = "v", **more: Any) -> ColumnDefinition:
    """Return a column of a type."""
    return ColumnDefinition(name=name, type_text=text, type_oid=0, typmod=-1, **more)


def map_type(
    text: str, source: Server, target: Server, choices: Choices | None = None, **more: Any
) -> Mapping:
    """Return the mapping of a type."""
    chosen = choices or Choices()
    return map_column(column(text, **more), source, target, choices=chosen, table=NAME)


def table(*columns: ColumnDefinition, key: tuple[str, ...] = (), **more: Any) -> TableDefinition:
    """Return a table of these columns."""
    return TableDefinition(
        name=NAME,
        source_id=1,
        columns=columns,
        primary_key=key,
        identity=Identity.DEFAULT,
        identity_columns=key,
        **more,
    )


@pytest.mark.parametrize("source", SERVERS, ids=str)
@pytest.mark.parametrize("target", SERVERS, ids=str)
def test_every_builtin_type_has_a_place_or_a_reason(source: Server, target: Server) -> None:
    """No type of any engine is forgotten: it is held, or refused by name."""
    for name in builtin_types(source.engine):
        text = f"{name}('a')" if name in ("enum", "set") else name
        mapping = map_type(text, source, target)
        assert bool(mapping.target_type) != bool(mapping.refused), name
        assert mapping.refused == "" or name == "vector"
        if not mapping.refused:
            assert "{}" in mapping.equal.source
            assert "{}" in mapping.equal.target


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bigint unsigned", "numeric(20,0)"),
        ("int(10) unsigned", "bigint"),
        ("tinyint(1)", "smallint"),
        ("decimal(65,30)", "numeric(65,30)"),
        ("bit(9)", "bit(9)"),
        ("time(3)", "interval(3)"),
        ("datetime(6)", "timestamp(6) without time zone"),
        ("timestamp", "timestamp(0) with time zone"),
        ("char(10)", "character varying(10)"),
        ("longtext", "text"),
        ("varbinary(10)", "bytea"),
        ("enum('a','b')", "text"),
        ("json", "json"),
        ("point", "bytea"),
        ("uuid", "uuid"),
        ("inet6", "inet"),
    ],
)
def test_mysql_types_in_postgres(text: str, expected: str) -> None:
    """Each type of MySQL is mapped to the PostgreSQL type that holds all of its values."""
    assert map_type(text, MARIADB, PG, neutral=neutral_type(text)).target_type == expected


@pytest.mark.parametrize(
    ("text", "neutral", "expected"),
    [
        ("boolean", "bool", "tinyint(1)"),
        ("oid", "uint32", "int unsigned"),
        ("xid8", "uint64", "bigint unsigned"),
        ("numeric(12,2)", "decimal(12,2)", "decimal(12,2)"),
        ("numeric(5,-2)", "decimal(7,0)", "decimal(7,0)"),
        ("numeric(3,5)", "string", "decimal(5,5)"),
        ("numeric", "string", "decimal(65,30)"),
        ("numeric(70,2)", "string", "decimal(65,30)"),
        ("timestamp(3) without time zone", "timestamp", "datetime(3)"),
        ("timestamp with time zone", "timestamptz", "datetime(6)"),
        ("time without time zone", "time", "time(6)"),
        ("bytea", "binary", "longblob"),
        ("uuid", "uuid", "char(36) character set ascii collate ascii_bin"),
        ("bit(64)", "string", "bit(64)"),
        ("character varying(5)", "string", f"varchar(5) character set utf8mb4 {NOPAD}"),
        ("character(5)", "string", f"char(5) character set utf8mb4 {NOPAD}"),
        ("integer[]", "string", f"longtext character set utf8mb4 {NOPAD}"),
        ("jsonb", "string", f"longtext character set utf8mb4 {NOPAD}"),
        ("public.mood", "string", f"longtext character set utf8mb4 {NOPAD}"),
    ],
)  # fmt: skip
def test_postgres_types_in_mariadb(text: str, neutral: str, expected: str) -> None:
    """Each type of PostgreSQL is mapped to one of the same values, or to its printed text."""
    assert map_type(text, PG, MARIADB, neutral=neutral).target_type == expected


@pytest.mark.parametrize("source", SERVERS, ids=str)
def test_the_same_engine_keeps_its_types(source: Server) -> None:
    """Between servers of one engine nothing is changed or lost."""
    for name in builtin_types(source.engine) - {"vector"}:
        text = f"{name}('a')" if name in ("enum", "set") else name
        if source is MARIADB_OLD and name in ("uuid", "inet4"):
            continue  # it does not have them itself
        mapping = map_type(text, source, source)
        assert (mapping.target_type, mapping.exact) == (text, True)


def test_what_a_version_lacks_is_text() -> None:
    """UUID and collations depend on versions: an older target holds the text, compared by bytes."""
    assert "ascii" in map_type("uuid", PG, MARIADB, neutral="uuid").target_type
    assert "ascii" in map_type("uuid", PG, MARIADB_OLD, neutral="uuid").target_type
    assert "ascii" in map_type("uuid", MARIADB, MYSQL).target_type
    assert "utf8mb4_0900_bin" in map_type("text", PG, MYSQL_NEW).target_type
    assert "collate utf8mb4_bin" in map_type("text", PG, MYSQL).target_type
    told = map_type("text", MYSQL, MARIADB, charset="utf8mb4", collation="utf8mb4_0900_ai_ci")
    assert "utf8mb4_nopad_bin" in told.target_type
    assert "utf8mb4_0900_ai_ci" in told.note
    kept = map_type("varchar(9)", MYSQL, MARIADB, charset="latin1", collation="latin1_german1_ci")
    assert kept.target_type == "varchar(9) character set latin1 collate latin1_german1_ci"


@pytest.mark.parametrize(
    ("text", "source", "target", "loss"),
    [
        ("date", MYSQL, PG, "zero dates"),
        ("datetime", MYSQL, PG, "zero dates"),
        ("varchar(9)", MYSQL, PG, "nul characters"),
        ("timestamp without time zone", PG, MYSQL, "dates out of range"),
        ("real", PG, MYSQL, "not a number"),
        ("numeric", PG, MYSQL, "digits"),
        ("decimal(65,38)", MARIADB, MYSQL, "digits"),
    ],
)
def test_losses_wait_for_a_choice(text: str, source: Server, target: Server, loss: str) -> None:
    """A pair with a possible loss may not run before the user has chosen what to do about it."""
    mapping = map_type(text, source, target)
    assert loss in [found.name for found in mapping.missing]
    assert (mapping.exact, mapping.may_run) == (False, False)
    everything = parse_choices({"*": "error"}, source.engine)
    chosen = map_type(text, source, target, everything)
    assert (chosen.exact, chosen.may_run) == (False, True)


def test_text_in_its_place_is_exact() -> None:
    """A type that is held as text by choice loses nothing."""
    choices = parse_choices({"zero dates": "text"}, Engine.MYSQL)
    mapping = map_type("datetime", MYSQL, PG, choices)
    assert (mapping.target_type, mapping.exact, mapping.may_run) == ("text", True, True)
    assert mapping.chosen == {"zero dates": "text"}


def test_the_narrowest_choice_counts() -> None:
    """A column has priority over its type, a type over the loss alone, all over the asterisk."""
    choices = parse_choices(
        {
            "*": "error",
            "zero dates": "null",
            "mysql:datetime zero dates": "text",
            "shop.t.w zero dates": "error",
        },
        Engine.MYSQL,
    )
    assert map_type("date", MYSQL, PG, choices).chosen == {"zero dates": "null"}
    assert map_type("datetime", MYSQL, PG, choices).chosen == {"zero dates": "text"}
    assert map_type("datetime", MYSQL, PG, choices, name="w").chosen == {"zero dates": "error"}
    assert map_type("char(3)", MYSQL, PG, choices).chosen == {"nul characters": "error"}


@pytest.mark.parametrize(
    ("key", "choice", "hint"),
    [
        ("zero date", "null", 'Did you mean "zero dates"?'),
        ("datetme zero dates", "null", 'Did you mean "datetime"?'),
        ("postgresql:date zero dates", "null", "Remove postgresql: or the whole entry"),
        ("whatever", "error", "Known are:"),
    ],
)
def test_unknown_choices_are_refused_with_the_nearest(key: str, choice: str, hint: str) -> None:
    """An unknown key stops the start; the error has the key that was probably meant."""
    with pytest.raises(TypeChoiceUnknown) as caught:
        parse_choices({key: choice}, Engine.MYSQL)
    assert hint in caught.value.hint


@pytest.mark.parametrize(("key", "choice"), [("zero dates", "nul"), ("*", "null")])
def test_impossible_choices_are_refused(key: str, choice: str) -> None:
    """A loss has its own choices, and no other can be chosen."""
    with pytest.raises(TypeChoiceInvalid):
        parse_choices({key: choice}, Engine.MYSQL)


def test_every_loss_has_a_choice() -> None:
    """No loss is without a choice."""
    assert all(loss.choices and loss.what for loss in LOSSES.values())


def test_keys_share_what_an_index_holds() -> None:
    """Text without a length is cut to the key's room, which is a loss to choose."""
    wide = table(
        column("text", "a"), column("bigint", "n"), column("character varying(20)", "b"),
        key=("a", "n", "b"),
    )  # fmt: skip
    found = map_table(wide, PG, MARIADB)
    assert found["b"].target_type.startswith("varchar(20) ")
    assert [loss.name for loss in found["a"].missing] == ["long keys"]
    assert found["a"].target_type.startswith(f"varchar({(3072 - 36 - 80) // 4}) ")
    alone = map_table(table(column("text", "a")), PG, MARIADB)
    assert alone["a"].target_type.startswith("longtext ")
    key = UniqueKey(name="u", columns=("a",), definition="", is_constraint=True)
    unique = map_table(table(column("bytea", "a"), unique_keys=(key,)), PG, MYSQL)
    assert unique["a"].target_type == "varbinary(3072)"


def test_old_servers_ignore_blanks_at_the_end_of_keys() -> None:
    """MySQL before 8.0.17 has no collation by bytes that distinguishes 'a' from 'a '."""
    keyed = table(column("character varying(20)", "a"), key=("a",))
    assert [x.name for x in map_table(keyed, PG, MYSQL)["a"].missing] == ["blanks in keys"]
    assert map_table(keyed, PG, MYSQL_NEW)["a"].exact
    assert map_table(keyed, PG, MARIADB)["a"].exact


def test_rows_that_are_too_wide_hold_long_texts() -> None:
    """A row of MySQL has 65,535 bytes: the longest varchars become long texts."""
    wide = table(*(column(f"character varying({1000 * n})", f"c{n}") for n in range(1, 12)))
    found = map_table(wide, PG, MYSQL)
    kinds = [mapping.target_type.split("(")[0].split(" ")[0] for mapping in found.values()]
    assert kinds == ["varchar"] * 5 + ["longtext"] * 6
    assert all(mapping.exact for mapping in found.values())


def test_too_many_columns_are_refused() -> None:
    """InnoDB has at most 1017 columns."""
    many = table(*(column("integer", f"c{n}") for n in range(1018)))
    assert "1017" in map_table(many, PG, MYSQL)["c0"].refused


def test_enums_in_keys_need_no_choice() -> None:
    """A label has at most 63 bytes."""
    mood = TypeDefinition(schema="public", name="mood", kind="e", create_sql="")
    keyed = table(column("public.mood", "a"), key=("a",), types=(mood,))
    assert map_table(keyed, PG, MARIADB)["a"].exact


def test_vectors_are_refused_by_name() -> None:
    """The refusal of a type names it."""
    for target in SERVERS:
        assert "vector" in map_type("vector(3)", MYSQL_NEW, target).refused


def test_the_page_about_types_is_current() -> None:
    """docs/types.md is what `make type-page` writes."""
    root = Path(__file__).resolve().parents[2]
    page = runpy.run_path(str(root / ".ci" / "type_page.py"))["page"]
    assert (root / "docs" / "types.md").read_text() == page()


@pytest.mark.parametrize("target", SERVERS)
def test_a_character_set_that_is_not_known_is_refused_by_the_plan(target: Server) -> None:
    """The refusal is not after the start: `filename` is the set that is missing."""
    told = map_type("varchar(9)", MYSQL, target, charset="filename", collation="filename")
    assert told.refused == "penstock does not read the character set filename"
    assert not map_type("varchar(9)", MYSQL, target, charset="utf8", collation="utf8_bin").refused


def test_a_year_of_two_digits_is_held_whole() -> None:
    """YEAR(2) holds a year, prints two digits of it, and is compared by all four."""
    for target, held in ((PG, "smallint"), (MYSQL, "year"), (MARIADB, "year")):
        told = map_type("year(2)", MARIADB, target)
        assert told.target_type == held
        assert "year({})" in told.equal.source
        assert "year(" not in told.equal.target
        assert "year(" not in map_type("year(4)", MARIADB, target).equal.source


@pytest.mark.parametrize(
    ("charset", "collation", "stored", "expected"),
    [
        ("utf8mb4", "utf8mb4_bin", "longtext", "json"),
        ("latin1", "latin1_bin", "longtext", "longtext character set latin1 collate latin1_bin"),
        ("utf8mb4", "utf8mb4_general_ci", "longtext",
         "longtext character set utf8mb4 collate utf8mb4_general_ci"),
        ("utf8mb4", "utf8mb4_bin", "longtext /*M!100301 COMPRESSED*/",
         "longtext /*M!100301 COMPRESSED*/ character set utf8mb4 collate utf8mb4_bin"),
    ],
)  # fmt: skip
def test_text_that_mariadb_checks_as_json_keeps_its_collation(
    charset: str, collation: str, stored: str, expected: str
) -> None:
    """The text's keys stay equal under it: JSON itself is compared by bytes."""
    more = {"charset": charset, "collation": collation, "base_type": stored}
    assert map_type("json", MARIADB, MARIADB, **more).target_type == expected
    assert map_type("json", MARIADB, PG, **more).target_type == "json"


def test_members_in_bytes_stay_so() -> None:
    """An ENUM or SET has CHARACTER SET binary; there is no collation to be named."""
    more = {"charset": "binary", "collation": "binary"}
    for kind in ("enum('a')", "set('a')"):
        assert map_type(kind, MYSQL, MARIADB, **more).target_type == f"{kind} character set binary"
        assert map_type(kind, MARIADB, PG, **more).target_type == "text"
