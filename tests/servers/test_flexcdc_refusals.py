"""Refusals of FlexCDC at work: each is one typed error, and no row of the transaction is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.extract import set_up
from harness.pipelines.flexcdc import Flex
from penstock.consume.flexcdc.calling import PluginFailed, TruncateNotTaken
from penstock.consume.flexcdc.captured import ChangelogMissing, ColumnNameTaken, TableUnknown
from penstock.consume.flexcdc.following import LogBegins, LogOther
from penstock.consume.flexcdc.state import StateExists, StateMissing, StateMoved
from penstock.consume.plugins import CALLBACKS, Plugin
from penstock.log import list_segments
from penstock.log.layout import SegmentMissing
from penstock.ports.changelog import RowImagesLost

TABLE = (
    "create table t (id int primary key, v text); alter table t replica identity full;"
    "insert into t values (1, 'a')"
)

Make = Callable[..., Flex]


@pytest.fixture
def flex(source_url: str, target_url: str, tmp_path: Path) -> Make:
    """Make a FlexCDC between two databases of PostgreSQL."""

    def make(ddl: str = TABLE, **more: Any) -> Flex:
        set_up(source_url, ddl)
        return Flex(source_url, target_url, tmp_path, **more)

    return make


def sql(one: Flex, statement: str) -> None:
    """Run a statement at the destination; {} is the changelog of t, [state] its database."""
    with one.state() as (state, _):
        session = state.session
        name = session.quote(*one.changelog("t"))
        database = session.quote(one.settings.database)
        session.run(statement.format(name, database=database), doing="testing")


def test_state_that_is_there_or_is_not(flex: Make) -> None:
    """Setup does not overwrite an existing state, and no other command runs before it."""
    one = flex()
    with pytest.raises(StateMissing, match="has no table"):
        one.flexcdc().run(lambda: True, on_place=lambda _: None)
    one.begin("t")
    with (
        one.flexcdc().connect() as (state, _),
        pytest.raises(StateExists, match="Setup aborted!"),
    ):
        state.create(force=False)
    one.source_sql("insert into t values (2, 'b')")
    one.step()
    assert len(one.images("t")) == 1


def test_another_process_moved_the_state(flex: Make) -> None:
    """The rows of a batch and its position are committed together: no row is written twice."""
    one = flex()
    one.begin("t")
    one.source_sql("insert into t values (2, 'b')")
    one.step()
    with one.state() as (state, _):
        place = state.place()
        state.session.begin()
        with pytest.raises(StateMoved, match="was left at"):
            state.check_place(type(place)(log_id=place.log_id, trx=place.trx - 1))
        state.session.rollback()


def test_a_log_that_is_another_or_begins_later(flex: Make) -> None:
    """The position belongs to one log; missing changes are never skipped."""
    one = flex()
    one.begin("t")
    one.source_sql("insert into t values (2, 'b')")
    one.step()
    images = one.images("t")
    sql(one, "update {database}.penstock_place set log_id = 'another'")
    one.source_sql("insert into t values (3, 'c')")
    one.extract()
    with pytest.raises(LogOther, match="another"):
        one.follow()
    assert one.images("t") == images


def test_a_log_with_a_hole(flex: Make) -> None:
    """The log has lost its first segments, or the position is of a transaction before
    they begin.
    """
    one = flex()
    one.begin("t")
    one.source_sql("insert into t values (2, 'b')")
    one.step()
    images = one.images("t")
    one.source_sql("insert into t values (3, 'c')")
    one.extract()
    sql(one, "update {database}.penstock_place set trx = 0")
    with pytest.raises(LogBegins, match="the changes between are gone"):
        one.follow()
    sql(one, "update {database}.penstock_place set segment = -1")
    list_segments(one.directory / "log")[0].path.unlink()
    with pytest.raises(SegmentMissing):
        one.follow()
    assert one.images("t") == images


def test_what_cannot_be_captured(flex: Make) -> None:
    """A table that does not exist is refused, and one whose column has the name of ours."""
    one = flex(TABLE + '; create table taken (id int primary key, "fv$gsn" int)')
    one.begin("t")
    with pytest.raises(TableUnknown, match="TABLE NOT EXISTS OR ACCESS DENIED"):
        one.add("nothing")
    with pytest.raises(ColumnNameTaken, match="fv\\$gsn"):
        one.add("taken")


def test_a_changelog_that_is_gone(flex: Make) -> None:
    """Rows of a dropped changelog are not dropped silently."""
    one = flex()
    one.begin("t")
    sql(one, "drop table {}")
    one.source_sql("insert into t values (2, 'b')")
    one.extract()
    with pytest.raises(ChangelogMissing, match="is not there"):
        one.follow()


def test_a_changelog_that_takes_fewer_rows(flex: Make) -> None:
    """A user's trigger that drops rows is noticed by their count, and no row is kept."""
    one = flex()
    one.begin("t")
    sql(
        one,
        "create function {database}.nothing() returns trigger language plpgsql as"
        " 'begin return null; end'",
    )
    sql(
        one,
        "create trigger a before insert on {} for each row execute function {database}.nothing()",
    )
    one.source_sql("insert into t values (2, 'b')")
    one.extract()
    with pytest.raises(RowImagesLost, match="0 row images, 1 were sent"):
        one.follow()


class Failing(Plugin):
    """A plugin that raises in the middle of a transaction."""

    def insert(self, *_: Any) -> None:
        """Raise ZeroDivisionError."""
        raise ZeroDivisionError("on purpose")


class FailingAtEnds(Plugin):
    """A plugin that raises at the start, or in a row and at every end after it."""

    def __init__(self, *callbacks: str) -> None:
        self.callbacks = callbacks
        self.seen: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        """Record the name of each callback."""
        if name not in CALLBACKS:
            return object.__getattribute__(self, name)

        def call(*_: Any) -> None:
            self.seen.append(name)
            if name in self.callbacks:
                raise ZeroDivisionError("on purpose")

        return call


class Deaf(Plugin):
    """A plugin without a method for TRUNCATE."""


def test_plugins_that_fail(flex: Make) -> None:
    """The error names plugin, place and reason; the position stays."""
    one = flex(plugins=[Failing()])
    one.begin("t")
    one.source_sql("insert into t values (2, 'b')")
    one.extract()
    with pytest.raises(PluginFailed, match="Failing failed in insert: ZeroDivisionError"):
        one.follow()
    one.plugins = [("Deaf", Deaf())]
    one.follow()
    one.source_sql("truncate t")
    one.extract()
    with pytest.raises(TruncateNotTaken, match="Deaf has no method truncate"):
        one.follow()


def test_plugins_that_fail_at_the_start_or_at_the_end(flex: Make) -> None:
    """One error has the plugin's name; every plugin that was started is told of the end."""
    starts, good = FailingAtEnds("plugin_init"), FailingAtEnds()
    one = flex(plugins=[good, starts])
    one.begin("t")
    one.source_sql("insert into t values (2, 'b')")
    one.extract()
    with pytest.raises(PluginFailed, match="failed in plugin_init: ZeroDivisionError"):
        one.follow()
    assert good.seen == ["plugin_init", "plugin_deinit"]
    ends, good = FailingAtEnds("insert", "rollback_trx", "plugin_deinit"), FailingAtEnds()
    one.plugins = [("Ends", ends), ("Good", good)]
    with pytest.raises(PluginFailed, match="Ends failed in insert"):
        one.follow()
    assert good.seen[-2:] == ["rollback_trx", "plugin_deinit"]
    one.plugins = [("Late", FailingAtEnds("plugin_deinit"))]
    with pytest.raises(PluginFailed, match="Late failed in plugin_deinit"):
        one.follow()
