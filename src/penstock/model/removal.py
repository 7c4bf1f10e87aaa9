"""What `penstock reset` takes back: one thing that a pipeline made, and the SQL that removes it.

Not here: what a server holds of a pipeline (`ports.reset`, `ports.leftovers`), and the order in
which it goes (`control.reset`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """One thing to take back. statements: run unchanged, in this order, in one session.

    by_hand: why somebody else has to run them; empty for what penstock does itself.
    """

    what: str
    statements: tuple[str, ...]
    by_hand: str = ""
