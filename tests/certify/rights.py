"""Rights of the user, examined by using each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.model import PenstockError


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A right, and whether it could be used. said: the server's refusal."""

    name: str
    is_there: bool
    said: str = ""


def try_rights(used: Sequence[tuple[str, str]], run: Callable[[str], object]) -> list[Right]:
    """Run the statement of each right; return which of them the user has.

    Args:
        used: What a right is for, and a statement that needs it.
        run: Runs a statement; raises PenstockError if it is refused.
    """
    found = []
    for name, text in used:
        try:
            run(text)
            found.append(Right(name=name, is_there=True))
        except PenstockError as error:
            found.append(Right(name=name, is_there=False, said=error.message))
    return found
