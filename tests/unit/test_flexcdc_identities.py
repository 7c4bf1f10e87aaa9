"""Identities of a changelog's columns: which source column each one holds, in any process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.pipelines.flexcdc_memory import MemorySession
from penstock.consume.flexcdc.captured import Changelogs, Identities
from penstock.consume.flexcdc.state import IDENTITIES, State
from penstock.host.errors import StatementFailed
from penstock.model import Column, Relation, TableName
from penstock.model.sections import ChangelogNames, FlexCdcSettings
from penstock.ports.changelog import OWN_COLUMNS

SETTINGS = FlexCdcSettings(
    dest="mysql://unused@127.0.0.1:1",
    auto_changelog=True,
    changelog_names=ChangelogNames.PLAIN,
)
TABLE = TableName("public", "item")


class Crash(Exception):
    """An error at which the process ends."""


class Dying(MemorySession):
    """A destination at which the process dies after so many statements that alter a table."""

    left: int | None = None

    def _alter(self, alter: Callable[..., None], *given: Any) -> None:
        alter(*given)
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise Crash

    def rename_column(self, table: TableName, old: str, new: str) -> None:
        """Rename the column; raise Crash if no statement is left."""
        self._alter(super().rename_column, table, old, new)


def shape(version: int, source_id: int = 1, **columns: int) -> Relation:
    """Return a shape of the table. columns: identities by name."""
    return Relation(
        schema=TABLE.schema,
        name=TABLE.name,
        columns=tuple(
            Column(name=name, source_type="text", neutral="string", id=number)
            for name, number in columns.items()
        ),
        source_id=source_id,
        version=version,
    )


def start_changelogs(session: MemorySession) -> Changelogs:
    """Return the changelogs as a new process finds them."""
    state = State(session, SETTINGS.names)
    state.require()
    found = Changelogs(state, SETTINGS, lambda _: None, lambda _: None, may_drop=True)
    found.refresh()
    return found


def columns(session: MemorySession) -> list[str]:
    """Return the changelog's columns without its own ones."""
    changelog = TableName(SETTINGS.database, "public_item")
    return [name for name in session.shape(changelog) or {} if name not in OWN_COLUMNS]


@pytest.fixture
def session() -> Dying:
    """A destination with state tables as an earlier version created them."""
    made = Dying()
    made.create_state(SETTINGS.names)
    return made


def put(session: MemorySession, **values: str) -> None:
    """Write a row into the changelog."""
    listed = ", ".join(f'"{name}"' for name in values)
    table = session.quote(SETTINGS.database, "public_item")
    marks = ", ".join("?" * len(values))
    session.driver.execute(f"insert into {table} ({listed}) values ({marks})", [*values.values()])


def read_changelog(session: MemorySession, listed: str) -> list[tuple[Any, ...]]:
    """Return the rows of the changelog."""
    table = session.quote(SETTINGS.database, "public_item")
    return [tuple(row) for row in session.driver.execute(f"select {listed} from {table}")]


def test_a_column_renamed_across_a_restart_keeps_its_images(session: Dying) -> None:
    """Only the state tables tell the new process which column it was."""
    start_changelogs(session).ensure(shape(1, id=1, a=2), drops=True)
    put(session, id="1", a="old")
    start_changelogs(session).ensure(shape(2, id=1, b=2), drops=True)
    assert columns(session) == ["id", "b"]
    assert read_changelog(session, "b") == [("old",)]


@pytest.mark.parametrize("dies_after", range(1, 6))
def test_names_swapped_across_restarts(session: Dying, dies_after: int) -> None:
    """Wherever the process dies in between, each column has its own images in the end."""
    start_changelogs(session).ensure(shape(1, id=1, a=2, b=3), drops=True)
    put(session, a="a", b="b")
    swapped = shape(2, id=1, a=3, b=2)
    session.left = dies_after
    try:
        start_changelogs(session).ensure(swapped, drops=True)
    except Crash:
        session.left = None
        start_changelogs(session).ensure(swapped, drops=True)
    assert sorted(columns(session)) == ["a", "b", "id"]
    assert read_changelog(session, "a, b") == [("b", "a")]


def test_a_name_used_again_has_no_old_images(session: Dying) -> None:
    """A dropped column stays for a while, and another one takes its name."""
    start_changelogs(session).ensure(shape(1, id=1, a=2), drops=True)
    put(session, id="1", a="old")
    start_changelogs(session).ensure(shape(2, id=1), drops=False)
    start_changelogs(session).ensure(shape(3, id=1, a=3), drops=False)
    assert read_changelog(session, "a") == [(None,)]


def test_a_name_used_again_in_another_case_has_no_old_images(session: Dying) -> None:
    """A destination that ignores case cannot have both columns under these names."""
    start_changelogs(session).ensure(shape(1, id=1, a=2), drops=True)
    put(session, id="1", a="old")
    start_changelogs(session).ensure(shape(2, id=1, A=3), drops=True)
    assert columns(session) == ["id", "A"]
    assert read_changelog(session, "A") == [(None,)]


def test_a_column_in_another_case_keeps_its_images(session: Dying) -> None:
    """A column of a recreated table, which is identified by name alone, keeps them, too."""
    start_changelogs(session).ensure(shape(1, id=1, a=2), drops=True)
    put(session, id="1", a="old")
    start_changelogs(session).ensure(shape(2, id=1, A=2), drops=True)
    assert columns(session) == ["id", "A"]
    start_changelogs(session).ensure(shape(3, source_id=7, id=8, a=9), drops=True)
    assert columns(session) == ["id", "a"]
    assert read_changelog(session, "a") == [("old",)]


def test_a_name_taken_over_in_the_middle_of_a_transaction(session: Dying) -> None:
    """Existing rows still have the dropped column, whose name another one has now."""
    found = start_changelogs(session)
    before, after = shape(1, id=1, a=2, b=3), shape(2, id=1, a=3)
    found.ensure(before, drops=True)
    fitting = found.fit_to(before, after)
    assert len({column.name for column in fitting.columns}) == 3
    found.ensure(fitting, drops=False)
    found.ensure(after, drops=False)
    assert found.fit_names(before) == fitting
    assert {column.name for column in fitting.columns} <= set(columns(session))
    found.ensure(after, drops=True)
    assert columns(session) == ["id", "a"]


def test_a_table_created_again_has_identities_of_its_own(session: Dying) -> None:
    """The table's columns are those of the same names, whatever their numbers are."""
    start_changelogs(session).ensure(shape(1, id=1, a=2), drops=True)
    start_changelogs(session).ensure(shape(2, source_id=7, nr=1, a=3), drops=False)
    assert columns(session) == ["id", "a", "nr"]


def shape_of_types(version: int, source_id: int = 1, **kinds: str) -> Relation:
    """Return a shape without identities. kinds: types by name."""
    made = shape(version, source_id, **dict.fromkeys(kinds, 0))
    columns = [replace(one, source_type=kinds[one.name]) for one in made.columns]
    return replace(made, columns=tuple(columns))


def test_a_column_holds_the_rows_of_each_shape_of_a_transaction(session: Dying) -> None:
    """Two columns swap their names in it, and the log does not tell which is which."""
    changelog = TableName(SETTINGS.database, "public_item")
    found = start_changelogs(session)
    before, after = (
        shape_of_types(1, a="timestamp", v="text", n="int"),
        shape_of_types(2, a="int", v="int", n="int"),
    )
    found.ensure(before, drops=False)
    retyped: list[tuple[str, str]] = []
    session.retype_column = lambda _, name, kind: retyped.append((name, kind))  # type: ignore[method-assign]
    found.ensure(after, drops=False, beside=[before, after])
    assert retyped == [("a", session.text_type)]
    assert (session.shape(changelog) or {})["v"].lower() == "text"


@pytest.mark.parametrize("number", [2, 0])
def test_bytes_of_a_retyped_column_have_a_column_of_their_own(session: Dying, number: int) -> None:
    """One transaction has rows with bytes, and rows with numbers, in one column."""
    found = start_changelogs(session)
    before, after = shape(1, id=1, a=number), shape(2, id=1, a=number)
    blob = replace(before.columns[1], source_type="blob", neutral="binary")
    before = replace(before, columns=(before.columns[0], blob))
    found.ensure(before, drops=False)
    fitting = found.fit_to(before, after)
    assert [column.name for column in fitting.columns] == ["id", f"a_penstock_{number}"]
    found.ensure(fitting, drops=False, beside=[fitting, after])
    found.ensure(after, drops=False, beside=[fitting, after])
    assert columns(session) == ["id", "a", f"a_penstock_{number}"]
    assert found.fit_names(before) == fitting


def test_a_table_created_again_in_a_transaction_keeps_the_names_of_earlier_rows(
    session: Dying,
) -> None:
    """The numbers of its columns are those of other columns."""
    found = start_changelogs(session)
    before, after = shape(1, id=1, a=2), shape(2, source_id=7, x=1, b=2)
    assert found.fit_to(before, after) == before


def test_a_column_without_a_number_gives_its_name_to_one_that_has_it(session: Dying) -> None:
    """The log tells which column has the name now, and not what became of the other."""
    found = start_changelogs(session)
    before, after = shape(1, id=1, c=2, b=0), shape(2, id=1, b=2, c=0)
    names = [column.name for column in found.fit_to(before, after).columns]
    assert names == ["id", "b", "b_penstock_0"]
    assert found.fit_to(shape(1, id=1, b=0), after).columns[1].name == "b"


class Refusing(Dying):
    """A destination with values that some types lack."""

    lacking: tuple[str, ...] = ()

    def retype_column(self, table: TableName, name: str, kind: str) -> None:
        """Raise StatementFailed for a type that lacks a value."""
        if kind in self.lacking:
            raise StatementFailed(f"{kind} lacks a value of {name}")


def test_values_that_are_no_text_are_kept_under_another_name() -> None:
    """A column of bytes was dropped, and the table created again with a text of its name."""
    session = Refusing()
    session.create_state(SETTINGS.names)
    start_changelogs(session).ensure(shape_of_types(1, id="int", a="blob"), drops=False)
    put(session, id="1", a="bytes")
    session.lacking = ("mood", session.text_type)
    found = start_changelogs(session)
    found.ensure(shape_of_types(2, 7, id="int", a="mood"), drops=False)
    assert columns(session) == ["id", "a_penstock_old1", "a"]
    assert read_changelog(session, "a_penstock_old1, a") == [("bytes", None)]
    session.lacking = ("json", session.text_type)
    found.ensure(shape_of_types(3, 8, id="int", a="json"), drops=False)
    assert columns(session) == ["id", "a_penstock_old1", "a_penstock_old2", "a"]


def test_a_state_of_an_earlier_version_gets_the_column(session: Dying) -> None:
    """The state begins without identities, which are stored with the first shape."""
    mvlogs = SETTINGS.names.table(SETTINGS.names.mvlogs)
    assert IDENTITIES not in (session.shape(mvlogs) or {})
    found = start_changelogs(session)
    assert IDENTITIES in (session.shape(mvlogs) or {})
    found.ensure(shape(1, id=1, a=2), drops=True)
    (stored,) = State(session, SETTINGS.names).mvlogs()
    assert Identities.parse(stored.identities).names == {1: "id", 2: "a"}
