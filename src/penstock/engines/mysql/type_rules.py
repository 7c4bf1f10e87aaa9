"""Rules for changed types of MySQL or MariaDB: which types are equal, and which keep values."""

from __future__ import annotations

from penstock.codec.mysql.retyping import keeps_values
from penstock.engines.mysql.target.layout import same_type
from penstock.sql.shape_changes import TypeRules

TYPE_RULES = TypeRules(
    holds=lambda wider, narrower: keeps_values(narrower, wider, strict=False), same=same_type
)
