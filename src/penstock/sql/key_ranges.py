"""Conditions of SQL for ranges of a key, for servers without row constructors in comparisons. Pure.

Names are quoted and bounds are expressions of SQL, one for each column of the key, in its order.
"""

from __future__ import annotations

from collections.abc import Sequence

Bound = tuple[str, ...]


def at_least(names: Sequence[str], bound: Bound) -> str:
    """Return the condition `key >= bound`, column by column."""
    return _compare(names, bound, ">", ">=")


def below(names: Sequence[str], bound: Bound) -> str:
    """Return the condition `key < bound`."""
    return _compare(names, bound, "<", "<")


def between(names: Sequence[str], lower: Bound | None, upper: Bound | None) -> str:
    """Return the condition `lower <= key < upper`; None is an open end, and "" the whole table."""
    parts = []
    if lower is not None:
        parts.append(at_least(names, lower))
    if upper is not None:
        parts.append(below(names, upper))
    return " AND ".join(parts)


def _compare(names: Sequence[str], bound: Bound, strict: str, last: str) -> str:
    alternatives = []
    for place, name in enumerate(names):
        comparison = last if place == len(names) - 1 else strict
        equal = [f"{names[before]} = {bound[before]}" for before in range(place)]
        alternatives.append(" AND ".join([*equal, f"{name} {comparison} {bound[place]}"]))
    if len(names) == 1:
        return alternatives[0]
    # A condition on the first column alone lets the server begin at the right place.
    whole = " OR ".join(f"({alternative})" for alternative in alternatives)
    return f"({names[0]} {strict}= {bound[0]} AND ({whole}))"
