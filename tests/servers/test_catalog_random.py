"""Queries made by chance, on real servers and on the served catalogue: alike, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_catalog_compare import Pair
from fix_catalog_random import Queries
from fix_examples import examples
from fix_postgres import Server

REFUSED_MAX = 0.2
_counts = {"asked": 0, "refused": 0}


@pytest.fixture(scope="module")
def pair(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A real server and a catalogue that claims its version."""
    url = postgres.make_database("catalog")
    made = Pair(url, tmp_path_factory.mktemp("catalog"), postgres.version)
    yield made
    made.close()
    postgres.drop_database(url)


@examples(2)
@given(seed=st.integers(0, 2**32))
def test_alike_or_refused_by_name(pair: Pair, seed: int) -> None:
    """The same columns, types and rows, or the same SQLSTATE; 0A000 is not an answer."""
    sql = Queries(Random(seed)).query()
    real, ours = pair.on_real(sql), pair.on_ours(sql)
    _counts["asked"] += 1
    _counts["refused"] += ours == "0A000"
    assert ours in (real, "0A000"), sql


def test_few_are_refused() -> None:
    """What the test before has asked was in the subset: most of it has been answered."""
    assert _counts["asked"], "run this file as a whole"
    assert _counts["refused"] <= REFUSED_MAX * _counts["asked"]
