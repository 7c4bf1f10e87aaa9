"""Positions are printed and parsed by the engine that a log, or a URL, names."""

from __future__ import annotations

import pytest

from penstock.model.position import POSITION_MAX, PositionInvalid
from penstock.ports.positions import has_wide_positions, kind_in_log
from penstock.ports.registry import engines

TEXTS = {"postgresql": "16/B3740", "mysql": "binlog.000003:154"}


@pytest.mark.parametrize(("engine", "text"), TEXTS.items())
def test_a_log_names_the_engine_that_prints_its_positions(engine: str, text: str) -> None:
    """The name is a scheme of the engine's URLs, and the printed position can be parsed."""
    kind = kind_in_log(engine)
    position = kind.parse(text)
    assert str(position) == str(kind(position.ordinal)) == text
    assert 0 < position.ordinal <= POSITION_MAX
    assert not has_wide_positions(engine)


@pytest.mark.parametrize("engine", ["one of tomorrow", ""])
def test_positions_of_an_unknown_engine_are_not_guessed(engine: str) -> None:
    """Such positions are not printed, and Python returns them as they are in the log."""
    with pytest.raises(PositionInvalid, match="are not known") as caught:
        kind_in_log(engine)
    assert caught.value.code == "PS01"
    assert has_wide_positions(engine)


def test_every_source_has_positions() -> None:
    """An engine that can be extracted from can also print its position."""
    for engine in engines():
        if "extraction" in engine.parts:
            assert {"position", "positions"} <= engine.parts.keys()
