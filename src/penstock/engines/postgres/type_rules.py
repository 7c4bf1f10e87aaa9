"""Rules for changed types of PostgreSQL: whether a type is another one, and values stay equal."""

from __future__ import annotations

from penstock.codec.postgres.retyping import holds
from penstock.sql.shape_changes import TypeRules

TYPE_RULES = TypeRules(holds=holds, same=lambda left, right: left == right)
