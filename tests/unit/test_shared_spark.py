"""Settings of the Spark that several pipelines share."""

from __future__ import annotations

import os

import pytest

from penstock.load.shared_spark import SLOTS_PER_CORE, with_more_slots


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*,4]", "spark://host:7077"])
def test_a_master_that_is_written_in_the_file_stays(master: str) -> None:
    """The file chooses the number of tasks."""
    assert with_more_slots(master) == master


def test_the_default_master_has_several_slots_for_each_core() -> None:
    """A number of slots that Spark understands."""
    assert with_more_slots("local[*]") == f"local[{SLOTS_PER_CORE * (os.cpu_count() or 0)}]"
