"""Captured caches of an Ignite node, chosen by the patterns and by requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.ignite.source import make_work_directory
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import ConfigValueInvalid
from penstock.control.pipeline.servers import followed_tables
from penstock.control.pipeline.table_requests import put_request, read_answers, read_requests
from penstock.control.verify.verify import NotComparable, verify
from penstock.engines.ignite.directory import open_directory
from penstock.engines.ignite.source import captures
from penstock.engines.ignite.source.captures import Captures
from penstock.engines.ignite.source.scan import StateDirectory
from penstock.engines.ignite.source.shapes import KeptColumn, KeptShape, Shapes, table_of
from penstock.host.errors import ConnectionLost
from penstock.model import TableName
from penstock.model.table_requests import Capture, TableRequest
from penstock.ports.config import Config
from penstock.ports.tables import tables_at

ADDRESS = "&address=127.0.0.1:1"
SCANNED = KeptShape(
    version=1,
    columns=[
        KeptColumn(name="_key", side="key", field="", kind="int", neutral="int32"),
        KeptColumn(name="_val", side="value", field="", kind="varchar", neutral="string"),
    ],
    has_rows=True,
)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The list of caches that were scanned; the node returns a row of each."""
    seen: list[str] = []

    def look(_config: Config, _directory: Any, caches: Any, **_: Any) -> dict[str, KeptShape]:
        names = [one.name for one in caches]
        seen.extend(names)
        return dict.fromkeys(names, SCANNED)

    monkeypatch.setattr(captures, "scanned_shapes", look)
    return seen


def pipeline(
    folder: Path, *, address: str = ADDRESS, target: bool = True, tables: str = "*"
) -> Config:
    """A pipeline over a node with the caches `one` and `two`."""
    work = make_work_directory(folder, {}, "one", "two")
    more = '[target]\nurl = "postgresql://unused@127.0.0.1:1/none"\n' if target else ""
    file = folder / "node.toml"
    file.write_text(
        f'[pipeline]\nname = "node"\ndirectory = "{folder / "p"}"\n'
        + ('mode = "change"\n' if target else "")
        + f'[source]\nurl = "ignite://{work}?consistentId=n{address}"\ntables = ["{tables}"]\n'
        + more
    )
    return load_config(file)


def begin_captures(config: Config, known: dict[str, KeptShape] | None = None) -> Captures:
    """Begin like the extractor. known: what is kept of caches."""
    files = StateDirectory(config)
    shapes = Shapes(files=files)
    shapes.take(known or {})
    found = Captures(config, open_directory(config.source.url), files, shapes)
    found.begin()
    return found


def ask(config: Config, cache: str, capture: Capture) -> TableRequest:
    """Put a request as `penstock table` does."""

    def change(_: TableRequest, number: int) -> TableRequest:
        return TableRequest(
            table=table_of(cache), capture=capture, capture_id=number, copy_id=number
        )

    return put_request(config, table_of(cache), change)


@pytest.fixture
def knows(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Tell of which caches the columns are known."""

    def know_caches(*names: str) -> None:
        shapes = Shapes(files=None)  # type: ignore[arg-type]
        shapes.take(dict.fromkeys(names, SCANNED))
        relations = [shapes.known_relation(name, 7) for name in names]
        for module in ("source.captures", "tables"):
            monkeypatch.setattr(
                f"penstock.engines.ignite.{module}.known_relations", lambda _: relations
            )

    return know_caches


def test_what_is_made_later_waits_to_be_asked_for(
    tmp_path: Path, scans: list[str], knows: Callable[..., None]
) -> None:
    """The log gets its shape when its table can be created, and the next start knows of it."""
    config = pipeline(tmp_path)
    knows("one")
    first = begin_captures(config)
    assert [first.takes(name) for name in ("one", "two")] == [True, False]
    known = followed_tables(config)
    assert known is not None
    assert known.names == {table_of("one")}
    knows("one", "two")
    there = tables_at(config.source.url).present(config, config.source.tables, known)
    assert there is not None
    assert there.new == {table_of("two")}
    request = ask(config, "two", Capture.ADDED)
    assert not read_answers(config).is_done(request)
    [relation] = first.tend()
    assert (relation.name, [one.name for one in relation.columns]) == ("two", ["_key", "_val"])
    assert scans == ["two"]
    assert first.takes("two")
    assert read_answers(config).is_done(request)
    again = begin_captures(config)
    assert [again.takes(name) for name in ("one", "two")] == [True, True]
    assert list(again.tend()) == []


def test_without_rows_to_copy_the_patterns_decide(
    tmp_path: Path, scans: list[str], knows: Callable[..., None]
) -> None:
    """Caches are captured from the first change on if there is no target, or no address."""
    knows()
    for number, (address, target) in enumerate(((ADDRESS, False), ("", True))):
        folder = tmp_path / str(number)
        folder.mkdir()
        config = pipeline(folder, address=address, target=target)
        found = begin_captures(config)
        assert found.takes("one")
        assert found.takes("made later")
        assert followed_tables(config) is None
        request = ask(config, "elsewhere", Capture.ADDED)
        assert list(found.tend()) == []
        assert read_answers(config).is_done(request)
    assert scans == []


def test_removed_and_added_again(
    tmp_path: Path, scans: list[str], knows: Callable[..., None]
) -> None:
    """The request may also be written while no process runs."""
    config = pipeline(tmp_path)
    knows("one", "two")
    begin_captures(config)
    request = ask(config, "two", Capture.REMOVED)
    found = begin_captures(config)
    assert [found.takes(name) for name in ("one", "two")] == [True, False]
    assert read_answers(config).is_done(request)
    ask(config, "two", Capture.ADDED)
    assert [one.name for one in found.tend()] == ["two"]
    assert found.takes("two")


def test_what_cannot_be_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: Callable[..., None]
) -> None:
    """No cache of this name and a cache with columns are refused. If the node is away, it is asked
    again.
    """
    config = pipeline(tmp_path)
    knows("one")
    found = begin_captures(config)
    for cache, rows, said in (("nowhere", SCANNED, "no cache"), ("two", None, "no row")):
        monkeypatch.setattr(
            captures,
            "scanned_shapes",
            lambda *_, cache=cache, rows=rows, **__: {} if rows is None else {cache: rows},
        )
        request = ask(config, cache, Capture.ADDED)
        found._next_look_s = 0
        assert list(found.tend()) == []
        answer = read_answers(config).of(TableName("public", cache))
        assert answer is not None
        assert read_answers(config).refuses(request)
        assert (answer.code, said in answer.error) == ("IG74", True)
        assert not found.takes(cache)

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionLost("it is away", hint="Start it.")

    monkeypatch.setattr(captures, "scanned_shapes", away)
    request = ask(config, "two", Capture.ADDED)
    found._next_look_s = 0
    assert list(found.tend()) == []
    assert request in read_answers(config).open(read_requests(config).tables)


def test_tables_are_not_compared(tmp_path: Path, knows: Callable[..., None]) -> None:
    """`penstock verify` says so, and what to do instead."""
    knows("one")
    config = pipeline(tmp_path)
    with pytest.raises(NotComparable) as caught:
        verify(config)
    assert "Apache Ignite" in caught.value.message
    assert "penstock table resync node.toml" in caught.value.hint


def test_rows_do_not_come_before_a_directory(tmp_path: Path) -> None:
    """A consumer of the node's directory cannot start with a snapshot; one of the log can."""
    config = pipeline(tmp_path, target=False)
    file = config.path
    consumer = '[consumers.seen]\nclass = "none:None"\nstart = "snapshot"\n'
    file.write_text(file.read_text() + consumer)
    with pytest.raises(ConfigValueInvalid, match="direct = false"):
        load_config(file)
    file.write_text(file.read_text() + "direct = false\n")
    assert "seen" in load_config(file).consumers
