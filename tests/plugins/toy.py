"""The toy engine as a package that is installed beside penstock, and databases of it.

Not here: the engine (`toy_engine`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.model import TableName
from penstock.ports.registry import ENTRY_POINTS, engines
from toy_engine.store import Row, Shape, Store

COLUMNS = (
    ("id", "integer", "int32"),
    ("name", "text", "string"),
    ("price", "numeric(12,2)", "decimal(12,2)"),
)
ITEM = TableName("public", "item")


def install(folder: Path) -> Path:
    """Make a folder for PYTHONPATH that holds the package, with an entry point as pip writes it."""
    site = folder / "site"
    about = site / "toy_engine-0.1.dist-info"
    about.mkdir(parents=True)
    (site / "toy_engine").symlink_to(Path(__file__).parents[1] / "toy_engine")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\ntoy = toy_engine:DESCRIPTOR\n")
    return site


@pytest.fixture
def toy_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the engine for this process and those that it starts."""
    site = install(tmp_path)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(site), os.environ.get("PYTHONPATH", ""))))
    engines.cache_clear()
    yield
    engines.cache_clear()


class ToyDatabase:
    """A file with a table of items, and the changes that a user makes to it."""

    def __init__(self, path: Path) -> None:
        self.store = Store.create(path)
        self.url = self.store.url

    def make_item(self) -> None:
        """Create the table."""
        self.store.make_table(Shape(table=ITEM, version=1, columns=COLUMNS, key=("id",)))

    def insert(self, *numbers: int, name: str = "new") -> None:
        """Insert rows in one transaction."""
        self.store.commit(*(("insert", ITEM, None, item(n, name)) for n in numbers))

    def buy(self, number: int) -> None:
        """Commit a transaction of several kinds of changes, including a change of a key."""
        old, moved = item(number, "old"), item(-number, "moved")
        self.store.commit(
            ("insert", ITEM, None, old),
            ("update", ITEM, old, item(number, "bought")),
            ("update", ITEM, item(number, "bought"), moved),
            ("insert", ITEM, None, item(number + 10**6, None)),
            ("delete", ITEM, item(number + 10**6, None), None),
        )

    def rows(self, *, at_source: bool) -> list[tuple[str | None, ...]]:
        """Return the items of the source's log, or those that a pipeline has applied."""
        if ITEM not in self.store.shapes():
            return []
        store = self.store
        found = store.rows_at(store.end(), ITEM) if at_source else store.rows(ITEM)
        return sorted((tuple(row.values()) for row in found), key=str)

    def close(self) -> None:
        """Close the file."""
        self.store.close()


def item(number: int, name: str | None) -> Row:
    """Return a row."""
    return {"id": str(number), "name": name, "price": f"{number}.50"}


@pytest.fixture
def toys(toy_installed: None, tmp_path: Path) -> Iterator[tuple[ToyDatabase, ToyDatabase]]:
    """Two databases: the first with a table, the second empty."""
    with ExitStack() as stack:
        first, second = (ToyDatabase(tmp_path / name) for name in ("first.db", "second.db"))
        for one in (first, second):
            stack.callback(one.close)
        first.make_item()
        yield first, second
