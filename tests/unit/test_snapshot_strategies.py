"""Strategies to read tables at one point, if no changes follow, and no binlog is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.engines.mysql.connect import ServerVersion
from penstock.engines.mysql.source.rights import Grant, Rights
from penstock.engines.mysql.source.strategies import Facts, NoConsistentPoint, Strategy, choices
from penstock.model import TableDefinition, TableName

TABLE = TableDefinition(
    name=TableName("d", "t"), source_id=1, columns=(), primary_key=("id",), engine="InnoDB"
)


def facts(version: str, rights: Rights) -> Facts:
    """Return facts of a server whose account has these rights, and one table with a key."""
    return Facts(
        server=ServerVersion.parse(version), rights=rights, has_gtids=True, tables=(TABLE,)
    )


def strategies(found: Facts) -> list[Strategy]:
    """Return the strategies that may be tried."""
    return [one.strategy for one in choices(found)]


NOTHING = Rights()
TABLES = Rights(grants=(Grant(rights=frozenset({"LOCK TABLES"}), schema="d", table="*"),))
RELOAD = Rights(grants=(Grant(rights=frozenset({"RELOAD"}), schema="*", table="*"),))


def test_no_privilege_to_ask_for_the_position_is_needed() -> None:
    """A lock is enough if no changes follow; otherwise the account must read the position."""
    for rights, strategy in ((TABLES, Strategy.TABLE_LOCKS), (RELOAD, Strategy.GLOBAL_LOCK)):
        with pytest.raises(NoConsistentPoint):
            choices(facts("8.0.15", rights))
        assert strategies(replace(facts("8.0.15", rights), follows=False)) == [strategy]


def test_snapshots_of_several_moments_need_changes_that_follow() -> None:
    """The tables would otherwise never be equal to the source at one commit."""
    maria = facts("10.11.19-MariaDB", NOTHING)
    assert strategies(maria) == [Strategy.OWN_POSITIONS, Strategy.LOCK_FREE]
    assert strategies(replace(maria, follows=False)) == [Strategy.OWN_POSITIONS]
    with pytest.raises(NoConsistentPoint) as caught:
        choices(replace(facts("8.0.15", NOTHING), follows=False))
    assert "only changes that follow" in caught.value.message


def test_a_server_without_a_binlog_has_no_positions() -> None:
    """Strategies that compare them are not tried."""
    maria = replace(facts("10.11.19-MariaDB", RELOAD), follows=False, has_log=False)
    assert strategies(maria) == [Strategy.GLOBAL_LOCK]
