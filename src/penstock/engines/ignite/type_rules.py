"""Rules for changed types of Ignite: whether a type is another one, and whether values stay
equal.
"""

from __future__ import annotations

from penstock.codec.ignite.kinds import holds
from penstock.sql.shape_changes import TypeRules

TYPE_RULES = TypeRules(holds=holds, same=lambda left, right: left == right)
