"""`penstock reset` of changefeeds: marks, staged rows, the position and the rows in the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.feeds.row_target import GROUP
from harness.feeds.sequencer import row
from harness.feeds.stage_site import Place, Site
from penstock.control.feeds import feed_rewind
from penstock.control.feeds.feed_rewind import RewindRefused
from penstock.model import TableName
from penstock.model.removal import Removal
from penstock.model.sections import StageMode
from penstock.ports import reset as at_target
from penstock.ports.feeds import leases_of


@pytest.fixture
def site() -> Iterator[Site]:
    """Two empty databases."""
    with ExitStack() as stack:
        yield Site(stack)


@pytest.fixture
def place(site: Site, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A pipeline."""
    return Place(site, monkeypatch)


@pytest.fixture
def reset(place: Place, site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[str]]:
    """Function that resets the pipeline and returns what is gone. Argument: target tables too."""
    section = SimpleNamespace(lease_seconds=60.0)
    gone: list[str] = []

    def plan_emptying(_url: str, tables: list[TableName]) -> tuple[Removal, ...]:
        return (Removal(what=f"rows of {tables[0]}", statements=("truncate t;",)),)

    def remove(_url: str, _removal: Removal) -> None:
        assert site.staging.checkpoints, "what is staged is forgotten last"
        site.target.rows["t"].clear()

    replaced = {
        "checked_sections": lambda _config: (section, site.staging),
        "paths_of": lambda _config: (Path("shop"),),
        "remove_directory": lambda _config: gone.append("the directory is removed"),
    }
    for name, found in replaced.items():
        monkeypatch.setattr(feed_rewind, name, found)
    monkeypatch.setattr(at_target, "plan_emptying", plan_emptying)
    monkeypatch.setattr(at_target, "remove", remove)
    place.config.directory = "shop"

    def carried_out(with_tables: bool) -> list[str]:
        found = feed_rewind.look(place.config, with_tables=with_tables)
        feed_rewind.carry_out(place.config, found, on_done=gone.append)
        return gone

    return carried_out


def test_a_reset_applies_what_is_staged_again(
    site: Site, reset: Callable[[bool], list[str]]
) -> None:
    """The staged rows stay, and so do the target's."""
    site.post(StageMode.CONSISTENT, row(3, 1, v=3))
    site.resolve(5)
    site.apply(StageMode.CONSISTENT)
    assert reset(False) == [
        "all marks of what is applied of shop.public in the staging database",
        "the directory is removed",
        "directory shop",
    ]
    assert site.values() == {"[1]": 3}
    site.target.rows["t"].clear()
    site.resolve(5)
    site.apply(StageMode.CONSISTENT)
    assert site.values() == {"[1]": 3}


def test_a_reset_with_the_target_begins_with_nothing(
    site: Site, reset: Callable[[bool], list[str]]
) -> None:
    """Rows staged before are not applied again: the feed sends the source's present rows."""
    site.post(StageMode.CONSISTENT, row(3, 1, v=3))
    site.resolve(5)
    site.apply(StageMode.CONSISTENT)
    gone = reset(True)
    assert "rows of public.t" in gone
    assert (site.values(), site.waiting(), site.staging.checkpoints) == ({}, [], {})
    site.post(StageMode.CONSISTENT, row(4, 2, v=4))
    site.resolve(5)
    site.apply(StageMode.CONSISTENT)
    assert site.values() == {"[2]": 4}


def test_a_schema_in_use_is_not_reset(site: Site, reset: Callable[[bool], list[str]]) -> None:
    """No row is removed while an instance works on it."""
    site.resolve(5)
    site.staging.acquire(leases_of(GROUP, ["t"])[:1], 60, "here")
    with pytest.raises(RewindRefused, match="an instance works on shop"):
        reset(False)
