"""How many examples a costly property test takes, as a share of the profile's number.

The profiles and their numbers are in conftest.py. What a test asserts is the same in all of them.
"""

from __future__ import annotations

from hypothesis import settings


def examples(share: float) -> settings:
    """Settings with this share of the profile's examples; two at least, as the first is trivial."""
    return settings(max_examples=max(2, round(settings().max_examples * share)))
