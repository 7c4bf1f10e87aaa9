"""Tests of later keys, for the modules that name the target: test_*schema_policies.py."""

from __future__ import annotations

from dataclasses import replace

from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import insert
from harness.pipelines.policies import (
    BASE,
    DDL,
    ID,
    MORE,
    NAME,
    TABLE,
    Begin,
    N,
    build_shape,
    read_state,
    settle,
)
from penstock.model import MarkerKind


class LaterKeys:
    """A table gets a key, or another one."""

    def test_the_key_of_a_table_that_is_created_again(self, begin: Begin, log: LogMaker) -> None:
        """The target has a key of other columns, too, although it had rows when it was altered."""
        target = begin(DDL)
        log.transaction(insert(BASE, 1, "a", 10), insert(BASE, 2, "b", 20))
        log.close_segment()
        settle(target, log)
        other = replace(MORE, name="nr", nullable=False, id=5)
        again = build_shape(other, replace(NAME, name="w", id=6), version=2)
        log.transaction((MarkerKind.TRUNCATE, [TABLE]), insert(again, 7, "x"))
        log.close_segment()
        settle(target, log)
        assert read_state(target, "key") == ["nr"]
        assert target.rows("select nr, w from t") == [(7, "x")]

    def test_a_key_that_the_source_gets_later(self, begin: Begin, log: LogMaker) -> None:
        """A table without a key gets the source's."""
        target = begin("create table t (id int not null, name varchar(20), n int not null)")
        log.transaction(insert(build_shape(ID, NAME, N, version=1, key=()), 1, "a", 10))
        log.transaction(insert(replace(BASE, version=2), 2, "b", 20))
        log.close_segment()
        settle(target, log)
        assert read_state(target, "key") == ["id"]
