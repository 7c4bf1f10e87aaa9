"""The number of examples of a slow property test, as a share of the profile's number.

The profiles and their numbers are in conftest.py. The assertions of a test are the same in all.
"""

from __future__ import annotations

from hypothesis import settings


def examples(share: float) -> settings:
    """Return settings with this share of the profile's examples; at least two, as the first is
    trivial.
    """
    return settings(max_examples=max(2, round(settings().max_examples * share)))
