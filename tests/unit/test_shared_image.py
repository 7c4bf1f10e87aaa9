"""Row images that servers of different engines compute alike: the parts of their SQL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Engine, Server
from penstock.control.verify.compare import ColumnIncomparable, compared_columns, shared_images
from penstock.engines.mysql import checksum as checksum_mysql
from penstock.engines.postgres import checksum
from penstock.model import ColumnDefinition, TableDefinition, TableName
from penstock.ports.verify import Dialect, Hasher, Part

MYSQL = Server(engine=Engine.MYSQL, version=(8, 0, 36))
MARIADB = Server(engine=Engine.MARIADB, version=(10, 11, 8))
POSTGRES = Server(engine=Engine.POSTGRESQL, version=(18,))
NAME = TableName("d", "t")
TABLE_SYNC: tuple[Dialect, Dialect] = (checksum_mysql, checksum)
ALIKE: tuple[Dialect, Dialect] = (checksum_mysql, checksum_mysql)


def column(name: str, type_text: str, neutral: str, **more: str) -> ColumnDefinition:
    """Return a column of MySQL."""
    return ColumnDefinition(
        name=name, type_text=type_text, type_oid=0, typmod=-1, neutral=neutral, **more
    )


TABLE = TableDefinition(
    name=NAME,
    source_id=1,
    columns=(
        column("id", "int", "int32"),
        column("v", "varchar(40)", "string", charset="utf8mb4"),
        column("b", "longblob", "binary"),
        column("x", "text", "string", charset="utf8mb4"),
        column("g", "int", "int32", generated="v"),
    ),
    primary_key=("id",),
    identity_columns=("id",),
)


def test_texts_have_their_length_and_long_values_are_digests() -> None:
    """No two rows have one image, and none exceeds a packet's limit."""
    servers = ServerPair(source=MYSQL, target=POSTGRES)
    source, target = shared_images(TABLE, NAME, TABLE.columns, servers, TABLE_SYNC)
    assert "char_length" in source.row
    assert "length(" in target.row
    assert "sha2(`b`, 256)" in source.row
    assert 'sha256("b")' in target.row
    assert "sha2((convert(`x` using utf8mb4)), 256)" in source.row
    assert source.row.count("'N'") == target.row.count("'N'") == len(TABLE.columns)
    assert source.key.count("`") == 2


def test_a_table_without_a_key_is_its_rows() -> None:
    """Key and row have one image."""
    keyless = replace(
        TABLE, primary_key=(), identity_columns=tuple(c.name for c in TABLE.columns[:4])
    )
    source, target = shared_images(
        keyless, NAME, keyless.columns, ServerPair(source=MARIADB, target=POSTGRES), TABLE_SYNC
    )
    assert source.key == source.row
    assert target.key == target.row


def test_what_the_target_computes_is_compared_where_it_is_there() -> None:
    """Between servers of one kind such columns are not copied, and are compared if they exist."""
    same = ServerPair(source=MARIADB, target=MARIADB)
    found = compared_columns(TABLE, same, ALIKE, present={"id", "v"})
    assert [c.name for c in found] == ["id", "v", "b", "x"]
    assert compared_columns(TABLE, same, ALIKE, present={"g"})[-1].name == "g"


@pytest.mark.parametrize(("target", "forms"), [(MARIADB, ALIKE), (POSTGRES, TABLE_SYNC)])
def test_what_mysql_computes_is_an_ordinary_value_elsewhere(
    target: Server, forms: tuple[Dialect, Dialect]
) -> None:
    """A server of another kind has other functions: values are sent with the rows."""
    other = ServerPair(source=MYSQL, target=target)
    assert compared_columns(TABLE, other, forms, present={})[-1].name == "g"


def test_what_postgresql_computes_is_not_compared_with_what_mysql_does() -> None:
    """The two have different functions; between servers of one engine it is compared."""
    theirs = replace(
        TABLE,
        columns=(
            column("id", "integer", "int32"),
            column("g", "integer", "int32", generated="s"),
        ),
    )
    servers = ServerPair(source=POSTGRES, target=MYSQL)
    found = compared_columns(theirs, servers, (checksum, checksum_mysql), present={"id", "g"})
    assert [c.name for c in found] == ["id"]


def test_a_column_that_is_not_translated_cannot_be_compared() -> None:
    """The error names it and the table."""
    odd = replace(TABLE, columns=(*TABLE.columns, column("q", "vector(3)", "string")))
    with pytest.raises(ColumnIncomparable, match=r"column q of d\.t"):
        shared_images(odd, NAME, odd.columns, ServerPair(source=MYSQL, target=POSTGRES), TABLE_SYNC)


def test_both_dialects_ask_for_the_same_numbers() -> None:
    """Both compute one sum per bucket; rows have the same condition."""
    servers = ServerPair(source=MYSQL, target=POSTGRES)
    images = shared_images(TABLE, NAME, TABLE.columns, servers, TABLE_SYNC)
    part = Part(relation=NAME, where="id < 5")
    ours = checksum_mysql.bucket_query(images[0], part, 64, Hasher.SHARED)
    theirs = checksum.bucket_query(images[1], part, 64, Hasher.SHARED)
    for query in (ours, theirs):
        assert "where id < 5" in query
        assert "& 63" in query
        assert query.count("sum(") == 1
    assert checksum_mysql.chosen_rows(images[0], 64, [1, 2], None, Hasher.SHARED).endswith(
        "in (1, 2)"
    )
    assert "any(array[7]::bigint[])" in checksum.chosen_rows(images[1], 64, [1], [7], Hasher.SHARED)
    assert "in (-7)" in checksum_mysql.chosen_rows(images[0], 64, [1], [-7], Hasher.SHARED)
