"""The process that Spark forks workers from."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAY = (
    "from penstock.load.daemon import prepare; prepare();"
    " import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
)


@pytest.mark.parametrize(("given", "used"), [("", "system"), ("mimalloc", "mimalloc")])
def test_the_allocator_is_chosen_before_arrow_is_there(given: str, used: str) -> None:
    """The system's, unless the user says otherwise."""
    words = {name: value for name, value in os.environ.items() if not name.startswith("ARROW_")}
    if given:
        words["ARROW_DEFAULT_MEMORY_POOL"] = given
    done = subprocess.run(
        [sys.executable, "-c", SAY], env=words, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [used]
