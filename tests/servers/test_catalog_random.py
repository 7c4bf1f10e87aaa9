"""Random queries on real servers and on the served catalogue: equal answers, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.servers.catalog_compare import Pair
from harness.servers.catalog_random import Queries
from harness.twins.examples import examples
from plugins.postgres import Server

QUERY_COUNT = 100
REFUSED_MAX = QUERY_COUNT // 5


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
    """Columns, types and rows are equal, or the SQLSTATE is; 0A000 is not an answer."""
    sql = Queries(Random(seed)).query()
    real, ours = pair.on_real(sql), pair.on_ours(sql)
    assert ours in (real, "0A000"), sql


def test_few_are_refused(pair: Pair) -> None:
    """Most queries are answered, so that there is something to compare."""
    queries = [Queries(Random(seed)).query() for seed in range(QUERY_COUNT)]
    assert sum(pair.on_ours(sql) == "0A000" for sql in queries) <= REFUSED_MAX
