"""Object of a pipeline on a server, and the SQL by which `penstock reset` removes it.

Not here: what a server holds of a pipeline (`ports.reset`, `ports.reset`), and the order of
removal (`control.run.reset`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """One object to remove.

    Attributes:
        what: names the object.
        statements: run unchanged, in this order, in one session.
        by_hand: why the operator has to run the statements; empty if penstock runs them.
    """

    what: str
    statements: tuple[str, ...]
    by_hand: str = ""
