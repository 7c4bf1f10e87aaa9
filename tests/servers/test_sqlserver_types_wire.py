"""Types of SQL Server with their extremes, over the wire: from tables and from change tables.

The values are those of `harness.servers.sqlserver_types`, which other tests take as what the driver
returns. So this is also a check of these values. Not here: their way to other servers
(`test_sqlserver_types.py`, `test_sqlserver_types_run.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from harness.servers.sqlserver_literals import literal_of, storable_values
from harness.servers.sqlserver_place import SQLServerPlace
from harness.servers.sqlserver_types import TYPES
from penstock.codec.sqlserver.columns import SourceColumn, make_columns, select_expression
from penstock.engines.sqlserver.connect import connect
from penstock.engines.sqlserver.reading.catalog import captured_tables
from plugins.sqlserver import SimServer, as_test

NAMES = list(TYPES)


@pytest.fixture(scope="module")
def place(sqlserver: SimServer) -> Iterator[SQLServerPlace]:
    """A database with a captured table of each type, filled, updated and deleted from."""
    found = SQLServerPlace(sqlserver)
    for number, name in enumerate(NAMES):
        text = f"CREATE TABLE dbo.t{number} (id int NOT NULL PRIMARY KEY, n int, v {name})"
        found.run_unchanged(text)
        found.capture(f"t{number}")
        for key, value in enumerate(storable_values(name)):
            column = "" if name == "rowversion" else f", {literal_of(name, value)}"
            listed = "id, n" if name == "rowversion" else "id, n, v"
            found.run(f"insert into t{number} ({listed}) values ({key}, 0{column})")
        found.run(f"update t{number} set n = 1", f"delete from t{number} where n = 1 and id < 0")
    found.wait_captured()
    yield found
    found.drop()


def read(url: str, text: str) -> pa.Table:
    """Return the rows of a query, as the engine reads them."""
    with connect(as_test(url)) as session:
        return pa.Table.from_batches(session.arrow(text))


def take_values(table: pa.Table, name: str) -> list[Any]:
    """Return the values of column v in the log's form."""
    (batch,) = table.select(["v"]).combine_chunks().to_batches() or [None]
    column = SourceColumn.of("v", name)
    return list(make_columns(batch, [column]).arrays[0].to_pylist())


def expect_values(name: str) -> list[Any]:
    """Return the same of the values that the harness takes as the driver's."""
    values = pa.array(storable_values(name), TYPES[name].arrow)
    batch = pa.record_batch({"v": values})
    return list(make_columns(batch, [SourceColumn.of("v", name)]).arrays[0].to_pylist())


@pytest.mark.parametrize("name", NAMES)
def test_a_table_has_the_value(place: SQLServerPlace, name: str) -> None:
    """The driver returns what was inserted, in the type that the harness says."""
    shown = select_expression(SourceColumn.of("v", name))
    found = read(place.url, f"SELECT {shown} FROM [dbo].[t{NAMES.index(name)}] ORDER BY [id]")
    if name == "rowversion":
        (value,) = take_values(found, name)
        assert len(value) == 8
        return
    assert take_values(found, name) == expect_values(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_change_table_has_the_value(place: SQLServerPlace, name: str) -> None:
    """An insert has it; an update of another column has it too, unless it is large."""
    column = SourceColumn.of("v", name)
    shown = select_expression(column)
    query = (
        f"SELECT {shown} FROM [cdc].[dbo_t{NAMES.index(name)}_CT] "
        "WHERE [__$operation] = {} ORDER BY [id]"
    )
    inserted, updated = (take_values(read(place.url, query.format(kind)), name) for kind in (2, 4))
    if name == "rowversion":
        assert inserted < updated
        return
    assert inserted == expect_values(name)
    hidden = column.kind.is_large
    assert updated == ([None] * len(inserted) if hidden else inserted)


def test_the_catalogue_has_each_type(place: SQLServerPlace) -> None:
    """The definitions that the engine reads have the types that were written."""
    with connect(place.url) as session:
        found = {one.name.name: one for one in captured_tables(session, ["dbo.*"])}
    for number, name in enumerate(NAMES):
        (column,) = [one for one in found[f"t{number}"].columns if one.name == "v"]
        assert column.type_text == SourceColumn.of("v", name).kind.text, name
