"""The protections that `tests/mutate_protections.py` takes away are still where it looks."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from mutate_protections import MUTATIONS, Mutation

SOURCE = Path(penstock.__file__).parent


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_the_source(mutation: Mutation) -> None:
    """Who moves a protection moves its mutation along, or it is never tried again."""
    text = (SOURCE / mutation.file).read_text(encoding="utf-8")
    changed = mutation.applied(text)
    assert changed != text
    compile(changed, mutation.file, "exec")
