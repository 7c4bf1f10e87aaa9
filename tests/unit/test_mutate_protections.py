"""The mistakes that `tests/mutate_protections.py` plants still fit the source."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import penstock
from mutate_protections import ROOT, Mutant, rates, read_mutants

SOURCE = Path(penstock.__file__).parent
MUTANTS = read_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_fits_the_source(mutant: Mutant) -> None:
    """Who moves a protection moves its mistake along, or it is never planted again."""
    text = (SOURCE / mutant.file).read_text(encoding="utf-8")
    changed = mutant.applied(text)
    assert changed != text
    if not mutant.is_kernel:
        compile(changed, mutant.file, "exec")
    paths = [part for part in mutant.tests.split() if part.startswith("tests/")]
    assert paths
    for path in paths:
        assert (ROOT / path.partition("::")[0]).is_file(), path


def test_the_list_is_long_and_mostly_needs_no_server() -> None:
    """120 mistakes at least, each with a name of its own, nine of ten found without a server."""
    assert len(MUTANTS) >= 120
    assert [name for name, count in Counter(m.name for m in MUTANTS).items() if count > 1] == []
    alone = sum(not mutant.needs_server for mutant in MUTANTS)
    assert alone >= 0.9 * len(MUTANTS)


def test_the_rate_counts_what_was_found() -> None:
    """By package, and in all; what only a server's test finds is not counted as alone."""
    few = [
        Mutant(name="a", file="log/x.py", old="1", new="2", tests="tests/unit/test_x.py"),
        Mutant(name="b", file="log/x.py", old="1", new="2", tests="tests/servers/test_x.py"),
        Mutant(name="c", file="web/x.py", old="1", new="2", tests="tests/unit/test_x.py"),
    ]
    assert rates(few, {"a", "b"}) == [
        "log: 2 of 2 found",
        "web: 0 of 1 found",
        "all: 2 of 3 planted mistakes found, 1 without a server",
    ]
