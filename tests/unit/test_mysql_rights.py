"""Output of SHOW GRANTS, read as the servers print it."""

from __future__ import annotations

from penstock.engines.mysql.source.rights import Rights, parse_grant
from penstock.model import TableName

T = TableName("shop", "item")


def rights(*lines: str) -> Rights:
    """Return rights from lines of SHOW GRANTS."""
    return Rights(grants=tuple(grant for line in lines if (grant := parse_grant(line))))


def test_rights_on_everything() -> None:
    """Global rights hold for every table; the new name of a right counts as the old one."""
    found = rights(
        "GRANT SELECT, RELOAD, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `u`@`%`"
        " IDENTIFIED BY PASSWORD '*7B'",
        "GRANT BACKUP_ADMIN,FLUSH_TABLES ON *.* TO `u`@`%`",
    )
    assert found.has("RELOAD")
    assert found.has("replication client")
    assert found.has("SUPER", "flush_tables")
    assert found.has_on(T, "select")
    assert not found.has("PROCESS")
    assert not found.has_on(T, "insert")


def test_all_privileges() -> None:
    """MariaDB writes them in two words."""
    found = rights("GRANT ALL PRIVILEGES ON *.* TO `w`@`%` WITH GRANT OPTION")
    assert found.has("RELOAD")
    assert found.has_on(T, "lock tables")


def test_schemas_are_patterns() -> None:
    """Schemas have wildcards unless a backslash escapes them; tables are names."""
    found = rights(
        "GRANT SELECT ON `sh_p`.* TO `u`@`%`",
        r"GRANT INSERT ON `sh\_p`.* TO `u`@`%`",
        "GRANT DELETE, UPDATE ON `shop`.`item` TO `u`@`%`",
        "GRANT ALL PRIVILEGES ON `s``x%`.* TO `u`@`%`",
    )
    assert found.has_on(T, "select")
    assert not found.has_on(T, "insert")
    assert found.has_on(TableName("sh_p", "x"), "insert")
    assert found.has_on(T, "delete")
    assert not found.has_on(TableName("shop", "items"), "delete")
    assert found.has_on(TableName("s`xyz", "x"), "drop")
    assert not found.has("SELECT"), "not on everything"
    assert found.lacking_on([T, TableName("other", "x")], "select") == [("other", "x")]


def test_rights_on_columns_are_none_on_the_table() -> None:
    """A row could not be read completely."""
    found = rights("GRANT SELECT (`id`, `b)`), INSERT ON `shop`.`item` TO `u`@`%`")
    assert not found.has_on(T, "select")


def test_what_is_revoked_in_a_schema() -> None:
    """MySQL 8 can exclude a schema from a global right."""
    found = rights(
        "GRANT SELECT, INSERT ON *.* TO `u`@`%`",
        "REVOKE SELECT ON `shop`.* FROM `u`@`%`",
    )
    assert not found.has_on(T, "select")
    assert found.has_on(T, "insert")
    assert found.has_on(TableName("other", "x"), "select")


def test_roles_and_routines_say_nothing_of_tables() -> None:
    """Lines that are not about tables are ignored."""
    assert (
        rights(
            "GRANT `r`@`%` TO `u`@`%`",
            "GRANT EXECUTE ON PROCEDURE `shop`.`p` TO `u`@`%`",
            "GRANT PROXY ON ''@'' TO 'root'@'localhost' WITH GRANT OPTION",
            "SET DEFAULT ROLE `r` FOR `u`@`%`",
        )
        == Rights()
    )
